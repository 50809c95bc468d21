"""`smidgen simulate data` and `split`: what a set holds, and labelled texts dealt to clients."""

import json
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from smidgen.edge_client.commands.console import JsonOption
from smidgen.edge_client.errors import demand
from smidgen.edge_client.formats.source import DataError
from smidgen.edge_client.outputs import check_out_folder, new_folder
from smidgen.edge_client.tables import Column, Table, show, tell
from smidgen.edge_client.tasks.kind import kind_of
from smidgen.edge_client.tasks.ready_tasks import find_task
from smidgen.edge_client.tasks.task import Task, task_toml
from smidgen.edge_client.texts.accounting import Accounting, odd_value, value_of
from smidgen.edge_client.texts.examples import Example, read_file, read_texts
from smidgen.edge_client.texts.parts import ANY, Wanted
from smidgen.edge_client.texts.written import write_csv
from smidgen.simulation.datasets.catalogue import NAMES, VARIABLE, read_dataset, read_local
from smidgen.simulation.datasets.dataset import DataSet, likeness
from smidgen.simulation.datasets.hub import LAYOUTS, HubLayout, read_hub
from smidgen.simulation.population.clients import Population, PopulationError
from smidgen.simulation.population.deal import (
    Deal,
    check_names,
    population_of,
    tested_apart,
    write_clients,
)
from smidgen.simulation.population.picture import draw_partition


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
    json_output: JsonOption = False,
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


SPLIT_MARK = ".smidgen-split"
CLIENTS = 10
# What the errors of a deal call it -> what was typed here; the longer first.
OPTIONS = {
    "deal.labelled_clients": "--labelled-clients",
    "deal.labelled": "--labels",
    "deal.": "--",
    "labelled_total": "--labels",
}


