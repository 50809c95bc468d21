import errno
import fcntl
import json
import os
import resource
import signal
import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.client.folder import KEPT_TERMS
from smidgen.edge_client.client.state import (
    KEPT_LABELS,
    KEPT_STEPS,
    ClientState,
    FinishedWork,
    Identity,
    StateError,
)
from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.guest.steps import Moments, ResumePoint, StepFile, Steps
from smidgen.edge_client.planning.plan import Plan
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.messages import Report, encode
from smidgen.edge_client.wire.tensors import sha256
from tests.edge_client.client.terms import terms_for


def test_what_a_disk_does_not_delete_any_more_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = ClientState(tmp_path / "state")
    (state.folder / "outbox").rmdir()
    (state.folder / "outbox").touch()  # deleting in it fails, as on a disk that is read-only now
    state.forget_finished("w")
    assert ["is not deleted" in line for line in caplog.messages] == [True, True]


def test_the_key_is_kept_and_readable_by_its_owner_alone(tmp_path: Path) -> None:
    state, mine = ClientState(tmp_path), Identity("http://a", "key", "d1", "hub-01")
    assert state.identity() is None
    state.keep_identity(mine)
    assert ClientState(tmp_path).identity() == mine
    assert stat.S_IMODE((tmp_path / "device.json").stat().st_mode) == 0o600


def test_another_key_is_another_device_whose_work_is_its_own(
    tmp_path: Path, tiny_base: Base, hub_task: Task
) -> None:
    state, terms = ClientState(tmp_path), terms_for(tiny_base, hub_task)
    state.keep_identity(Identity("http://a", "key"))
    state.keep_finished(FinishedWork(Report("w", "done"), None))
    state.joined.keep(terms)
    state.keep_identity(Identity("http://a", "key", "d1", "hub"))  # the coordinator has answered
    assert len(state.finished()) == 1 and state.joined.terms("run") == terms
    state.keep_identity(Identity("http://b", "other"))
    assert state.finished() == [] and state.joined.terms("run") is None


def test_the_device_of_another_smidgen_is_refused_in_one_line(tmp_path: Path) -> None:
    state = ClientState(tmp_path)
    old = {"url": "http://a", "enrolled": {"device_id": "hub-01", "device_key": "key"}}
    (tmp_path / "device.json").write_text(json.dumps(old))
    with pytest.raises(StateError, match="of another smidgen; delete it to enrol again"):
        state.identity()


def test_what_a_coordinator_calls_a_run_is_never_a_path(
    tmp_path: Path, tiny_base: Base, hub_task: Task
) -> None:
    state = ClientState(tmp_path / "state")
    for run_id in ("../../away", "/tmp/away", "..", "a" * 300, "\0"):
        with pytest.raises(WrongInput, match="run_id"):
            replace(terms_for(tiny_base, hub_task), run_id=run_id)
        assert state.labels(run_id).parent == tmp_path / "state"
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_a_damaged_identity_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "device.json").write_text('{"url": "http://a"')
    with pytest.raises(StateError, match="delete it to enrol again"):
        ClientState(tmp_path).identity()


def test_only_the_newest_adapters_are_kept_and_only_if_whole(tmp_path: Path) -> None:
    state = ClientState(tmp_path)
    for body, most in ((b"first", 1), (b"second", 1), (b"third", 2)):
        state.keep_adapter(sha256(body), body, most)
    assert state.adapter(sha256(b"first")) is None
    assert state.adapter(sha256(b"second")) == b"second"
    (tmp_path / "adapters" / f"{sha256(b'second')}.st").write_bytes(b"secon")
    assert state.adapter(sha256(b"second")) is None
    assert state.adapter(sha256(b"third")) == b"third"


def test_finished_work_stays_until_it_is_acknowledged(tmp_path: Path) -> None:
    first = FinishedWork(Report("../../w1", "done", 3, 0.5), b"tensors")
    second = FinishedWork(Report("w2", "done", 3, accuracy=0.5), None)
    for finished in (first, second):
        ClientState(tmp_path).keep_finished(finished)
    assert ClientState(tmp_path).finished() == [first, second]
    ClientState(tmp_path).forget_finished("../../w1")
    assert ClientState(tmp_path).finished() == [second]
    assert not list(tmp_path.parent.glob("w1*"))


