"""Tasks that tag words or ask for masked ones, texts for them, and adapters trained on these."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.peft_folder import Exported, write_peft_folder
from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.engine.engine import Engine
from smidgen.edge_client.engine.opening import open_engine
from smidgen.edge_client.engine.trainer import train
from smidgen.edge_client.tasks.kind import kind_of
from smidgen.edge_client.tasks.task import Masking, Task
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.wire.tensors import encode_adapter
from smidgen.edge_client.wire.training import Training

torch = pytest.importorskip("torch")

DRUGS = Task("drugs", ("Chemical", "Disease"), kind="tagging")
NOTES = Task("notes", kind="mlm", masking=Masking(0.3))


def words_and_tags(words: str, tags: str) -> Example:
    return Example(words, words=tuple(words.split()), tags=tuple(tags.split()))


TAGGED = [
    words_and_tags("Naloxone reverses hypotension", "B-Chemical O B-Disease"),
    words_and_tags("lithium carbonate , twice a day", "B-Chemical I-Chemical O O O O"),
    words_and_tags("no sign of heart failure", "O O O B-Disease I-Disease"),
]
MASKED = [Example("rain at nine and a storm at noon"), Example("the parcel is at the gate")]


def trained(kind: str, base: Base, task: Task, name: str) -> Engine:
    """An engine whose adapter was trained far enough that every tensor has moved."""
    spec, training = parse_adapter(name), Training(epochs=3, lr=0.01, tokens=48)
    engine = open_engine(kind, base, task, spec, training)
    is_of_words = task.kind == "tagging"
    first = initial_adapter(spec, base, kind_of(task).head(task).rows, 1, is_of_words=is_of_words)
    engine.load_adapter(first)
    train(engine, TAGGED if is_of_words else MASKED, training, seed=1)
    return engine


def exported(engine: Engine, base: Base, task: Task, name: str, folder: Path) -> None:
    origin = Exported(name, base.peft_name, base.base_id, base.architecture, task)
    write_peft_folder(folder, origin, encode_adapter(engine.adapter()))


def rows_of(model: Any, ids: list[int], places: list[int], **more: Any) -> np.ndarray:
    """Log-probabilities of a whole model at some places of one input."""
    row = torch.tensor([ids])
    with torch.no_grad():
        logits = model(input_ids=row, attention_mask=torch.ones_like(row), **more).logits[0]
    found: np.ndarray = torch.log_softmax(logits[places], -1).numpy()
    return found