def split(
    data: Annotated[list[Path], typer.Argument(help="Labelled files: text,label[,language].")],
    test: Annotated[list[Path] | None, typer.Option(help="Labelled test file; repeatable.")] = None,
    task: Annotated[Path | None, typer.Option(help="task.toml; without it, any labels.")] = None,
    clients: Annotated[
        int | None, typer.Option(help="Clients. Default: 10; with --by, one per value.")
    ] = None,
    labels: Annotated[int, typer.Option(help="Labelled texts in all (n); 0: all.")] = 0,
    labelled_clients: Annotated[int, typer.Option(help="Clients with labels (xi); 0: all.")] = 0,
    gamma: Annotated[float, typer.Option(help="Evenness of labels over the clients.")] = inf,
    alpha: Annotated[float, typer.Option(help="Evenness of label values on a client.")] = inf,
    beta: Annotated[float, typer.Option(help="Evenness of the clients' sizes.")] = inf,
    by: Annotated[str | None, typer.Option(help="Column; one silo per value.")] = None,
    mixture: Annotated[float, typer.Option(help="With --by: 0 (separate) to 1 (mixed).")] = 0.0,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Root seed.")] = 0,
    out: Annotated[Path, typer.Option(help="Output folder; one folder per client.")] = Path(
        "smidgen-clients"
    ),
    picture: Annotated[
        Path | None, typer.Option(help="PNG to draw. Default: OUT/partition.png.")
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Partition labelled texts into client folders: few labels, skewed, or a silo per language."""
    _check_deal(by, labelled_clients, mixture, gamma=gamma, alpha=alpha, beta=beta)
    count = clients if clients is not None else 0 if by else CLIENTS
    # Any column goes by the name of the one that experiments know.
    apart: Literal["", "language"] = "language" if by else ""
    with _told_as_typed():
        deal = Deal(apart, count, labels, labelled_clients, gamma, alpha, beta, mixture)
    known = find_task(task) if task else None
    asked: Wanted = known or ANY
    texts, tests = _read(data, asked), _read(test or [], asked)
    fields = (_column(data, by, asked), _column(test or [], by, asked)) if by else None
    with _told_as_typed():
        population = population_of(deal, texts, tests, seed, fields)
    check_names(population)
    check_ours(out, SPLIT_MARK)
    check_apart(out, *data, *(test or []), task)
    if picture:
        _make_way(picture)
    clear(out, SPLIT_MARK, "smidgen simulate split")
    write_clients(out, texts, tests, population, known)
    picture = picture or out / "partition.png"
    picture.parent.mkdir(parents=True, exist_ok=True)  # it may have been in the folder cleared
    draw_partition(population, _pictured(texts), picture, _title(data, population))
    summary = _summary(population, texts)
    console = Console(stderr=json_output)
    if known_too := tested_apart(population, texts, tests, likeness)[1]:
        tell([f"warning: {known_too} test texts are texts that clients train on"], console.file)
    _tell(summary, out, picture, console)
    if json_output:
        print(json.dumps(summary | {"out": str(out), "picture": str(picture), "seed": seed}))


def _check_deal(by: str | None, labelled_clients: int, mixture: float, **evenness: float) -> None:
    """Refuse options that would have no effect beside each other."""
    given = [f"--{name}" for name, value in evenness.items() if value != inf]
    given += ["--labelled-clients"] if labelled_clients else []
    if by and given:
        raise PopulationError(f"{given[0]} has no effect with --by; leave one out")
    if mixture and not by:
        raise PopulationError("--mixture needs --by, such as --by language")
    if "--beta" in given and len(given) > 1:
        other = next(name for name in given if name != "--beta")
        raise PopulationError(f"{other} has no effect with --beta; leave one out")


@contextmanager
def _told_as_typed() -> Iterator[None]:
    """Name options as they were typed here in errors of a deal."""
    try:
        yield
    except PopulationError as error:
        message = str(error)
        for name, option in OPTIONS.items():
            message = message.replace(name, option)
        raise PopulationError(message) from error


def _read(paths: Sequence[Path], wanted: Wanted) -> list[Example]:
    return [example for path in paths for example in read_file(path, wanted, labelled=True)]


def _column(paths: Sequence[Path], name: str, wanted: Wanted) -> list[str]:
    """A column's value of every text that `read_file` reads."""
    values = []
    for path in paths:
        for line, _, row in read_texts(path, wanted, True, Accounting()):
            if name not in row:
                raise DataError(f"{path}: no column {name!r} to go --by; found {', '.join(row)}")
            if odd := odd_value(row, name):
                raise DataError(f"{path}, line {line}: {odd.said} to go --by")
            if not (value := value_of(row, name)):
                raise DataError(f"{path}, line {line}: nothing in column {name!r} to go --by")
            values.append(value)
    return values


def _pictured(texts: Sequence[Example]) -> dict[str, list[str]]:
    fields = {"label": [text.label or "" for text in texts]}
    languages = [text.language for text in texts]
    return fields if len(set(languages)) < 2 else fields | {"language": languages}


def _title(data: Sequence[Path], population: Population) -> str:
    more = f" and {len(data) - 1} more" if len(data) > 1 else ""
    known = sum(len(client.labelled) for client in population)
    return f"{data[0].name}{more}: {known:,} labelled texts, {len(population):,} clients"


def check_ours(out: Path, mark: str) -> None:
    """Refuse a folder that is neither new nor, by its mark, an earlier one of ours."""
    demand(not out.exists() or out.is_dir(), f"--out {out} is a file; name a new folder", DataError)
    is_foreign = out.exists() and any(out.iterdir()) and not (out / mark).is_file()
    demand(not is_foreign, f"--out {out} holds other files; name a new folder", DataError)


def _make_way(picture: Path) -> None:
    """Find out whether a picture can be written before anything is deleted."""
    try:
        picture.parent.mkdir(parents=True, exist_ok=True)
        picture.open("ab").close()
    except OSError as error:
        raise DataError(f"--picture {picture} cannot be written: {error.strerror}") from error


def clear(out: Path, mark: str, command: str) -> None:
    """Make an empty folder of an earlier one or a new one, marked as the command's."""
    shutil.rmtree(out, ignore_errors=True)  # of the shell's own folder what lies in it
    out.mkdir(parents=True, exist_ok=True)
    (out / mark).write_text(f"made by `{command}`, which may delete this folder\n")


def _summary(population: Population, texts: Sequence[Example]) -> dict[str, Any]:
    known = [len(client.labelled) for client in population]
    sizes = sorted(len(client.labelled) + len(client.unlabelled) for client in population)
    by_label = Counter(texts[index].label for client in population for index in client.labelled)
    return {
        "clients": len(population),
        "clients_labelled": sum(count > 0 for count in known),
        "clients_unlabelled": sum(
            len(c.unlabelled) > 0 and not (len(c.labelled) or len(c.test)) for c in population
        ),
        "clients_empty": sum(
            not (len(c.labelled) or len(c.unlabelled) or len(c.test)) for c in population
        ),
        "labelled": sum(known),
        "labelled_most": max(known),
        "labelled_by_label": {str(label): count for label, count in sorted(by_label.items())},
        "unlabelled": sum(sizes) - sum(known),
        "test": sum(len(client.test) for client in population),
        "texts_fewest": sizes[0],
        "texts_median": sizes[len(sizes) // 2],
        "texts_most": sizes[-1],
    }


def _tell(summary: dict[str, Any], out: Path, picture: Path, console: Console) -> None:
    labels = [(f"  {label}", count) for label, count in summary["labelled_by_label"].items()]
    rows = [
        ("clients", summary["clients"]),
        ("  with labelled texts", summary["clients_labelled"]),
        ("labelled texts", summary["labelled"]),
        *labels,
        ("  most on one client", summary["labelled_most"]),
        ("unlabelled texts", summary["unlabelled"]),
        ("test texts", summary["test"]),
        ("training texts of a client, fewest", summary["texts_fewest"]),
        ("  median", summary["texts_median"]),
        ("  most", summary["texts_most"]),
    ]
    columns = [Column("what was dealt out", "word"), Column("count")]
    show(Table(columns, [[name, f"{value:,}"] for name, value in rows]), file=console.file)
    notes = []
    if unlabelled := summary["clients_unlabelled"]:
        who = "1 client holds" if unlabelled == 1 else f"{unlabelled:,} clients hold"
        notes.append(
            f"{who} unlabelled texts alone, which are trained on in a run with [labelling] only; "
            "--test FILE gives every client test texts"
        )
    if empty := summary["clients_empty"]:
        who = "1 client holds no text" if empty == 1 else f"{empty:,} clients hold no text"
        notes.append(f"{who} and cannot take part; fewer --clients, or --test FILE, leaves none so")
    tell(notes, console.file)
    print(f"folders  {out}\npicture  {picture}", file=console.file)
