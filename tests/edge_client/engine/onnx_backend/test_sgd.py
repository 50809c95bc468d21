import tracemalloc

import numpy as np
import pytest

from smidgen.edge_client.engine.onnx_backend.optimizers import Sgd
from smidgen.edge_client.guest.steps import Moments
from smidgen.edge_client.wire.messages import WireError


def test_a_step_goes_lr_times_the_gradient() -> None:
    tensor = np.ones(3, np.float32)
    Sgd({"a": tensor}, 0.5, 0.0, 0.0).step({"a": np.array([1, -2, 0], np.float32)})
    assert tensor.tolist() == [0.5, 2.0, 1.0]


def test_what_has_no_gradient_stays() -> None:
    tensors = {"rests": np.ones(2, np.float32), "moves": np.ones(2, np.float32)}
    Sgd(tensors, 0.5, 0.1, 0.9).step({"moves": np.ones(2, np.float32)})
    assert (tensors["rests"] == 1).all() and (tensors["moves"] < 1).all()


def test_a_step_takes_no_memory_that_could_be_missing_halfway() -> None:
    tensors = {"a": np.ones((300, 400), np.float32), "b": np.ones(5, np.float32)}
    optimizer = Sgd(tensors, lr=0.1, weight_decay=0.5, momentum=0.9)
    gradients = {name: np.ones_like(tensor) for name, tensor in tensors.items()}
    tracemalloc.start()
    optimizer.step(gradients)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < tensors["a"].nbytes / 10


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_of_another_optimizer_nothing_is_loaded(momentum: float) -> None:
    optimizer = Sgd({"a": np.ones(3, np.float32)}, 0.1, 0.0, momentum)
    others = {"a": np.ones(3, np.float32)}
    with pytest.raises(WireError, match="tensor 'a'"):
        optimizer.load(Moments(others, others, {"a": 1}))


def test_plain_sgd_keeps_nothing() -> None:
    assert Sgd({"a": np.ones(3, np.float32)}, 0.1, 0.0, 0.0).moments() == Moments({}, {}, {})
