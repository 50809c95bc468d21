"""The page of PEFT's options says what the import goes by."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from edge_client.adapters.peft_options import READ, REFUSED, UNUSED

SCRIPT = Path(__file__).parents[2] / "scripts" / "peft_options.py"


def _script() -> Any:
    spec = spec_from_file_location("peft_options_page", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_the_one_that_the_tables_give() -> None:
    script = _script()
    told = "docs/reference/peft-options.md is old: run scripts/peft_options.py"
    assert script.PAGE.read_text() == script.page(), told


def test_every_option_has_a_line() -> None:
    page = _script().page()
    for table in (READ, UNUSED, REFUSED):
        for options in table.values():
            assert all(f"| `{name}` |" in page for name in options)
