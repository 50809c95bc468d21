"""A device whose texts are of two topics, and engines that can tell them apart."""

from dataclasses import replace

import numpy as np

from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.engine.engine import Engine
from smidgen.edge_client.engine.opening import open_engine
from smidgen.edge_client.engine.trainer import train
from smidgen.edge_client.labelling import label_work
from smidgen.edge_client.labelling.early_exit import WORTH
from smidgen.edge_client.labelling.label_journal import LabelJournal, MemoryNotes, Notes
from smidgen.edge_client.labelling.label_work import terms_of
from smidgen.edge_client.labelling.pseudo_labels import OwnTexts
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.examples import ClientData, Example
from smidgen.edge_client.wire.messages import PROTOCOL, Report, Work
from smidgen.edge_client.wire.training import Labelling, Training

TASK = Task(
    "two",
    ("mail", "weather"),
    ("{text} . this is about [MASK] .",),
    {"mail": "mail", "weather": "weather"},
)
TOPICS = {
    "mail": ["parcel", "gate", "door", "camera", "front", "opened"],
    "weather": ["storm", "rain", "heating", "units", "power", "noon"],
}
FILLING = (
    *("the", "a", "is", "was", "this", "of", "at", "on", "in", "to", "and", "you", "for", "with"),
    *("home", "today", "seven", "nine", "twelve"),
)
TRAINING = Training(epochs=4, batch=8, lr=0.02, tokens=48)
ALL = Labelling(
    compute_share=1.0, confidence=0.99, class_floor=0.99, keep_first=1.0, keep_last=1.0
)  # everything is read


def texts_of(count: int, seed: int) -> tuple[Example, ...]:
    """Texts of two topics in turn."""
    generator, found = np.random.Generator(np.random.PCG64(seed)), []
    for number in range(count):
        topic = TASK.labels[number % 2]
        words = [*generator.choice(TOPICS[topic], 3), *generator.choice(FILLING, 2)]
        found.append(Example(" ".join(generator.permutation(words)), label=topic))
    return tuple(found)


def unlabelled(count: int) -> tuple[Example, ...]:
    return tuple(replace(text, label=None) for text in texts_of(count, 0))


DATA = ClientData((), unlabelled(72), ())
MANY = ClientData((), unlabelled(WORTH + 16), ())  # so many that texts may leave early


def trained(kind: str, base: Base, name: str = "lora:4") -> Engine:
    """An engine that can tell the topics apart, so that texts leave early."""
    spec = parse_adapter(name)
    engine = open_engine(kind, base, TASK, spec, TRAINING)
    engine.load_adapter(initial_adapter(spec, base, 2, seed=3))
    train(engine, texts_of(24, 9), TRAINING, seed=1)
    return engine


def work_of(said: Labelling = ALL, **changes: object) -> Work:
    work = Work(
        protocol=PROTOCOL,
        work_id="work-1",
        kind="label",
        run_id="run",
        round_index=1,
        base_id="base",
        adapter_spec="lora:4",
        adapter_sha256="a" * 64,
        adapter_bytes=1,
        task=TASK,
        training=TRAINING,
        seed=1,
        labelling=said,
        keep=1.0,
    )
    return replace(work, **changes)  # type: ignore[arg-type]


def own(engine: Engine, data: ClientData) -> OwnTexts:
    return OwnTexts(data, engine.encoder.unknown_share)


def label(engine: Engine, data: ClientData, work: Work, notes: Notes) -> Report:
    """Label work on texts that were read just now."""
    return label_work.label(engine, own(engine, data), terms_of(work), notes)


def straight(engine: Engine, work: Work, data: ClientData = DATA) -> tuple[LabelJournal, int]:
    notes, before = MemoryNotes(), engine.layer_forwards
    label(engine, data, work, notes)
    return notes.book, engine.layer_forwards - before
