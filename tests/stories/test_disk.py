import shutil
from pathlib import Path

import pytest

from tests.stories.disk import Disk

HELD = {"half/weights": "new", "terms": "kept", "old": "old"}


def left(folder: Path, source: str, target: str) -> set[str]:
    """What lies in a folder where something was renamed just before the power was cut."""
    for name, text in HELD.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    disk = Disk(folder, is_watched=True)
    disk.renames(str(folder / source), str(folder / target))
    (folder / source).replace(folder / target)
    copy = folder.with_name(f"{folder.name}-left")
    shutil.copytree(folder, copy)
    disk.lose(copy)
    paths = (path for path in copy.rglob("*") if path.is_file())
    return {f"{path.relative_to(copy)}: {path.read_text()}" for path in paths}


@pytest.mark.parametrize(
    ("source", "target", "new"),
    [
        ("half", "whole", {"whole/weights: new", "terms: kept", "old: old"}),
        ("terms", "home", {"half/weights: new", "home: kept", "old: old"}),
        ("terms", "old", {"half/weights: new", "old: kept"}),
    ],
    ids=["a folder", "a file", "over another"],
)
def test_a_power_cut_leaves_a_rename_undone_or_done(
    source: str, target: str, new: set[str], tmp_path: Path
) -> None:
    undone = {f"{name}: {text}" for name, text in HELD.items()}
    seen = [left(tmp_path / str(number), source, target) for number in range(30)]
    assert undone in seen
    assert new in seen
    assert all(one in (undone, new) for one in seen)
