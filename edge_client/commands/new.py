"""`smidgen new`: a folder with a task, texts, a run file, and a README with the next commands.

The kind of task and its labels are read from the texts. What is written is checked before: the base
must know the label words, as `client train` and `coordinator create` demand.
"""

import json
import os
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from smidgen.edge_client.adapters.initial import first_adapter
from smidgen.edge_client.adapters.spec import AdapterError, parse_adapter, usual_adapter
from smidgen.edge_client.bases.base import EMBEDDED, open_base
from smidgen.edge_client.commands.console import (
    BaseOption,
    DelimiterOption,
    EncodingOption,
    JsonOption,
    LabelColumnOption,
    TextColumnOption,
)
from smidgen.edge_client.errors import WrongInput, demand
from smidgen.edge_client.files import OTHERS
from smidgen.edge_client.formats.json_rows import MESSAGES
from smidgen.edge_client.formats.lines import BOUNDS
from smidgen.edge_client.formats.registry import holds, read
from smidgen.edge_client.formats.source import PLAIN, DataError, Dialect, Row, Source
from smidgen.edge_client.formats.tags import OUTSIDE
from smidgen.edge_client.options import Commands
from smidgen.edge_client.outputs import new_folder
from smidgen.edge_client.tables import shown, some
from smidgen.edge_client.tasks.kind import TaskKind, every_kind, kind_named, kind_of
from smidgen.edge_client.tasks.kinds.multilabel import SEPARATOR
from smidgen.edge_client.tasks.task import DEFAULT, Task, task_from_mapping, task_toml, toml_of
from smidgen.edge_client.texts.accounting import Accounting, tell
from smidgen.edge_client.texts.examples import (
    ClientData,
    Example,
    Found,
    every_row,
    joined,
    leave_out,
)
from smidgen.edge_client.texts.parts import PARTS, Files, Labels
from smidgen.edge_client.texts.prompts.patterns import TaskError
from smidgen.edge_client.texts.written import write_csv, write_messages, write_tagged
from smidgen.edge_client.wire.fleet import NAME, is_name
from smidgen.edge_client.wire.training import Training

TESTED = 4  # each such text of a label is kept for testing
SAMPLE = {  # of a project that is begun without texts, for the user to replace
    "security": (
        "somebody opened the front door at nine",
        "the camera in the yard saw a person",
        "a window was left open in the cellar",
        "the motion sensor in the garage went off",
    ),
    "delivery": (
        "your parcel is at the post office until friday",
        "the courier left a box at the gate",
        "the letter needs a signature",
        "your package comes on monday",
    ),
    "weather": (
        "storm warning for tonight with strong wind",
        "rain all morning and sun after noon",
        "the first frost is expected on sunday",
        "snow is expected in the evening",
    ),
}

README = """# {0}

`task.toml` says what is asked of a text, `data` holds the texts of one device: `labelled` to train
on, `test` to measure by, and `unlabelled` where there are such texts. Here, on this device alone:

```sh
{1}
{2}
```

With two or more devices, each with texts of its own in such a folder `data`, on a server that they
reach:

```sh
smidgen coordinator init --store store
smidgen coordinator create run.toml --store store
smidgen coordinator serve --store store
```

On each device, paste the line that `create` printed, with its folder `data` for FOLDER. The first
round waits for `min_clients` devices, see `run.toml`.
"""

RUN = """name = {0}
task = "task.toml"   # beside this file
base = {1}
rounds = 10
min_clients = 2      # devices to wait for before the first round
{2}"""
LABELLING = "\n[labelling]  # devices label texts of their own\n"
Texts: TypeAlias = tuple[TaskKind, list[Example], list[Example]]  # kind, labelled, unlabelled

app = Commands()


