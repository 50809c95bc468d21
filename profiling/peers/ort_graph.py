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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from smidgen.edge_client.adapters.spec import PREFIX
from smidgen.edge_client.bases.architectures import Shape
from smidgen.edge_client.bases.families import family_of, has_embedding_map
from smidgen.edge_client.bases.quantization import dequantize
from smidgen.edge_client.bases.weights import Weights
from smidgen.profiling.peers.ort_child import training_api

OPSET, IR_VERSION = 17, 8
MICROSOFT = "com.microsoft"
INPUTS = {
    "ids": ("texts", "tokens"),
    "attention": ("texts", "tokens"),
    "mask_positions": ("texts",),
}
SCORES = "logits"


class Graph:
    """The model in the making; a value has the name of what makes it.

    Args:
        request: What `smidgen.profiling.peers.ort.write_artifacts` asks for: the `shape` of an
            encoder, the files of its `weights` and of LoRA's tensors (`adapter`), LoRA's `scaling`
            (alpha / rank), and the token ids of the label `words`.

    Attributes:
        frozen: Names of the base's tensors.
        trained: Names of the adapter's tensors.
    """

    def __init__(self, request: Mapping[str, Any]) -> None:
        self.shape, self.weights = Shape(**request["shape"]), Weights(Path(request["weights"]))
        self.family = family_of(self.shape.architecture)
        with Weights(Path(request["adapter"])) as state:
            self.adapter = {name: state.vector(name) for name in state.names}
        self.scaling: float = request["scaling"]
        self.words: list[int] = request["words"]
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
        return self._hold(self.frozen, name, array)

    def train(self, name: str) -> str:
        """A tensor of the adapter."""
        return self._hold(self.trained, name, self.adapter[name])

    def _hold(self, names: list[str], name: str, array: np.ndarray) -> str:
        if name not in self._tensors:
            names.append(name)
            self._tensors[name] = numpy_helper.from_array(np.ascontiguousarray(array), name)
        return name

    def matrix(self, module: str) -> np.ndarray:
        """A module's weight, dequantized."""
        return dequantize(self.weights.stored(f"{module}.weight"))

    def model(self, output: str) -> onnx.ModelProto:
        """The ONNX model with one output, (texts, labels); not checked yet."""
        self._nodes.append(helper.make_node("Identity", [output], [SCORES], SCORES))
        takes = [
            helper.make_tensor_value_info(name, TensorProto.INT64, list(dimensions))
            for name, dimensions in INPUTS.items()
        ]
        labels = ["texts", len(self.words)]
        gives = helper.make_tensor_value_info(SCORES, TensorProto.FLOAT, labels)
        tensors = list(self._tensors.values())
        graph = helper.make_graph(self._nodes, "adapted", takes, [gives], tensors)
        versions = [helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=versions, ir_version=IR_VERSION)


