"""The page of PEFT's options says what the import goes by."""

import re

import pytest

from smidgen.edge_client.adapters.peft_options import READ, REFUSED, UNUSED
from tests.docs.pages import HOOK, ROOT

PAGE = HOOK["filled"]((ROOT / "docs" / "reference" / "peft-options.md").read_text())
OUTCOMES = (("read", READ), ("not needed", UNUSED), ("refused unless off", REFUSED))


@pytest.mark.parametrize("kind", READ)
def test_the_page_has_the_rows_of_the_tables(kind: str) -> None:
    _, _, rest = PAGE.partition(f": `{kind}`\n")
    rows = re.findall(r"^\| `(.+?)` \| (.+?) \| (.*) \|$", rest.partition("\n## ")[0], re.MULTILINE)
    known = ((name, what, said) for what, of in OUTCOMES for name, said in of[kind].items())
    assert rows == sorted(known)
