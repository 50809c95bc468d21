"""`smidgen client run` and the device's name, which is a folder's name unless --state is given."""

import json
import socket
from pathlib import Path

import pytest

from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.api.run import read_token
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.commands.run import tags_of
from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.messages import PROTOCOL, Next, Receipt, Report, Work, decode
from smidgen.edge_client.wire.messages import encode as encoded
from smidgen.edge_client.wire.tensors import encode_adapter, sha256
from smidgen.edge_client.wire.training import Training
from tests.command_line import Done, smidgen
from tests.edge_client.client.servers import Answer, http_server
from tests.edge_client.client.terms import IDLE, Door, over, terms_for

TASK = Task("hub", ("weather", "mail"), ("{text} [MASK]",), {"weather": "rain", "mail": "mail"})
ENDED = encoded(Next(over=over("0" * 64)))
NAMES = ["hall/left", "..", "h" * 65, "hall\n"]


def run(base: Base, folder: Path, *arguments: str) -> tuple[Done, list[str]]:
    """Serve a run that is finished; the names that enrolled."""
    (folder / "labelled.csv").write_text("text,label\nrain,weather\n")
    door = Door(terms_for(base, TASK))
    adapter = encode_adapter(initial_adapter(parse_adapter("lora:2"), base, 2, seed=3))

    def answer(method: str, path: str, body: bytes) -> Answer:
        if path.startswith("/v1/adapters"):
            return 200, adapter
        ended = IDLE if door.is_home else encoded(Next(over=over(sha256(adapter))))
        return door.answer(path, body) or (200, ended)

    with http_server(answer) as url:
        given = ["--coordinator", url, "--data", str(folder), "--base", str(base.folder)]
        more = ["--token", "token", "--until", "finished", *arguments]
        return smidgen("client", "run", *given, *more), door.names


def test_a_run_in_which_nothing_could_be_done_ends_in_exit_code_1(
    tiny_base: Base, tmp_path: Path
) -> None:
    """The work's adapter arrives damaged; then the run is over, and its own is whole."""
    (tmp_path / "labelled.csv").write_text("text,label\nrain,weather\n")
    door = Door(terms_for(tiny_base, TASK))
    whole = encode_adapter(initial_adapter(parse_adapter("lora:2"), tiny_base, 2, seed=3))
    work = Work(
        *(PROTOCOL, "w", "evaluate", "run", 1, tiny_base.base_id),
        *("lora:2", "0" * 64, 1 << 20, TASK),
        *(Training(), 7),
    )
    told: list[Report] = []

    def answer(method: str, path: str, body: bytes) -> Answer:
        if known := door.answer(path, body):
            return known
        if "/report" in path:
            told.append(decode(body, Report))
            return 200, encoded(Receipt(True))
        if path.startswith("/v1/adapters"):
            return 200, whole if path.endswith(sha256(whole)) else b"damaged"
        given = Next(over=over(sha256(whole))) if told else Next(work=work)
        return 200, IDLE if door.is_home else encoded(given)

    with http_server(answer) as url:
        given = ("--coordinator", url, "--data", str(tmp_path), "--base", str(tiny_base.folder))
        state = ("--state", str(tmp_path / "state"), "--until", "finished")
        done = smidgen("client", "run", *given, *state, "--token", "token")
    assert done.exit_code == 1, done.output
    assert "0 pieces of work done, 1 failed" in done.stdout
    assert "nothing could be done" in done.stderr and told[0].failure == "transfer"
    assert door.said[:2] == [("run", "joined", None), ("run", "home", None)]


