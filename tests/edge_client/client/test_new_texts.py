"""A running client whose owner goes on writing: real files, a scripted coordinator."""

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from edge_client.adapters.initial import initial_adapter
from edge_client.adapters.spec import parse_adapter
from edge_client.bases.base import Base
from edge_client.bases.header import WeightsError
from edge_client.client.loop import Client, Settings, told_to_others
from edge_client.client.state import ClientState
from edge_client.engine.engine import EngineError
from edge_client.engine.trainer import TrainingError
from edge_client.planning.sizes import BudgetError
from edge_client.texts.rows import DataError
from edge_client.texts.tasks import Task
from edge_client.wire.labelling import Labelling
from edge_client.wire.messages import PROTOCOL, Enrolled, Receipt, Report, Training, Work
from edge_client.wire.messages import decode as decoded
from edge_client.wire.messages import encode as encoded
from edge_client.wire.tensors import encode_adapter, sha256
from tests.edge_client.client.servers import Answer, http_server

TRAINING = Training(epochs=1, batch=4, lr=0.01, tokens=32)
SAID = Labelling(confidence=0.5, compute_share=1.0, keep_first=1.0, keep_last=1.0)
FIRST = "text,label\nthe front door opened,security\nstorm at nine,weather\n"
MORE = "dinner with grandma,family\nrain today,weather\n"
SECRET = "my pin is four seven one one"


@dataclass
class Script:
    """A coordinator that hands out some works; the device's owner acts before each of them."""

    base: Base
    task: Task
    works: list[tuple[Literal["train", "label"], Callable[[], object]]]
    labelling: Labelling | None = None
    told: list[Report] = field(default_factory=list)
    updates: list[bytes] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    handed: int = 0

    def answer(self, method: str, path: str, body: bytes) -> Answer:
        self.bodies.append(body)
        if path == "/v1/enrol":
            return 200, encoded(Enrolled("hub", "key", "run", self.base.base_id, "tiny"))
        if path.startswith("/v1/adapters"):
            return 200, self.adapter
        if path.startswith("/v1/work?"):
            return self.next_work()
        if method == "PUT":
            self.updates.append(body)
        else:
            self.told.append(decoded(body, Report))
        return 200, encoded(Receipt(True))

    @property
    def adapter(self) -> bytes:
        return encode_adapter(initial_adapter(parse_adapter("lora:2"), self.base, 3, seed=3))

    def next_work(self) -> Answer:
        if self.handed == len(self.works):
            return 410, b'{"detail": "finished"}'
        kind, act = self.works[self.handed]
        self.handed += 1
        act()
        work = Work(
            *(PROTOCOL, f"work-{self.handed}", kind, "run", self.handed, self.base.base_id),
            *("lora:2", sha256(self.adapter), len(self.adapter), self.task, TRAINING),
            seed=7,
            labelling=self.labelling,
            keep=1.0,
        )
        return 200, encoded(work)

    def run(self, folder: Path, budget_bytes: int | None = None) -> list[Report]:
        """Serve one client to its end; what it reported."""
        with http_server(self.answer) as url:
            mine = folder / "mine"
            settings = Settings(url, "token", "hub", mine, self.base, "onnx", budget_bytes)
            Client(settings, ClientState(folder / "state")).run()
        return self.told


@pytest.fixture
def task() -> Task:
    labels = ("security", "weather", "family")
    patterns = ("{text} . this is about [MASK] .",)
    return Task("hub", labels, patterns, {label: label for label in labels})


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "labelled.csv").write_text(FIRST)
    return tmp_path / "mine"


def nothing() -> None:
    pass


def add(path: Path, lines: str) -> Callable[[], object]:
    def act() -> None:
        with path.open("a") as file:
            file.write(lines)

    return act


def put(path: Path, content: str) -> Callable[[], object]:
    """Write a file, some time ago."""

    def act() -> None:
        path.write_text(content)
        os.utime(path, (time.time() - 60, time.time() - 60))

    return act


def examples(reports: Sequence[Report]) -> list[tuple[str, int]]:
    return [(report.outcome, report.num_examples) for report in reports]


def test_texts_added_to_a_running_client_are_trained_on_in_the_next_round(
    tiny_base: Base, task: Task, mine: Path, tmp_path: Path
) -> None:
    works = [nothing, nothing, add(mine / "labelled.csv", MORE)]
    grown = Script(tiny_base, task, [("train", act) for act in works])
    assert examples(grown.run(tmp_path)) == [("done", 2), ("done", 2), ("done", 4)]
    fresh = Script(tiny_base, task, [("train", nothing)] * 3)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine").symlink_to(mine)
    fresh.run(tmp_path / "other")
    assert fresh.updates[2] == grown.updates[2] and fresh.updates[1] != grown.updates[1]


