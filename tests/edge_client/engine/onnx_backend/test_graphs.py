import inspect

import pytest

from smidgen.edge_client.engine.onnx_backend import graphs as onnx_graphs
from smidgen.edge_client.engine.onnx_backend.model import Graph
from smidgen.edge_client.engine.onnx_backend.runtime import Runtime
from tests.edge_client.engine.onnx_backend.graphs import every_graph

GRAPHS = every_graph()


def test_no_graph_is_left_out_of_these_tests() -> None:
    functions = inspect.getmembers(onnx_graphs, inspect.isfunction)
    public = {name for name, made in functions if not name.startswith("_")}
    assert public == {name.split()[0] for name in GRAPHS}


@pytest.mark.parametrize("name", GRAPHS)
def test_the_runtime_opens_a_graph_and_keeps_its_names(name: str) -> None:
    session = Runtime(threads=2).open(GRAPHS[name].model())
    given, made = (
        [end.name for end in ends()] for ends in (session.get_inputs, session.get_outputs)
    )
    assert len(set(given)) == len(given) >= 1 and len(set(made)) == len(made) >= 1
    assert not any(end.startswith("v") and end[1:].isdigit() for end in (*given, *made))


def test_equal_graphs_are_equal_bytes() -> None:
    again = every_graph()
    assert all(again[name].model() == graph.model() for name, graph in GRAPHS.items())


def test_a_value_is_given_out_once() -> None:
    graph = Graph("twice")
    y = graph.node("Neg", graph.input("x", "float32", ("n",)))
    graph.output(y, "y", "float32", ("n",))
    with pytest.raises(AssertionError, match="given out twice"):
        graph.output(y, "z", "float32", ("n",))
