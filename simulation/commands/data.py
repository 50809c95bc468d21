"""`smidgen simulate data`: a data set's content, licence and checksum; and a copy as files."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from smidgen.edge_client.errors import demand
from smidgen.edge_client.formats.opened import DataError
from smidgen.edge_client.outputs import check_out_folder, new_folder
from smidgen.edge_client.tables import Column, Table, show, tell
from smidgen.edge_client.tasks.kind import kind_of
from smidgen.edge_client.tasks.ready_tasks import find_task
from smidgen.edge_client.tasks.task import Task, task_toml
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.texts.written import write_csv
from smidgen.simulation.datasets.catalogue import NAMES, VARIABLE, read_dataset, read_local
from smidgen.simulation.datasets.dataset import DataSet
from smidgen.simulation.datasets.hub import LAYOUTS, HubLayout, read_hub


def check_apart(out: Path, *inputs: Path | None) -> None:
    """Refuse an `--out` that holds what is read.

    Raises:
        DataError: Names both.
    """
    for path in inputs:
        if path is not None and path.exists():
            inside = out.resolve() in (path.resolve(), *path.resolve().parents)
            demand(
                not inside,
                f"--out {out} holds {path}, which is read; name another folder",
                DataError,
            )


MARK = ".smidgen-data"
WRITTEN = ("train.csv", "test.csv", "task.toml", "README.md")


def data(
    name: Annotated[
        str, typer.Argument(help=f"{', '.join(NAMES)}, folder:PATH or hub:OWNER/NAME@REVISION.")
    ] = "",
    folder: Annotated[
        Path | None, typer.Option("--data", help=f"Folder of data sets. Default: ${VARIABLE}.")
    ] = None,
    languages: Annotated[str, typer.Option(help="Languages to read, such as `eng,hau`.")] = "",
    train: Annotated[Path | None, typer.Option(help="Your own labelled training file.")] = None,
    test: Annotated[Path | None, typer.Option(help="Your own labelled test file.")] = None,
    task: Annotated[
        Path | None, typer.Option(help="task.toml for your files or a hub data set.")
    ] = None,
    text: Annotated[str, typer.Option(help="Hub: text column; several are joined.")] = "text",
    text_b: Annotated[str, typer.Option(help="Hub: column with a pair's second text.")] = "",
    label: Annotated[str, typer.Option(help="Hub: label column.")] = "label",
    config: Annotated[str, typer.Option(help="Hub: configuration.")] = "",
    out: Annotated[
        Path | None, typer.Option(help="Write train.csv, test.csv, task.toml and README.md to it.")
    ] = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print one JSON object as the last line of stdout.")
    ] = False,
) -> None:
    """Show a data set: rows per label and language, licence, checksum, and known differences."""
    hub_only = {"--text": text != "text", "--text-b": text_b, "--label": label != "label"}
    given: dict[str, object] = {
        "--task": task,
        "--test": test,
        "--languages": languages,
        "--data": folder,
    }
    given |= {**hub_only, "--config": config}
    _check_together(name, train, [option for option, value in given.items() if value])
    if out:
        source = Path(name.removeprefix("folder:")) if name.startswith("folder:") else None
        check_apart(out, source, train, test, task)
        check_out_folder("--out", out, MARK, WRITTEN)
    own = find_task(task) if task else None
    if train:
        read = _read_own(name, train, test, own)
    elif own and name.startswith("hub:"):
        layout = _layout(name, own, text, text_b, label, config)
        read = read_hub(name.removeprefix("hub:"), _words(languages), layout)
    else:
        read = read_dataset(name, folder, _words(languages))
    if out:
        write_dataset(out, read)
    _print(read)
    if json_output:
        print(json.dumps(summary(read)))


def summary(data: DataSet) -> dict[str, Any]:
    """A set's figures, as plain values for JSON."""
    parts = {"train": data.train, "test": data.test}
    return {
        "name": data.name,
        "origin": data.origin,
        "licence": data.licence,
        "sha256": data.sha256,
        "notes": list(data.notes),
        "labels": {
            part: {label: counts[label] for label in data.task.labels}
            for part, counts in ((p, _labels(rows)) for p, rows in parts.items())
        },
        "languages": {
            part: dict(sorted(Counter(example.language for example in rows).items()))
            for part, rows in parts.items()
        },
    }