def test_texts_added_to_a_running_client_are_labelled_and_trained_on(
    tiny_base: Base, task: Task, mine: Path, tmp_path: Path
) -> None:
    file = mine / "unlabelled.csv"
    collect = add(file, "text\nthe gate opened\nrain at noon\n")
    works: list[tuple[Literal["train", "label"], Callable[[], object]]] = [
        ("label", nothing),
        ("train", nothing),
        ("label", collect),
        ("train", nothing),
        ("label", add(file, "grandma is on the way home\n")),
    ]
    reports = Script(tiny_base, task, works, SAID).run(tmp_path)
    assert [report.outcome for report in reports] == ["done"] * 5
    told = [one.confidences.texts for one in reports if one.confidences]
    assert told == [0, 2, 3] and [reports[place].num_examples for place in (0, 2, 4)] == [0, 2, 1]
    assert reports[1].num_examples == 2
    assert reports[3].num_examples == 2 + reports[3].pseudo_labels > 2


def test_a_damaged_file_costs_no_text_and_is_nobody_elses_to_read(
    tiny_base: Base, task: Task, mine: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Columns swapped: the message quotes what stands where a label should."""
    file = mine / "labelled.csv"
    works = [
        put(file, f"text,label\nweather,{SECRET}\n"),
        nothing,
        put(file, FIRST + MORE),
    ]
    script = Script(tiny_base, task, [("train", act) for act in [nothing, *works]])
    assert examples(script.run(tmp_path)) == [("done", 2)] * 3 + [("done", 4)]
    said = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert [
        line for line in said if "labelled.csv, line 2" in line and "stay in use" in line
    ] == said
    assert len(said) == 1 and not any(SECRET.encode() in body for body in script.bodies)


def test_texts_that_never_fitted_are_not_quoted_to_the_coordinator(
    tiny_base: Base, task: Task, mine: Path, tmp_path: Path
) -> None:
    (mine / "labelled.csv").write_text(f"text,label\nweather,{SECRET}\n")
    script = Script(tiny_base, task, [("train", nothing)])
    with pytest.raises(DataError, match=SECRET):
        script.run(tmp_path)
    assert script.told[0].outcome == "failed" and "its own log says" in script.told[0].error
    assert not any(SECRET.encode() in body for body in script.bodies)


def test_texts_read_last_stay_in_use_where_no_plan_fits_the_budget(
    tiny_base: Base, task: Task, mine: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    works = [nothing, put(mine / "labelled.csv", f"text,label\nweather,{SECRET}\n")]
    script = Script(tiny_base, task, [("train", act) for act in works])
    reports = script.run(tmp_path, budget_bytes=1)
    assert [report.error.split(":")[0] for report in reports] == ["BudgetError"] * 2
    assert "the texts read last stay in use" in caplog.text


def test_a_disk_that_fails_is_told_without_the_devices_paths(
    tiny_base: Base, task: Task, mine: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    adapters = tmp_path / "state" / "adapters"

    def break_disk() -> None:
        adapters.rmdir()
        adapters.write_text("no folder")

    (report,) = Script(tiny_base, task, [("train", break_disk)]).run(tmp_path)
    assert report.outcome == "failed" and "Not a directory" in report.error
    assert "/" not in report.error and str(adapters) in caplog.text


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (PermissionError(13, "Permission denied", "/home/ana/pin.csv"), "Permission denied"),
        (OSError(28, "No space left on device: /home/ana", "/home/ana"), "No space left on device"),
        (OSError("cannot write /home/ana"), "OSError"),
        (ValueError(f"what is {SECRET!r} in /home/ana"), "ValueError"),
        (RuntimeError("no model at /home/ana"), "RuntimeError"),
        (WeightsError("/home/ana/model.safetensors is damaged"), "WeightsError"),
    ],
)
def test_what_goes_up_of_an_error_quotes_nothing_of_the_device(error: Exception, told: str) -> None:
    said = told_to_others(error, "embedded")
    assert told in said and "its own log says more" in said
    assert "/" not in said and "ana" not in said and SECRET not in said


def test_the_houses_own_words_on_memory_engine_and_training_go_up() -> None:
    for error in (BudgetError("too little"), EngineError("no torch"), TrainingError("no texts")):
        assert told_to_others(error, "embedded") == f"{type(error).__name__}: {error}"


def test_the_folder_of_the_base_is_not_told() -> None:
    error = EngineError("base /home/anna/models/llama is a causal language model")
    said = told_to_others(error, "/home/anna/models/llama")
    assert said == "EngineError: base of this device is a causal language model"
