"""docs/privacy.md says of every field that leaves a device what it is and what it reveals."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "privacy_page.py"


@pytest.fixture(scope="module")
def generator() -> Any:
    spec = importlib.util.spec_from_file_location("privacy_page", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_wire_says_today(generator: Any) -> None:
    said = "docs/privacy.md is out of date; python scripts/privacy_page.py"
    assert generator.PAGE.read_text(encoding="utf-8") == generator.page(), said


@pytest.mark.parametrize("name", ["Report.loss", "Confidences.counts", "Enrol.name", "work.wait_s"])
def test_a_field_that_leaves_without_a_line_is_named(generator: Any, name: str) -> None:
    fewer = {key: told for key, told in generator.REVEALS.items() if key != name}
    with pytest.raises(generator.PageError, match=rf"{name} has no line in REVEALS"):
        generator.page(reveals=fewer)


def test_a_field_that_comes_in_without_a_line_is_named(generator: Any) -> None:
    fewer = {key: told for key, told in generator.LEARNS.items() if key != "Work.prior"}
    with pytest.raises(generator.PageError, match=r"Work\.prior has no line in LEARNS"):
        generator.page(learns=fewer)


def test_a_line_of_a_field_that_is_gone_is_named(generator: Any) -> None:
    with pytest.raises(generator.PageError, match=r"Report\.error has a line"):
        generator.page(reveals={**generator.REVEALS, "Report.error": ("All.", "")})


def test_a_message_without_a_route_is_named(generator: Any) -> None:
    most = [route for route in generator.routes() if route.up != "Report"]
    with pytest.raises(generator.PageError, match="Report is in no route"):
        generator.check_all_listed(most, ())


def test_a_report_holds_no_words_of_the_device(generator: Any) -> None:
    free = generator.free_texts(generator.routes())
    assert [name for name in free if not name.startswith(("Enrol.", "DeviceFacts."))] == [
        "UpdateHeader.work_id",
        "Report.work_id",
    ]
