import json
import re
from pathlib import Path

import pytest

from smidgen.coordinator.storage.store import Store
from tests.command_line import smidgen


@pytest.mark.parametrize(
    ("options", "ends"), [((), "never expires"), (("--expires", "7d"), "expires in 7 d")]
)
def test_a_new_token_says_its_id_and_when_it_expires(
    tmp_path: Path, options: tuple[str, ...], ends: str
) -> None:
    Store(tmp_path).close()
    words = ("--store", str(tmp_path))
    done = smidgen("coordinator", "tokens", "new", *words, *options)
    first, second, _, line = done.stdout.splitlines()
    assert first.startswith("enrolment token s") and f"TOKEN={first.split()[-1]} smidgen" in line
    found = re.fullmatch(rf"its id is (t[0-9a-f]{{10}}); it {ends}", second)
    assert found is not None
    listed = json.loads(smidgen("coordinator", "tokens", "list", *words, "--json").stdout)
    assert [one["token_id"] for one in listed["tokens"]] == [found[1]]
    told = json.loads(smidgen("coordinator", "tokens", "new", *words, *options, "--json").stdout)
    assert told["token_id"] != found[1] and (told["expires_at_s"] is None) == (not options)
