"""The peer `ort-training`: ONNX Runtime's own training package, in an environment of its own.

It trains what `smidgen.profiling.peers.ort_graph` made, with the options that the package comes
with. The environment has no torch: see `training_api`.

    python -m smidgen.profiling.peers.ort_child '{"engine": "ort-training", ...}'
"""

import os
import platform
import sys
from hashlib import sha256
from importlib import import_module, metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import onnxruntime

from smidgen.profiling.instruments.stepping import (
    Request,
    Texts,
    random_texts,
    read_request,
    run_steps,
    tell,
)

LR = 5e-3


def training_api(name: str) -> Any:
    """A module of `onnxruntime.training`, such as `api`, without torch.

    The package's own `__init__` imports torch, for the sake of parts that nothing here uses; a
    bare module in its place lets the others be found.
    """
    package = ModuleType("onnxruntime.training")
    package.__path__ = [str(Path(onnxruntime.__file__).parent / "training")]
    sys.modules.setdefault("onnxruntime.training", package)
    return import_module(f"onnxruntime.training.{name}")


class Trainer:
    """A training session.

    Args:
        folder: What `smidgen.profiling.peers.ort_graph` made.

    Attributes:
        state: The package's `CheckpointState`.
        module: Its `Module`; called with ids, attention, mask positions and labels.
    """

    def __init__(self, folder: Path) -> None:
        api, options = training_api("api"), onnxruntime.SessionOptions()
        if threads := os.environ.get("OMP_NUM_THREADS"):
            options.intra_op_num_threads = int(threads)
        self.state = api.CheckpointState.load_checkpoint(folder / "checkpoint")
        graph = folder / "training_model.onnx"
        self.module = api.Module(graph, self.state, session_options=options).train()
        self._optimizer = api.Optimizer(folder / "optimizer_model.onnx", self.module)
        self._optimizer.set_learning_rate(LR)

    def step(self, texts: Texts) -> float:
        """One AdamW step; returns the loss before it."""
        loss = self.module(texts.ids, texts.attention, texts.mask_positions, texts.labels)
        self._optimizer.step()
        self.module.lazy_reset_grad()
        return float(loss)

    def trained(self) -> dict[str, Any]:
        return {name: tensor for name, tensor in self.state.parameters if tensor.requires_grad}

    def fingerprints(self) -> dict[str, str]:
        trained = self.trained().items()
        return {name: sha256(tensor.data.tobytes()).hexdigest() for name, tensor in trained}


def train(request: Request) -> None:
    """Take the steps and tell the parent."""
    trainer = Trainer(Path(request.base))
    started = trainer.fingerprints()
    measured = run_steps(request, random_texts(request), trainer.step)
    ended = trainer.fingerprints()
    tell(
        "done",
        plan=None,
        predicted_peak_bytes=None,
        untrained=[name for name in ended if ended[name] == started[name]]
        if request.warmup + request.steps > 1
        else [],  # LoRA's first factor has no gradient before the second has moved
        trained_tensors=len(ended),
        versions=versions(),
        **measured,
    )


def versions() -> dict[str, str]:
    names = ("numpy", "onnx", "onnxruntime-training-cpu")
    found = {"python": platform.python_version()}
    return found | {name: metadata.version(name) for name in names}


if __name__ == "__main__":
    train(read_request(sys.argv[1]))
