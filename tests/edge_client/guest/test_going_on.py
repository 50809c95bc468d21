"""Training that is left after any step and gone on with ends in the bytes of never having left."""

import json
import logging
import os
import signal
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.engine.budgeted import open_within
from smidgen.edge_client.engine.engine import Engine
from smidgen.edge_client.engine.opening import open_engine
from smidgen.edge_client.engine.trainer import Trained, train
from smidgen.edge_client.files import PRIVATE
from smidgen.edge_client.guest.process import Ended, listening, working
from smidgen.edge_client.guest.steps import (
    KEEP_EVERY_S,
    Moments,
    Paused,
    ResumePoint,
    StepFile,
    Steps,
)
from smidgen.edge_client.planning.plan import Plan, give_same_bytes
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.wire.tensors import AdapterState, sha256
from smidgen.edge_client.wire.training import Training
from tests.breadth import covering
from tests.edge_client.engine.engines import KINDS, SPECS, TEXTS

pytestmark = pytest.mark.few

TRAINING = Training(lr=0.01, tokens=48, batch=4, epochs=3, weight_decay=0.01)
OTHERS = [
    replace(TRAINING, optimizer="sgd", lr=0.1),
    replace(TRAINING, optimizer="sgd", lr=0.1, momentum=0.9),
    replace(TRAINING, proximal=0.5),
]
STEPS = 6  # two batches in each of three epochs
WEIGHTS = [1.0, 0.5, 2.0, 0.25, 1.0, 0.75]
BOUND = {"work": "w1"}
each_kind = pytest.mark.parametrize("kind", KINDS)
TURNS = 3


class Leaving:
    """Says to leave after chosen numbers of steps; a step file calls it between two steps."""

    def __init__(self, *after: int) -> None:
        self._left, self.steps = list(after), 0

    def __call__(self) -> None:
        self.steps += 1
        if self._left and self.steps == self._left[0]:
            self._left.pop(0)
            raise Paused


def started(
    kind: str, base: Base, task: Task, name: str, training: Training = TRAINING
) -> tuple[Engine, AdapterState]:
    spec = parse_adapter(name)
    engine = open_engine(kind, base, task, spec, training)
    start = initial_adapter(spec, base, len(task.labels), seed=3)
    engine.load_adapter(start)
    return engine, start


def straight(
    kind: str, base: Base, task: Task, name: str, training: Training = TRAINING
) -> Trained:
    engine, _ = started(kind, base, task, name, training)
    return train(engine, TEXTS, training, 5, WEIGHTS)


def one_life(
    engine: Engine, path: Path, between: Callable[[], None], training: Training = TRAINING
) -> Trained | None:
    try:
        return train(engine, TEXTS, training, 5, WEIGHTS, StepFile(path, BOUND, between))
    except Paused:
        return None


def same(trained: Trained, expected: Trained) -> bool:
    pairs = [(trained.delta[name], tensor) for name, tensor in expected.delta.items()]
    is_loss = trained.loss == expected.loss and trained.num_examples == expected.num_examples
    return is_loss and all(a.tobytes() == b.tobytes() for a, b in pairs)


@pytest.mark.few(4)
@pytest.mark.parametrize(("kind", "name"), covering(KINDS, SPECS))
def test_left_at_random_steps_it_ends_in_the_same_bytes(
    tiny_base: Base, hub_task: Task, tmp_path: Path, kind: str, name: str, seed: int
) -> None:
    expected = straight(kind, tiny_base, hub_task, name)
    for turn in range(TURNS):
        drawn = np.random.default_rng(seed + turn)
        lives, trained, path = 0, None, tmp_path / f"{turn}.st"
        while trained is None:
            engine, _ = started(kind, tiny_base, hub_task, name)  # another process, in all but name
            trained = one_life(engine, path, Leaving(int(drawn.integers(1, STEPS))))
            lives += 1
        assert same(trained, expected), f"SMIDGEN_FAULT_SEED={seed}, turn {turn}, life {lives}"


