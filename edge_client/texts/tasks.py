"""What a device is asked: labels of texts, tags of their words, or words that are masked in them.

Labels are asked for by cloze prompts: a pattern holds the text once and one mask; the verbalizer
names one word per label that may stand in the mask (pattern-exploiting training, Schick & Schuetze
2021, arXiv:2001.07676). Tags and masked words need neither. Examples:

    Task("agnews", ("sports", "business"), ("[MASK] : {text}",), {"sports": "sports", ...})
    Task("drugs", ("Chemical", "Disease"), kind="tagging")
    Task("notes", kind="mlm", masking=Masking(whole_words=True))

The tasks that come with smidgen are in `ready_tasks`.
"""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from edge_client.errors import WrongInput, demand
from edge_client.formats.tags import OUTSIDE
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
KEYS = ("name", "kind", "labels", "patterns", "verbalizer", "ensemble", "masking")
Kind = Literal["labels", "tagging", "mlm"]
SLOTS = re.compile(r"(\[MASK\]|\{text(?:_a|_b)?\})")


class TaskError(WrongInput):
    """A task whose labels, patterns or verbalizer do not fit together."""


@dataclass(frozen=True)
class Masking:
    """Which tokens of a text are asked for, of a task of kind `mlm`.

    Of those chosen 80 % are masked, 10 % become another token and 10 % stay as they are (Devlin et
    al. 2019, arXiv:1810.04805).

    Attributes:
        share: Share of a text's tokens that are chosen; one at least.
        whole_words: Whether all tokens of a word are chosen together.
    """

    share: float = 0.15
    whole_words: bool = False

    def __post_init__(self) -> None:
        demand(0.0 < self.share <= 0.5, "masking: share: above 0 and at most 0.5", TaskError)


@dataclass(frozen=True)
class Task:
    """What a device is asked, and how a masked language model is asked for it.

    Attributes:
        name: The task's name, for people and file names.
        labels: The labels, in the order of every log-probability row; of tagging the entities'
            types; none of `mlm`.
        patterns: Cloze patterns, see `asked`. Each holds `{text}` (or `{text_a}` and, for pairs,
            `{text_b}`) and exactly one `[MASK]`. Of labels alone, as the next two.
        verbalizer: Label -> label word, of one token or several (`Tokens.label_word_ids`).
        ensemble: Whether all patterns are asked and their answers averaged.
        kind: What is asked: `labels`, one of each text; `tagging`, a tag of each word, which says
            whether it begins an entity of a type, goes on with it, or is outside; `mlm`, the words
            that are masked, of all in the vocabulary.
        masking: Which those are.

    Raises:
        TaskError: Fewer than two labels, a label without a word, two labels with one word, a
            pattern without exactly one mask and a text, more of something than is sane, or
            something that this kind of task does not have.
    """

    name: str
    labels: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    verbalizer: dict[str, str] = field(default_factory=dict)
    ensemble: bool = False
    kind: Kind = "labels"
    masking: Masking = field(default_factory=Masking)

    def __post_init__(self) -> None:
        self._check_sizes()
        if self.kind != "labels":
            self._check_without_labels()
            return
        said = f'task {self.name!r}: masking is for kind = "mlm"; leave it out'
        demand(self.masking == Masking(), said, TaskError)
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

    def _check_without_labels(self) -> None:
        """Refuse what a task without cloze prompts does not have."""
        asked = f"task {self.name!r} of kind {self.kind}"
        for name in ("patterns", "verbalizer", "ensemble"):
            said = f"{asked} asks by no pattern; leave `{name}` out"
            demand(not getattr(self, name), said, TaskError)
        if self.kind == "mlm":
            demand(not self.labels, f"{asked} has no labels; leave `labels` out", TaskError)
            return
        said = f"{asked}: leave `masking` out"
        demand(self.masking == Masking(), said, TaskError)
        said = f"{asked} needs `labels`, the types of its entities, all different"
        demand(bool(self.labels) and len(set(self.labels)) == len(self.labels), said, TaskError)
        for label in self.labels:
            is_name = label.isprintable() and label == label.strip() and not set(label) & set(" \t")
            said = f"{asked}: the type {label!r:.200} is expected as one word"
            demand(bool(label) and is_name, said, TaskError)
            is_tag = label == OUTSIDE or label.startswith(("B-", "I-"))
            said = f"{asked}: {label!r:.200} is a tag; give types alone, such as "
            said += repr(label[2:] or "Disease")
            demand(not is_tag, said, TaskError)

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
            for text in texts:  # JSON has such halves, and no tokenizer and no file takes them
                said = f"{what} of a task holds half of a surrogate pair, which is no text: "
                demand(not any(map(_is_half, text)), f"{said}{plain(text):.200}", TaskError)

    @property
    def tags(self) -> tuple[str, ...]:
        """Of tagging, what a word may be: outside, or first or further word of each type (BIO)."""
        return OUTSIDE, *(f"{place}-{label}" for label in self.labels for place in "BI")

    @property
    def head_rows(self) -> int:
        """Answers that a trained head tells apart; 0 where there are none to train one for."""
        return len(self.tags) if self.kind == "tagging" else len(self.labels)

    def words(self) -> tuple[str, ...]:
        """Label words in label order."""
        return tuple(self.verbalizer[label] for label in self.labels)

    def asked(self) -> tuple[str, ...]:
        """The patterns in use: all of an ensemble's, else the first."""
        return self.patterns if self.ensemble else self.patterns[:1]


