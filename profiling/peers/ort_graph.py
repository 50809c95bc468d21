"""A base with LoRA as one ONNX graph, from token ids to the label words' logits at the mask.

What one would export for onnxruntime-training, written out by hand, so that no exporter is needed:
float32, every layer at every position, the head at the mask alone. Nodes are those that ONNX
Runtime's own fusions make of an exported model. Frozen linears lie turned, so that they are plain
products; adapters keep PEFT's names and shapes.

Shapes: B texts, T tokens, H hidden, A heads, D width of a head.
"""

import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from edge_client.bases.architectures import Shape
from edge_client.bases.families import family_of, has_embedding_map
from edge_client.bases.quantization import dequantize
from edge_client.bases.weights import Weights
from profiling.peers.ort_child import training_api

OPSET, IR_VERSION = 17, 8
MICROSOFT = "com.microsoft"
PREFIX = "base_model.model."  # PEFT's, of an adapter's tensors
INPUTS = {
    "ids": ("texts", "tokens"),
    "attention": ("texts", "tokens"),
    "mask_positions": ("texts",),
}
SCORES = "logits"


@dataclass(frozen=True)
class Adapted:
    """What the graph is made of.

    Attributes:
        shape: Sizes of an encoder.
        weights: Its weights; quantized ones are dequantized.
        adapter: LoRA's tensors by PEFT's names; a linear without them stays as it is.
        scaling: LoRA's alpha / rank.
        words: Token ids of the label words.
    """

    shape: Shape
    weights: Weights
    adapter: Mapping[str, np.ndarray]
    scaling: float
    words: Sequence[int]


class Graph:
    """The model in the making; a value has the name of what makes it.

    Attributes:
        frozen: Names of the base's tensors.
        trained: Names of the adapter's tensors.
    """

    def __init__(self) -> None:
        self._nodes: list[Any] = []
        self._tensors: dict[str, Any] = {}
        self.frozen: list[str] = []
        self.trained: list[str] = []

    def add(
        self, kind: str, *inputs: str, domain: str = "", outputs: int = 1, **attributes: Any
    ) -> str:
        """A node; returns the name of its first output."""
        name = f"{kind}_{len(self._nodes)}"
        made = [name, *(f"{name}_{index}" for index in range(1, outputs))]
        node = helper.make_node(kind, inputs, made, name, domain=domain, **attributes)
        self._nodes.append(node)
        return name

    def constant(self, values: Any) -> str:
        """A small tensor that stays inside the graph: integers as int64, else float32."""
        array = np.asarray(values)
        array = array.astype(np.int64 if array.dtype.kind == "i" else np.float32)
        name = f"constant_{array.dtype}_{array.tolist()}"
        self._tensors.setdefault(name, numpy_helper.from_array(array, name))
        return name

    def freeze(self, name: str, array: np.ndarray) -> str:
        """A tensor of the base; the same name twice is the same tensor."""
        if name not in self._tensors:
            self.frozen.append(name)
            self._tensors[name] = numpy_helper.from_array(np.ascontiguousarray(array), name)
        return name

    def train(self, name: str, array: np.ndarray) -> str:
        """A tensor of the adapter; the same name twice is the same tensor."""
        if name not in self._tensors:
            self.trained.append(name)
            self._tensors[name] = numpy_helper.from_array(array, name)
        return name

    def model(self, inputs: Mapping[str, Sequence[str]], output: str, labels: int) -> Any:
        """The ONNX model, not checked yet.

        Args:
            inputs: Name -> names of the dimensions; int64.
            output: The value that is the only output.
            labels: Columns of it.
        """
        self._nodes.append(helper.make_node("Identity", [output], [SCORES], SCORES))
        takes = [
            helper.make_tensor_value_info(name, TensorProto.INT64, list(dimensions))
            for name, dimensions in inputs.items()
        ]
        gives = helper.make_tensor_value_info(SCORES, TensorProto.FLOAT, ["texts", labels])
        graph = helper.make_graph(
            self._nodes, "adapted", takes, [gives], list(self._tensors.values())
        )
        versions = [helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=versions, ir_version=IR_VERSION)


def build(adapted: Adapted) -> tuple[Graph, onnx.ModelProto]:
    """The graph and the model made of it.

    Args:
        adapted: Base and adapter; not a decoder.
    """
    graph, shape = Graph(), adapted.shape
    h, mask = _embed(graph, adapted), _additive_mask(graph)
    for index in range(shape.layers):
        stored = index * shape.stored_layers // shape.layers
        h = _layer(graph, adapted, stored, h, mask)
    return graph, graph.model(INPUTS, _head(graph, adapted, h), len(adapted.words))


# Parts


def _matrix(adapted: Adapted, name: str) -> np.ndarray:
    return dequantize(adapted.weights.stored(name))


def _linear(graph: Graph, adapted: Adapted, module: str, x: str) -> str:
    """W x + bias + scaling B A x."""
    weight, bias = f"{module}.weight", f"{module}.bias"
    turned = graph.freeze(f"{weight}.turned", _matrix(adapted, weight).T)
    y = graph.add("MatMul", x, turned)
    y = graph.add("Add", y, graph.freeze(bias, adapted.weights.vector(bias)))
    names = [f"{PREFIX}{module}.lora_{factor}.weight" for factor in "AB"]
    if names[0] not in adapted.adapter:
        return y
    for name in names:
        factor = graph.train(name, adapted.adapter[name])
        x = graph.add("MatMul", x, graph.add("Transpose", factor, perm=[1, 0]))
    return graph.add("Add", y, graph.add("Mul", x, graph.constant(adapted.scaling)))