@app.command()
def new(
    folder: Annotated[
        Path, typer.Argument(metavar="NAME", help="Folder to create; also the name of the run.")
    ],
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="Your texts: csv, tsv, json, jsonl, conll, parquet, or an export of Label Studio, "
            "doccano, Prodigy or Argilla; default: a few sample texts.",
        ),
    ] = None,
    base: BaseOption = EMBEDDED,
    text_column: TextColumnOption = "",
    label_column: LabelColumnOption = "",
    delimiter: DelimiterOption = "",
    encoding: EncodingOption = "",
    json_output: JsonOption = False,
) -> None:
    """Start a project: a task, texts to train and to test on, a run file, and the next commands.

    The kind of task and its labels are read from the texts. Nothing is overwritten.
    """
    dialect = Dialect(text_column, label_column, delimiter, encoding)
    demand(is_name(folder.name), f"{str(folder)!r} cannot name a run: {NAME} are expected")
    demand(not os.path.lexists(folder), f"{folder} is already there; give another name")
    demand(
        source is not None or dialect == PLAIN,
        "columns, delimiter and encoding describe --from FILE; give it too",
    )
    if base != EMBEDDED and Path(base).exists():
        base = str(Path(base).resolve())  # the next commands are given in another folder
    kind, every, unlabelled = sample() if source is None else sorted_out(source, dialect)
    task = checked_task(folder.name, kind, every, base)
    data = split(every, unlabelled, kind.files.is_several)
    os.umask(OTHERS)  # texts are their owner's
    with new_folder("NAME", folder, "") as part:
        write(part, task, data, base)
    counts = {part: len(getattr(data, part)) for part in PARTS}
    line = f"cd {shlex.quote(str(folder))} && {commands_of(task, base)[0]}"
    if json_output:
        facts = {"folder": str(folder), "kind": kind.name, "labels": task.labels, **counts}
        print(json.dumps(facts | {"next": line}))
        return
    print(f"task  {kind.name}{': ' * bool(task.labels)}{', '.join(map(shown, task.labels))}")
    print(f"data  {', '.join(f'{count} {part}' for part, count in counts.items())}")
    if none := sum(one.label == "" for one in (*data.labelled, *data.test)):
        print(f"      {some(none, 'text')} with an empty list of labels: none of them applies")
    if not data.test:
        print(f"      nothing to test on: each {TESTED}th text of a label is kept, there are fewer")
    print(f"next  {line}")


def sample() -> Texts:
    """A few texts for whoever has none yet."""
    rows = [Example(text, label=label) for label, texts in SAMPLE.items() for text in texts]
    return kind_named(DEFAULT), rows, []


def sorted_out(path: Path, dialect: Dialect) -> Texts:
    """A file's kind of task, its labelled texts, and those that nobody has labelled.

    Raises:
        DataError: There is no such file, it cannot be read, or it has nothing to learn from.
    """
    demand(path.exists(), f"--from {path}: there is no such file", DataError)
    kind, accounting = kind_in(path, dialect), Accounting()
    labelled, unlabelled = texts_in(path, kind.files, dialect, accounting)
    tell(path, accounting)
    said = (
        "holds no labelled texts; a table with columns text,label, tagged words, conversations or "
        "an annotation tool's export is expected"
    )
    if unlabelled:
        said = f"holds {some(len(unlabelled), 'text')}, and nobody has labelled any; label some"
    demand(bool(labelled), f"--from {path} {said}", DataError)
    return kind, labelled, unlabelled


def kind_in(path: Path, dialect: Dialect) -> TaskKind:
    """The kind of task that a file's texts are for, by its first row and its labels.

    Raises:
        DataError: It cannot be read, or a column is missing.
    """

    def of(is_meant: Callable[[Files], bool]) -> TaskKind:
        return next(kind for kind in every_kind() if is_meant(kind.files))

    rows = (one for one in read(Source(path, "text", dialect)) if isinstance(one, Row))
    columns, given = next(rows, Row(0)).columns.keys(), holds(path, dialect)
    turns = of(lambda files: files.turns is not None)
    if MESSAGES in columns or {*turns.files.columns.split(",")} <= columns:
        return turns
    if {"head", "tail"} <= columns:
        return of(lambda files: files.marked is not None)
    if "label" in given:
        several, one = of(lambda files: files.is_several), kind_named(DEFAULT)
        found, _ = texts_in(path, several.files, dialect, Accounting())
        if any(SEPARATOR in (example.label or "") for example in found):
            return several
        if "tags" not in given or texts_in(path, one.files, dialect, Accounting())[0]:
            return one
    return of(lambda files: files.wants == "tags")


def texts_in(
    path: Path, files: Files, dialect: Dialect, accounting: Accounting
) -> tuple[list[Example], list[Example]]:
    """The texts of a file that are labelled, and those that nobody has labelled.

    Args:
        path: The file.
        files: How texts of the kind of task lie in files.
        dialect: How the file is written down.
        accounting: Gets what became of each row.

    Raises:
        DataError: It cannot be read, or a column is missing.
    """
    wanted, notes = Labels(files=files), accounting.notes
    open_lines, labelled, unlabelled = set[int](), list[Example](), list[Example]()
    for found in every_row(path, wanted, True, notes, dialect, BOUNDS):
        if is_open(found, files):
            open_lines.add(found.line)
        elif (one := found.example) is not None:
            labelled.append(replace(one, label=one.label and one.label.strip()))
        else:
            leave_out(accounting, found)
    for found in every_row(path, wanted, False, [], dialect, BOUNDS) if open_lines else ():
        if found.line in open_lines and found.example is not None:
            unlabelled.append(found.example)
        elif found.line in open_lines:
            leave_out(accounting, found)
    accounting.read += len(labelled) + len(unlabelled)
    return labelled, unlabelled