@pytest.mark.few(1)
@each_kind
@pytest.mark.parametrize("training", OTHERS, ids=["sgd", "momentum", "proximal"])
def test_with_another_optimizer_too(
    tiny_base: Base, hub_task: Task, tmp_path: Path, kind: str, training: Training
) -> None:
    expected = straight(kind, tiny_base, hub_task, "lora:2+head", training)
    for after in range(1, STEPS):
        path, trained, between = tmp_path / f"{after}.st", None, Leaving(after, after + 1)
        while trained is None:
            engine, _ = started(kind, tiny_base, hub_task, "lora:2+head", training)
            trained = one_life(engine, path, between, training)
        assert between.steps == STEPS and same(trained, expected)


@each_kind
def test_an_engine_that_stays_open_goes_on_in_the_same_bytes(
    tiny_base: Base, hub_task: Task, tmp_path: Path, kind: str
) -> None:
    expected = straight(kind, tiny_base, hub_task, "lora:4")
    engine, start = started(kind, tiny_base, hub_task, "lora:4")
    before = engine.layer_forwards
    assert one_life(engine, tmp_path / "w.st", Leaving(3)) is None
    in_first_life = engine.layer_forwards - before
    engine.rest()
    engine.load_adapter(start)
    trained = one_life(engine, tmp_path / "w.st", Leaving())
    assert trained is not None and same(trained, expected)
    assert trained.earlier_forwards == in_first_life > 0


@each_kind
def test_a_step_that_is_cut_changes_nothing(
    tiny_base: Base, hub_task: Task, kind: str, seed: int
) -> None:
    engine, _ = started(kind, tiny_base, hub_task, "lora:4")
    batch = engine.encoder.batch(engine.encoder.prompts(TEXTS))
    engine.train_step(batch)  # which makes the sessions
    began_s = time.monotonic()
    engine.train_step(batch)
    step_s = time.monotonic() - began_s
    drawn, cuts = np.random.default_rng(seed), 0
    for _ in range(20):
        adapter, moments = engine.adapter(), engine.moments()
        is_cut = False
        try:
            with listening(cut_s=drawn.uniform(1e-5, 1.5 * step_s)), working():
                os.kill(os.getpid(), signal.SIGTERM)
                try:
                    engine.train_step(batch)
                except Ended:
                    is_cut = True
                    raise
        except Ended:
            cuts += is_cut
        now = engine.moments()
        is_same = all((now.means[name] == mean).all() for name, mean in moments.means.items())
        is_same &= now.counts == moments.counts
        is_same &= all((engine.adapter()[n] == tensor).all() for n, tensor in adapter.items())
        assert is_same == is_cut, f"seed {seed}"
    assert cuts


@each_kind
def test_moments_that_are_loaded_give_the_same_next_step(
    tiny_base: Base, hub_task: Task, kind: str
) -> None:
    engine, _ = started(kind, tiny_base, hub_task, "lora:2+head")
    batch = engine.encoder.batch(engine.encoder.prompts(TEXTS))
    engine.train_step(batch)
    adapter, moments = engine.adapter(), engine.moments()
    engine.train_step(batch)
    expected = engine.adapter()
    engine.load_adapter(adapter)
    engine._backend.optimizer.load(moments)
    engine.train_step(batch)
    after = engine.adapter()
    assert all(after[name].tobytes() == tensor.tobytes() for name, tensor in expected.items())


# What does not fit


def left(tmp_path: Path, base: Base, task: Task) -> Path:
    """A file of training that was left after three steps."""
    engine, _ = started(KINDS[0], base, task, "lora:4")
    assert one_life(engine, tmp_path / "w.st", Leaving(3)) is None
    return tmp_path / "w.st"


def steps_taken(
    path: Path, base: Base, task: Task, texts: list[Example] = TEXTS, **how: object
) -> int:
    """How many steps a training makes that finds this file."""
    engine, _ = started(KINDS[0], base, task, "lora:4")
    between, bound = Leaving(), {"work": how.pop("work", "w1")}
    seed, training = how.pop("seed", 5), replace(TRAINING, **how)  # type: ignore[arg-type]
    file = StepFile(path, bound, between)  # type: ignore[arg-type]
    train(engine, texts, training, seed, WEIGHTS, file)  # type: ignore[arg-type]
    return between.steps


