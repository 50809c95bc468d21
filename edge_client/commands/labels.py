"""`smidgen client labels`: what a device read of its texts, and files in which people correct it.

Only while no client runs on the state folder.

with proposals("--out", Path("answers.json"), "label-studio", "smidgen") as write:
    write(Proposal("charged twice", label="bill", score=0.9))
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import Meta

from smidgen.edge_client.client.state import ClientState, StateError
from smidgen.edge_client.commands.console import (
    DelimiterOption,
    EncodingOption,
    JsonOption,
    LabelColumnOption,
    TextColumnOption,
)
from smidgen.edge_client.errors import demand
from smidgen.edge_client.formats.annotation import doccano, label_studio
from smidgen.edge_client.formats.annotation.answers import Proposal
from smidgen.edge_client.formats.source import PLAIN, DataError, Dialect
from smidgen.edge_client.labelling.label_journal import FileNotes, Revoked
from smidgen.edge_client.labelling.pseudo_labels import Reading, text_id
from smidgen.edge_client.options import options_of
from smidgen.edge_client.outputs import check_out_file, new_file
from smidgen.edge_client.tables import Column, Table, show, shown
from smidgen.edge_client.texts.examples import Example, read_folder
from smidgen.edge_client.texts.parts import ANY

WRITERS = {
    "label-studio": (label_studio.writing, ".json"),
    "doccano": (doccano.writing, ".jsonl"),
}
VERSION = '"model_version": "smidgen'  # by which a file of ours is known
WRITE = "Write --out for import into an annotation tool: label-studio or doccano."

WriteOption = Annotated[str, typer.Option("--write", metavar="TOOL", help=WRITE)]


def check_proposals(out: Path | None, tool: str) -> None:
    """Refuse a file of proposals that cannot be written.

    Raises:
        WrongInput: No such tool, no file, another ending, or somebody's own file.
    """
    known = ", ".join(WRITERS)
    demand(tool in WRITERS, f"--write {tool[:40]!r}: one of {known} is expected")
    demand(out is not None, f"--write {tool} says how --out is written; give --out too")
    assert out is not None, "just demanded"
    check_out_file("--out", out, (WRITERS[tool][1],), sign=VERSION)


@contextmanager
def proposals(
    out: Path, tool: str, is_private: bool = False
) -> Iterator[Callable[[Proposal], None]]:
    """Writes each proposal to a file; see `check_proposals`.

    Args:
        out: The file.
        tool: See `WRITERS`.
        is_private: Whether nobody but its owner may read it.
    """
    with new_file("--out", out, is_private) as file, WRITERS[tool][0](file, "smidgen") as write:
        yield write


SHOWN = 60  # characters of a text


@dataclass(frozen=True)
class Asked:
    """What is done with a device's readings.

    Attributes:
        state: State folder of a client that has stopped.
        run_id: Run id; default: the newest.
        data: The device's texts, to show beside their labels.
        revoke: Id of a text whose label to withdraw for good.
        out: JSONL file to write the most confident labels to; needs `data`.
        confidence: Minimum confidence of a label that is written.
        write: Write `out` for import into an annotation tool: label-studio or doccano.
        dialect: How the files of the texts are written down.
    """

    state: Path
    run_id: str | None = None
    data: Path | None = None
    revoke: str | None = None
    out: Path | None = None
    confidence: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.9
    write: str = ""
    dialect: Dialect = PLAIN


@options_of(Asked, without=("dialect",), run_id={"flag": "--run"}, write={"metavar": "TOOL"})
def labels(
    call: Callable[..., Asked],
    text_column: TextColumnOption = "",
    label_column: LabelColumnOption = "",
    delimiter: DelimiterOption = "",
    encoding: EncodingOption = "",
    json_output: JsonOption = False,
) -> None:
    """List this device's pseudo-labels; withdraw one; write them to a file."""
    dialect = Dialect(text_column, label_column, delimiter, encoding)
    tell_labels(call(dialect=dialect), json_output)


