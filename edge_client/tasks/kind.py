"""`TaskKind`: the interface between one kind of task and everything that trains or serves it.

Each kind is one module with a class and `KIND`, an instance of it, which `registry` finds by name.
Engine, planner, server and commands see prompts, heads and scores, never a kind's name:

    kind = kind_of(task)
    kind.head(task).loss                     # how the head's rows are trained
    kind.score(task, kind.answers(engine, examples))

`TaskKind` has a default for whatever a kind does not define itself.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, cast

import numpy as np

from smidgen.edge_client.errors import demand
from smidgen.edge_client.tables import Table
from smidgen.edge_client.tasks.counts import scores_of
from smidgen.edge_client.tasks.scores import (
    Evaluation,
    Formatter,
    Measure,
    Scores,
    Skipped,
    TextAnswers,
)
from smidgen.edge_client.tasks.task import Task, find, names
from smidgen.edge_client.texts.accounting import Accounting, Fault
from smidgen.edge_client.texts.examples import Example, Found, joined
from smidgen.edge_client.texts.parts import Files
from smidgen.edge_client.texts.prompts.patterns import TaskError
from smidgen.edge_client.texts.tokens import Prompt, Tokens

Loss = Literal["softmax", "sigmoid"]


@dataclass(frozen=True)
class HeadSpec:
    """What answers at the top.

    Attributes:
        rows: Rows of a trained head.
        answers: What answers without a trained head: the task's label words, or all words; None:
            nothing does, a head is needed.
        loss: Softmax cross-entropy over the rows, of which one is right; or sigmoid per row, any
            of which may be right (torch's `BCEWithLogitsLoss`, mean over the rows).
        is_of_words: Whether a trained head reads each word of a text, not the text as a whole.
    """

    rows: int
    answers: Literal["label words", "all words"] | None = "label words"
    loss: Loss = "softmax"
    is_of_words: bool = False

    @property
    def is_one_answer(self) -> bool:
        """Whether a text is read at one place, not at many."""
        return not self.is_of_words and self.answers != "all words"

    @property
    def can_train(self) -> bool:
        """Whether a head can be trained: the base's own answers with all words."""
        return self.answers != "all words"


class Inputs(Protocol):
    """How texts of a task become inputs of a base; see `encoder.Encoder`."""

    @property
    def tokens(self) -> Tokens: ...

    @property
    def task(self) -> Task: ...

    @property
    def cloze(self) -> bool: ...

    @property
    def limit(self) -> int: ...

    @property
    def pattern(self) -> int: ...

    def prompts(
        self, examples: Sequence[Example], draw: int = 0, first: int = 0
    ) -> list[Prompt]: ...

    def labels(self, examples: Sequence[Example]) -> list[int]: ...


class Engine(Protocol):
    """What reads texts with an adapter; see `engine.Engine`."""

    @property
    def encoder(self) -> Inputs: ...

    def predict(self, examples: Sequence[Example]) -> np.ndarray: ...

    def tag(self, examples: Sequence[Example]) -> list[np.ndarray]: ...

    def judge_each(
        self, examples: Sequence[Example], draw: int = 0
    ) -> list[tuple[np.ndarray, np.ndarray]]: ...

    def guess(self, prompt: Prompt) -> Iterator[np.ndarray]: ...


class Opened(Protocol):
    """An adapter that is opened to answer; see `api.labeller.Labeller`."""

    @property
    def engine(self) -> Engine: ...

    @property
    def task(self) -> Task: ...

    @property
    def prior(self) -> tuple[float, ...]: ...

    @property
    def needs_pairs(self) -> bool: ...


class Decision(NamedTuple):
    """What a row of log-probabilities comes to.

    Attributes:
        label: As a file has it.
        confidence: That it is right, 0 to 1.
        of: Index of the label whose threshold a pseudo-label must reach.
    """

    label: str
    confidence: float
    of: int


class Sentences(NamedTuple):
    """What a model card says of a kind of task.

    Attributes:
        answers: What the adapter does.
        limits: What it does not.
        auto: PEFT's auto class for a trained head, behind `AutoPeftModel`.
        pipeline: The hub's word for an adapter with a trained head.
        call: The function that answers a text, behind the lines of `with_peft.py`.
        example: A text as it takes one; empty: `predict` does not take any.
    """

    answers: str
    limits: str
    auto: str
    pipeline: str
    call: str = "predict"
    example: str = "a text"


class TaskKind(Protocol):
    """A kind of task.

    Attributes:
        name: As `kind` of a task file says it.
        measure: By what adapters for it are compared.
        files: How its texts lie in files.
        card: What a model card says.
        keys: Keys of a task file that it needs.
        options: Keys of a task file that are its own, in `Task.options`.
        function: What answers texts in Python.
        asked: What an evaluation counts, for people.
        peft_type: PEFT's task type of a trained head; empty: none is trained.
        has_patterns: Whether texts may be asked by cloze patterns.
        is_one_label: Whether each text has exactly one of the task's labels.
        is_labelled: Whether unlabelled texts may get pseudo-labels.
        is_drawn: Whether what is asked is drawn anew in each epoch.
        is_causal: Whether each token is asked for from those before it, of a causal language model;
            of any other kind a masked one is asked.
        may_refuse: Whether a text that was read may have nothing to ask for; see `fault`.
    """

    name: str
    measure: Measure
    files: Files
    card: Sentences
    keys: ClassVar[tuple[str, ...]] = ("labels",)
    options: ClassVar[tuple[str, ...]] = ()
    function: str = "smidgen.predict"
    asked: str = "texts"
    peft_type: str = "SEQ_CLS"
    has_patterns: bool = False
    is_one_label: bool = False
    is_labelled: bool = False
    is_drawn: bool = False
    is_causal: bool = False
    may_refuse: bool = False

    def check(self, task: Task) -> None:
        """Refuse a task whose parts do not fit together.

        Raises:
            TaskError: Says which.
        """

    def head(self, task: Task) -> HeadSpec:
        """What answers."""

    def places(self, task: Task, tokens: int) -> int:
        """Places of a text of so many tokens at which all words are asked for, at most."""
        return 0

    def prompts(
        self, inputs: Inputs, examples: Sequence[Example], draw: int, first: int
    ) -> list[Prompt]:
        """Encode texts one by one, with their right answers where they are known.

        Args:
            inputs: How texts become inputs.
            examples: The texts.
            draw: Seed of what is asked, where that is drawn.
            first: Place of the first text, where they are a part of a list.
        """

    def by_draw(self, inputs: Inputs, examples: Sequence[Example]) -> Callable[[int], list[Prompt]]:
        """The prompts of any draw, of texts that are tokenized now and once, however many draws.

        Law: for each draw what `prompts` gives. Texts that are there several times are tokenized
        and held once.
        """
        distinct = list(dict.fromkeys(examples))
        asked = dict(zip(distinct, inputs.prompts(distinct), strict=True))
        prompts = [asked[one] for one in examples]
        return lambda _: prompts

    def fault(self, inputs: Inputs, example: Example) -> Fault | None:
        """Why nothing can be asked of a text with this base, in words that quote none; else None.

        Such texts are left out before others are asked: `prompts` does not take them.
        """
        return None

    def begun(self, tokens: Tokens, text: str) -> list[int]:
        """Ids of a text that a causal language model is to answer, or to go on with."""
        raise TaskError(f"texts of a task of kind {self.name} are not written")

    def ends(self, tokens: Tokens) -> frozenset[int]:
        """Ids that end what a causal language model writes."""
        raise TaskError(f"texts of a task of kind {self.name} are not written")

    def unwritten(self, text: str) -> Example:
        """A text that nobody wrote, as one of this kind is read: for reference statistics."""
        return Example(text)

    def length(self, inputs: Inputs, example: Example) -> tuple[int, int]:
        """About how many tokens a text has that is read as one, and how many are read at most."""
        room = inputs.limit - sum(map(len, inputs.tokens.frame))
        return inputs.tokens.count(joined(example), room), room

    def asked_in_words(self, task: Task) -> str:
        """What a model card says of the words that were asked for, where words are."""
        return ""

    def words_read(self, example: Example) -> Sequence[str] | None:
        """The words of a text that is read word by word; None where it is read as a whole."""
        return None

    def answers(self, engine: Engine, examples: Sequence[Example]) -> list[TextAnswers]:
        """Each text's answers, with an adapter."""

    def score(self, task: Task, answers: Sequence[TextAnswers]) -> Evaluation:
        """The score of some texts' answers.

        Raises:
            TrainingError: The loss is not finite.
        """

    def figure(self, score: Evaluation) -> float:
        """What a device compares adapters by: where counts are reported their F1, strict and micro.

        It is 1 where nothing is there and nothing was told.
        """
        if score.entities is None or not self.measure.is_counted:
            return score.accuracy
        f1 = scores_of(score.entities).strict
        return 1.0 if f1 is None else f1

    def most_found(self, task: Task, num_examples: int) -> int:
        """What may be told at most in so many answers, where counts are reported; 0: none are."""
        return 0

    def decide(self, task: Task, row: np.ndarray) -> Decision:
        """What a row of log-probabilities, (labels,), comes to; where texts get labels."""
        raise TaskError(f"texts of a task of kind {self.name} get no labels")

    def show(self, opened: Opened, top: int | None = None) -> Formatter[Any]:
        """How answers are told: on a screen, in files, as JSON.

        Args:
            opened: The adapter.
            top: Guesses for each place, where words are guessed.
        """

    def scores(
        self,
        opened: Opened,
        texts: Iterator[Found],
        accounting: Accounting,
        on_answer: Callable[[Any], None],
    ) -> Scores:
        """Answer texts and compare.

        Args:
            opened: The adapter.
            texts: With their answers.
            accounting: Gets those without a text.
            on_answer: Told each answer.

        Raises:
            DataError: There is no text that can be used.
        """

    def results(
        self, out: Path | None, task: Task, *, has_id: bool
    ) -> AbstractContextManager[Callable[[Any | Skipped], None]]:
        """Writes each answer of an evaluation beside the right one; without a file, nothing."""

    def check_results(self, out: Path | None) -> None:
        """Refuse a file of such answers that cannot be written."""

    def scores_json(self, scores: Scores) -> dict[str, Any]:
        """Figures for machines, beside accuracy and loss."""

    def report(self, scores: Scores) -> list[Table]:
        """Figures for people."""


def kind_named(name: str) -> TaskKind:
    """A kind of task by its name.

    Raises:
        TaskError: There is none.
    """
    return cast(TaskKind, find(name))


def kind_of(task: Task) -> TaskKind:
    return kind_named(task.kind)


def every_kind() -> Iterator[TaskKind]:
    """All kinds that can be loaded, ours first; another is refused where a task is of it."""
    for name in names():
        with suppress(TaskError):
            yield kind_named(name)


def check_same(own: Task, other: Task, said: str) -> None:
    """Refuse a task of another kind.

    Raises:
        TaskError: With what is said.
    """
    demand(own.kind == other.kind, said, TaskError)


def measure_called(key: str) -> Measure:
    """The measure by whose figure a device compares adapters, by that figure's name in JSON."""
    return next(one.measure for one in every_kind() if one.measure.own_key == key)


def every_files() -> list[Files]:
    return [kind.files for kind in every_kind()]
