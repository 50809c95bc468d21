"""What a device's update steps go on from, on its disk."""

import logging
from pathlib import Path

import pytest

from smidgen.edge_client.client.folder import StepStates
from smidgen.edge_client.client.state import ClientState, Identity


def test_the_one_a_training_began_with_stays_beside_the_new_one(tmp_path: Path) -> None:
    states = StepStates(tmp_path / "updates")
    states.keep("run", 1, {0}, {"step": b"one"})
    states.keep("run", 2, {1}, {"step": b"two"})
    assert [states.of("run", index, "step") for index in range(3)] == [b"", b"one", b"two"]
    states.keep("run", 4, {2}, {"step": b"four"})
    assert sorted(path.name for path in (tmp_path / "updates" / "run").iterdir()) == [
        "2.st",
        "4.st",
    ]


def test_other_runs_are_others(tmp_path: Path) -> None:
    states = StepStates(tmp_path / "updates")
    states.keep("one", 1, {0}, {"step": b"one"})
    states.keep("other", 1, {0}, {"step": b"other"})
    states.forget("one")
    assert states.of("other", 1, "step") == b"other" and states.of("one", 1, "step") is None


@pytest.mark.parametrize("place", [0, 70])
def test_one_that_is_damaged_is_lost_in_one_line(
    tmp_path: Path, place: int, caplog: pytest.LogCaptureFixture
) -> None:
    states = StepStates(tmp_path / "updates")
    states.keep("run", 3, {0}, {"step": b"a variate"})
    path = tmp_path / "updates" / "run" / "3.st"
    body = bytearray(path.read_bytes())
    body[place] ^= 1
    path.write_bytes(bytes(body))
    with caplog.at_level(logging.WARNING):
        assert states.of("run", 3, "step") is None
    (said,) = caplog.messages
    assert "step: what it kept of round 3 is lost" in said


def test_on_a_full_disk_it_is_held_in_memory(tmp_path: Path) -> None:
    (tmp_path / "updates").write_bytes(b"no folder")
    states = StepStates(tmp_path / "updates")
    states.keep("run", 1, {0}, {"step": b"one"})
    assert states.of("run", 1, "step") == b"one"
    states.keep("run", 2, {1}, {"step": b"two"})
    assert states.of("run", 1, "step") == b"one" and states.of("run", 2, "step") == b"two"
    states.keep("run", 3, {2}, {"step": b"three"})
    assert states.of("run", 1, "step") is None


def test_they_go_with_their_run_and_with_who_the_device_was(tmp_path: Path) -> None:
    state = ClientState(tmp_path / "state")
    state.keep_identity(Identity("url", "key"))
    for again in range(2):
        state.updates.keep("run", 1, {0}, {"step": b"one"})
        if again:
            state.keep_identity(Identity("url", "another"))
        else:
            state.forget_terms("run")
        assert state.updates.of("run", 1, "step") is None


def test_those_of_runs_that_are_not_there_are_swept(tmp_path: Path) -> None:
    state = ClientState(tmp_path / "state")
    state.updates.keep("gone", 1, {0}, {"step": b"one"})
    with state.locked():
        assert state.updates.of("gone", 1, "step") is None
    assert not list((tmp_path / "state" / "updates").iterdir())


def test_each_step_goes_on_from_the_round_that_counted_for_it(tmp_path: Path) -> None:
    states = StepStates(tmp_path / "updates")
    states.keep("run", 1, {0}, {"scaffold": b"s1", "codec": b"c1"})
    states.keep("run", 2, {1}, {"scaffold": b"s2", "codec": b"c2"})
    states.keep("run", 3, {1, 2}, {"scaffold": b"s3", "codec": b"c3"})
    assert states.of("run", 1, "scaffold") == b"s1" and states.of("run", 2, "codec") == b"c2"
    states.keep("run", 4, {3}, {"codec": b"c4"})
    assert states.of("run", 4, "scaffold") is None and states.of("run", 3, "scaffold") == b"s3"
