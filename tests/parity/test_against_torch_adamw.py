"""The onnx engine's AdamW against torch's, step by step.

torch's own single-tensor loop rounds in another order than its fused kernel; ours is written as
the loop is. Differences are of the last place of float32, gathered over the steps.
"""

import numpy as np
import pytest

from smidgen.edge_client.engine.onnx_backend.optimizers import AdamW

torch = pytest.importorskip("torch")

STEPS = 20
SHAPES = {"a": (3, 4), "b": (5,), "c": (2, 7)}


def gradient(name: str, step: int) -> np.ndarray:
    """A gradient that differs by tensor and step; sizes from 1e-6 to 1e3."""
    generator = np.random.Generator(np.random.PCG64([ord(name), step]))
    size = 10.0 ** generator.integers(-6, 4)
    return (size * generator.standard_normal(SHAPES[name])).astype(np.float32)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_twenty_steps_are_torchs_where_some_tensors_rest_now_and_then(weight_decay: float) -> None:
    ours = {name: gradient(name, 99) for name in SHAPES}
    theirs = {name: torch.from_numpy(array.copy()) for name, array in ours.items()}
    optimizer = AdamW(ours, lr=0.01, weight_decay=weight_decay)
    reference = torch.optim.AdamW(theirs.values(), lr=0.01, weight_decay=weight_decay)
    for step in range(STEPS):
        # The second tensor rests in every third step, the third one but for the first three.
        moving = [n for n in SHAPES if not (n == "b" and step % 3 == 2) and (n != "c" or step < 3)]
        for name, tensor in theirs.items():
            tensor.grad = torch.from_numpy(gradient(name, step)) if name in moving else None
        optimizer.step({name: gradient(name, step) for name in moving})
        reference.step()
        for name, tensor in theirs.items():
            np.testing.assert_allclose(ours[name], tensor.numpy(), rtol=2e-6, atol=1e-7)


def test_the_first_step_goes_the_learning_rate_whatever_the_gradients_size() -> None:
    ours = np.zeros(3, np.float32)
    AdamW({"a": ours}, lr=0.01, weight_decay=0.0).step({"a": np.array([1e-3, -7, 0], np.float32)})
    # Biases are corrected from step 1; 1e-8 is added to a root of 1e-3 at least.
    np.testing.assert_allclose(ours, [-0.01, 0.01, 0], rtol=1e-4)
