"""Engine self-test: ten training steps on a tiny base, compared with reference results.

    python -m smidgen.edge_client.doctor.self_test torch /tmp/place    # what this machine computes

Base, adapter and texts are drawn in integer arithmetic: the same bits on every machine.
`self_test.json` holds what torch printed on an x86-64 machine, from which the onnx engine differs
by 1.2e-6 there (measured).
"""

import json
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import PCG64, Generator

from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import Base, open_base
from smidgen.edge_client.bases.layout import Tensor, lay_out
from smidgen.edge_client.bases.manifest import QUANTIZATIONS, Manifest
from smidgen.edge_client.bases.packing import quiet, write_pack
from smidgen.edge_client.bases.random_models import tokenizer_files
from smidgen.edge_client.doctor.engines import LOSS, Numbers
from smidgen.edge_client.engine.opening import open_engine
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.wire.tensors import derive_seed
from smidgen.edge_client.wire.training import Training

STEPS, LR = 10, 0.001
CONFIG: dict[str, Any] = {
    "architectures": ["BertForMaskedLM"],
    "model_type": "bert",
    "vocab_size": 256,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 128,
    "max_position_embeddings": 32,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "initializer_range": 0.02,
    "pad_token_id": 0,
    "tie_word_embeddings": True,
}
ADAPTER = "lora:2@q,k,v,o,up,down"
TASK = Task(
    name="self-test",
    labels=("world", "sports", "business"),
    patterns=("[MASK] : {text}",),
    verbalizer={"world": "world", "sports": "sports", "business": "business"},
)
TEXTS = [
    Example("w20 w21 w22 w23 w24 w25", label="world"),
    Example("w30 w31 w32", label="sports"),
    Example("w40 w20 w41 w30 w42 w43 w44 w45 w46", label="business"),
    Example("w50", label="sports"),
]


def compute(engine: str, place: Path) -> Numbers:
    """What this machine computes.

    Args:
        engine: `torch` or `onnx`.
        place: Folder that the base is written into.
    """
    base, spec = _write_base(place), parse_adapter(ADAPTER)
    training = Training(batch=len(TEXTS), lr=LR, tokens=32)
    with closing(open_engine(engine, base, TASK, spec, training)) as computer:
        shapes = initial_adapter(spec, base, len(TASK.labels), seed=0)
        computer.load_adapter({name: _drawn(name, one.shape) for name, one in shapes.items()})
        encoder = computer.encoder
        batch = encoder.batch(encoder.prompts(TEXTS))
        found: dict[str, list[float]] = {name: [] for name in (LOSS, *sorted(shapes))}
        for _ in range(STEPS):
            found[LOSS].append(computer.train_step(batch))
            for name, mean in computer.moments().means.items():
                found[name].append(float(np.linalg.norm(mean.astype(np.float64))))
    return found


def _write_base(place: Path) -> Base:
    layout = lay_out(CONFIG, 16)
    draft = Manifest("self-test", None, "bert", CONFIG, QUANTIZATIONS[16], 0, layout.layers, {})
    written = {"config.json": json.dumps(CONFIG).encode(), **tokenizer_files(CONFIG)}
    packed = write_pack(place / "base", draft, layout, _blocks, written, quiet)
    return open_base(str(packed.folder))


def _blocks(tensor: Tensor) -> Iterator[np.ndarray]:
    """The whole tensor: it is small."""
    if len(tensor.shape) > 1:
        yield _drawn(tensor.name, tensor.shape)
    else:
        yield np.full(tensor.shape, 0.0 if tensor.name.endswith("bias") else 1.0, np.float32)


def _drawn(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Whole 2048ths between -1/8 and 1/8: larger ones would make what is compared chaotic."""
    drawn = Generator(PCG64(derive_seed(0, name))).integers(-256, 256, shape)
    return (drawn / 2048).astype(np.float32)


if __name__ == "__main__":
    print(json.dumps(compute(sys.argv[1], Path(sys.argv[2]))))
