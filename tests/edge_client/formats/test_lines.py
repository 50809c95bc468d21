"""Files that go on without end, in a few megabytes of .gz: refused early, within little memory."""

import io
import subprocess
import sys
import zlib
from collections.abc import Iterable
from pathlib import Path

import pytest

from smidgen.edge_client.formats.lines import LONGEST_LINE, Lines, LongLine, ReadBounds, TooMuch
from smidgen.edge_client.formats.registry import read, read_stream
from smidgen.edge_client.formats.source import DataError, LeftOut, Row, Source
from smidgen.edge_client.texts.examples import Example, read_file
from smidgen.edge_client.texts.parts import Labels
from tests.breadth import first_fast

LABELS = Labels(("good", "bad"))
CAP_BYTES = 700 << 20  # of addresses, the interpreter and numpy among them
# Reads a folder as a device does at its start and at work; tells its peak in kilobytes.
READ = """
import resource, sys
from pathlib import Path
from smidgen.edge_client.texts.data_folder import check_folder
from smidgen.edge_client.texts.examples import read_file
from smidgen.edge_client.formats.source import DataError
from smidgen.edge_client.tasks.kind import every_files, kind_named
from smidgen.edge_client.texts.parts import Labels
cap = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_AS, (cap, cap))
wanted = Labels(("good", "bad"), kind_named(sys.argv[3]).files)
for look in (
    lambda path: check_folder(path, every_files()),
    lambda path: read_file(path, wanted, labelled=True),
):
    try:
        look(Path(sys.argv[1]))
        print("read")
    except DataError as error:
        print(error)
status = Path("/proc/self/status").read_text().split()
print(status[status.index("VmHWM:") + 1])  # getrusage counts what the parent held at fork
"""