def test_what_fits_is_gone_on_with(
    tiny_base: Base, hub_task: Task, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = left(tmp_path, tiny_base, hub_task)
    assert path.stat().st_mode & 0o777 == PRIVATE
    with caplog.at_level(logging.INFO):
        assert steps_taken(path, tiny_base, hub_task) == STEPS - 3
    assert "going on with epoch 2 of 3, after 1 of its steps" in caplog.text


def test_progress_counts_texts_of_the_life_before(
    tiny_base: Base, hub_task: Task, tmp_path: Path
) -> None:
    path, texts = left(tmp_path, tiny_base, hub_task), list[int]()
    engine, _ = started(KINDS[0], tiny_base, hub_task, "lora:4")
    engine.on_texts = texts.append
    assert one_life(engine, path, Leaving()) is not None
    assert sum(texts) == len(TEXTS) * TRAINING.epochs


@pytest.mark.parametrize(
    ("what", "how"),
    [
        ("texts", {"texts": [*TEXTS[:-1], Example("another", label="mail")]}),
        ("work", {"work": "w2"}),
        ("training terms", {"lr": 0.02}),
        ("seed", {"seed": 6}),
    ],
)
def test_of_something_else_it_is_dropped_in_one_line(
    tiny_base: Base,
    hub_task: Task,
    tmp_path: Path,
    what: str,
    how: dict[str, object],
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = left(tmp_path, tiny_base, hub_task)
    assert steps_taken(path, tiny_base, hub_task, **how) == STEPS  # type: ignore[arg-type]
    (said,) = [line for line in caplog.messages if "does not fit" in line]
    assert f"other {what}" in said and not path.exists()


@pytest.mark.parametrize("place", range(4))
def test_a_damaged_file_is_dropped_in_one_line(
    tiny_base: Base,
    hub_task: Task,
    tmp_path: Path,
    place: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = left(tmp_path, tiny_base, hub_task)
    body = bytearray(path.read_bytes())
    body[[0, 70, len(body) // 2, -1][place]] ^= 1
    path.write_bytes(bytes(body))
    with caplog.at_level(logging.WARNING):
        assert steps_taken(path, tiny_base, hub_task) == STEPS
    (said,) = caplog.messages
    assert "the file is damaged" in said


SHAPES = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x01",
        (1 << 63).to_bytes(8, "little"),
        b"\x02" + bytes(7) + b"\xff\xff",
        *(len(one).to_bytes(8, "little") + one for one in (b"[]", b"7", b"{}", b"[" * 10_000)),
        *(
            len(one).to_bytes(8, "little") + one + bytes(8)
            for changed in (
                {"shape": [-2]},
                {"dtype": "F16"},
                {"data_offsets": [0, 4]},
                {"data_offsets": None},
            )
            for one in [json.dumps({"mean a": SHAPES | changed, "__metadata__": 3}).encode()]
        ),
    ],
    ids=range(12),
)
def test_whole_files_of_something_else_are_dropped_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    path = tmp_path / "w.st"
    path.write_bytes(sha256(content).encode() + content)
    with caplog.at_level(logging.WARNING):
        assert StepFile(path, BOUND, lambda: None).found({}) is None
    (said,) = caplog.messages
    assert "the file is of another smidgen" in said and not path.exists()


def test_a_file_that_goes_before_it_is_read_begins_anew(
    tiny_base: Base, hub_task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = left(tmp_path, tiny_base, hub_task)
    found = StepFile.found

    def gone(file: StepFile, bound: dict[str, str]) -> Steps | None:
        steps = found(file, bound)
        os.truncate(path, 200)
        return steps

    monkeypatch.setattr(StepFile, "found", gone)
    assert steps_taken(path, tiny_base, hub_task) == STEPS


def test_a_file_that_cannot_be_read_now_is_left_for_another_life(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "steps.st"
    path.mkdir()  # no file that can be read
    with caplog.at_level(logging.WARNING):
        assert StepFile(path, {}, lambda: None).found({}) is None
    (said,) = caplog.messages
    assert "cannot be read" in said and path.is_dir()


@pytest.mark.few(1)
@each_kind
def test_a_plan_that_does_not_fit_any_more_begins_anew(
    tiny_base: Base, hub_task: Task, tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    spec = parse_adapter("lora:4")
    engine = open_within(kind, tiny_base, hub_task, spec, TRAINING, 2 << 30)
    assert engine.budget is not None and engine.budget.like(engine.plan) == engine.plan
    assert one_life(engine, tmp_path / "w.st", Leaving(3)) is None
    plan = engine.plan
    engine.use(min(engine.budget._found, key=lambda o: o.predicted_peak_bytes).plan)
    assert engine.plan != plan
    engine.budget.guard.budget_bytes = 1
    assert engine.budget.like(plan) is None
    trained = one_life(engine, tmp_path / "w.st", between := Leaving())
    assert trained is not None and between.steps == STEPS
    assert "of a plan that does not fit" in caplog.text


@pytest.mark.parametrize(("kind", "name"), covering(KINDS, ["lora:4", "bias", "prompt:4"]))
def test_plans_that_differ_in_what_is_recomputed_give_the_same_bytes_at_any_step(
    tiny_base: Base, hub_task: Task, tmp_path: Path, kind: str, name: str, seed: int
) -> None:
    spec, drawn = parse_adapter(name), np.random.default_rng(seed)
    engine = open_within(kind, tiny_base, hub_task, spec, TRAINING, 2 << 30)
    start = initial_adapter(spec, tiny_base, len(hub_task.labels), seed=3)
    engine.load_adapter(start)
    expected = train(engine, TEXTS, TRAINING, 5, WEIGHTS)
    assert engine.budget is not None
    no_more = {"is_over": lambda: False}  # by what this process holds of other tests
    vars(engine.budget.guard).update(no_more)
    plans = [option.plan for option in engine.budget._found]
    alike = [plan for plan in plans if give_same_bytes(plan, engine.plan)]
    assert len(alike) > 1
    trained, path = None, tmp_path / "w.st"
    while trained is None:
        engine.use(alike[drawn.integers(len(alike))])
        engine.load_adapter(start)
        engine.budget.guard.budget_bytes = engine.option.predicted_peak_bytes  # memory is short
        trained = one_life(engine, path, Leaving(int(drawn.integers(1, 3))))
    assert same(trained, expected), f"SMIDGEN_FAULT_SEED={seed}"


@each_kind
def test_where_memory_is_short_less_than_the_budget_is_taken_or_the_smallest_plan(
    tiny_base: Base, hub_task: Task, kind: str
) -> None:
    spec, huge = parse_adapter("lora:4"), 1 << 50
    engine = open_within(kind, tiny_base, hub_task, spec, TRAINING, huge, is_squeezed=True)
    assert engine.budget_bytes < huge
    engine.close()
    engine = open_within(kind, tiny_base, hub_task, spec, TRAINING, 2 << 30, is_squeezed=False)
    assert engine.budget_bytes == 2 << 30


def test_every_five_minutes_it_is_kept_for_a_power_cut(
    tiny_base: Base, hub_task: Task, tmp_path: Path
) -> None:
    engine, _ = started(KINDS[0], tiny_base, hub_task, "lora:4")
    path, seen, now_s = tmp_path / "w.st", list[bool](), 0.0

    def between() -> None:
        nonlocal now_s
        now_s += KEEP_EVERY_S / 2.5
        seen.append(path.exists())

    file = StepFile(path, BOUND, between, lambda: now_s)
    train(engine, TEXTS, TRAINING, 5, WEIGHTS, file)
    assert seen == [False, False, False, True, True, True]
    assert steps_taken(path, tiny_base, hub_task) < STEPS


def test_keeping_and_going_on_take_the_memory_of_one_tensor(tmp_path: Path) -> None:
    state = {f"{index:02}": np.ones((200, 300), np.float32) for index in range(20)}
    moments = Moments(state, state, dict.fromkeys(state, 3))
    steps = Steps(ResumePoint(1, 2, 0.5, 7), Plan("float32", 1, (), 1, 8), state, moments)
    file = StepFile(tmp_path / "w.st", BOUND, lambda: None)
    tracemalloc.start()
    file.keep(steps)
    found = file.found({})
    assert found is not None
    for name, tensor in state.items():
        for part in (found.adapter, found.moments.means, found.moments.squares):
            assert part[name].tobytes() == tensor.tobytes()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 6 * (1 << 20) and found.place == steps.place and found.plan == steps.plan


def test_a_full_disk_costs_the_steps_and_not_the_work(
    tiny_base: Base, hub_task: Task, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine, _ = started(KINDS[0], tiny_base, hub_task, "lora:4")
    assert one_life(engine, tmp_path / "none" / "w.st", Leaving(3)) is None
    assert "are not kept" in caplog.text
