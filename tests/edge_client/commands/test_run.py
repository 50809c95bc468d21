"""`smidgen client run` and the device's name, which is a folder's name unless --state is given."""

import json
import socket
from pathlib import Path

import pytest

from edge_client.adapters.initial import initial_adapter
from edge_client.adapters.spec import parse_adapter
from edge_client.bases.base import Base
from edge_client.texts.tasks import Task
from edge_client.wire.messages import PROTOCOL, Receipt, Report, Work, decode
from edge_client.wire.messages import encode as encoded
from edge_client.wire.tensors import encode_adapter, sha256
from edge_client.wire.training import Training
from tests.command_line import Done, smidgen
from tests.edge_client.client.servers import Answer, http_server
from tests.edge_client.client.terms import enrolled_as, over, terms_for

TASK = Task("hub", ("weather", "mail"), ("{text} [MASK]",), {"weather": "rain", "mail": "mail"})
NAMES = ["hall/left", "..", "h" * 65, "hall\n"]


def run(base: Base, folder: Path, *arguments: str) -> tuple[Done, list[str]]:
    """Serve a run that is finished; the names that enrolled."""
    (folder / "labelled.csv").write_text("text,label\nrain,weather\n")
    names: list[str] = []

    def answer(method: str, path: str, body: bytes) -> Answer:
        terms = terms_for(base, TASK)
        adapter = encode_adapter(initial_adapter(parse_adapter("lora:2"), base, 2, seed=3))
        if path == "/v1/terms":
            return 200, encoded(terms)
        if path == "/v1/enrol":
            names.append(json.loads(body)["name"])
            return 200, encoded(enrolled_as("hub", terms))
        if path.startswith("/v1/adapters"):
            return 200, adapter
        return 410, encoded(over(sha256(adapter)))

    with http_server(answer) as url:
        given = ["--coordinator", url, "--data", str(folder), "--base", str(base.folder)]
        return smidgen("client", "run", *given, "--token", "token", *arguments), names


def test_a_run_in_which_nothing_could_be_done_ends_in_exit_code_1(
    tiny_base: Base, tmp_path: Path
) -> None:
    """The adapter arrives damaged; then the run is over."""
    (tmp_path / "labelled.csv").write_text("text,label\nrain,weather\n")
    terms, adapter = terms_for(tiny_base, TASK), b"the finished adapter is damaged too"
    work = Work(
        *(PROTOCOL, "w", "evaluate", "run", 1, tiny_base.base_id, "lora:2", "0" * 64, 9, TASK),
        *(Training(), 7),
    )
    answers = {"/v1/terms": encoded(terms), "/v1/enrol": encoded(enrolled_as("hub", terms))}
    told: list[Report] = []

    def answer(method: str, path: str, body: bytes) -> Answer:
        if path.endswith("/report"):
            told.append(decode(body, Report))
            return 200, encoded(Receipt(True))
        if path.startswith("/v1/work"):
            return (410, encoded(over(sha256(adapter)))) if told else (200, encoded(work))
        return 200, answers.get(path, adapter)

    with http_server(answer) as url:
        given = ("--coordinator", url, "--data", str(tmp_path), "--base", str(tiny_base.folder))
        state = ("--state", str(tmp_path / "state"))
        done = smidgen("client", "run", *given, *state, "--token", "token")
    assert done.exit_code == 1, done.output
    assert "0 pieces of work done, 1 failed" in done.stdout
    assert "nothing could be done" in done.stderr and told[0].failure == "transfer"


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_is_no_folder_name_is_refused(
    tiny_base: Base, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    done, names = run(tiny_base, tmp_path, "--name", name)
    assert done.exit_code == 2 and "characters without a slash" in done.output and not names


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
