import tracemalloc

import numpy as np

from edge_client.engine.onnx_backend.optimizers import AdamW


def test_what_has_no_gradient_stays_and_starts_fresh_later() -> None:
    late, other = np.ones(3, np.float32), np.ones(3, np.float32)
    optimizer = AdamW({"late": late, "other": other}, lr=0.1, weight_decay=0.5)
    optimizer.step({"other": np.full(3, 2, np.float32)})
    assert (late == 1).all() and (other < 1).all()
    optimizer.step({"late": np.full(3, 2, np.float32)})
    fresh = np.ones(3, np.float32)
    AdamW({"fresh": fresh}, lr=0.1, weight_decay=0.5).step({"fresh": np.full(3, 2, np.float32)})
    assert (late == fresh).all()


def test_a_step_takes_no_memory_that_could_be_missing_halfway() -> None:
    tensors = {"a": np.ones((300, 400), np.float32), "b": np.ones(5, np.float32)}
    optimizer = AdamW(tensors, lr=0.1, weight_decay=0.5)
    gradients = {name: np.ones_like(tensor) for name, tensor in tensors.items()}
    tracemalloc.start()
    optimizer.step(gradients)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < tensors["a"].nbytes / 10


def test_nothing_to_train_is_no_error() -> None:
    AdamW({}, lr=0.1, weight_decay=0.0).step({})
