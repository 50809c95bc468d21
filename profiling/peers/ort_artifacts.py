"""Training artefacts of a base with LoRA, by onnxruntime-training: graph, gradients, checkpoint.

Run in the package's own environment, in a process that ends with it, since it takes several
times what training takes.

    python -m profiling.peers.ort_artifacts '{"weights": "model.safetensors", ...}'
"""

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import onnxruntime

from edge_client.bases.architectures import Shape
from edge_client.bases.weights import Weights
from profiling.peers.ort_child import training_api
from profiling.peers.ort_graph import Adapted, Graph, build

WARNING = 2  # below it every transformer of a graph speaks


def make_artifacts(adapted: Adapted, folder: Path) -> None:
    """Write the training model, the optimizer's and the checkpoint.

    The package leaves files in the working directory, so this process gets another one.

    Args:
        adapted: Base and adapter.
        folder: Folder to write to; it must be there.
    """
    onnxruntime.set_default_logger_severity(WARNING)
    folder = folder.resolve()
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        os.chdir(scratch)
        graph, model = build(adapted)
        path = Path("model.onnx").resolve()
        onnx.save(model, path, save_as_external_data=True, location="model.data")
        del model
        _generate(graph, path, folder)


def _generate(graph: Graph, path: Path, folder: Path) -> None:
    """Artefacts of the model at a path; one in memory may pass protobuf's 2 GB."""
    artifacts, blocks = training_api("artifacts"), training_api("onnxblock")
    artifacts.generate_artifacts(
        str(path),
        requires_grad=graph.trained,
        frozen_params=graph.frozen,
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=blocks.optim.AdamW(eps=1e-8, weight_decay=0.0),  # as torch's
        artifact_directory=folder,
    )


def adapted_of(request: Mapping[str, Any]) -> Adapted:
    """What is asked for: see `profiling.peers.ort.write_artifacts`."""
    with Weights(Path(request["adapter"])) as state:
        adapter = {name: state.vector(name) for name in state.names}
    return Adapted(
        shape=Shape(**request["shape"]),
        weights=Weights(Path(request["weights"])),
        adapter=adapter,
        scaling=request["scaling"],
        words=request["words"],
    )


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    make_artifacts(adapted_of(asked), Path(asked["out"]))
