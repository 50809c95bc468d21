import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from smidgen.edge_client.engine.engine import EngineError
from smidgen.edge_client.engine.onnx_backend.optimizers import AdamW, Sgd


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


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_moments_in_a_file_give_the_same_bytes(kind: str) -> None:
    drawn = np.random.default_rng(3)
    kept = {"a": drawn.normal(size=(30, 4)), "b": drawn.normal(size=5), "late": np.ones(2)}
    ways = [{name: one.astype(np.float32) for name, one in kept.items()} for _ in range(3)]

    def opened(tensors: dict[str, np.ndarray], is_spilled: bool) -> AdamW | Sgd:
        if kind == "adamw":
            return AdamW(tensors, 0.1, 0.5, is_spilled)
        return Sgd(tensors, 0.1, 0.5, 0.9, is_spilled)

    optimizers = [opened(tensors, way == 1) for way, tensors in enumerate(ways)]
    for step in range(4):
        if step == 2:  # memory is short from here on
            moments = optimizers[2].moments()
            optimizers[2] = opened(ways[2], True)
            optimizers[2].load(moments)
        names = ("a", "b", "late") if step else ("a", "b")
        gradients = {name: drawn.normal(size=kept[name].shape) for name in names}
        for optimizer in optimizers:
            optimizer.step({name: one.astype(np.float32) for name, one in gradients.items()})
    for name in kept:
        assert len({tensors[name].tobytes() for tensors in ways}) == 1
        assert len({one.moments().means[name].tobytes() for one in optimizers}) == 1


def test_of_moments_in_a_file_one_tensors_are_in_memory() -> None:
    tensors = {str(index): np.ones((200, 300), np.float32) for index in range(20)}
    tracemalloc.start()
    optimizer = AdamW(tensors, 0.1, 0.5, is_spilled=True)
    optimizer.step({name: np.ones_like(tensor) for name, tensor in list(tensors.items())[:1]})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 6 * tensors["0"].nbytes


def test_a_folder_that_takes_no_moments_is_said_before_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "gone"))
    tensors = {"a": np.ones(3, np.float32)}
    with pytest.raises(EngineError, match=r"numbers of training cannot be put aside in .*gone"):
        AdamW(tensors, 0.1, 0.0, is_spilled=True).step({"a": np.ones(3, np.float32)})
    assert (tensors["a"] == 1.0).all()