def bomb(path: Path, pieces: Iterable[bytes]) -> Path:
    """A gzip file that is written without holding what it unpacks to."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    with path.open("wb") as file:
        for piece in pieces:
            file.write(packer.compress(piece))
        file.write(packer.flush())
    return path


def looked(path: Path, kind: str = "labels") -> tuple[str, str, int]:
    """What a process says of a file, twice, that may have little memory; its peak in bytes."""
    given = [sys.executable, "-c", READ, str(path), str(CAP_BYTES), kind]
    done = subprocess.run(given, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    first, second, peak = done.stdout.splitlines()
    return first, second, int(peak) * 1024


def test_a_line_without_end_is_passed_over_and_the_next_is_read() -> None:
    lines = Lines(io.StringIO("a\n" + "b" * 3 * LONGEST_LINE + "\nc"))
    assert next(lines) == "a\n"
    lines.begin_row()
    with pytest.raises(LongLine, match="longer than 1,048,576 characters"):
        next(lines)
    assert (next(lines), lines.number, next(lines, None)) == ("c", 3, None)


@pytest.mark.parametrize("bounds", [ReadBounds(lines=3), ReadBounds(characters=7)])
def test_a_file_that_holds_too_much_ends_there(bounds: ReadBounds) -> None:
    lines = Lines(io.StringIO("a\n" * 4), bounds)
    assert [next(lines) for _ in range(3)] == ["a\n"] * 3
    with pytest.raises(TooMuch, match="more than"):
        next(lines)


def test_a_quote_that_is_never_closed_costs_its_row_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('text,label\nx,good\n"' + ("y" * 999 + "\n") * 1100 + "z,bad\n")
    read = read_file(path, LABELS, labelled=True)
    assert read == [Example("x", label="good"), Example("z", label="bad")]


def test_a_header_without_end_is_a_bad_line(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,label," * LONGEST_LINE + "\nx,good\n")
    with pytest.raises(DataError, match="line 1: longer than 1,048,576"):
        read_file(path, LABELS, labelled=True)


def test_columns_are_named_briefly_and_printably(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("label," + ",".join(["\x1b[31m" + "c" * 1000] * 1000) + "\nx,good\n")
    with pytest.raises(DataError) as found:
        read_file(path, LABELS, labelled=True)
    assert len(str(found.value)) < 1200 and str(found.value).isprintable()


def test_parquet_of_too_many_rows_is_refused_by_what_it_says(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": ["x"] * 2000, "label": ["bad"] * 2000}), path)
    assert len(read_file(path, LABELS, labelled=True)) == 2000
    for bounds in (ReadBounds(lines=1999), ReadBounds(characters=10)):
        with pytest.raises(DataError, match=r"a\.parquet holds more than"):
            next(read(Source(path, bounds=bounds)))


def test_standard_input_of_one_line_without_end_is_a_bad_row() -> None:
    stream = io.BufferedReader(io.BytesIO(b"y" * 3 * LONGEST_LINE + b"\nx\n"))
    long, short = read_stream(Source(Path("stdin"), stream=stream))
    assert isinstance(long, LeftOut) and long.reason == "too long"
    assert short == Row(2, {"text": "x"})


@pytest.mark.slow
def test_a_bomb_of_one_line_needs_little_memory(tmp_path: Path) -> None:
    path = bomb(tmp_path / "labelled.jsonl.gz", (b"y" * (1 << 20) for _ in range(100)))
    first, second, peak = looked(path)
    assert "holds no texts" in first or "longer than" in first
    assert "longer than" in second or "holds no texts" in second
    assert peak < 100 << 20


@pytest.mark.parametrize("ending", first_fast(["jsonl", "conll", "txt"]))
def test_a_bomb_of_other_kinds_of_texts_needs_little_memory(tmp_path: Path, ending: str) -> None:
    kind = "mlm" if ending == "txt" else "tagging"
    folder = tmp_path / "unlabelled"
    folder.mkdir()
    path = bomb(folder / f"a.{ending}.gz", (b"y" * (1 << 20) for _ in range(100)))
    _, said, peak = looked(folder if kind == "mlm" else path, kind)
    assert "line 1: longer than" in said and str(path) in said
    assert peak < 100 << 20


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["conll", "tsv", "jsonl", "txt"])
@pytest.mark.parametrize("line", [b"", b"\n", b"y\tB-ugly\n"])
def test_two_gigabytes_of_other_kinds_of_texts_end_with_one_line(
    tmp_path: Path, ending: str, line: bytes
) -> None:
    kind = "mlm" if ending == "txt" else "tagging"
    piece = line * ((1 << 20) // len(line)) if line else b"y" * (1 << 20)
    folder = tmp_path / "unlabelled"
    folder.mkdir()
    path = bomb(folder / f"a.{ending}.gz", (piece for _ in range(2048)))
    _, said, peak = looked(folder if kind == "mlm" else path, kind)
    assert str(folder) in said and len(said) < 700 and peak < 150 << 20


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "txt"])
@pytest.mark.parametrize("line", [b"", b"\n", b"x,ugly\n", b'"\n', b","])
def test_two_gigabytes_of_anything_end_with_one_line(
    tmp_path: Path, ending: str, line: bytes
) -> None:
    piece = line * ((1 << 20) // len(line)) if line else b"y" * (1 << 20)
    path = bomb(tmp_path / f"labelled.{ending}.gz", (piece for _ in range(2048)))
    assert path.stat().st_size < 20 << 20
    first, second, peak = looked(path)
    # Lines of text may be modelled, of which a start reads the first ones; none has a label.
    is_text = ending == "txt" and line.endswith(b"\n") and bool(line.strip())
    assert (first == "read") == is_text
    for told in (second,) if is_text else (first, second):
        assert str(path) in told and len(told) < 500
    assert peak < 150 << 20


def test_a_csv_whose_header_is_too_long_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "b.csv"
    path.write_text("text," + "x" * (LONGEST_LINE + 10) + "\nfirst,a\nsecond,b\n")
    with pytest.raises(DataError, match=r"line 1: longer than .* names the columns"):
        list(read(Source(path)))
