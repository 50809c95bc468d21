"""Files as `onnx` itself reads them, and what its checker says of every graph."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.engine.onnx_backend.model import FUSED, IR_VERSION, OPSET, PRODUCER, Graph
from tests.edge_client.engine.onnx_backend.graphs import every_graph

onnx = pytest.importorskip("onnx")

GRAPHS = every_graph()
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=300)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
VALUES = st.one_of(INT64, st.floats(width=32, allow_nan=False), st.lists(INT64, max_size=5))
DTYPES = ("float32", "float16", "uint8", "int8", "uint16", "int32", "int64")


def read(graph: Graph) -> Any:
    return onnx.load_model_from_string(graph.model())


@pytest.mark.parametrize("name", GRAPHS)
def test_the_checker_passes_every_graph(name: str) -> None:
    onnx.checker.check_model(GRAPHS[name].model(), full_check=True)


@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_says_which_operators_it_was_written_for(name: str) -> None:
    model = read(GRAPHS[name])
    opsets = {opset.domain: opset.version for opset in model.opset_import}
    assert opsets == {"": OPSET, FUSED: 1} == {"": 17, FUSED: 1}
    assert model.ir_version == IR_VERSION == 8 and model.producer_name == PRODUCER


def test_opset_and_file_version_are_of_one_release() -> None:
    # ONNX 1.12 of May 2022 brought both; the runtime's oldest that is supported reads far newer.
    release = next(row for row in onnx.helper.VERSION_TABLE if row[0] == "1.12.0")
    assert release[1:3] == (IR_VERSION, OPSET)


@given(NAMES, st.dictionaries(st.from_regex(r"a_[a-z]{0,9}", fullmatch=True), VALUES))
def test_attributes_are_read_back_as_they_were_given(op: str, attributes: dict[str, Any]) -> None:
    graph = Graph("attributes")
    made = graph.node(op, "x", "", **attributes)
    (node,) = read(graph).graph.node
    assert (node.op_type, list(node.input), list(node.output)) == (op, ["x", ""], [made])
    found = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    assert [(key, type(value), value) for key, value in found.items()] == [
        (key, type(value), value) for key, value in attributes.items()
    ]


@given(
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 20), max_size=3),
    st.integers(0, 2**32 - 1),
)
def test_constants_are_read_back_bit_by_bit(dtype: str, shape: list[int], seed: int) -> None:
    generator = np.random.Generator(np.random.PCG64(seed))
    array = (100 * generator.standard_normal(shape)).astype(dtype)
    graph = Graph("constants")
    name = graph.constant(array)
    (tensor,) = read(graph).graph.initializer
    found = onnx.numpy_helper.to_array(tensor)
    assert tensor.name == name and (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.tobytes() == array.tobytes()


@given(NAMES, st.sampled_from(DTYPES), st.lists(st.one_of(st.integers(0, 1 << 62), NAMES)))
def test_inputs_and_outputs_keep_name_type_and_shape(
    name: str, dtype: str, shape: list[int | str]
) -> None:
    graph = Graph("ends")
    graph.input(name, dtype, shape)
    graph.output(graph.node("Identity", name), f"{name}'", dtype, shape)
    found = read(graph).graph
    for value, expected in ((found.input[0], name), (found.output[0], f"{name}'")):
        tensor = value.type.tensor_type
        sizes = [getattr(d, d.WhichOneof("value")) for d in tensor.shape.dim]
        assert (value.name, sizes) == (expected, shape)
        assert onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type) == np.dtype(dtype)
    assert list(found.node[0].input) == [name] and list(found.node[0].output) == [f"{name}'"]


def test_operators_of_the_runtime_are_of_its_own_domain() -> None:
    graph = Graph("domains")
    graph.fused("Gelu", graph.node("Neg", "x"))
    assert [node.domain for node in read(graph).graph.node] == ["", FUSED]
