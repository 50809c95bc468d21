"""A device's own control variates on its disk."""

import logging
from pathlib import Path

import pytest

from edge_client.client.scaffold.controls import Controls
from edge_client.client.state import ClientState, Identity


def test_the_one_a_training_began_with_stays_beside_the_new_one(tmp_path: Path) -> None:
    controls = Controls(tmp_path / "controls")
    controls.keep("run", 1, 0, b"one")
    controls.keep("run", 2, 1, b"two")
    assert [controls.own("run", index) for index in range(3)] == [b"", b"one", b"two"]
    controls.keep("run", 4, 2, b"four")
    assert sorted(path.name for path in (tmp_path / "controls" / "run").iterdir()) == [
        "2.st",
        "4.st",
    ]


def test_other_runs_are_others(tmp_path: Path) -> None:
    controls = Controls(tmp_path / "controls")
    controls.keep("one", 1, 0, b"one")
    controls.keep("other", 1, 0, b"other")
    controls.forget("one")
    assert controls.own("other", 1) == b"other" and controls.own("one", 1) is None


@pytest.mark.parametrize("place", [0, 70])
def test_one_that_is_damaged_is_lost_in_one_line(
    tmp_path: Path, place: int, caplog: pytest.LogCaptureFixture
) -> None:
    controls = Controls(tmp_path / "controls")
    controls.keep("run", 3, 0, b"a variate")
    path = tmp_path / "controls" / "run" / "3.st"
    body = bytearray(path.read_bytes())
    body[place] ^= 1
    path.write_bytes(bytes(body))
    with caplog.at_level(logging.WARNING):
        assert controls.own("run", 3) is None
    (said,) = caplog.messages
    assert "of round 3 is lost" in said


def test_on_a_full_disk_it_is_held_in_memory(tmp_path: Path) -> None:
    (tmp_path / "controls").write_bytes(b"no folder")
    controls = Controls(tmp_path / "controls")
    controls.keep("run", 1, 0, b"one")
    assert controls.own("run", 1) == b"one"
    controls.keep("run", 2, 1, b"two")
    assert controls.own("run", 1) == b"one" and controls.own("run", 2) == b"two"
    controls.keep("run", 3, 2, b"three")
    assert controls.own("run", 1) is None


def test_they_go_with_their_run_and_with_who_the_device_was(tmp_path: Path) -> None:
    state = ClientState(tmp_path / "state")
    state.keep_identity(Identity("url", "key"))
    for again in range(2):
        state.controls.keep("run", 1, 0, b"one")
        if again:
            state.keep_identity(Identity("url", "another"))
        else:
            state.forget_terms("run")
        assert state.controls.own("run", 1) is None


def test_those_of_runs_that_are_not_there_are_swept(tmp_path: Path) -> None:
    state = ClientState(tmp_path / "state")
    state.controls.keep("gone", 1, 0, b"one")
    with state.locked():
        assert state.controls.own("gone", 1) is None
    assert not list((tmp_path / "state" / "controls").iterdir())