def _labels(rows: Sequence[Example]) -> Counter[str]:
    """Texts of each label; of tagged ones entities of each type."""
    counts = Counter(example.label for example in rows if example.label is not None)
    return counts + Counter(tag[2:] for one in rows for tag in one.tags if tag.startswith("B-"))


def write_dataset(out: Path, data: DataSet) -> None:
    """Write a set as files that `folder:OUT`, `read_local` and other tools read.

    Equal sets write equal bytes. Licence, origin and checksum go along in README.md.

    Raises:
        DataError: A text is not Unicode, or texts have no labels.
        OutputError: The folder holds other things, or cannot be written.
    """
    if not kind_of(data.task).is_one_label:
        raise DataError(
            f"--out writes texts with labels; {data.name} is of kind {data.task.kind}"
            f"; leave --out out"
        )
    with new_folder("--out", out, MARK, WRITTEN) as part:
        _fill(part, data)


def _fill(out: Path, data: DataSet) -> None:
    (out / MARK).write_text("made by `smidgen simulate data`, which may replace this folder\n")
    for name, examples in (("train", data.train), ("test", data.test)):
        write_csv(out / f"{name}.csv", examples)
    (out / "task.toml").write_text(task_toml(data.task), encoding="utf-8")
    facts = {"licence": data.licence, "origin": data.origin, "sha256": data.sha256}
    head = "".join(f"{key}: {value}\n" for key, value in facts.items())
    notes = "".join(f"- {note}\n" for note in data.notes)
    (out / "README.md").write_text(f"---\n{head}---\n# {data.name}\n\n{notes}", encoding="utf-8")


def _check_together(name: str, train: Path | None, given: Sequence[str]) -> None:
    """Refuse options that would have no effect beside the others."""
    is_own = train is not None
    is_hub = name.startswith("hub:") and not is_own
    is_known = not (is_own or is_hub or name.startswith("folder:"))
    counts = {
        "--task": (is_own or is_hub, "without --train FILE or hub:OWNER/NAME"),
        "--test": (is_own, "without --train FILE"),
        "--languages": (not is_own, "with --train"),
        "--data": (is_known, "with a data set that is not in that folder"),
    }
    of_hub = (is_hub and "--task" in given, "without hub:OWNER/NAME and --task FILE")
    for option in given:
        is_read, beside = counts.get(option, of_hub)
        if not is_read:
            raise DataError(f"{option} has no effect {beside}; leave it out")


def _read_own(name: str, train: Path, test: Path | None, task: Task | None) -> DataSet:
    if task is None:
        raise DataError("--train needs --task FILE: labels, patterns and label words")
    read = read_local(train, test, task)
    return replace(read, name=name) if name else read


def _layout(name: str, task: Task, text: str, text_b: str, label: str, config: str) -> HubLayout:
    if name.removeprefix("hub:").partition("@")[0] in LAYOUTS:
        raise DataError(f"{name} is known here with a task of its own; leave --task out")
    return HubLayout(task, tuple(_words(text)), text_b, label, config=config)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _print(data: DataSet) -> None:
    figures = summary(data)
    tables = []
    for kind in ("labels", "languages") if data.task.labels else ("languages",):
        train, test = figures[kind]["train"], figures[kind]["test"]
        names = sorted({*train, *test}) if kind == "languages" else data.task.labels
        rows = [
            [name or "-", f"{train.get(name, 0):,}", f"{test.get(name, 0):,}"] for name in names
        ]
        rows.append(["all", f"{len(data.train):,}", f"{len(data.test):,}"])
        tables.append(Table([Column(kind[:-1], "word"), Column("train"), Column("test")], rows))
    show(*tables)
    print()
    facts = [f"{key}: {figures[key]}" for key in ("name", "origin", "licence", "sha256")]
    tell([*facts, *(f"note: {note}" for note in data.notes)])
