"""What a file is: by its beginning, by other packages, and what is known and not read."""

import gzip
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from smidgen.edge_client.errors import Failed
from smidgen.edge_client.formats.registry import endings, read, read_stream, readers
from smidgen.edge_client.formats.source import DataError, Row, Source

NOTES = """
class Notes:
    name, endings = "ward notes", (".notes",)
    def sniff(self, head): return 1.0 if head.text.startswith("NOTES") else 0.0
    def gives(self, head): return frozenset(("text",))
    def read(self, source):
        from smidgen.edge_client.formats.source import Row
        with source.lines() as lines:
            yield from (Row(lines.number, {"text": line.strip()}) for line in lines)
NOTES = Notes()
"""
REFUSED = {
    "WebAnno TSV": [
        ("a.tsv", "#FORMAT=WebAnno TSV 3.3\n#T_SP=webanno.custom.NER|value\n\n"),
        ("a.conll", "\ufeff#FORMAT=WebAnno TSV 3.1\n"),
        ("a.tsv", "# webanno.custom.NER | value\n#id=1\n1-1\tAnn\tB-PER\n"),
    ],
    "HIPE-2022 TSV": [("a.tsv", "TOKEN\tNE-COARSE-LIT\tNE-COARSE-METO\n# language = en\n")],
    "UIMA CAS XMI": [
        ("a.xmi", '<?xml version="1.0"?>\n<xmi:XMI xmlns:xmi="http://www.omg.org/XMI">'),
        ("labelled.conll", '<xmi:XMI xmlns:cas="http:///uima/cas.ecore">'),
    ],
    "UIMA CAS JSON": [
        ("a.json", '{ "%TYPES" : { }, "%FEATURE_STRUCTURES" : [] }'),
        ("a.json", '{"_context": {"_types": {}}}'),
    ],
    "a zip archive": [("a.csv", "PK\x03\x04 ...")],
}


@pytest.fixture(autouse=True)
def _known_afresh() -> Iterator[None]:
    yield
    readers.cache_clear()
    endings.cache_clear()


def installed(site: Path, body: str) -> None:
    """A package with a format, as pip leaves it."""
    (site / "ward.py").write_text(body)
    sys.modules.pop("ward", None)  # another test's
    info = site / "ward-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ward\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[smidgen.formats]\nnotes = ward:NOTES\n")
    readers.cache_clear()
    endings.cache_clear()


def test_a_format_of_another_package_is_read_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    installed(tmp_path, NOTES)
    (tmp_path / "a.notes").write_text("NOTES\nrain\n")
    source = Source(tmp_path / "a.notes")
    texts = [row.columns["text"] for row in read(source) if isinstance(row, Row)]
    assert texts == ["NOTES", "rain"] and ".notes" in endings()
    assert source.notes == ["the format of ward notes"]


def test_a_format_of_another_package_that_fails_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    installed(tmp_path, "raise ValueError('no such dial')")
    with pytest.raises(Failed, match="package ward: its format notes cannot be used: ValueError"):
        readers()


@pytest.mark.parametrize("part", ["sniff", "gives", "read"])
def test_a_part_that_a_format_lacks_or_that_raises_is_named_with_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    installed(tmp_path, f"{NOTES}del Notes.{part}\n")
    with pytest.raises(Failed, match=f"^package ward: its format notes has no `{part}`"):
        readers()
    (tmp_path / "a.notes").write_text("NOTES\nrain\n")
    (tmp_path / "ward.py").write_text(f"{NOTES}Notes.{part} = lambda self, one: {{}}['rain']\n")
    sys.modules.pop("ward")
    with pytest.raises(Failed, match=r"^package ward: its format notes raised KeyError$"):
        list(read(Source(tmp_path / "a.notes")))


@pytest.mark.parametrize(
    ("name", "file", "body"), [(name, *one) for name, ones in REFUSED.items() for one in ones]
)
@pytest.mark.parametrize("is_packed", [False, True])
def test_a_format_that_is_known_and_not_read_is_named_with_what_helps(
    tmp_path: Path, name: str, file: str, body: str, is_packed: bool
) -> None:
    path = tmp_path / (file + ".gz" * is_packed)
    path.write_bytes(gzip.compress(body.encode()) if is_packed else body.encode())
    with pytest.raises(DataError) as caught:
        list(read(Source(path, "tags")))
    assert f"this is {name}" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["a.docx", "texts"])
def test_another_ending_or_none_is_refused_with_those_that_are_read(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_text("a")
    with pytest.raises(DataError, match=rf"{name}: \.csv, \.tsv, .* \(\.gz or not\) expected"):
        list(read(Source(tmp_path / name)))


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("is_array", [False, True])
def test_a_stream_of_json_is_no_lines_of_text(is_array: bool, indent: int | None) -> None:
    items = [{"text": "a"}, {"text": "b"}]
    lines = "\n".join(map(json.dumps, items))
    body = json.dumps(items, indent=indent) if is_array else lines
    stream = io.BufferedReader(io.BytesIO(body.encode()))
    rows = list(read_stream(Source(Path("stdin"), stream=stream)))
    assert [row.columns for row in rows if isinstance(row, Row)] == items
