"""A running client whose owner goes on writing: real files, a scripted coordinator."""

import logging
import os
import resource
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import pytest

from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.bases.header import WeightsError
from smidgen.edge_client.client.failures import GaveUp, code_of
from smidgen.edge_client.client.loop import Client
from smidgen.edge_client.client.settings import Settings
from smidgen.edge_client.client.state import ClientState, StateError
from smidgen.edge_client.engine.engine import EngineError
from smidgen.edge_client.formats.source import DataError
from smidgen.edge_client.planning.plan import BudgetError
from smidgen.edge_client.tasks.scores import TrainingError
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.tokens import TokenizerError
from smidgen.edge_client.wire.messages import PROTOCOL, Next, Receipt, Report, Work
from smidgen.edge_client.wire.messages import decode as decoded
from smidgen.edge_client.wire.messages import encode as encoded
from smidgen.edge_client.wire.reports import Failure
from smidgen.edge_client.wire.tensors import encode_adapter, sha256
from smidgen.edge_client.wire.training import Labelling, Training
from tests.edge_client.client.servers import Answer, http_server
from tests.edge_client.client.terms import IDLE, Door, over, terms_for

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
    paths: list[str] = field(default_factory=list)
    handed: int = 0
    refuses_updates: bool = False
    grace_s: float = 0.0

    def __post_init__(self) -> None:
        self.door = Door(terms_for(self.base, self.task, TRAINING, self.labelling))

    def answer(self, method: str, path: str, body: bytes) -> Answer:
        self.bodies.append(body)
        self.paths.append(path)
        if known := self.door.answer(path, body):
            return known
        if method == "HEAD":
            return 501, b""
        if path.startswith("/v1/adapters"):
            return 200, self.adapter
        if path.startswith("/v1/work?"):
            return self.next_work()
        if method == "PUT" and self.refuses_updates:
            return 422, b'{"detail": "not what was asked for"}'
        if method == "PUT":
            self.updates.append(body)
        else:
            self.told.append(decoded(body, Report))
        return 200, encoded(Receipt(True))

    @property
    def adapter(self) -> bytes:
        return encode_adapter(initial_adapter(parse_adapter("lora:2"), self.base, 3, seed=3))

    def next_work(self) -> Answer:
        if self.door.said[-1][1] != "joined":
            return 200, IDLE
        if self.handed == len(self.works):
            return 200, encoded(Next(over=over(sha256(self.adapter))))
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
        return 200, encoded(Next(work=work))

    def run(self, folder: Path, budget_bytes: int | None = None) -> list[Report]:
        """Serve one client to its end; what it reported."""
        with http_server(self.answer, is_asked=True) as url:
            mine = folder / "mine"
            settings = Settings(
                *(url, "token", "hub", mine, self.base, "onnx", budget_bytes),
                grace_s=self.grace_s,
                is_until_finished=True,
            )
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


@pytest.mark.slow
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


def test_texts_that_never_fitted_are_told_to_the_owner_before_any_run_is_joined(
    tiny_base: Base, task: Task, mine: Path, tmp_path: Path
) -> None:
    (mine / "labelled.csv").write_text(f"text,label\nweather,{SECRET}\n")
    script = Script(tiny_base, task, [("train", nothing)])
    with pytest.raises(DataError, match="are the columns swapped"):
        script.run(tmp_path)
    assert script.door.said == [("run", "declined", "texts")] and not script.told
    assert not any(SECRET.encode() in body for body in script.bodies)


def test_a_budget_that_no_plan_fits_is_refused_before_any_run_is_joined(
    tiny_base: Base, task: Task, mine: Path, tmp_path: Path
) -> None:
    script = Script(tiny_base, task, [("train", nothing)])
    with pytest.raises(BudgetError, match="--memory-budget"):
        script.run(tmp_path, budget_bytes=1)
    assert script.door.said == [("run", "declined", "budget")]


