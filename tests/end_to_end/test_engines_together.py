"""Devices with torch and devices without it in one run, on real sockets."""

import pytest

from tests.end_to_end.conftest import Scene

ENGINES = {"a": "torch", "c": "onnx", "d": "torch", "e": "onnx"}


@pytest.mark.slow
def test_torch_and_onnx_clients_train_one_adapter(scene: Scene) -> None:
    scene.create(4, len(ENGINES), 8)
    url = scene.serve()
    for name, engine in ENGINES.items():
        scene.client(name, url, "--engine", engine)
    scene.finish()
    accuracies = list(scene.coordinator_json("status")["accuracy_by_round"].values())
    assert len(accuracies) == 5 and accuracies[-1] > accuracies[0]
