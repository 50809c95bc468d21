"""What a device is asked to tell apart: labels, and the cloze prompts that ask for them.

A pattern holds the text once and one mask; the verbalizer names one word per label that may stand
in the mask (pattern-exploiting training, Schick & Schuetze 2021, arXiv:2001.07676). Example:

    Task("agnews", ("sports", "business"), ("[MASK] : {text}",), {"sports": "sports", ...})

The tasks that come with smidgen are in `ready_tasks`.
"""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_client.errors import WrongInput, demand
from edge_client.tables import plain

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover - the same library, before it moved into Python
    import tomli as tomllib

MASK = "[MASK]"
MOST_LABELS, MOST_PATTERNS = 1000, 100
LONGEST_WORD = 200  # characters of a name, a label, a label word
LONGEST_PATTERN = 10_000
MOST_FILE_BYTES = 256 << 10  # of a file that holds a task: a larger one would not fit the wire
KEYS = ("name", "labels", "patterns", "verbalizer", "ensemble")
SLOTS = re.compile(r"(\[MASK\]|\{text(?:_a|_b)?\})")


class TaskError(WrongInput):
    """A task whose labels, patterns or verbalizer do not fit together."""


@dataclass(frozen=True)
class Task:
    """Labels of a classification task and how a masked language model is asked for them.

    Attributes:
        name: The task's name, for people and file names.
        labels: The labels, in the order of every log-probability row.
        patterns: Cloze patterns, see `asked`. Each holds `{text}` (or `{text_a}` and, for pairs,
            `{text_b}`) and exactly one `[MASK]`.
        verbalizer: Label -> label word, of one token or several (`Tokens.label_word_ids`).
        ensemble: Whether all patterns are asked and their answers averaged.

    Raises:
        TaskError: Fewer than two labels, a label without a word, two labels with one word, a
            pattern without exactly one mask and a text, or more of something than is sane.
    """

    name: str
    labels: tuple[str, ...]
    patterns: tuple[str, ...]
    verbalizer: dict[str, str]
    ensemble: bool = False

    def __post_init__(self) -> None:
        self._check_sizes()
        if len(set(self.labels)) != len(self.labels) or len(self.labels) < 2:
            raise TaskError(f"task {self.name!r} needs two or more different labels")
        missing = [label for label in self.labels if not self.verbalizer.get(label, "").strip()]
        if missing:
            raise TaskError(f"task {self.name!r}: the verbalizer has no word for {missing[0]!r}")
        unknown = sorted(set(self.verbalizer) - set(self.labels))
        if unknown:
            raise TaskError(
                f"task {self.name!r}: the verbalizer names no label of it: {unknown[0]!r}"
            )
        if len(set(self.verbalizer.values())) != len(self.labels):
            raise TaskError(f"task {self.name!r}: two labels share one label word")
        if not self.patterns:
            raise TaskError(f"task {self.name!r} needs a pattern such as '[MASK] : {{text}}'")
        for pattern in self.patterns:
            check_pattern(pattern)

    def _check_sizes(self) -> None:
        """Refuse at once what would take long to look at."""
        sizes = (
            ("the name", LONGEST_WORD, (self.name,)),
            ("a label", LONGEST_WORD, self.labels),
            ("a label word", LONGEST_WORD, (*self.verbalizer, *self.verbalizer.values())),
            ("a pattern", LONGEST_PATTERN, self.patterns),
        )
        for what, most, found in (
            ("labels", MOST_LABELS, len(self.labels)),
            ("label words", MOST_LABELS, len(self.verbalizer)),
            ("patterns", MOST_PATTERNS, len(self.patterns)),
        ):
            demand(found <= most, f"a task has at most {most} {what}, not {found}", TaskError)
        for what, most, texts in sizes:
            longest = max(map(len, texts), default=0)
            told = f"{what} of a task has at most {most} characters, not {longest}"
            demand(longest <= most, told, TaskError)

    def words(self) -> tuple[str, ...]:
        """Label words in label order."""
        return tuple(self.verbalizer[label] for label in self.labels)

    def asked(self) -> tuple[str, ...]:
        """The patterns in use: all of an ensemble's, else the first."""
        return self.patterns if self.ensemble else self.patterns[:1]


def check_pattern(pattern: str) -> None:
    """Refuse a pattern that has not exactly one mask and each text slot once.

    Raises:
        TaskError: Says what the pattern lacks.
    """
    slots = SLOTS.findall(pattern)
    texts = [slot for slot in slots if slot != MASK]
    if slots.count(MASK) != 1:
        raise TaskError(f"pattern {pattern!r:.200} needs exactly one {MASK}")
    if not texts or len(set(texts)) != len(texts) or ("{text}" in texts and len(texts) > 1):
        raise TaskError(
            f"pattern {pattern!r:.200} needs {{text}} once, or {{text_a}} and {{text_b}}"
        )


def task_from_mapping(table: Mapping[str, Any], origin: str) -> Task:
    """Build a task from the table of a `task.toml` (or a run file's `[task]`).

    Raises:
        TaskError: A key is missing, unknown or of the wrong kind; names `origin`.
    """
    unknown = sorted(set(table) - set(KEYS))
    if unknown:
        raise TaskError(f"{origin}: unknown key {unknown[0]!r:.200}; known are {', '.join(KEYS)}")
    try:
        labels = tuple(str(label) for label in table["labels"])
        patterns = tuple(str(pattern) for pattern in table["patterns"])
        words = {str(key): str(word) for key, word in table.get("verbalizer", {}).items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise TaskError(
            f"{origin}: needs lists `labels` and `patterns`, table `verbalizer`"
        ) from error
    ensemble = table.get("ensemble", False)
    if not isinstance(ensemble, bool):
        raise TaskError(f"{origin}: ensemble is true or false, not {ensemble!r:.200}")
    verbalizer = words or {label: label for label in labels}
    return Task(str(table.get("name", "task")), labels, patterns, verbalizer, ensemble)


def read_task(path: Path) -> Task:
    """Read a `task.toml`.

    Raises:
        TaskError: The file is missing, too large, not TOML, or not a valid task.
    """
    try:
        table = tomllib.loads(small_text(path))
    except OSError as error:
        raise TaskError(f"no task file at {path}; write one or give --task FILE") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TaskError(f"{path} is not TOML: {plain(str(error))[:LONGEST_WORD]}") from error
    return task_from_mapping(table, str(path))


def small_text(path: Path) -> str:
    """A file of settings; TOML of many megabytes would take minutes to read.

    Raises:
        TaskError: It is larger than such files are.
        OSError, UnicodeDecodeError: It cannot be read.
    """
    with path.open("rb") as file:
        body = file.read(MOST_FILE_BYTES + 1)
    is_small = len(body) <= MOST_FILE_BYTES
    demand(is_small, f"{path}: at most {MOST_FILE_BYTES:,} bytes are expected", TaskError)
    return body.decode("utf-8")


def task_toml(task: Task) -> str:
    """The text of a `task.toml`; `read_task` of it, written as UTF-8, gives the task back."""

    def text(value: str | Sequence[str]) -> str:
        # JSON's strings and lists are also TOML's, but for one character that TOML wants escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")

    words = "".join(f"{text(label)} = {text(task.verbalizer[label])}\n" for label in task.labels)
    head = (
        f"name = {text(task.name)}\n"
        f"labels = {text(task.labels)}\n"
        f"patterns = {text(task.patterns)}\n"
    )
    head += "ensemble = true\n" if task.ensemble else ""
    return f"{head}\n[verbalizer]\n{words}"
