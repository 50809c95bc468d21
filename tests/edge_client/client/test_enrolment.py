"""Joining a run: a device that cannot take part is told why and never joins."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from edge_client.bases.base import Base
from edge_client.client.enrolment import join
from edge_client.client.failures import ClientError, OtherBase
from edge_client.client.settings import Settings
from edge_client.client.state import ClientState
from edge_client.client.transport import Unreachable
from edge_client.planning.sizes import BudgetError
from edge_client.texts.rows import DataError
from edge_client.texts.tasks import Task
from edge_client.wire.fleet import Terms
from edge_client.wire.labelling import Labelling
from edge_client.wire.messages import Asking, decode, encode
from tests.edge_client.client.servers import Answer, http_server
from tests.edge_client.client.terms import enrolled_as, terms_for


@dataclass
class Gate:
    """A coordinator that only lets devices in; the run depends on the token."""

    runs: dict[str, Terms]
    paths: list[str] = field(default_factory=list)

    def answer(self, method: str, path: str, body: bytes) -> Answer:
        self.paths.append(path)
        if path == "/v1/terms":
            asking = decode(body, Asking)
            if asking.token not in self.runs:
                return 401, b'{"detail": "no run has this enrolment token"}'
            return 200, encode(self.runs[asking.token])
        return 200, encode(enrolled_as("hub", next(iter(self.runs.values()))))


@dataclass
class Home:
    """A device's files and what it is started with."""

    folder: Path
    base: Base
    terms: Terms

    def write(self, part: str, lines: Sequence[str]) -> None:
        (self.folder / "mine").mkdir(exist_ok=True)
        (self.folder / "mine" / f"{part}.csv").write_text("\n".join(lines) + "\n")

    def join(self, gate: Gate, token: str = "token", **more: object) -> list[str]:
        """Join; the paths that were asked for."""
        with http_server(gate.answer) as url:
            settings = Settings(url, token, "hub", self.folder / "mine", self.base, "onnx")
            join(replace(settings, **more), ClientState(self.folder / "state"))  # type: ignore[arg-type]
        return gate.paths


@pytest.fixture
def home(tmp_path: Path, tiny_base: Base, hub_task: Task) -> Home:
    home = Home(tmp_path, tiny_base, terms_for(tiny_base, hub_task))
    home.write("labelled", ["text,label", "the front door opened,security"])
    return home


def test_a_device_that_can_take_part_asks_and_joins(home: Home) -> None:
    assert home.join(Gate({"token": home.terms})) == ["/v1/terms", "/v1/enrol"]


def test_texts_of_other_labels_are_refused_before_joining(home: Home) -> None:
    home.write("labelled", ["text,label", "the front door opened,doors"])
    gate = Gate({"token": home.terms})
    with pytest.raises(DataError, match=r"labelled\.csv, line 2"):
        home.join(gate)
    assert gate.paths == ["/v1/terms"] and not (home.folder / "state" / "device.json").exists()


def test_unlabelled_texts_alone_are_refused_where_nobody_labels(home: Home) -> None:
    (home.folder / "mine" / "labelled.csv").unlink()
    home.write("unlabelled", ["text", "rain today"])
    gate = Gate({"token": home.terms})
    with pytest.raises(DataError, match="in this run devices do not label"):
        home.join(gate)
    assert gate.paths == ["/v1/terms"]
    labelling = Gate({"token": replace(home.terms, labelling=Labelling())})
    assert home.join(labelling) == ["/v1/terms", "/v1/enrol"]


def test_a_budget_too_small_is_refused_before_joining(home: Home) -> None:
    gate = Gate({"token": home.terms})
    with pytest.raises(BudgetError, match="--memory-budget"):
        home.join(gate, budget_bytes=1 << 20)
    assert gate.paths == ["/v1/terms"]


def test_a_new_token_is_not_asked_for_where_nobody_answers(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    with http_server(Gate({"token": home.terms}).answer) as url:
        settings = Settings(url, "token", "hub", home.folder / "mine", home.base, "onnx")
        join(settings, ClientState(home.folder / "state"))
    again = replace(settings, token="new", patience_s=0.3)
    enrolled, _ = join(again, ClientState(home.folder / "state"))
    assert enrolled.device_id == "hub" and "going on in run mail" in caplog.text


def test_another_base_is_refused_before_joining(home: Home) -> None:
    gate = Gate({"token": replace(home.terms, base_id="0" * 64)})
    with pytest.raises(OtherBase, match="copy the coordinator's base"):
        home.join(gate)
    assert gate.paths == ["/v1/terms"]


def test_a_token_of_another_run_is_not_ignored(home: Home) -> None:
    other = replace(home.terms, run_id="other", run_name="news")
    gate = Gate({"token": home.terms, "again": home.terms, "new": other})
    with http_server(gate.answer) as url:
        settings = Settings(url, "token", "hub", home.folder / "mine", home.base, "onnx")
        state = ClientState(home.folder / "state")
        join(settings, state)
        for token in ("", "token", "again"):  # none, the same, another one of the same run
            join(replace(settings, token=token), state)
        with pytest.raises(ClientError, match=r"enrolled in run mail .* --token is of run news"):
            join(replace(settings, token="new"), state)
        with pytest.raises(ClientError, match="check --token"):
            join(replace(settings, token="wrong"), state)


def test_a_coordinator_of_another_version_is_named(home: Home) -> None:
    with pytest.raises(ClientError, match="speaks protocol 5, this client 4"):
        home.join(Gate({"token": replace(home.terms, protocol=5)}))


def test_a_server_of_before_the_terms_is_named(home: Home) -> None:
    state = ClientState(home.folder / "state")
    with http_server(lambda *_: (404, b'{"detail":"Not Found"}')) as url:
        settings = Settings(url, "token", "hub", home.folder / "mine", home.base, "onnx")
        with pytest.raises(ClientError, match="not as a coordinator of protocol 4; check --coor"):
            join(settings, state)


def test_before_enrolment_the_patience_is_said_as_it_is(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings(
        *("http://127.0.0.1:9", "token", "hub", home.folder / "mine", home.base, "onnx"),
        patience_s=0.5,
    )
    with pytest.raises(Unreachable):
        join(settings, ClientState(home.folder / "state"))
    assert "trying again for 0.5 s" in caplog.text