def is_open(found: Found, files: Files) -> bool:
    """Whether nobody has labelled a row's text: a list without a label is an answer.

    Args:
        found: What was read where labels were wanted.
        files: As `texts_in` takes them.
    """
    if found.example is not None:
        label = found.example.label
        return not files.is_several and label is not None and not label.strip()
    return files.turns is None and found.reason in ("unanswered", "label")


def checked_task(name: str, kind: TaskKind, texts: Sequence[Example], base: str) -> Task:
    """The task of some texts, with their labels in order.

    Raises:
        WrongInput: A task or a base cannot have such labels; or there is no such base.
    """
    named = {tag[2:] for one in texts for tag in one.tags if tag != OUTSIDE}
    named |= {part for one in texts for part in (one.label or "").split(SEPARATOR)} - {""}
    table: dict[str, object] = {"name": name, "kind": kind.name, "labels": sorted(named)}
    if kind.has_patterns:
        slots = "{text_a} , {text_b}" if any(one.text_b for one in texts) else "{text}"
        # a causal language model is asked by the second, which ends with the mask
        table["patterns"] = [f"{slots} . this is about [MASK] .", f"{slots}\nTopic: [MASK]"]
    hint = "change the labels in --from FILE"
    try:
        task = task_from_mapping(table, name)
        hint += ", or give another --base"
        spec = parse_adapter(usual_adapter(task, "lora:8@q,v"))
        first_adapter(open_base(base), spec, task, "", 0, Training().tokens)  # as `create` does
    except (TaskError, AdapterError) as error:
        raise WrongInput(f"{error}; {hint}") from error
    return task


def split(texts: Sequence[Example], unlabelled: Sequence[Example], is_several: bool) -> ClientData:
    """Keep a share of each label's texts for testing; equal texts stay together.

    Args:
        texts: Those with labels.
        unlabelled: The others; those that are tested on are left out.
        is_several: Whether a text may have several labels, whose combinations are often rare: the
            share is one of all texts.
    """

    def of(one: Example) -> str:
        return joined(one).strip().casefold()

    seen, is_tested = Counter[str | None](), dict[str, bool]()
    for one in texts:
        if of(one) not in is_tested:
            label = None if is_several else one.label
            seen[label] += 1
            is_tested[of(one)] = seen[label] % TESTED == 0
    test = tuple(one for one in texts if is_tested[of(one)])
    labelled = tuple(one for one in texts if not is_tested[of(one)])
    return ClientData(labelled, tuple(o for o in unlabelled if not is_tested.get(of(o))), test)


def write(folder: Path, task: Task, data: ClientData, base: str) -> None:
    """Write a project's files into a folder that is there."""
    kind, writing = kind_of(task), write_csv
    if kind.files.turns is not None or kind.files.wants == "tags":
        writing = write_tagged if kind.files.wants == "tags" else write_messages
    ending = ".csv" if writing is write_csv else ".jsonl"
    labelling = LABELLING if data.unlabelled and kind.is_labelled else ""
    (folder / "data").mkdir()
    for part, examples in (("labelled", data.labelled), ("test", data.test)):
        if examples:
            writing(folder / "data" / f"{part}{ending}", examples)
    if data.unlabelled:
        write_csv(folder / "data" / "unlabelled.csv", data.unlabelled)
    texts = {
        "task.toml": task_toml(task),
        "run.toml": RUN.format(toml_of(task.name), toml_of(base), labelling),
        "README.md": README.format(task.name, *commands_of(task, base)),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")


def commands_of(task: Task, base: str) -> tuple[str, str]:
    """What trains on the texts alone, and what uses the adapter; in the project's folder."""
    more = "" if base == EMBEDDED else f" --base {shlex.quote(base)}"
    use = "generate" if kind_of(task).is_causal else "predict"
    return (
        f"smidgen client train --data data --task task.toml --out alone{more}",
        f"smidgen client {use} --adapter alone{more} 'a text'",
    )
