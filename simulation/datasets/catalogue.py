"""Labelled data sets for experiments: known ones, your own files, or any from the hub.

Each comes with its task, origin, licence, a checksum of what was read, and how it differs from the
published set. No training text is also a test text.

    data = read_dataset("masakhanews", Path("data"), languages=("eng", "hau"))
"""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from smidgen.edge_client.formats.opened import DataError
from smidgen.edge_client.tasks.task import Task, read_task
from smidgen.edge_client.texts.examples import Example, read_file
from smidgen.edge_client.texts.parts import ANY, find_part
from smidgen.edge_client.texts.prompts.patterns import TaskError
from smidgen.simulation.datasets import known, silos
from smidgen.simulation.datasets.dataset import (
    DataSet,
    Parts,
    build,
    checksum,
    licence_near,
    likeness,
)
from smidgen.simulation.datasets.hub import read_hub
from smidgen.simulation.datasets.known import chosen

READERS = known.READERS | silos.READERS
FOLDERS = dict.fromkeys(silos.READERS, silos.NEWS) | {  # of sets that are not called as theirs
    "ag_news_instructions": "ag_news",
    "tico19_instructions": silos.MEDICAL,
}
NAMES = tuple(sorted(READERS))
VARIABLE = "SMIDGEN_DATA"
TASK = "task.toml"
WRITES = "`smidgen simulate data NAME --out FOLDER` writes a folder as it should be"


def read_dataset(name: str, where: Path | None = None, languages: Sequence[str] = ()) -> DataSet:
    """Read a data set by its name, as an experiment says it.

    Args:
        name: One of `NAMES`; `folder:PATH`, a set of one's own; or `hub:OWNER/NAME[@REVISION]`.
        where: Folder that holds one of `NAMES`; None takes `$SMIDGEN_DATA`.
        languages: Languages wanted of a set in several; none means all it has.

    Raises:
        DataError: No such set, folder, file or language; says what to do.
    """
    if name.startswith("folder:"):
        return read_own_folder(Path(name.removeprefix("folder:")), languages)
    if name.startswith("hub:"):
        return read_hub(name.removeprefix("hub:"), languages)
    if name not in READERS:
        names = ", ".join(NAMES)
        raise DataError(f"no data set {name!r}; one of {names}, folder:PATH or hub:OWNER/NAME")
    folder = _folder(where) / FOLDERS.get(name, name)
    if not folder.is_dir():
        raise DataError(f"no folder {folder.name} in {folder.parent}; put the data set there")
    parts = READERS[name](folder, languages)
    files = {path.relative_to(folder.parent).as_posix(): path for path in parts.files}
    licence = parts.licence or licence_near(folder)
    folders = dict.fromkeys(name.split("/")[0] for name in files)
    return build(
        name,
        parts,
        f"folder{'s' if len(folders) > 1 else ''} {', '.join(folders)}",
        licence,
        checksum(files),
    )


def read_own_folder(folder: Path, languages: Sequence[str] = ()) -> DataSet:
    """Read a set of one's own: a folder with `train.*`, `test.*` and `task.toml`.

    What `smidgen simulate data --out` writes reads back equal. The checksum is over the three
    files and not over the folder's name.

    Args:
        folder: Where they are; the parts as `read_local` takes them.
        languages: Languages wanted; none means all texts. Labels stay those of the task.

    Raises:
        DataError: A file is missing or cannot be read, or no text is in such a language.
    """
    if not folder.is_dir():
        raise DataError(f"no folder {folder}; {WRITES}")
    task_file = folder / TASK
    task = _own_task(task_file) if task_file.is_file() else None
    own = (task or ANY).files
    train, test = (find_part(folder, part, own) for part in ("train", "test"))
    if train is None or test is None or task is None:
        there = {"train.*": train, "test.*": test, TASK: task}
        missing = ", ".join(name for name, found in there.items() if not found)
        raise DataError(f"folder:{folder} has no {missing}; {WRITES}")
    texts, tests = (read_file(path, task, labelled=True) for path in (train, test))
    if languages:
        have = sorted({example.language for example in (*texts, *tests)} - {""})
        wanted = chosen(f"folder:{folder}", languages, have)
        texts, tests = ([e for e in part if e.language in wanted] for part in (texts, tests))
    files = {path.name: path for path in (train, test, task_file)}
    origin = f"folder {folder.resolve().name}"
    found = Parts(task, texts, tests, tuple(files.values()))
    return build(task.name, found, origin, licence_near(folder), checksum(files))


def read_local(train: Path, test: Path | None, task: Task) -> DataSet:
    """Read labelled files of one's own: CSV, TSV, JSONL or Parquet, gzipped or not.

    Args:
        train: Columns `text` (or `text_a`, `text_b`), `label`, optional `language`.
        test: The same; None keeps about every fifth text of `train` back, chosen by its hash, so
            that a text stays on its side whatever is added to the file.
        task: What the labels must be of.

    Raises:
        DataError: A file cannot be read, or one of the parts is empty.
    """
    files = {path.name: path for path in (train, test) if path}
    if test and train.name == test.name:
        files = {"train": train, "test": test}
    sha256 = checksum(files)
    examples = read_file(train, task, labelled=True)
    if test:
        parts = Parts(task, examples, read_file(test, task, labelled=True), ())
    else:
        kept_back = [example for example in examples if _is_kept_back(example)]
        rest = [example for example in examples if not _is_kept_back(example)]
        parts = Parts(task, rest, kept_back, (), ("about every fifth text kept back to test on",))
    origin = f"files {', '.join(files)}" if test else f"file {train.name}"
    return build(task.name, parts, origin, licence_near(train.parent), sha256)


def _own_task(file: Path) -> Task:
    try:
        return read_task(file)
    except TaskError as error:
        raise DataError(str(error)) from error


def _is_kept_back(example: Example) -> bool:
    return hashlib.sha256(likeness(example).encode()).digest()[0] % 5 == 0


def _folder(where: Path | None) -> Path:
    if where is not None:
        return where
    if not os.environ.get(VARIABLE):
        raise DataError(
            f"no folder of data sets; give one, set {VARIABLE}, or ask the hub: hub:OWNER/NAME"
        )
    return Path(os.environ[VARIABLE])
