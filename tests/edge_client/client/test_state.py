import resource
import signal
import stat
from pathlib import Path

import pytest

from edge_client.bases.base import Base
from edge_client.client.state import Answer, ClientState, Identity, StateError
from edge_client.texts.tasks import Task
from edge_client.wire.messages import Report
from edge_client.wire.tensors import sha256
from tests.edge_client.client.terms import enrolled_as, terms_for


def test_the_key_is_kept_for_its_coordinator_and_readable_by_its_owner_alone(
    tmp_path: Path, tiny_base: Base, hub_task: Task
) -> None:
    state = ClientState(tmp_path)
    mine = Identity("http://a", enrolled_as("hub-01", terms_for(tiny_base, hub_task)), "hash")
    state.keep_identity(mine)
    again = ClientState(tmp_path)
    assert again.identity("http://a") == mine
    assert again.identity("http://b") is None
    assert stat.S_IMODE((tmp_path / "device.json").stat().st_mode) == 0o600


def test_a_damaged_identity_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "device.json").write_text('{"url": "http://a"')
    with pytest.raises(StateError, match="delete it to enrol again"):
        ClientState(tmp_path).identity("http://a")


def test_only_the_newest_adapter_is_kept_and_only_if_whole(tmp_path: Path) -> None:
    state = ClientState(tmp_path)
    for body in (b"first", b"second"):
        state.keep_adapter(sha256(body), body)
    assert state.adapter(sha256(b"first")) is None
    assert state.adapter(sha256(b"second")) == b"second"
    (tmp_path / "adapters" / f"{sha256(b'second')}.st").write_bytes(b"secon")
    assert state.adapter(sha256(b"second")) is None


def test_finished_work_stays_until_it_is_acknowledged(tmp_path: Path) -> None:
    first = Answer(Report("../../w1", "done", 3, 0.5), b"tensors")
    second = Answer(Report("w2", "done", 3, accuracy=0.5), None)
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


def test_two_clients_on_one_state_are_refused(tmp_path: Path) -> None:
    state = ClientState(tmp_path)
    with (
        state.locked(),
        pytest.raises(StateError, match="another client runs"),
        ClientState(tmp_path).locked(),
    ):
        pass


def test_a_state_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match="cannot be made"):
        ClientState(tmp_path / "file" / "state")


def test_what_a_killed_client_left_half_written_is_deleted_under_the_lock(tmp_path: Path) -> None:
    state = ClientState(tmp_path)
    parts = [tmp_path / name for name in (".room.part", "adapters/.a.st.part", "outbox/.w.part")]
    for part in parts:
        part.write_bytes(b"half")
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
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapters", "outbox"]
