"""Parquet, Arrow files, and folders saved by `datasets`, read by pyarrow where it is installed.

Class numbers become names where the file has them (`ClassLabel`, which `datasets` keeps in the
schema's metadata), for labels and for tags of words (`ner_tags`).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from smidgen.edge_client.errors import demand
from smidgen.edge_client.formats.json_rows import (
    MESSAGES,
    NUMBERS,
    TAGS,
    TOKENS,
    strings_in,
    worded,
)
from smidgen.edge_client.formats.lines import LONGEST_LINE
from smidgen.edge_client.formats.source import (
    DataError,
    Head,
    LeftOut,
    Row,
    Rows,
    Source,
    Wants,
    named,
)
from smidgen.edge_client.formats.table import used_columns
from smidgen.edge_client.tables import plain

if TYPE_CHECKING:
    import pyarrow

BATCH_ROWS = 256  # decoded at once
STATE, SPLITS = "state.json", "dataset_dict.json"  # of a saved Dataset, and of a DatasetDict
NOT_UTF_8 = "\udcff"
ANY: frozenset[Wants] = frozenset(("text", "label", "tags"))


@dataclass(frozen=True)
class Columnar:
    """Files that pyarrow reads batch by batch; see `Reader`.

    Attributes:
        is_saved: Whether it is a folder that `datasets` wrote with `save_to_disk`, of one split.
    """

    name: str
    endings: tuple[str, ...]
    is_saved: bool = False

    def sniff(self, head: Head) -> float:
        return float(not self.is_saved or bool(head.path and (head.path / STATE).is_file()))

    def gives(self, head: Head) -> frozenset[Wants]:
        return ANY

    def read(self, source: Source) -> Rows:
        return _rows(source, shards_of(source.path) if self.is_saved else [source.path])


PARQUET = Columnar("Parquet", (".parquet",))
ARROW = Columnar("an Arrow file", (".arrow", ".feather"))  # of the stream or the file form
SAVED_DATASET = Columnar("a folder saved by datasets", ("",), is_saved=True)


def shards_of(folder: Path) -> list[Path]:
    """The files of a saved dataset, in order.

    Raises:
        DataError: The folder is damaged, or rows of it were selected without being written.
    """
    try:
        state = json.loads((folder / STATE).read_bytes())
        names = [str(one["filename"]) for one in state["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{folder / STATE} does not name its files; save the dataset again") from (
            error
        )
    files = [folder / Path(name).name for name in names]
    lacking = next((path.name for path in files if not path.is_file()), "")
    demand(bool(files) and not lacking, f"{folder} lacks {lacking or 'its files'}", DataError)
    indices = bool(state.get("_indices_data_files"))
    demand(
        not indices, f"{folder}: its rows were selected; save flatten_indices() of it", DataError
    )
    return files


def _rows(source: Source, files: Sequence[Path]) -> Rows:
    try:
        import pyarrow
    except ImportError as error:
        raise DataError(
            f"{source.path}: pip install pyarrow to read Parquet and Arrow, or save it as CSV"
        ) from error
    is_packed = source.path.suffix.lower() == ".gz"
    demand(
        not is_packed, f"{source.path}: unpack it; Parquet and Arrow pack by themselves", DataError
    )
    what = "Parquet" if source.path.suffix.lower() == ".parquet" else "Arrow"
    try:
        number = 0
        for path in files:
            with _opened(path, source) as (schema, batches):
                columns = _Columns(schema, source)
                for batch in batches:
                    for row in _rows_of(batch.select(columns.needed)):
                        number += 1
                        yield columns.row(number, row)
    except (
        pyarrow.ArrowException,
        OSError,
        ValueError,
        NotImplementedError,
        ArithmeticError,
    ) as error:
        if isinstance(error, DataError):
            raise
        said = plain(str(error))[:200]
        raise DataError(f"{source.path} cannot be read as {what}: {said}") from error


def _rows_of(batch: "pyarrow.RecordBatch") -> Iterator[dict[str, Any]]:
    """The rows of a batch; of several columns of one name, none of which is in use, the last."""
    columns = [_values(column) for column in batch.columns]
    names = batch.schema.names
    return (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))


def _values(column: "pyarrow.Array") -> list[Any]:
    """A column's values; one that Python has no value for, such as a time of nanoseconds, is None.

    A string that is not UTF-8 is one with a lone surrogate, as `Source.unread` expects.

    Raises:
        ArrowInvalid: The file is damaged: its values would be taken from anywhere in memory.
    """
    import pyarrow

    try:
        column.validate(full=True)
    except pyarrow.ArrowInvalid:
        if not pyarrow.types.is_string(column.type):
            raise
        column.view(pyarrow.binary()).validate(full=True)  # whether its bytes alone are wrong
    try:
        return cast("list[Any]", column.to_pylist())
    except (ArithmeticError, ValueError):  # pyarrow's own are of the latter
        return [_value(one) for one in column]


def _value(one: "pyarrow.Scalar") -> Any:
    try:
        return one.as_py()
    except UnicodeDecodeError:
        return NOT_UTF_8
    except (ArithmeticError, ValueError):
        return None


@contextmanager
def _opened(
    path: Path, source: Source
) -> "Iterator[tuple[pyarrow.Schema, Iterator[pyarrow.RecordBatch]]]":
    """The schema of a file, and its rows some at a time; refused where it holds too much."""
    import pyarrow
    from pyarrow import parquet

    with ExitStack() as stack:
        if path.suffix.lower() == ".parquet":
            file = stack.enter_context(parquet.ParquetFile(path))
            groups = (file.metadata.row_group(index) for index in range(file.num_row_groups))
            sizes = sum(group.total_byte_size for group in groups)
            _check_size(source, file.metadata.num_rows, sizes)
            yield file.schema_arrow, file.iter_batches(BATCH_ROWS)
            return
        _check_size(source, 0, path.stat().st_size)
        mapped = stack.enter_context(pyarrow.memory_map(str(path)))
        if mapped.read(6) == b"ARROW1":
            opened = stack.enter_context(pyarrow.ipc.open_file(path))
            batches = map(opened.get_batch, range(opened.num_record_batches))
            yield opened.schema, _parts(batches)
            return
        mapped.seek(0)
        stream = stack.enter_context(pyarrow.ipc.open_stream(mapped))
        yield stream.schema, _parts(iter(stream))


def _parts(batches: "Iterator[pyarrow.RecordBatch]") -> "Iterator[pyarrow.RecordBatch]":
    return (
        batch.slice(first, BATCH_ROWS)
        for batch in batches
        for first in range(0, batch.num_rows, BATCH_ROWS)
    )


def _check_size(source: Source, rows: int, size: int) -> None:
    """Refuse by what a file says of itself; memory that its pages need goes by their columns."""
    bounds, more = source.bounds, "keep less, or split it among devices"
    if bounds is None:
        return
    demand(
        rows <= bounds.lines,
        f"{source.path} holds more than {bounds.lines:,} rows; {more}",
        DataError,
    )
    demand(
        size <= bounds.characters,
        f"{source.path} holds more than {bounds.characters:,} bytes unpacked; {more}",
        DataError,
    )


class _Columns:
    """What a schema says of columns: which are read, and the names of classes.

    Attributes:
        needed: The columns that are read; the others may hold anything.

    Raises:
        DataError: A column in use is there twice, or of a type that holds no text.
    """

    def __init__(self, schema: "pyarrow.Schema", source: Source) -> None:
        self._source, self._classes = source, dict[str, Sequence[str]]()
        names = list(schema.names)
        used = used_columns(source.dialect, names, source.wants)
        words = [name for name in (TOKENS, TAGS, NUMBERS, MESSAGES) if name in names]
        # Of a file without any of them all are named in what is said of it.
        self.needed = list(dict.fromkeys((*used, *words))) or list(dict.fromkeys(names))
        for name in self.needed if used or words else ():
            demand(
                names.count(name) == 1,
                f"{source.path}: {names.count(name)} columns are called `{named([name])}`"
                f"; one is expected",
                DataError,
            )
        classes = _classes_in(schema.metadata)
        for name in names:
            if name in classes and (name in used or (source.wants == "tags" and name != "label")):
                self._classes[name] = classes[name]
                source.note(f"`{named([name])}` as the names of its classes")
        self._check_types(schema, [name for name in used if name not in self._classes])

    def _check_types(self, schema: "pyarrow.Schema", used: Sequence[str]) -> None:
        import pyarrow

        columns, is_named = self._source.dialect.columns(list(schema.names)), pyarrow.types
        for name in used:
            kind = schema.field(name).type
            kind = kind.value_type if is_named.is_dictionary(kind) else kind
            is_text = is_named.is_string(kind) or is_named.is_large_string(kind)
            is_text = is_text or is_named.is_string_view(kind) or is_named.is_null(kind)
            is_number = is_named.is_integer(kind)
            if is_text or (name not in (columns.text, columns.text_b) and is_number):
                continue
            if not is_named.is_nested(kind) and name in (columns.id, columns.language):
                continue
            is_of_text = name in (columns.text, columns.text_b)
            wanted = "strings are" if is_of_text else "strings or class numbers are"
            came = f"column `{named([name])}` is of type {plain(str(kind))[:80]}"
            raise DataError(f"{self._source.path}: {came}; {wanted} expected")

    def row(self, number: int, found: Mapping[str, Any]) -> Row | LeftOut:
        """A row with classes by their names."""
        row = dict(found)
        for name, classes in self._classes.items():
            try:
                row[name] = _by_name(row[name], classes)
            except (IndexError, TypeError):
                return LeftOut(number, "label", f"`{named([name])}` is none of its classes")
        if sum(map(len, strings_in(row))) > LONGEST_LINE:
            return LeftOut(number, "too long", f"longer than {LONGEST_LINE:,} characters")
        if fault := self._source.unread("".join(strings_in(row))):
            return LeftOut(number, "unreadable", fault)
        if NUMBERS in self._classes and TAGS not in row:
            row[TAGS] = row.pop(NUMBERS)
        return worded(Row(number, row), self._source.wants, self._source.dialect)


def _by_name(value: Any, classes: Sequence[str]) -> Any:
    if isinstance(value, list):
        return [_by_name(one, classes) for one in value]
    if value is None or (isinstance(value, int) and value == -1):  # datasets' "no label"
        return None
    if value < 0:
        raise IndexError(value)
    return classes[value]


def _classes_in(metadata: Mapping[bytes, bytes] | None) -> dict[str, Sequence[str]]:
    """The names of each column's classes, of those that have classes."""
    try:
        features = json.loads((metadata or {})[b"huggingface"])["info"]["features"]
        found = {name: _names(one) for name, one in features.items()}
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        return {}
    return {name: names for name, names in found.items() if names}


def _names(feature: Any) -> Sequence[str]:
    """The class names of a feature, or of what a list of it holds."""
    if isinstance(feature, list):
        feature = feature[0] if feature else {}
    inner = feature.get("feature", feature) if isinstance(feature, dict) else {}
    names = inner.get("names") if isinstance(inner, dict) and "ClassLabel" in inner.values() else ()
    return names if isinstance(names, list) and all(isinstance(one, str) for one in names) else ()