def test_texts_that_stop_fitting_before_the_first_work_are_read_from_the_look_before(
    tiny_base: Base, task: Task, mine: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    works = [put(mine / "labelled.csv", f"text,label\nweather,{SECRET}\n")]
    script = Script(tiny_base, task, [("train", act) for act in works])
    assert examples(script.run(tmp_path)) == [("done", 2)]
    assert "the texts read last stay in use" in caplog.text


def test_a_disk_that_fails_three_times_ends_the_client_and_is_told_as_a_code(
    tiny_base: Base, task: Task, mine: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    notes = ClientState(tmp_path / "state").labels("run")

    def break_disk() -> None:
        notes.mkdir(exist_ok=True)

    script = Script(tiny_base, task, [("label", break_disk)] * 5, labelling=Labelling())
    with pytest.raises(GaveUp, match="3 pieces of work failed one after the other"):
        script.run(tmp_path)
    assert [(one.failure, one.is_leaving) for one in script.told] == [
        ("disk", False),
        ("disk", False),
        ("disk", True),
    ]
    failed = [one.getMessage() for one in caplog.records if one.levelno == logging.ERROR]
    assert len(failed) == 3 and all(str(notes) in line for line in failed)


def test_what_may_pass_by_itself_is_borne_for_a_while(
    tiny_base: Base, task: Task, mine: Path, tmp_path: Path
) -> None:
    notes = ClientState(tmp_path / "state").labels("run")

    def break_disk() -> None:
        notes.mkdir(exist_ok=True)

    def mend_disk() -> None:
        notes.rmdir()

    acts = [break_disk] * 4 + [mend_disk]
    script = Script(
        tiny_base, task, [("label", act) for act in acts], labelling=Labelling(), grace_s=60.0
    )
    reports = script.run(tmp_path)
    assert [report.outcome for report in reports] == ["failed"] * 4 + ["done"]
    assert not any(report.is_leaving for report in reports)


def test_an_answer_that_is_refused_is_a_failure_and_not_asked_for_ever(
    tiny_base: Base, task: Task, mine: Path, tmp_path: Path
) -> None:
    script = Script(tiny_base, task, [("train", nothing)] * 9, refuses_updates=True)
    with pytest.raises(GaveUp, match="NotTaken"):
        script.run(tmp_path)
    assert [(one.failure, one.is_leaving) for one in script.told] == [
        ("refused", False),
        ("refused", False),
        ("refused", True),
    ]


def test_a_tokenizer_that_is_gone_at_work_is_a_failure_without_its_content(
    tiny_base: Base, task: Task, mine: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    base = replace(tiny_base, folder=tmp_path / "base")
    shutil.copytree(tiny_base.folder, base.folder)

    def damage() -> None:
        (base.folder / "tokenizer.json").write_text(f'{{"{SECRET}"')

    script = Script(base, task, [("train", damage)])
    with pytest.raises(TokenizerError, match="copy the base again"):
        script.run(tmp_path)
    assert [(one.failure, one.is_leaving) for one in script.told] == [("base", True)]
    assert SECRET not in caplog.text


def test_a_full_state_folder_is_told_before_any_run_is_joined(
    tiny_base: Base, task: Task, mine: Path, tmp_path: Path
) -> None:
    limits, script = resource.getrlimit(resource.RLIMIT_FSIZE), Script(tiny_base, task, [])
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 15, limits[1]))
    try:
        with pytest.raises(StateError, match="cannot be written"):
            script.run(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not script.paths


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PermissionError(13, "Permission denied", "/home/ana/pin.csv"), "disk"),
        (ValueError(f"what is {SECRET!r} in /home/ana"), "internal"),
        (RuntimeError("no model at /home/ana"), "internal"),
        (WeightsError("/home/ana/model.safetensors is damaged"), "base"),
        (BudgetError("too little"), "budget"),
        (MemoryError(), "memory"),
        (EngineError("no torch"), "engine"),
        (TrainingError("no texts"), "training"),
        (DataError("a line of mine"), "texts"),
    ],
)
def test_an_error_goes_up_as_a_code(error: Exception, code: Failure) -> None:
    assert code_of(error) == code


@pytest.mark.slow
def test_texts_longer_than_what_is_read_are_told_once_per_reading_and_to_nobody_else(
    tiny_base: Base, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "mine" / "unlabelled"
    folder.mkdir(parents=True)
    (folder / "a.txt").write_text(f"rain today\n\n{'storm at nine ' * 20}{SECRET}\n")
    more = put(folder / "b.txt", "gate " * 40)
    works = [nothing, nothing, more, put(folder / "c.txt", "noon"), nothing]
    script = Script(tiny_base, Task("notes", kind="mlm"), [("train", act) for act in works])
    assert examples(script.run(tmp_path)) == [("done", n) for n in (2, 2, 3, 4, 4)]
    cuts = [line for line in caplog.messages if "longer than what is read" in line]
    assert [line.split(":")[0][:6] for line in cuts] == ["1 of 2", "2 of 3", "2 of 4"]
    assert all("unlabelled/a.txt, line 3, has about 7" in line for line in cuts)
    assert all(SECRET not in line and "storm" not in line for line in caplog.messages)
    assert not any(b"a.txt" in body for body in script.bodies)