def test_half_written_work_is_done_again(tmp_path: Path) -> None:
    state = ClientState(tmp_path)
    (tmp_path / "outbox" / "x.json").write_text('{"work_id": "w"')
    assert state.finished() == []


@pytest.mark.parametrize("ending", [".json", ".st"])
def test_finished_work_in_which_a_bit_has_flipped_is_done_again(
    tmp_path: Path, ending: str
) -> None:
    state = ClientState(tmp_path)
    state.keep_finished(FinishedWork(Report("w", "done", 24), b"tensors"))
    (path,) = (tmp_path / "outbox").glob(f"*{ending}")
    body = path.read_bytes()
    path.write_bytes(body.replace(b"24", b"34").replace(b"tensors", b"tensorq"))
    assert path.read_bytes() != body and state.finished() == []
    assert list((tmp_path / "outbox").iterdir()) == []


def test_what_runs_of_long_ago_left_is_swept_when_a_client_starts(tmp_path: Path) -> None:
    state, whole = ClientState(tmp_path), FinishedWork(Report("w", "done"), b"tensors")
    state.keep_finished(whole)
    (tmp_path / "outbox" / "orphan.st").write_bytes(b"tensors")
    for place in range(20):
        path = state.labels(f"run-{place}")
        path.write_text("")
        os.utime(path, (place, place))
    for place in range(70):
        path = tmp_path / "runs" / f"run-{place}.json"
        path.write_text("")
        os.utime(path, (place, place))
    with state.locked():
        assert state.finished() == [whole] and len(list((tmp_path / "outbox").iterdir())) == 2
    labels = {path.name for path in tmp_path.glob("labels-*")}
    assert labels == {f"labels-run-{place}.jsonl" for place in range(4, 20)}
    assert {path.stem for path in (tmp_path / "runs").iterdir()} == {
        f"run-{place}" for place in range(6, 70)
    }


AHEAD = 2.0e9  # 2033: written before the clock was reset


def written_ahead(*paths: Path) -> None:
    """By a clock that was ahead of what it says now."""
    for place, path in enumerate(paths):
        assert path.exists()
        os.utime(path, (AHEAD + 10 * place, AHEAD + 10 * place))


def test_after_a_clock_was_reset_the_adapter_that_came_last_is_the_newest(tmp_path: Path) -> None:
    state, digests = ClientState(tmp_path), [sha256(body) for body in (b"1", b"2", b"3")]
    state.keep_adapter(digests[0], b"1")
    written_ahead(tmp_path / "adapters" / f"{digests[0]}.st")
    state.keep_adapter(digests[1], b"2", 2)
    state.keep_adapter(digests[2], b"3", 2)
    assert [state.adapter(digest) for digest in digests] == [None, b"2", b"3"]


def test_after_a_clock_was_reset_the_steps_that_were_kept_last_are_the_newest(
    tmp_path: Path,
) -> None:
    state = ClientState(tmp_path)
    files = [state.steps(f"w{place}") for place in range(KEPT_STEPS)]
    moments = Moments({}, {}, {})
    steps = Steps(
        ResumePoint(), Plan("float32", 1, (), 1, 8), {"a": np.zeros(1, np.float32)}, moments
    )
    for place, file in enumerate(files):
        StepFile(file, {}, lambda: None).keep(steps)
        if not place:
            written_ahead(file)
    state.steps("another")
    assert [file.exists() for file in files] == [False, True, True, True]


def test_terms_that_are_kept_already_need_no_room(
    tmp_path: Path, tiny_base: Base, hub_task: Task
) -> None:
    joined, terms = ClientState(tmp_path).joined, terms_for(tiny_base, hub_task)
    joined.keep(terms)
    (joined.folder / ".run.json.part").mkdir()  # nothing can be written there any more
    joined.keep(terms)
    with pytest.raises(OSError, match="directory"):
        joined.keep(replace(terms, rounds=4))
    assert joined.terms("run") == terms


