"""A task: labels of texts, tags of their words, or masked words; as run files and devices have it.

Labels can be predicted by cloze prompts: a pattern holds the text once and one mask; the verbalizer
names one word per label that may fill the mask (pattern-exploiting training, Schick & Schuetze
2021, arXiv:2001.07676). Tags and masked words need neither. Tasks that come with smidgen are in
`ready_tasks`.

    Task("agnews", ("sports", "business"), ("[MASK] : {text}",), {"sports": "sports", ...})
    Task("drugs", ("Chemical", "Disease"), kind="tagging")
    Task("notes", kind="mlm", masking=Masking(whole_words=True))

Registry of task kinds: ours, and those of installed packages.

A package adds one as an entry point in the group `smidgen.tasks` (docs/extending.md). It is
imported when a task of that kind is first used; nothing from the network adds to the registry.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any
from unicodedata import category

from smidgen.edge_client.errors import demand
from smidgen.edge_client.formats.source import NO_TEXT
from smidgen.edge_client.formats.tags import OUTSIDE
from smidgen.edge_client.tables import plain
from smidgen.edge_client.texts.parts import Files
from smidgen.edge_client.texts.prompts.patterns import TaskError, ends_with_mask

GROUP = "smidgen.tasks"
DEFAULT = "labels"  # of a task that does not say its kind
OURS = {
    "labels": "smidgen.edge_client.tasks.kinds.classification",
    "tagging": "smidgen.edge_client.tasks.kinds.tagging",
    "mlm": "smidgen.edge_client.tasks.kinds.masked_words",
    "completion": "smidgen.edge_client.tasks.kinds.completion",
    "chat": "smidgen.edge_client.tasks.kinds.chat",
    "multilabel": "smidgen.edge_client.tasks.kinds.multilabel",
    "relation": "smidgen.edge_client.tasks.kinds.relation",
}
NEEDED = ("name", "measure", "files", "check", "head", "prompts", "answers", "score", "show")


def names() -> list[str]:
    return [*OURS, *sorted(point.name for point in entry_points(group=GROUP))]


@cache
def find(name: str) -> Any:
    """A kind of task, see `kind.TaskKind`.

    Raises:
        TaskError: There is none of this name, two packages have it, or it lacks something.
    """
    if name in OURS:
        return import_module(OURS[name]).KIND
    points = [point for point in entry_points(group=GROUP) if point.name == name]
    demand(
        bool(points),
        f"kind is one of {', '.join(names())}, not {plain(name)!r:.200}",
        TaskError,
    )
    packages = [point.dist.name if point.dist else point.value for point in points]
    demand(
        len(points) == 1,
        f"packages {' and '.join(packages)} both name a kind of task {name!r}; remove one",
        TaskError,
    )
    said = f"package {packages[0]}: kind of task {name!r}"
    try:
        kind = points[0].load()
        kind = kind() if isinstance(kind, type) else kind
    except Exception as error:  # somebody else's code may raise anything
        raise TaskError(f"{said} cannot be imported: {type(error).__name__}: {error}") from error
    for part in NEEDED:
        demand(
            getattr(kind, part, None) is not None,
            f"{said} has no `{part}`; see `smidgen.edge_client.tasks.kind.TaskKind`",
            TaskError,
        )
    demand(kind.name == name, f"{said} calls itself {kind.name!r}; one name is expected", TaskError)
    return kind


if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover - the same library, before it moved into Python
    import tomli as tomllib

MOST_LABELS, MOST_PATTERNS = 1000, 100
LONGEST_WORD = 200  # characters of a name, a label, a label word
LONGEST_PATTERN = 10_000
MOST_FILE_BYTES = 256 << 10  # of a file that holds a task: a larger one would not fit the wire
KEYS = ("name", "kind", "labels", "patterns", "verbalizer", "ensemble", "masking")


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
        kind: What is asked, by the name of its kind (`tasks.kind`): `labels`, one of each text;
            `tagging`, a tag of each word, which says whether it begins an entity of a type, goes
            on with it, or is outside; `mlm`, the words that are masked, of all in the vocabulary.
        masking: Which those are.
        options: What else a task of its kind says; `TaskKind.options` names them.

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
    kind: str = DEFAULT
    masking: Masking = field(default_factory=Masking)
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._check_sizes()
        find(self.kind).check(self)
        for word in self.verbalizer.values() or self.labels:
            is_word = any(category(letter)[0] not in "PZ" for letter in word)
            said = f"task {self.name!r}: {word!r} is punctuation alone; choose another label word"
            demand(is_word, said, TaskError)
        known = find(self.kind).options
        for name in sorted(set(self.options) - set(known)):
            raise TaskError(f"task {self.name!r}: a task of kind {self.kind} has no {name!r:.200}")

    def refuse_patterns(self) -> None:
        """Refuse what a task without cloze prompts does not have."""
        said = f"task {self.name!r} of kind {self.kind} asks by no pattern; leave "
        for name in ("patterns", "verbalizer", "ensemble"):
            demand(not getattr(self, name), f"{said}`{name}` out", TaskError)

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
            demand(
                longest <= most,
                f"{what} of a task has at most {most} characters, not {longest}",
                TaskError,
            )
            for text in texts:  # JSON has such halves, and no tokenizer and no file takes them
                demand(
                    not NO_TEXT.search(text),
                    f"{what} of a task holds half of a surrogate pair, which is no text: "
                    f"{plain(text):.200}",
                    TaskError,
                )

    @property
    def tags(self) -> tuple[str, ...]:
        """Of tagging, what a word may be: outside, or first or further word of each type (BIO)."""
        return OUTSIDE, *(f"{place}-{label}" for label in self.labels for place in "BI")

    @property
    def files(self) -> Files:
        """How its texts lie in files."""
        found: Files = find(self.kind).files
        return found

    def words(self) -> tuple[str, ...]:
        """Label words in label order."""
        return tuple(self.verbalizer[label] for label in self.labels)

    def asked(self, is_causal: bool = False) -> tuple[str, ...]:
        """The patterns in use: all of an ensemble's, else the first.

        Args:
            is_causal: Whether a causal language model is asked: else the first that ends with the
                mask, where one does.
        """
        ending = filter(ends_with_mask, self.patterns if is_causal else ())
        return self.patterns if self.ensemble else (*ending, *self.patterns)[:1]


def task_from_mapping(table: Mapping[str, Any], origin: str) -> Task:
    """Build a task from the table of a `task.toml` (or a run file's `[task]`).

    Raises:
        TaskError: A key is missing, unknown or of the wrong kind; names `origin`.
    """
    name = table.get("kind", DEFAULT)
    demand(isinstance(name, str), f"{origin}: kind is a name, not {name!r:.200}", TaskError)
    try:
        kind = find(name)
    except TaskError as error:
        raise TaskError(f"{origin}: {error}") from error
    keys = (*KEYS, *kind.options)
    for key in sorted(set(table) - set(keys)):
        raise TaskError(f"{origin}: unknown key {key!r:.200}; known are {', '.join(keys)}")
    try:
        for key in kind.keys:
            _ = table[key]
        labels = tuple(str(label) for label in table.get("labels", ()))
        patterns = tuple(str(pattern) for pattern in table.get("patterns", ()))
        words = {str(key): str(word) for key, word in table.get("verbalizer", {}).items()}
    except (KeyError, TypeError, AttributeError) as error:
        if kind.has_patterns:
            needs = "needs lists `labels` and `patterns`, table `verbalizer`"
        else:
            needs = f"kind {name} needs {'a list `labels`' if kind.keys else 'no labels'}"
        raise TaskError(f"{origin}: {needs}") from error
    ensemble = table.get("ensemble", False)
    if not isinstance(ensemble, bool):
        raise TaskError(f"{origin}: ensemble is true or false, not {ensemble!r:.200}")
    verbalizer = words or ({label: label for label in labels} if kind.has_patterns else {})
    masking = _masking(table.get("masking", {}), origin)
    options = {key: table[key] for key in kind.options if key in table}
    called = str(table.get("name", "task"))
    return Task(called, labels, patterns, verbalizer, ensemble, name, masking, options)


def _masking(table: Any, origin: str) -> Masking:
    names = [part.name for part in fields(Masking)]
    demand(
        isinstance(table, dict), f"{origin}: masking is a table of {' and '.join(names)}", TaskError
    )
    for name in sorted(set(table) - set(names)):
        raise TaskError(f"{origin}: masking: unknown key {name!r:.200}; {' and '.join(names)} are")
    share, whole = table.get("share", Masking.share), table.get("whole_words", False)
    is_number = isinstance(share, int | float) and not isinstance(share, bool)
    demand(is_number, f"{origin}: masking: share is a number, not {share!r:.200}", TaskError)
    demand(
        isinstance(whole, bool),
        f"{origin}: masking: whole_words is true or false, not {whole!r:.200}",
        TaskError,
    )
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


def toml_of(value: object) -> str:
    """A value as TOML has it, in one line."""
    # JSON's values are also TOML's, but for one character that TOML wants escaped.
    if isinstance(value, dict):
        pairs = (f"{toml_of(key)} = {toml_of(one)}" for key, one in value.items())
        return f"{{ {', '.join(pairs)} }}"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def task_toml(task: Task) -> str:
    """The text of a `task.toml`; `read_task` of it, written as UTF-8, gives the task back."""
    kind, lines = find(task.kind), [f"name = {toml_of(task.name)}"]
    lines += [f"kind = {toml_of(task.kind)}"] * (task.kind != DEFAULT)
    lines += [f"labels = {toml_of(task.labels)}"] * bool(task.labels)
    lines += [f"patterns = {toml_of(task.patterns)}"] * bool(task.patterns)
    lines += ["ensemble = true"] * task.ensemble
    lines += [f"{name} = {toml_of(value)}" for name, value in task.options.items()]
    head = "".join(f"{line}\n" for line in lines)
    if task.verbalizer:
        words = (f"{toml_of(label)} = {toml_of(task.verbalizer[label])}\n" for label in task.labels)
        return f"{head}\n[verbalizer]\n{''.join(words)}"
    if kind.is_drawn:
        whole = toml_of(task.masking.whole_words)
        return f"{head}\n[masking]\nshare = {task.masking.share!r}\nwhole_words = {whole}\n"
    return head