def tell_labels(asked: Asked, is_json: bool) -> None:
    """Take back, write and print what is asked; the surest readings come first.

    Raises:
        StateError: There is nothing of that run or text, or a client runs on the state folder.
        DataError: The texts cannot be read, or `out` would be without texts.
        OutputError: `out` cannot be written.
    """
    if asked.out is not None and asked.data is None:
        raise DataError("--out writes texts; give --data with the device's texts too")
    if asked.write:
        check_proposals(asked.out, asked.write)
    elif asked.out is not None:
        check_out_file("--out", asked.out, (".jsonl",), sign='"confidence"')
    path, texts = _book_of(asked), _texts(asked.data, asked.dialect)
    with ClientState(asked.state).held():
        notes = FileNotes(path)
        if asked.revoke is not None:
            _revoke(notes, asked.revoke)
    readings = sorted(notes.book.readings.items(), key=lambda item: (-item[1].confidence, item[0]))
    rows = [_row(name, reading, texts) for name, reading in readings]
    answer: dict[str, Any] = {"run": path.stem.removeprefix("labels-"), "labels": rows}
    answer["revoked"] = sorted(notes.book.revoked)
    if asked.out is not None:
        answer["out"] = str(asked.out)
        sure = {
            name: reading
            for name, reading in readings
            if name in texts and reading.confidence >= asked.confidence
        }
        write = _write if not asked.write else partial(_propose, asked.write)
        write(asked.out, sure, texts)
        answer["written"] = len(sure)
    if is_json:
        print(json.dumps(answer))
        return
    show(_table(answer))
    print(_counts(answer))


def _book_of(asked: Asked) -> Path:
    found = {path.stem.removeprefix("labels-"): path for path in asked.state.glob("labels-*.jsonl")}
    if not found:
        raise StateError(
            f"{asked.state} holds no readings; a client that ran there with --state makes some, "
            "in a run with [labelling]"
        )
    if asked.run_id is None:
        return max(found.values(), key=lambda path: path.stat().st_mtime_ns)
    if asked.run_id not in found:
        raise StateError(f"--run {asked.run_id} is not one of {', '.join(sorted(found))}")
    return found[asked.run_id]


def _revoke(notes: FileNotes, name: str) -> None:
    if name not in notes.book.readings:
        raise StateError(f"--revoke {name}: no text of this id was read; leave it out to see all")
    try:
        notes.add(Revoked(name))
    except OSError as error:
        raise StateError(f"--revoke {name} cannot be written: {error.strerror}") from error


def _texts(data: Path | None, dialect: Dialect) -> dict[str, Example]:
    """Texts by id that have no label of the user's own."""
    if data is None:
        return {}
    read = read_folder(data, ANY, dialect)
    gold = {text_id(example) for example in read.labelled}
    named = {text_id(example): example for example in read.unlabelled}
    return {name: example for name, example in named.items() if name not in gold}


def _row(name: str, reading: Reading, texts: Mapping[str, Example]) -> dict[str, Any]:
    row = {
        "id": name,
        "label": reading.label,
        "confidence": reading.confidence,
        "round": reading.round_index,
        "adapter_sha256": reading.adapter_sha256,
        "layers": reading.layers,
    }
    if name not in texts:
        return row
    return row | {"text": shown(f"{texts[name].text} {texts[name].text_b}", SHOWN)}


def _write(path: Path, readings: Mapping[str, Reading], texts: Mapping[str, Example]) -> None:
    lines = []
    for name, reading in readings.items():
        second = {"text_b": texts[name].text_b} if texts[name].text_b else {}
        row = {"text": texts[name].text, **second, "label": reading.label}
        told = {"confidence": reading.confidence, "round": reading.round_index}
        lines.append(json.dumps(row | told, ensure_ascii=False) + "\n")
    with new_file("--out", path, is_private=True) as file:
        file.writelines(lines)


def _propose(
    tool: str, path: Path, readings: Mapping[str, Reading], texts: Mapping[str, Example]
) -> None:
    with proposals(path, tool, is_private=True) as write:
        for name, reading in readings.items():
            text = texts[name]
            write(Proposal(text.text, text.text_b, reading.label, score=reading.confidence))


def _table(answer: Mapping[str, Any]) -> Table:
    columns = [
        *(Column("id", "word"), Column("label", "word"), Column("confidence"), Column("round")),
        *(Column("adapter", "word", 2), Column("layers", optional=1), Column("text", "text")),
    ]
    rows = [
        [
            *(row["id"], row["label"], f"{row['confidence']:.3f}", str(row["round"])),
            *(row["adapter_sha256"][:8], str(row["layers"]), row.get("text", "-")),
        ]
        for row in answer["labels"]
    ]
    return Table(columns, rows)


def _counts(answer: Mapping[str, Any]) -> str:
    read, revoked = len(answer["labels"]), len(answer["revoked"])
    counts = f"run {answer['run']}: {read} texts read, {revoked} taken back"
    return (
        f"{counts}\n{answer['written']} written to {answer['out']}" if "out" in answer else counts
    )
