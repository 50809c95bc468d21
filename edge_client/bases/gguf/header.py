"""GGUF headers: read without the vocabulary, and checked before anything is mapped for use.

A file is a header (fields of metadata, then each tensor's name, sizes, type and place) and the
tensors behind it, aligned. Nothing is decoded before it is asked for, so that a file is opened in
the time of walking its header. Format: docs/gguf.md of the ggml repository, versions 2 and 3.

    with GgufFile(path) as file:
        layers = file.value("llama.block_count")
"""

import hashlib
import math
import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from smidgen.edge_client.bases.gguf.blocks import BLOCKS
from smidgen.edge_client.bases.header import TensorEntry, WeightsError, item_bytes
from smidgen.edge_client.errors import demand

MAX_FIELDS, MAX_TENSORS, MAX_STRING, MAX_NAME = 1 << 12, 1 << 16, 1 << 20, 1 << 8
STRING, ARRAY = 8, 9
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?"}
_SCALARS |= {10: "<Q", 11: "<q", 12: "<d"}
# ggml's numbers of types -> names; the named ones that `header.item_bytes` knows are read here.
_TYPES = {0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1"}
_TYPES |= {10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS"}
_TYPES |= {17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S"}
_TYPES |= {23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M"}
_TYPES |= {30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4"}
FLOATS = ("F32", "F16", "BF16")
READ_TYPES = (*FLOATS, *(kind.upper() for kind in BLOCKS))
AGAIN = "copy the file again"
TOKENS = "tokenizer.ggml.tokens"


class _Field(NamedTuple):
    """A field of metadata where it lies: of an array the type and number of its items."""

    kind: int
    items: int | None
    length: int
    start: int
    end: int


class GgufFile:
    """A GGUF file's header, mapped; its tensors are placed, and not touched.

    Args:
        path: The file.

    Attributes:
        tensors: ggml's name -> type, shape as numpy has it (rows, columns) and place.

    Raises:
        WeightsError: The file is not there, cut short, of another byte order or version, one of
            several parts, or its header is not what the format says.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                size = path.stat().st_size
                self._demand(size >= 24, f"has {size} bytes; {AGAIN}")
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise WeightsError(f"cannot read {path}: {error.strerror}") from error
        self._at = 0
        try:
            self._fields: dict[str, _Field] = {}
            self.tensors: dict[str, TensorEntry] = {}
            self._read()
        except WeightsError:
            self._map.close()
            raise

    def __enter__(self) -> "GgufFile":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._map.close()

    def __iter__(self) -> Iterator[str]:
        """The names of the fields."""
        return iter(self._fields)

    def value(self, key: str, default: Any = None) -> Any:
        """A field's number, truth, text or list; the default where the file has no such field."""
        if key not in self._fields:
            return default
        field = self._fields[key]
        if field.items is None:
            return self._item(field.kind, field.start, field.end)
        if field.items == STRING:
            return [self._text(*span) for span in self._spans(field)]
        form = _SCALARS[field.items]
        return np.frombuffer(self._map, form[1:], field.length, field.start).tolist()

    def count(self, key: str) -> int | None:
        """Items of a field that is an array; None where there is none."""
        field = self._fields.get(key)
        return None if field is None or field.items is None else field.length

    def floats(self, name: str) -> np.ndarray:
        """A copy of a tensor of float32."""
        entry = self.tensors[name]
        flat = np.frombuffer(self._map, "<f4", math.prod(entry.shape), entry.start)
        return flat.reshape(entry.shape).copy()

    def identity(self) -> str:
        """SHA-256 over the architecture's fields, the tokenizer's, and the tensors with names.

        Law: the order of fields and tensors, and what the file says of its author, change nothing.
        Nothing of what is read stays resident.
        """
        total = hashlib.sha256()
        architecture = str(self.value("general.architecture"))
        total.update(f"gguf {architecture!a}\n".encode())
        with self.path.open("rb") as file:
            for key, field in sorted(self._fields.items()):
                if key.startswith((f"{architecture}.", "tokenizer.")):
                    known = field.kind, field.items, field.length, field.end - field.start
                    total.update(f"{key!a} {known}\n".encode())
                    _hash(file, field.start, field.end, total)
            for name, entry in sorted(self.tensors.items()):
                total.update(f"{name!a} {entry.dtype} {entry.shape}\n".encode())
                _hash(file, entry.start, entry.end, total)
        return total.hexdigest()

    def _demand(self, is_so: bool, otherwise: str) -> None:
        demand(is_so, f"{self.path} {otherwise}", WeightsError)

    def _read(self) -> None:
        magic, version, tensors, fields = struct.unpack_from("<4sIQQ", self._map)
        self._demand(magic == b"GGUF", "is not a GGUF file: it does not begin with GGUF")
        again, is_big_endian = "convert it again", bool(version) and version & 0xFFFF == 0
        self._demand(
            not is_big_endian, f"is big-endian; a little-endian file is read here, {again}"
        )
        self._demand(version in (2, 3), f"is of GGUF version {version}; 2 and 3 are read, {again}")
        self._demand(
            fields <= MAX_FIELDS and tensors <= MAX_TENSORS,
            f"speaks of {fields} fields and {tensors} tensors; at most {MAX_FIELDS} and "
            f"{MAX_TENSORS} are read; {AGAIN}",
        )
        self._at = 24
        for _ in range(fields):
            key = self._name(MAX_STRING)
            self._demand(key not in self._fields, f"has the field {key!r} twice")
            self._fields[key] = self._field(key)
        count, kind = self.value("split.count", 0), self.value("general.type", "model")
        self._demand(
            count in (0, 1),
            f"is one of {count} parts (split.count); merge them with llama-gguf-split --merge",
        )
        self._demand(
            kind == "model", f"is a GGUF of general.type {str(kind)[:40]!r}; a model is expected"
        )
        self._read_tensors(tensors)

    def _take(self, length: int) -> int:
        """The place of the next so many bytes, which are there."""
        start = self._at
        self._demand(
            length <= len(self._map) - start,
            f"is cut short: its header goes on behind its {len(self._map)} bytes; {AGAIN}",
        )
        self._at += length
        return start

    def _number(self, form: str) -> int:
        return int(struct.unpack_from(form, self._map, self._take(struct.calcsize(form)))[0])

    def _name(self, longest: int) -> str:
        length = self._number("<Q")
        self._demand(
            length <= longest, f"has a name of {length} bytes, more than {longest}; {AGAIN}"
        )
        start = self._take(length)
        return self._text(start, start + length)

    def _text(self, start: int, end: int) -> str:
        size = end - start
        self._demand(
            size <= MAX_STRING, f"has a text of {size} bytes, more than {MAX_STRING}; {AGAIN}"
        )
        try:
            return self._map[start:end].decode()
        except UnicodeDecodeError as error:
            raise WeightsError(
                f"{self.path} has a text that is not UTF-8 at byte {start}; {AGAIN}"
            ) from error

    def _item(self, kind: int, start: int, end: int) -> Any:
        if kind == STRING:
            return self._text(start + 8, end)
        return struct.unpack_from(_SCALARS[kind], self._map, start)[0]

    def _field(self, key: str) -> _Field:
        kind, items, count = self._number("<I"), None, 1
        if kind == ARRAY:
            items, count = self._number("<I"), self._number("<Q")
        each = kind if items is None else items
        self._demand(
            each == STRING or each in _SCALARS,
            f"has a field {key!r} of type {each}, which GGUF does not; {AGAIN}",
        )
        self._demand(
            count <= len(self._map) - self._at,
            f"has a field {key!r} of {count} items, more than it holds; {AGAIN}",
        )
        start = self._at
        if each == STRING:
            self._skip(count)
        else:
            self._take(count * struct.calcsize(_SCALARS[each]))
        return _Field(kind, items, count, start, self._at)

    def _skip(self, strings: int) -> None:
        """Go behind so many strings, looking at nothing but their lengths."""
        at, unpack, body = self._at, struct.Struct("<Q").unpack_from, self._map
        try:
            for _ in range(strings):
                at += 8 + unpack(body, at)[0]
        except (struct.error, OverflowError):
            at = len(body) + 1
        self._take(at - self._at)

    def _spans(self, field: _Field) -> Iterator[tuple[int, int]]:
        at, unpack, body = field.start, struct.Struct("<Q").unpack_from, self._map
        for _ in range(field.length):
            start = at + 8
            at = start + unpack(body, at)[0]
            yield start, at

    def _read_tensors(self, count: int) -> None:
        places: list[tuple[str, str, tuple[int, ...], int]] = []
        for _ in range(count):
            name, dimensions = self._name(MAX_NAME), self._number("<I")
            self._demand(
                1 <= dimensions <= 4, f"has a tensor {name!r} of {dimensions} dimensions; {AGAIN}"
            )
            sizes = [self._number("<Q") for _ in range(dimensions)]
            places.append((name, self._type(name), tuple(sizes[::-1]), self._number("<Q")))
        unit = self.value("general.alignment", 32)
        self._demand(
            type(unit) is int and 8 <= unit <= 1 << 20 and not unit & (unit - 1),
            f"has general.alignment {str(unit)[:40]!r}; a power of two from 8 on",
        )
        begin, offset = _aligned(self._at, unit), 0
        for name, dtype, shape, at in places:
            self._demand(name not in self.tensors, f"has the tensor {name!r} twice; {AGAIN}")
            self._demand(
                at == offset, f"has {name!r} at {at} of its tensors, not at {offset}; {AGAIN}"
            )
            entry = self.tensors[name] = TensorEntry(dtype, shape, begin + at)
            elements, _ = item_bytes(dtype)
            is_right = min(shape) >= 1 and math.prod(shape) <= 1 << 48
            self._demand(
                is_right and shape[-1] % elements == 0,
                f"has a tensor {name!r} of shape {shape}, which {dtype} cannot have; {AGAIN}",
            )
            self._demand(
                entry.end <= len(self._map),
                f"is cut short: {name!r} ends at byte {entry.end} of {len(self._map)}; {AGAIN}",
            )
            offset = _aligned(entry.end - begin, unit)

    def _type(self, name: str) -> str:
        number = self._number("<I")
        dtype = _TYPES.get(number, f"number {number}")
        self._demand(
            dtype in READ_TYPES,
            f"has {name!r} in the type {dtype}, which is not read here; quantize it to one of "
            f"{', '.join(READ_TYPES)}",
        )
        return dtype


def _aligned(place: int, unit: int) -> int:
    return -(-place // unit) * unit


def _hash(file: Any, start: int, end: int, total: Any) -> None:
    file.seek(start)
    buffer = memoryview(bytearray(min(1 << 20, max(1, end - start))))
    while start < end and (read := file.readinto(buffer[: end - start])):
        total.update(buffer[:read])
        start += read


def is_gguf(path: str | Path) -> bool:
    """Whether a base's name or place is that of a GGUF file; nothing is looked at."""
    return str(path).lower().endswith(".gguf")
