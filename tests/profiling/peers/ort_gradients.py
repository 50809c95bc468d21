"""Loss and gradients by onnxruntime-training: the oracle of a parity test.

    python -m tests.profiling.peers.ort_gradients ARTIFACTS batch.npz gradients.npz

The batch has `ids`, `attention`, `mask_positions` and `labels`; the answer has `loss` and the
gradient of each of the adapter's tensors by its name.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np

from smidgen.profiling.peers.ort_child import Trainer


def gradients(folder: Path, batch: Path, out: Path) -> None:
    """Compute them twice, the second time behind a lazy reset; both must be the same."""
    trainer = Trainer(folder)
    with np.load(batch) as arrays:
        texts = [arrays[name] for name in ("ids", "attention", "mask_positions", "labels")]
    first = _pass(trainer, texts)
    trainer.module.lazy_reset_grad()
    second = _pass(trainer, texts)
    same = {name: np.array_equal(first[name], second[name]) for name in first}
    assert all(same.values()), f"gradients were added up: {same}"
    np.savez(out, **first)


def _pass(trainer: Trainer, texts: list[np.ndarray]) -> dict[str, Any]:
    loss = trainer.module(*texts)
    found = {name: np.array(tensor.grad) for name, tensor in trainer.trained().items()}
    return {"loss": np.array(loss), **found}


if __name__ == "__main__":
    gradients(*(Path(argument) for argument in sys.argv[1:]))