def test_terms_of_an_older_smidgen_are_read_and_sealed_when_they_are_kept_again(
    tmp_path: Path, tiny_base: Base, hub_task: Task
) -> None:
    joined, terms = ClientState(tmp_path).joined, terms_for(tiny_base, hub_task)
    file = joined.folder / "run.json"
    file.write_bytes(encode(terms))
    assert joined.terms("run") == terms
    joined.keep(terms)
    body = file.read_bytes()
    assert joined.terms("run") == terms
    for place in range(len(body)):
        file.write_bytes(body[:place] + bytes([body[place] ^ 1]) + body[place + 1 :])
        assert joined.terms("run") is None


def test_after_a_clock_was_reset_the_runs_heard_of_last_keep_terms_and_labels(
    tmp_path: Path, tiny_base: Base, hub_task: Task
) -> None:
    state, terms = ClientState(tmp_path), terms_for(tiny_base, hub_task)
    old = [f"old-{place}" for place in range(KEPT_TERMS)]
    for run_id in old:
        state.joined.keep(replace(terms, run_id=run_id))
        state.labels(run_id).write_text("")
    written_ahead(*(tmp_path / "runs" / f"{run_id}.json" for run_id in old))
    written_ahead(*map(state.labels, old))
    state.joined.keep(replace(terms, run_id="new"))
    state.labels("new").write_text("")
    with state.locked():
        assert state.joined.terms("new") is not None and state.labels("new").exists()
        assert len(list((tmp_path / "runs").iterdir())) == KEPT_TERMS
        assert len(list(tmp_path.glob("labels-*"))) == KEPT_LABELS


def test_after_a_clock_was_reset_work_is_sent_in_the_order_in_which_it_was_done(
    tmp_path: Path,
) -> None:
    state, done = (
        ClientState(tmp_path),
        [FinishedWork(Report(f"w{n}", "done"), None) for n in range(3)],
    )
    state.keep_finished(done[0])
    written_ahead(*(tmp_path / "outbox").iterdir())
    for finished in done[1:]:
        state.keep_finished(finished)
    assert state.finished() == done


def test_after_a_clock_was_reset_the_run_that_finished_last_stays(tmp_path: Path) -> None:
    state = ClientState(tmp_path)
    for name in ("old", "new"):
        state.finished_run(name).mkdir(parents=True)
        if name == "old":
            written_ahead(state.finished_run(name))
    state.drop_finished_runs("new", 1)
    assert not state.finished_run("old").exists() and state.finished_run("new").exists()


def test_two_clients_on_one_state_are_refused(tmp_path: Path) -> None:
    state = ClientState(tmp_path)
    with (
        state.locked(),
        pytest.raises(StateError, match="another client runs"),
        ClientState(tmp_path).locked(),
    ):
        pass


def test_a_file_system_without_locks_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(file: object, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)  # as of a network's file system
    told = f"{tmp_path}/lock cannot be locked: No locks available; give a --state on a file system"
    with pytest.raises(StateError, match=told), ClientState(tmp_path).locked():
        pass


def test_a_state_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match="cannot be made"):
        ClientState(tmp_path / "file" / "state")


def test_what_a_killed_client_left_half_written_is_deleted_under_the_lock(tmp_path: Path) -> None:
    state = ClientState(tmp_path)
    names = (".room.part", "adapters/.a.st.part", "outbox/.w.part", "updates/run/.1.st.part")
    parts = [tmp_path / name for name in names]
    for part in parts:
        part.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(b"half")
    (tmp_path / "runs" / "run.json").write_text("{}")  # else all that is kept of it goes
    assert all(part.exists() for part in parts)
    with state.locked():
        assert not any(part.exists() for part in parts)


def test_a_disk_without_room_is_named_and_left_as_it_was(tmp_path: Path) -> None:
    state = ClientState(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(StateError, match="cannot be written: File too large; free some room"):
            state.check_room()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapters", "outbox", "runs"]