def build(graph: Graph) -> onnx.ModelProto:
    """The whole model."""
    h, mask = _embed(graph), _additive_mask(graph)
    for index in range(graph.shape.layers):
        h = _layer(graph, index * graph.shape.stored_layers // graph.shape.layers, h, mask)
    return graph.model(_head(graph, h))


# Parts


def _linear(graph: Graph, module: str, x: str) -> str:
    """W x + bias + scaling B A x."""
    bias = f"{module}.bias"
    turned = graph.freeze(f"{module}.weight.turned", graph.matrix(module).T)
    y = graph.add("MatMul", x, turned)
    y = graph.add("Add", y, graph.freeze(bias, graph.weights.vector(bias)))
    names = [f"{PREFIX}{module}.lora_{factor}.weight" for factor in "AB"]
    if names[0] not in graph.adapter:
        return y
    for name in names:
        x = graph.add("MatMul", x, graph.add("Transpose", graph.train(name), perm=[1, 0]))
    return graph.add("Add", y, graph.add("Mul", x, graph.constant(graph.scaling)))


def _norm(graph: Graph, module: str, x: str) -> str:
    """Normalized by vectors of its own.

    ALBERT's layers share theirs, but the gradient's name is made of the vector's, needed or not.
    """
    vectors = [
        graph.freeze(f"{name}.of.{x}", graph.weights.vector(name))
        for name in (f"{module}.weight", f"{module}.bias")
    ]
    epsilon = graph.shape.norm_eps  # the gradient needs all three outputs
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


def _embed(graph: Graph) -> str:
    """Token states below the lowest layer, (B, T, H)."""
    shape, family = graph.shape, graph.family
    h = graph.add("Gather", graph.freeze(family.words, graph.matrix(family.words)), "ids")
    table = graph.matrix(family.positions)[family.first_position(shape.pad_id) :]
    positions, zero = graph.freeze(family.positions, table), graph.constant([0])
    tokens = graph.add("Shape", "ids", start=1, end=2)
    h = graph.add("Add", h, graph.add("Slice", positions, zero, tokens, zero))
    types = family.token_types
    if f"{types}.weight" in graph.weights:
        h = graph.add("Add", h, graph.freeze(types, graph.matrix(types)[0]))
    h = _norm(graph, family.embedding_norm, h)
    return _linear(graph, family.embedding_map, h) if has_embedding_map(shape) else h


def _additive_mask(graph: Graph) -> str:
    """0 where a token is seen and the lowest number where not, (B, 1, 1, T)."""
    seen = graph.add("Cast", "attention", to=TensorProto.FLOAT)
    unseen = graph.add("Sub", graph.constant(1.0), seen)
    lowest = graph.constant(np.finfo(np.float32).min)
    return graph.add("Unsqueeze", graph.add("Mul", unseen, lowest), graph.constant([1, 2]))


def _layer(graph: Graph, index: int, h: str, mask: str) -> str:
    family = graph.family
    prefix = family.layer.format(layer=index)
    attended = _linear(graph, family.linear(index, "o"), _attend(graph, index, h, mask))
    h = _norm(graph, prefix + family.attention_norm, graph.add("Add", attended, h))
    inner = _linear(graph, family.linear(index, "up"), h)
    inner = _activation(graph, graph.shape.activation, inner)
    outer = _linear(graph, family.linear(index, "down"), inner)
    return _norm(graph, prefix + family.output_norm, graph.add("Add", outer, h))


def _attend(graph: Graph, index: int, h: str, mask: str) -> str:
    """softmax(q k.T / sqrt(D) + mask) v, (B, T, H)."""
    shape, family = graph.shape, graph.family
    split = graph.constant([0, 0, shape.heads, shape.head_dim])
    orders = {"q": [0, 2, 1, 3], "k": [0, 2, 3, 1], "v": [0, 2, 1, 3]}
    q, k, v = (
        graph.add(
            "Transpose",
            graph.add("Reshape", _linear(graph, family.linear(index, name), h), split),
            perm=order,
        )
        for name, order in orders.items()
    )
    scores = graph.add("Div", graph.add("MatMul", q, k), graph.constant(shape.head_dim**0.5))
    p = graph.add("Softmax", graph.add("Add", scores, mask), axis=-1)  # (B, A, T, T)
    out = graph.add("Transpose", graph.add("MatMul", p, v), perm=[0, 2, 1, 3])
    return graph.add("Reshape", out, graph.constant([0, 0, shape.heads * shape.head_dim]))


def _head(graph: Graph, h: str) -> str:
    """Logits of the label words at the masks, (B, labels)."""
    shape, family, weights = graph.shape, graph.family, graph.weights
    where = graph.add("Unsqueeze", "mask_positions", graph.constant([1]))
    h = graph.add("GatherND", h, where, batch_dims=1)  # (B, H)
    h = _linear(graph, family.head_dense, h)
    h = _activation(graph, family.head_activation or shape.activation, h)
    h = _norm(graph, family.head_norm, h)
    table = f"{family.words if shape.is_tied else family.decoder}.weight"
    rows = graph.freeze("label_words.turned", weights.rows(table, graph.words).T)
    name = next(name for name in family.decoder_bias if name in weights)
    bias = graph.freeze("label_words.bias", weights.vector(name)[graph.words])
    return graph.add("Add", graph.add("MatMul", h, rows), bias)


WARNING = 2  # below it every transformer of a graph speaks


def make_artifacts(request: Mapping[str, Any]) -> None:
    """Write the training model, the optimizer's and the checkpoint to the folder `out`.

    The package leaves files in the working directory, so this process gets another one.
    """
    onnxruntime.set_default_logger_severity(WARNING)
    artifacts, blocks = training_api("artifacts"), training_api("onnxblock")
    graph, folder = Graph(request), Path(request["out"])
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        os.chdir(scratch)
        onnx.save(build(graph), "model.onnx", save_as_external_data=True, location="model.data")
        artifacts.generate_artifacts(
            str(Path("model.onnx").resolve()),
            requires_grad=graph.trained,
            frozen_params=graph.frozen,
            loss=artifacts.LossType.CrossEntropyLoss,
            optimizer=blocks.optim.AdamW(eps=1e-8, weight_decay=0.0),  # as torch's
            artifact_directory=folder,
        )


if __name__ == "__main__":
    make_artifacts(json.loads(sys.argv[1]))
