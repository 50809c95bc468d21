"""What a device says of secure aggregations it says once, whatever it is asked afterwards."""

from pathlib import Path

import pytest

from smidgen.edge_client.client.folder import KEPT_TERMS, Joined
from smidgen.edge_client.errors import Failed

TWICE = "asks this device a second time"


def test_an_unmasking_is_answered_once_for_a_round(tmp_path: Path) -> None:
    for joined in (Joined(tmp_path), Joined(tmp_path)):  # before and after a restart
        joined.note_masked("run", 3, "aa")
        joined.note_unmasked("run", 3, "aa", "01")
    joined = Joined(tmp_path)
    with pytest.raises(Failed, match=TWICE):
        joined.note_unmasked("run", 3, "aa", "02")
    with pytest.raises(Failed, match=TWICE):
        joined.note_masked("run", 3, "bb")
    joined.note_masked("run", 4, "bb")
    joined.note_masked("other", 3, "cc")
    assert (tmp_path / "run.said").stat().st_mode & 0o777 == 0o600


def test_a_round_that_was_not_unmasked_may_be_masked_again(tmp_path: Path) -> None:
    joined = Joined(tmp_path)
    with pytest.raises(Failed, match="has masked no update for"):
        joined.note_unmasked("run", 1, "aa", "01")
    joined.note_masked("run", 1, "aa")
    joined.note_masked("run", 1, "bb")
    with pytest.raises(Failed, match="has masked no update for"):
        joined.note_unmasked("run", 1, "aa", "01")
    joined.note_unmasked("run", 1, "bb", "01")


def test_a_line_that_was_cut_takes_no_other_along(tmp_path: Path) -> None:
    joined = Joined(tmp_path)
    joined.note_masked("run", 1, "aa")
    with (tmp_path / "run.said").open("a") as file:
        file.write("unmasked 1")
    joined.note_unmasked("run", 1, "aa", "01")
    with pytest.raises(Failed, match=TWICE):
        Joined(tmp_path).note_unmasked("run", 1, "aa", "02")


def test_nothing_is_said_that_cannot_be_noted(tmp_path: Path) -> None:
    joined = Joined(tmp_path / "gone")
    with pytest.raises(OSError, match="takes no note of what is said, so nothing is: No such file"):
        joined.note_masked("run", 1, "aa")
    joined.folder.mkdir()
    joined.note_masked("run", 1, "aa")
    joined.forget("run")
    joined.note_unmasked("run", 1, "aa", "01")  # it may be extended
    for number in range(KEPT_TERMS + 5):
        joined.note_masked(f"other-{number}", 1, "aa")
    joined.sweep()
    assert len(list(joined.folder.iterdir())) == KEPT_TERMS
