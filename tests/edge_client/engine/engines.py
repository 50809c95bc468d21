"""The engines that are installed here, texts for them, and one of them on a tiny base."""

from importlib.util import find_spec

import pytest

from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.engine.engine import Engine
from smidgen.edge_client.engine.onnx_backend.quick_inference import has_int8
from smidgen.edge_client.engine.opening import ENGINES, open_engine
from smidgen.edge_client.planning.resources import flags_here
from smidgen.edge_client.tasks.kind import kind_of
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.batches import Batch
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.wire.training import Training

KINDS = [kind for kind, row in ENGINES.items() if find_spec(row.library)]
SPECS = [
    "lora:4",
    "lora:2@q,k,v,o,up,down",
    "prompt:4",
    "bias",
    "head",
    "lora:2+head",
    "prompt:4+head",
    "lora:4/top1",
    "bias/top1+head",
    "lora:2+ridge",
    "lora:2+head+ridge",
]
# On an x86 without these products the runtime's int8 kernels saturate: nothing is read by them.
needs_int8 = pytest.mark.skipif(
    not has_int8(flags_here()), reason="this processor has none of INT8_FLAGS: no int8 reading here"
)
TEXTS = [
    Example("the front door opened", label="security"),
    Example("parcel at the gate", label="mail"),
    Example("dinner with grandma at seven, bring the cake please", label="family"),
    Example("storm", label="weather"),
    Example("the heating used twelve units today", label="power"),
    Example("take the pills", label="health"),
]


def engine_of(
    kind: str,
    base: Base,
    task: Task,
    name: str,
    lr: float = 0.01,
    training: Training | None = None,
) -> Engine:
    """An engine in float32 with an adapter drawn from a seed."""
    spec = parse_adapter(name)
    engine = open_engine(kind, base, task, spec, training or Training(lr=lr, tokens=48))
    is_of_words = task.kind == "tagging"
    state = initial_adapter(
        spec, base, kind_of(task).head(task).rows, seed=3, is_of_words=is_of_words
    )
    engine.load_adapter(state)
    return engine


def batch_of(engine: Engine) -> Batch:
    """All the texts; some of them padded."""
    return engine.encoder.batch(engine.encoder.prompts(TEXTS))