def _norm(graph: Graph, adapted: Adapted, module: str, x: str) -> str:
    """Normalized by vectors of its own.

    ALBERT's layers share theirs, but the gradient's name is made of the vector's, needed or not.
    """
    vectors = [
        graph.freeze(f"{name}.of.{x}", adapted.weights.vector(name))
        for name in (f"{module}.weight", f"{module}.bias")
    ]
    epsilon = adapted.shape.norm_eps  # the gradient needs all three outputs
    return graph.add("LayerNormalization", x, *vectors, outputs=3, axis=-1, epsilon=epsilon)


def _activation(graph: Graph, kind: str, x: str) -> str:
    if kind == "relu":
        return graph.add("Relu", x)
    if kind == "silu":
        return graph.add("Mul", x, graph.add("Sigmoid", x))
    if kind == "gelu":
        return graph.add("Gelu", x, domain=MICROSOFT)
    return _tanh_gelu(graph, x)


def _tanh_gelu(graph: Graph, x: str) -> str:
    """x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2.

    Not the node `Gelu(approximate="tanh")`: 1.19.2 gives it the gradient of the exact one.
    """
    cube = graph.add("Mul", graph.add("Mul", x, x), x)
    inner = graph.add("Add", x, graph.add("Mul", cube, graph.constant(0.044715)))
    tanh = graph.add("Tanh", graph.add("Mul", inner, graph.constant((2 / np.pi) ** 0.5)))
    half = graph.add("Mul", x, graph.constant(0.5))
    return graph.add("Mul", half, graph.add("Add", tanh, graph.constant(1.0)))


def _embed(graph: Graph, adapted: Adapted) -> str:
    """Token states below the lowest layer, (B, T, H)."""
    shape, family = adapted.shape, family_of(adapted.shape.architecture)
    words = f"{family.words}.weight"
    h = graph.add("Gather", graph.freeze(words, _matrix(adapted, words)), "ids")
    table = f"{family.positions}.weight"
    first = family.first_position(shape.pad_id)
    tokens = graph.add("Shape", "ids", start=1, end=2)
    positions = graph.freeze(table, _matrix(adapted, table)[first:])
    zero = graph.constant([0])
    h = graph.add("Add", h, graph.add("Slice", positions, zero, tokens, zero))
    types = f"{family.token_types}.weight"
    if types in adapted.weights:
        h = graph.add("Add", h, graph.freeze(types, _matrix(adapted, types)[0]))
    h = _norm(graph, adapted, family.embedding_norm, h)
    return _linear(graph, adapted, family.embedding_map, h) if has_embedding_map(shape) else h


def _additive_mask(graph: Graph) -> str:
    """0 where a token is seen and the lowest number where not, (B, 1, 1, T)."""
    seen = graph.add("Cast", "attention", to=TensorProto.FLOAT)
    unseen = graph.add("Sub", graph.constant(1.0), seen)
    lowest = graph.constant(np.finfo(np.float32).min)
    return graph.add("Unsqueeze", graph.add("Mul", unseen, lowest), graph.constant([1, 2]))


def _layer(graph: Graph, adapted: Adapted, index: int, h: str, mask: str) -> str:
    family = family_of(adapted.shape.architecture)
    prefix = family.layer.format(layer=index)
    attended = _attend(graph, adapted, index, h, mask)
    attended = _linear(graph, adapted, family.linear(index, "o"), attended)
    h = _norm(graph, adapted, prefix + family.attention_norm, graph.add("Add", attended, h))
    inner = _linear(graph, adapted, family.linear(index, "up"), h)
    inner = _activation(graph, adapted.shape.activation, inner)
    outer = _linear(graph, adapted, family.linear(index, "down"), inner)
    return _norm(graph, adapted, prefix + family.output_norm, graph.add("Add", outer, h))


def _attend(graph: Graph, adapted: Adapted, index: int, h: str, mask: str) -> str:
    """softmax(q k.T / sqrt(D) + mask) v, (B, T, H)."""
    shape, family = adapted.shape, family_of(adapted.shape.architecture)
    split = graph.constant([0, 0, shape.heads, shape.head_dim])
    orders = {"q": [0, 2, 1, 3], "k": [0, 2, 3, 1], "v": [0, 2, 1, 3]}
    q, k, v = (
        graph.add(
            "Transpose",
            graph.add("Reshape", _linear(graph, adapted, family.linear(index, name), h), split),
            perm=order,
        )
        for name, order in orders.items()
    )
    scores = graph.add("Div", graph.add("MatMul", q, k), graph.constant(shape.head_dim**0.5))
    p = graph.add("Softmax", graph.add("Add", scores, mask), axis=-1)  # (B, A, T, T)
    out = graph.add("Transpose", graph.add("MatMul", p, v), perm=[0, 2, 1, 3])
    return graph.add("Reshape", out, graph.constant([0, 0, shape.heads * shape.head_dim]))


def _head(graph: Graph, adapted: Adapted, h: str) -> str:
    """Logits of the label words at the masks, (B, labels)."""
    shape, family = adapted.shape, family_of(adapted.shape.architecture)
    where = graph.add("Unsqueeze", "mask_positions", graph.constant([1]))
    h = graph.add("GatherND", h, where, batch_dims=1)  # (B, H)
    h = _linear(graph, adapted, family.head_dense, h)
    kind = family.head_activation or shape.activation
    h = _norm(graph, adapted, family.head_norm, _activation(graph, kind, h))
    weights, words = adapted.weights, list(adapted.words)
    table = f"{family.words if shape.is_tied else family.decoder}.weight"
    rows = graph.freeze("label_words.turned", weights.rows(table, words).T)
    bias = next(name for name in family.decoder_bias if name in weights)
    logits = graph.add("MatMul", h, rows)
    return graph.add("Add", logits, graph.freeze("label_words.bias", weights.vector(bias)[words]))


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
