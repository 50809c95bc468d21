"""Training an adapter on this device's texts, all by itself."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from smidgen import __version__
from smidgen.edge_client.adapters.card import Card, licence_of
from smidgen.edge_client.adapters.initial import first_adapter
from smidgen.edge_client.adapters.peft_folder import (
    Exported,
    check_adapter_folder,
    write_peft_folder,
)
from smidgen.edge_client.adapters.spec import (
    AdapterError,
    AdapterSpec,
    parse_adapter,
    usual_adapter,
)
from smidgen.edge_client.api.labeller import Asked, Place, Tell, place, task_for, training_of
from smidgen.edge_client.api.plan import ADAPTER
from smidgen.edge_client.bases.base import EMBEDDED, Base, BaseName, open_base
from smidgen.edge_client.engine.budgeted import open_within, ready_engine
from smidgen.edge_client.engine.engine import Engine
from smidgen.edge_client.engine.scoring import evaluate, measured
from smidgen.edge_client.engine.trainer import Trained
from smidgen.edge_client.engine.trainer import train as train_round
from smidgen.edge_client.errors import demand
from smidgen.edge_client.formats.source import DataError, Dialect
from smidgen.edge_client.formats.tags import OUTSIDE
from smidgen.edge_client.metering.memory import PeakSpan
from smidgen.edge_client.planning.cuda_memory import CPU, DevicePeak
from smidgen.edge_client.planning.plan import AUTO, Plan, parse_budget
from smidgen.edge_client.planning.planner import plan_in_words
from smidgen.edge_client.tasks.encoder import cuts_in_words, usable
from smidgen.edge_client.tasks.kind import kind_of
from smidgen.edge_client.tasks.scores import Evaluation
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.examples import ClientData, read_folder
from smidgen.edge_client.updates.forms import steps_of
from smidgen.edge_client.updates.registry import made
from smidgen.edge_client.updates.ridge import WEIGHT, solved
from smidgen.edge_client.updates.states import local_correction
from smidgen.edge_client.updates.step import ServerContext
from smidgen.edge_client.wire.tensors import Seed, derive_seed, encode_adapter
from smidgen.edge_client.wire.training import Training

ROUNDS, MOST_ROUNDS = 1, 1_000_000


@dataclass(frozen=True)
class TrainedAdapter:
    """An adapter that was trained on one device.

    Attributes:
        folder: The PEFT folder it was written to.
        num_examples: Texts of a round.
        loss: Mean cross-entropy over the last pass, in nats.
        accuracy_before: Share of right answers on the test texts before; None without any.
        accuracy_after: The same after training.
        test_examples: Test texts.
        plan: How a step was computed.
        predicted_peak_bytes: What the plan was estimated to take; of a card its memory.
        peak_rss_bytes: Most memory of this process during the whole call, measured; an older peak
            where the kernel does not let one begin.
        device: What it was trained on, `cpu` or `cuda`.
        device_peak: Most memory of the CUDA device, measured by torch; None without one.
        measure: What such adapters are compared by: of labels `accuracy`, of tags `f1`, of masked
            words `perplexity`.
        score_before: That figure on the test texts before; None without any.
        score_after: The same after training.
        rows: What became of the rows of `labelled` and the other files, see `Accounting.as_json`.
        example: A text as the kind of task takes one.
    """

    folder: Path
    num_examples: int
    loss: float
    accuracy_before: float | None
    accuracy_after: float | None
    test_examples: int
    plan: Plan
    predicted_peak_bytes: int
    peak_rss_bytes: int
    device: str = CPU
    device_peak: DevicePeak | None = None
    measure: str = "accuracy"
    score_before: float | None = None
    score_after: float | None = None
    rows: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    example: str = ""


@dataclass(frozen=True)
class _Alone:
    """What is trained."""

    base: Base
    task: Task
    adapter: str
    texts: ClientData
    training: Training
    rounds: int
    seed: int


def train(
    data: Place,
    out: Place,
    *,
    task: Asked | None = None,
    base: BaseName = EMBEDDED,
    engine: str = AUTO,
    device: str = CPU,
    memory_budget: str = AUTO,
    adapter: str = "",
    prompt_init: str = "",
    rounds: Annotated[int, Meta(ge=1, le=MOST_ROUNDS)] = ROUNDS,
    epochs: int = Training.epochs,
    batch: int = Training.batch,
    lr: float = Training.lr,
    tokens: int = Training.tokens,
    optimizer: str = Training.optimizer,
    momentum: float = Training.momentum,
    proximal: float = Training.proximal,
    seed: Seed = 0,
    text_column: str = "",
    label_column: str = "",
    delimiter: str = "",
    encoding: str = "",
    tell: Tell = lambda line: None,
) -> TrainedAdapter:
    """Train an adapter on this device's texts alone, and write it as a PEFT folder.

        trained = smidgen.train("texts", "adapter", task="agnews", rounds=3)

    Args:
        data: Folder with labelled.csv, test.csv ..., or one file.
        out: PEFT adapter folder to write.
        task: A task.toml or the name of a ready-made task; default: the task.toml next to the
            texts.
        base: Base model: folder, GGUF file, hub name or `embedded`.
        engine: `torch`, `onnx`, or `auto`: torch if it is installed.
        device: `cpu`, or `cuda` with the torch engine.
        memory_budget: Such as `512M` or `1.5G`; `auto`: 60 % of what is available, with `cuda` on a
            discrete card of its memory.
        adapter: `lora:8`, `prompt:8`, `bias`, any of them with `+head`, or `head`; `lora:8` also
            with a variant such as `+ridge`. The default is `lora:8`, for tagging `lora:8+head`.
        prompt_init: Text that a soft prompt is initialized from.
        rounds: Rounds of training on this device; the optimizer is reset in each.
        epochs: Passes over the texts per round.
        batch: Texts per optimizer step.
        lr: Learning rate of the optimizer.
        tokens: Longest input in tokens.
        optimizer: `adamw` or `sgd`.
        momentum: Momentum of SGD, 0 to below 1.
        proximal: FedProx mu: how strongly a round is pulled back to the weights it started from; 0:
            off.
        seed: Random seed; equal arguments give equal adapters.
        text_column: Column with the text, or two for pairs, `a,b`; default `text`. In CoNLL, the
            column of the words, by name or number.
        label_column: Column with the label; default `label`. In CoNLL, the column of the tags, by
            name or number.
        delimiter: Separator of CSV and TSV columns, such as `;` or `tab`.
        encoding: Encoding of the text files, such as `latin-1`; default UTF-8.
        tell: Told the plan and each round in a line.

    Raises:
        WrongInput: Texts, task, base or adapter do not fit, no plan fits the budget, or `out`
            cannot be written to; found out before training.
        Failed: Training went wrong.
    """
    span = PeakSpan()
    folder, texts_in = place(out), place(data)
    check_adapter_folder("--out", folder)
    demand(1 <= rounds <= MOST_ROUNDS, f"--rounds {rounds}: 1 to {MOST_ROUNDS} is expected")
    demand(0 <= seed < 2**63, f"--seed {seed}: 0 to 2^63 - 1 is expected")
    engine = ready_engine(engine, device)
    budget, chosen = parse_budget(memory_budget), task_for(task, texts_in)
    adapter = adapter or usual_adapter(chosen, ADAPTER)
    spec = _alone_spec(adapter)
    training = training_of(
        epochs=epochs,
        batch=batch,
        lr=lr,
        tokens=tokens,
        optimizer=optimizer,
        momentum=momentum,
        proximal=proximal,
    )
    dialect = Dialect(text_column, label_column, delimiter, encoding)
    texts = labelled_texts(texts_in, chosen, dialect)
    opened = open_base(str(base))
    first = first_adapter(opened, spec, chosen, prompt_init, seed, tokens)
    with closing(
        open_within(engine, opened, chosen, spec, training, budget, device=device)
    ) as computer:
        computer.load_adapter(first)
        tell(f"plan: {plan_in_words(computer.option)}")
        if (
            kind_of(chosen).head(chosen).is_of_words
            and texts.test
            and not any({*one.tags} - {OUTSIDE} for one in texts.test)
        ):
            tell("the test texts hold no entities, so the F1 of entities says nothing")
        if chosen.labels[1:] and len({one.label for one in texts.labelled} - {None}) == 1:
            tell(f"all texts to train on are labelled {texts.labelled[0].label!r}, and none others")
        texts, left_out = usable(computer.encoder, texts)
        for line in (*left_out, *cuts_in_words(computer.encoder, texts, training.tokens)):
            tell(line)
        demand(bool(texts.labelled), f"{data}: {' '.join(left_out[:1])}", DataError)
        alone = _Alone(opened, chosen, adapter, texts, training, rounds, seed)
        done, scores = _train(computer, alone, tell)
        origin = Exported(adapter, opened.peft_name, opened.base_id, opened.architecture, chosen)
        body = encode_adapter(computer.adapter())
        write_peft_folder(folder, origin, body, _card(alone, scores), opened)
        return _trained(folder, computer, alone, done, scores, device, span.peak_bytes())


def _alone_spec(adapter: str) -> AdapterSpec:
    """An adapter that one device can train."""
    spec = parse_adapter(adapter)
    demand(
        not spec.net,
        f"adapter {spec}: such a net is trained by a run of many devices: `smidgen coordinator "
        "create`",
        AdapterError,
    )
    return spec


def labelled_texts(data: Path, task: Task, dialect: Dialect) -> ClientData:
    """A device's texts, of which some can be trained on.

    Raises:
        DataError: None can.
    """
    texts = read_folder(data, task, dialect)
    what = task.files.nouns.removesuffix(" to train on")
    demand(
        bool(texts.labelled), f"{data} holds no {what} to train on; {task.files.lacks}", DataError
    )
    return texts


def _train(engine: Engine, alone: _Alone, tell: Tell) -> tuple[Trained, dict[int, Evaluation]]:
    """What the last round gave, and by round the scores before the first and after the last."""
    test = alone.texts.test
    scores = {0: evaluate(engine, test)} if test else {}
    if WEIGHT in (start := engine.adapter()):
        texts = alone.texts.labelled
        weight = solved(engine.second_moments(texts), len(texts), start[WEIGHT].shape)
        engine.load_adapter(start | {WEIGHT: weight})
    for round_index in range(1, alone.rounds + 1):
        engine.load_adapter(engine.adapter())
        seed = derive_seed(alone.seed, "train", "alone", round_index)
        correct = partial(
            local_correction,
            training=alone.training,
            of_adapter=steps_of(alone.adapter),
            round_index=round_index,
        )
        trained = train_round(engine, alone.texts.labelled, alone.training, seed, correct=correct)
        for step in made(steps_of(alone.adapter)):
            context = ServerContext(alone.training, round_index)
            engine.load_adapter(step.settled(engine.adapter(), context))
        engine.end_round()
        if alone.rounds > 1:
            tell(f"round {round_index} of {alone.rounds}: loss {trained.loss:.3f}")
    return trained, scores | ({alone.rounds: evaluate(engine, test)} if test else {})


def _card(alone: _Alone, scores: Mapping[int, Evaluation]) -> Card:
    kind = kind_of(alone.task)
    figures = {index: measured(alone.task, score) for index, score in scores.items()}
    return Card(
        rounds=alone.rounds,
        devices=1,
        accuracies={index: score.accuracy for index, score in scores.items()},
        date=datetime.now(tz=timezone.utc).date().isoformat(),
        version=__version__,
        licence=licence_of(alone.base),
        entity_f1=figures if kind.measure.is_counted else {},
        losses={index: score.loss for index, score in scores.items()},
    )


def _trained(
    folder: Path,
    engine: Engine,
    alone: _Alone,
    done: Trained,
    scores: Mapping[int, Evaluation],
    device: str,
    peak_bytes: int,
) -> TrainedAdapter:
    before, after, kind = scores.get(0), scores.get(alone.rounds), kind_of(alone.task)
    return TrainedAdapter(
        folder=folder,
        num_examples=done.num_examples,
        loss=done.loss,
        accuracy_before=before.accuracy if before else None,
        accuracy_after=after.accuracy if after else None,
        test_examples=len(alone.texts.test),
        plan=engine.plan,
        predicted_peak_bytes=engine.option.predicted_peak_bytes,
        peak_rss_bytes=peak_bytes,
        device=device,
        device_peak=engine.device_peak(),
        measure=kind.measure.own_key,
        score_before=measured(alone.task, before) if before else None,
        score_after=measured(alone.task, after) if after else None,
        rows={part: one.as_json() for part, one in alone.texts.rows.items()},
        example=kind.card.example,
    )
