"""Builds small ONNX models node by node and encodes them without the `onnx` package.

`onnx` would take 40 MB of a device's disk and 12 MB of memory to write a few hundred bytes. The
needed part of its format (onnx.proto, in protobuf's wire encoding) is here; tests read the result
with `onnx` and run its checker.

    graph = Graph("scaled")
    x = graph.input("x", "float32", ("rows", 4))
    graph.output(graph.node("Mul", x, graph.constant(np.float32(2))), "y", "float32", ("rows", 4))
    session = onnxruntime.InferenceSession(graph.model())
"""

import struct
from collections.abc import Iterable, Sequence

import numpy as np

OPSET, IR_VERSION = 17, 8  # of early 2022: any ONNX Runtime from 1.12 on reads them
FUSED = "com.microsoft"  # domain of ONNX Runtime's own operators
PRODUCER = "smidgen"

Dimension = int | str  # a size, or the name of one that is known at run time
Attribute = int | float | Sequence[int]

_TYPES = {"float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int32": 6, "int64": 7, "float16": 10}
_VARINT, _BYTES, _FIXED32 = 0, 2, 5  # protobuf's wire types
_FLOAT, _INT, _INTS = 1, 2, 7  # AttributeProto.type


class Graph:
    """A graph under construction; inputs and operators give the name of a value.

    Args:
        name: The graph's name, for error messages of the runtime.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._nodes: list[tuple[list[str], list[str], bytes]] = []  # inputs, outputs, the rest
        self._constants: list[bytes] = []
        self._inputs: list[bytes] = []
        self._outputs: list[bytes] = []
        self._names: dict[str, str] = {}  # of values that are given out
        self._values = 0

    def input(self, name: str, dtype: str, shape: Sequence[Dimension]) -> str:
        """A value that is fed."""
        self._inputs.append(_value(name, dtype, shape))
        return name

    def constant(self, array: np.ndarray | np.generic) -> str:
        name, whole = self._new(), np.asarray(array)
        dims = b"".join(_integer(1, size) for size in whole.shape)
        data = _text(8, name) + _field(9, whole.tobytes())
        self._constants.append(dims + _integer(2, _TYPES[str(whole.dtype)]) + data)
        return name

    def node(self, op: str, *inputs: str, domain: str = "", **attributes: Attribute) -> str:
        """Add an operator with one output; an input of "" is left out."""
        (name,) = self.nodes(op, 1, *inputs, domain=domain, **attributes)
        return name

    def nodes(
        self, op: str, outputs: int, *inputs: str, domain: str = "", **attributes: Attribute
    ) -> list[str]:
        """The first values of an operator that makes several."""
        names = [self._new() for _ in range(outputs)]
        body = _text(4, op) + (_text(7, domain) if domain else b"")
        body += b"".join(_field(5, _attribute(key, attributes[key])) for key in attributes)
        self._nodes.append((list(inputs), names, body))
        return names

    def fused(self, op: str, *inputs: str, **attributes: Attribute) -> str:
        """As `node`, of ONNX Runtime's own operators."""
        return self.node(op, *inputs, domain=FUSED, **attributes)

    def output(self, value: str, name: str, dtype: str, shape: Sequence[Dimension]) -> "Graph":
        """Give a node's value out under a name, each value once; the graph."""
        assert value not in self._names, f"{value} is given out twice"
        self._names[value] = name
        self._outputs.append(_value(name, dtype, shape))
        return self

    def model(self) -> bytes:
        """The finished model as a file holds it."""
        nodes = []
        for *ends, body in self._nodes:
            named = [[self._names.get(name, name).encode() for name in end] for end in ends]
            nodes.append(_repeated(1, named[0]) + _repeated(2, named[1]) + body)
        graph = _repeated(1, nodes) + _text(2, self.name) + _repeated(5, self._constants)
        graph += _repeated(11, self._inputs) + _repeated(12, self._outputs)
        opsets = [_text(1, "") + _integer(2, OPSET), _text(1, FUSED) + _integer(2, 1)]
        head = _integer(1, IR_VERSION) + _text(2, PRODUCER)
        return head + _field(7, graph) + _repeated(8, opsets)

    def _new(self) -> str:
        self._values += 1
        return f"v{self._values}"


def _value(name: str, dtype: str, shape: Sequence[Dimension]) -> bytes:
    sizes = [_integer(1, size) if isinstance(size, int) else _text(2, size) for size in shape]
    tensor = _integer(1, _TYPES[dtype]) + _field(2, _repeated(1, sizes))
    return _text(1, name) + _field(2, _field(1, tensor))


def _attribute(name: str, value: Attribute) -> bytes:
    if isinstance(value, float):
        body = _tag(2, _FIXED32) + struct.pack("<f", value) + _integer(20, _FLOAT)
    elif isinstance(value, int):
        body = _integer(3, value) + _integer(20, _INT)
    else:
        body = b"".join(_integer(8, number) for number in value) + _integer(20, _INTS)
    return _text(1, name) + body


# Protobuf's wire encoding


def _varint(number: int) -> bytes:
    number &= (1 << 64) - 1  # negative ones as two's complement
    parts = []
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def _tag(field: int, kind: int) -> bytes:
    return _varint(field << 3 | kind)


def _integer(field: int, number: int) -> bytes:
    return _tag(field, _VARINT) + _varint(number)


def _field(field: int, body: bytes) -> bytes:
    return _tag(field, _BYTES) + _varint(len(body)) + body


def _text(field: int, text: str) -> bytes:
    return _field(field, text.encode())


def _repeated(field: int, bodies: Iterable[bytes]) -> bytes:
    return b"".join(_field(field, body) for body in bodies)
