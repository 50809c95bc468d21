"""Each promise of the security page has a test, and it is there."""

import re

from tests.docs.pages import ROOT

PROMISE = re.compile(r"^\| (.+) \| (.+) \| `(tests/[\w/]+\.py)::(test_\w+)` \|$", re.MULTILINE)


def test_every_promise_has_a_test_that_exists() -> None:
    page = (ROOT / "docs/security.md").read_text()
    table = page.split("| promise | against | test |\n|---|---|---|\n")[1].split("\n\n")[0]
    promises = PROMISE.findall(table)
    assert len(promises) == len(table.splitlines()) > 40
    for promise, _, file, test in promises:
        source = (ROOT / file).read_text()
        assert re.search(rf"^(?:async )?def {test}\(", source, re.MULTILINE), promise