def test_a_run_without_its_adapter_ends_in_exit_code_1_and_says_what_was_done(
    tiny_base: Base, tmp_path: Path
) -> None:
    (tmp_path / "labelled.csv").write_text("text,label\nrain,weather\n")
    door = Door(terms_for(tiny_base, TASK))

    def answer(method: str, path: str, body: bytes) -> Answer:
        if path.startswith("/v1/adapters"):
            return 404, b'{"detail": "no such adapter"}'
        ended = IDLE if door.said[-1:] == [("run", "declined", "transfer")] else ENDED
        return door.answer(path, body) or (200, ended)

    with http_server(answer) as url:
        given = ("--coordinator", url, "--data", str(tmp_path), "--base", str(tiny_base.folder))
        state = ("--state", str(tmp_path / "state"), "--until", "finished", "--json")
        done = smidgen("client", "run", *given, *state, "--token", "token")
    assert done.exit_code == 1 and "run mail is finished, its adapter not to be had" in done.stderr
    said = json.loads(done.stdout)
    assert (said["name"], said["runs"], said["adapter"]) == ("hub", [], "")


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_is_no_folder_name_is_refused(
    tiny_base: Base, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    done, names = run(tiny_base, tmp_path, "--name", name)
    assert done.exit_code == 2 and "no `..` and no slash" in done.output and not names


@pytest.mark.parametrize("name", [*NAMES, ""])
def test_so_is_a_hosts_name_that_stands_in_for_it(
    tiny_base: Base, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(socket, "gethostname", lambda: name)
    done, names = run(tiny_base, tmp_path)
    assert done.exit_code == 2 and "--name" in done.output and not names


def test_a_name_may_hold_a_slash_where_the_state_folder_is_given(
    tiny_base: Base, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    done, names = run(tiny_base, tmp_path, "--name", "hall/left", "--state", str(state))
    assert done.exit_code == 0 and names == ["hall/left"], done.output
    assert (state / "device.json").is_file()


def test_a_name_no_coordinator_takes_is_refused_with_a_state_folder_too(
    tiny_base: Base, tmp_path: Path
) -> None:
    done, names = run(tiny_base, tmp_path, "--name", "h" * 65, "--state", str(tmp_path / "state"))
    assert done.exit_code == 2 and "1 to 64 printable characters" in done.output and not names


def test_a_token_may_lie_in_a_file_of_its_owners_alone(tiny_base: Base, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("token\n")
    file.chmod(0o644)
    state = ("--state", str(tmp_path / "state"), "--name", "hall")
    given = ("client", "run", "--coordinator", "http://127.0.0.1:9", "--data", str(tmp_path))
    (tmp_path / "labelled.csv").write_text("text,label\nrain,weather\n")
    done = smidgen(*given, *state, "--base", str(tiny_base.folder), "--token-file", str(file))
    assert done.exit_code == 2 and "open to others (mode 644); chmod 600 it" in done.output
    file.chmod(0o600)
    assert read_token(file) == "token"
    done, names = run(tiny_base, tmp_path, *state, "--token-file", str(file))
    assert done.exit_code == 2 and "both say the token" in done.output and not names


def test_the_file_of_a_token_that_was_used_need_not_be_there(
    tiny_base: Base, tmp_path: Path
) -> None:
    (tmp_path / "labelled.csv").write_text("text,label\nrain,weather\n")
    state = ("--state", str(tmp_path / "state"), "--name", "hall")
    given = ("--data", str(tmp_path), "--base", str(tiny_base.folder), *state)
    gone = ("--token-file", str(tmp_path / "gone"), "--coordinator", "http://127.0.0.1:9")
    done = smidgen("client", "run", *given, *gone)
    assert done.exit_code == 2 and "cannot be read: No such file" in done.output
    assert "write the token of the line that `create` printed" in " ".join(done.output.split())
    done, _names = run(tiny_base, tmp_path, *state)
    assert done.exit_code == 0, done.output
    done = smidgen("client", "run", *given, *gone[:2], "--coordinator", "ftp://host")
    assert done.exit_code == 2 and "gone" not in done.output, done.output


@pytest.mark.parametrize("body", [b"", b"two words", b"\xff\xfe\n", b"a\nb\n"])
def test_a_file_that_holds_no_token_is_refused(tmp_path: Path, body: bytes) -> None:
    file = tmp_path / "token"
    file.write_bytes(body)
    file.chmod(0o600)
    with pytest.raises(WrongInput, match="one line with the token is expected") as refused:
        read_token(file)
    assert "two" not in str(refused.value).removeprefix(str(file))


def test_tags_are_words_with_a_value() -> None:
    assert tags_of(["site=kitchen", "lang=", "a=b=c"]) == {
        "site": "kitchen",
        "lang": "",
        "a": "b=c",
    }
    with pytest.raises(WrongInput, match="KEY=VALUE is expected, such as site=kitchen"):
        tags_of(["kitchen"])
    with pytest.raises(WrongInput, match="--tag site is said twice"):
        tags_of(["site=kitchen", "site=hall"])