def _is_half(letter: str) -> bool:
    return "\ud800" <= letter <= "\udfff"


class Wanted(Protocol):
    """What of a task says how its texts are read; every `Task` is one."""

    @property
    def kind(self) -> Kind: ...

    @property
    def labels(self) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class Labels:
    """A kind and its labels alone, where there is no task yet; without labels any will do."""

    labels: tuple[str, ...] = ()
    kind: Kind = "labels"


ANY = Labels()


def wanted_by(task: Wanted) -> Labels:
    """What of a task says how its texts are read: tasks that agree in it read them alike."""
    return Labels(task.labels, task.kind)


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
    kind = table.get("kind", "labels")
    known = ", ".join(get_args(Kind))
    if kind not in get_args(Kind):
        raise TaskError(f"{origin}: kind is one of {known}, not {kind!r:.200}")
    wanted = {"labels": ("labels", "patterns"), "tagging": ("labels",), "mlm": ()}[kind]
    try:
        absent = [name for name in wanted if name not in table]
        if absent:
            raise KeyError(absent[0])
        labels = tuple(str(label) for label in table.get("labels", ()))
        patterns = tuple(str(pattern) for pattern in table.get("patterns", ()))
        words = {str(key): str(word) for key, word in table.get("verbalizer", {}).items()}
    except (KeyError, TypeError, AttributeError) as error:
        if kind == "labels":
            needs = "needs lists `labels` and `patterns`, table `verbalizer`"
        else:
            needs = f"kind {kind} needs {'a list `labels`' if wanted else 'no labels'}"
        raise TaskError(f"{origin}: {needs}") from error
    ensemble = table.get("ensemble", False)
    if not isinstance(ensemble, bool):
        raise TaskError(f"{origin}: ensemble is true or false, not {ensemble!r:.200}")
    verbalizer = words or ({label: label for label in labels} if kind == "labels" else {})
    masking, name = _masking(table.get("masking", {}), origin), str(table.get("name", "task"))
    return Task(name, labels, patterns, verbalizer, ensemble, kind, masking)


def _masking(table: Any, origin: str) -> Masking:
    names = [part.name for part in fields(Masking)]
    told = f"{origin}: masking is a table of {' and '.join(names)}"
    demand(isinstance(table, dict), told, TaskError)
    for name in sorted(set(table) - set(names)):
        raise TaskError(f"{origin}: masking: unknown key {name!r:.200}; {' and '.join(names)} are")
    share, whole = table.get("share", Masking.share), table.get("whole_words", False)
    is_number = isinstance(share, int | float) and not isinstance(share, bool)
    demand(is_number, f"{origin}: masking: share is a number, not {share!r:.200}", TaskError)
    said = f"{origin}: masking: whole_words is true or false, not {whole!r:.200}"
    demand(isinstance(whole, bool), said, TaskError)
    return Masking(float(share), whole)


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

    if task.kind != "labels":
        head = f"name = {text(task.name)}\nkind = {text(task.kind)}\n"
        if task.kind == "tagging":
            return f"{head}labels = {text(task.labels)}\n"
        whole = "true" if task.masking.whole_words else "false"
        return f"{head}\n[masking]\nshare = {task.masking.share!r}\nwhole_words = {whole}\n"
    words = "".join(f"{text(label)} = {text(task.verbalizer[label])}\n" for label in task.labels)
    head = (
        f"name = {text(task.name)}\n"
        f"labels = {text(task.labels)}\n"
        f"patterns = {text(task.patterns)}\n"
    )
    head += "ensemble = true\n" if task.ensemble else ""
    return f"{head}\n[verbalizer]\n{words}"
