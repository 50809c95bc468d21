"""The source's bounds: they go down; a commit that raises one argues for it in its message."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BOUNDS = {"files": 465, "statements": 54_180, "records": 431, "options": 158, "constants": 1_738}
BENCHMARKS = {"statements": 3_975}


@pytest.mark.parametrize(("folder", "bounds"), [(".", BOUNDS), ("benchmarks", BENCHMARKS)])
def test_the_source_is_not_above_its_bounds(folder: str, bounds: dict[str, int]) -> None:
    counts = runpy.run_path(str(ROOT / "scripts" / "size.py"))["size"](ROOT / folder)
    above = {what: counts[what] for what, bound in bounds.items() if counts[what] > bound}
    assert not above, f"above {bounds}; leave out as much elsewhere, or argue in the commit"


def test_two_records_of_one_source_are_compared(tmp_path: Path) -> None:
    compare = runpy.run_path(str(ROOT / "scripts" / "golden.py"))["compare"]
    one = {"adapter": {"weights": "a"}, "timed cell": {"step_s": 1.0}}
    assert compare(one, {**one, "timed cell": {"step_s": 2.0}}) == 0
    assert compare(one, {**one, "adapter": {"weights": "b"}}) == 1
    assert compare(one, {"timed cell": {"step_s": 1.0}}) == 1
