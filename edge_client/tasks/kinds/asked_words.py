"""Kinds of task that ask for words of a text, answered by the base's own head, and their output.

They need no labels, so all of a device's texts are trained on. For a text with `[MASK]` the base
predicts words that may stand there. Of a text without, some tokens are masked, which depend on the
text alone: the exponential of their mean loss is its perplexity.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from smidgen.edge_client.errors import demand
from smidgen.edge_client.formats.annotation.answers import Proposal
from smidgen.edge_client.outputs import check_out_file, new_file
from smidgen.edge_client.tables import Column, Table, share, shown
from smidgen.edge_client.tasks.counts import Confusion
from smidgen.edge_client.tasks.kind import Engine, HeadSpec, Opened, TaskKind
from smidgen.edge_client.tasks.scores import (
    Evaluation,
    LanguageScores,
    Scores,
    Skipped,
    TextAnswers,
    bounded_perplexity,
    check_any,
    evaluation_of,
    pieces,
    scores_from,
    write_json,
)
from smidgen.edge_client.tasks.task import Masking, Task
from smidgen.edge_client.texts.accounting import Accounting
from smidgen.edge_client.texts.examples import Example, Found
from smidgen.edge_client.texts.prompts.patterns import MASK, TaskError

TOP, MOST = 5, 100  # guesses for each mask
TIMES = 8  # a text is masked, each time other tokens of it


@dataclass(frozen=True)
class Guess:
    """A word that may stand in a mask, or a piece of one, and its probability, 0 to 1."""

    word: str
    probability: float


@dataclass(frozen=True)
class FilledText:
    """What a text's masks may hold, or how well a text without masks is known.

    Attributes:
        text: The text.
        guesses: Of each `[MASK]` the likeliest words, the likeliest first.
        filled: The text with the likeliest word in each mask.
        perplexity: Of a text without masks; else None.
        tokens: Tokens that were asked for.
    """

    text: str
    guesses: tuple[tuple[Guess, ...], ...]
    filled: str
    perplexity: float | None
    tokens: int


@dataclass(frozen=True)
class Guessing:
    """How one text is read.

    Attributes:
        found: The text, where it stands and its id.
        example: The text.
        told: What is known of it.
    """

    found: Found
    example: Example
    told: FilledText


def check_top(top: int) -> None:
    """Refuse a number of guesses.

    Raises:
        WrongInput: See `MOST`.
    """
    demand(1 <= top <= MOST, f"--top {top}: 1 to {MOST} is expected")


def guessings(
    opened: Opened, texts: Iterable[Found], accounting: Accounting, top: int = TOP
) -> Iterator[Guessing]:
    """Read texts in their order; others (no text, a mask too far) are counted."""
    engine, inputs = opened.engine, opened.engine.encoder
    for piece in pieces(texts, accounting):
        for found, example in piece:
            if MASK not in example.text:
                losses = np.concatenate([one for one, _ in engine.judge_each([example] * TIMES)])
                surprise = bounded_perplexity(float(losses.mean(dtype=np.float64)))
                told = FilledText(example.text, (), example.text, surprise, len(losses))
                yield Guessing(found, example, told)
                continue
            asked = inputs.tokens.gaps(example.text, inputs.limit)
            if len(asked.places) < example.text.count(MASK):
                far = f"a {MASK} behind the first {inputs.limit} tokens, which are read"
                accounting.read -= 1
                accounting.lines.append(found.line)
                accounting.leave_out("columns", f"line {found.line}: {far}")
                continue
            guesses = tuple(_likeliest(opened, row, top) for row in engine.guess(asked))
            filled = _filled(example.text, [one[0].word for one in guesses])
            told = FilledText(example.text, guesses, filled, None, len(guesses))
            yield Guessing(found, example, told)


def _likeliest(opened: Opened, row: np.ndarray, top: int) -> tuple[Guess, ...]:
    tokens = opened.engine.encoder.tokens
    ordinary = np.array(tokens.ordinary_ids)
    best = ordinary[np.argsort(-row[ordinary], kind="stable")[:top]]
    return tuple(
        Guess(tokens.word_of(id_), round(math.exp(float(row[id_])), 4)) for id_ in best.tolist()
    )


def _filled(text: str, words: list[str]) -> str:
    for word in words:
        text = text.replace(MASK, word, 1)
    return text


@dataclass(frozen=True)
class GuessTelling:
    """See `Formatter`.

    Attributes:
        opened: The adapter, or the base alone.
        top: Guesses for each mask.
    """

    opened: Opened
    top: int = TOP
    done: str = "read"
    can_propose: bool = False

    def check(self, out: Path | None) -> None:
        if out is not None:
            check_out_file("--out", out, (".jsonl",), sign='"perplexity"')

    def answers(self, texts: Iterable[Found], accounting: Accounting) -> Iterator[Guessing]:
        return guessings(self.opened, texts, accounting, self.top)

    @contextmanager
    def results(
        self, out: Path | None, *, has_id: bool
    ) -> Iterator[Callable[[Guessing | Skipped], None]]:
        """Writes an answer per row as JSONL, an empty one for `Skipped`; without `out`, nothing."""
        if out is None:
            yield lambda answer: None
            return
        with new_file("--out", out) as file:
            yield lambda answer: write_json(
                file,
                answer.as_json("perplexity", "text")
                if isinstance(answer, Skipped)
                else _row(answer),
            )

    def proposal(self, answer: Guessing) -> Proposal:
        raise NotImplementedError("guesses are neither labels nor spans")

    def line(self, answer: Guessing) -> str:
        """A text's masked words and what may stand there, or its perplexity."""
        told = answer.told
        if told.perplexity is not None:
            return f"perplexity {told.perplexity:.1f}  {shown(told.text)}"
        others = [
            ", ".join(f"{one.word} {one.probability:.2f}" for one in guesses)
            for guesses in told.guesses
        ]
        ranked = [f"  {number}: {shown(line)}" for number, line in enumerate(others, start=1)]
        return "\n".join([_bracketed(told), *ranked])

    def counted(self, answer: Guessing) -> Sequence[str]:
        return ["with a mask" if answer.told.guesses else "without"]

    def collected(self, kept: Sequence[Guessing]) -> dict[str, Any]:
        return {"answers": [asdict(answer.told) for answer in kept]}

    def summary(self, counts: Mapping[str, int]) -> dict[str, Any]:
        return {"with_a_mask": counts.get("with a mask", 0)}


def _bracketed(told: FilledText) -> str:
    """A text in one line, the likeliest words in brackets."""
    first, *rest = told.text.split(MASK)
    pairs = zip(told.guesses, rest, strict=True)
    return shown(first + "".join(f"[{guesses[0].word}]{part}" for guesses, part in pairs))


def _row(answer: Guessing) -> dict[str, Any]:
    told = asdict(answer.told)
    first = {"perplexity": told.pop("perplexity")}  # by which a file of ours is known
    return first | ({"id": answer.found.id} if answer.found.id else {}) | told


class AskedWords(TaskKind):
    """See `TaskKind`.

    A coordinator goes by accuracy: it sums up what devices say, and a share, unlike a loss, has an
    end. A device compares adapters by perplexity, which tells smaller differences apart.
    """

    keys = ()
    peft_type = ""

    def check(self, task: Task) -> None:
        """Refuse patterns, labels, and masks where nothing is masked."""
        task.refuse_patterns()
        demand(
            not task.labels,
            f"task {task.name!r} of kind {self.name} has no labels; leave `labels` out",
            TaskError,
        )
        demand(
            self.is_drawn or task.masking == Masking(),
            f'task {task.name!r}: masking is for kind = "mlm"; leave it out',
            TaskError,
        )

    def head(self, task: Task) -> HeadSpec:
        return HeadSpec(0, "all words")

    def answers(self, engine: Engine, examples: Sequence[Example]) -> list[TextAnswers]:
        """Which words are asked for is the same in each evaluation of the same texts."""
        return [TextAnswers(*found) for found in engine.judge_each(examples)]

    def score(self, task: Task, answers: Sequence[TextAnswers]) -> Evaluation:
        return evaluation_of(answers)

    def figure(self, score: Evaluation) -> float:
        return bounded_perplexity(score.loss)

    def scores(
        self,
        opened: Opened,
        texts: Iterator[Found],
        accounting: Accounting,
        on_answer: Callable[[Any], None],
    ) -> Scores:
        """All texts at once, as where a device evaluates; no answer is told."""
        every = pieces(texts, accounting, wrong=partial(self.fault, opened.engine.encoder))
        examples = [example for piece in every for _, example in piece]
        check_any(examples, "text", accounting)
        found = opened.engine.judge_each(examples)
        of = np.repeat(np.arange(len(found)), [len(losses) for losses, _ in found])
        losses, is_right = map(np.concatenate, zip(*found, strict=True))
        scores = scores_from(losses.tolist(), len(examples), Confusion.of((), (), ()), ())
        lengths = map(partial(self.length, opened.engine.encoder), examples)
        exact = [
            bool(right.all()) and tokens <= read
            for (_, right), (tokens, read) in zip(found, lengths, strict=True)
        ]
        return replace(
            scores,
            accuracy=float(is_right.mean()),
            exact=float(np.mean(exact)),
            languages=_languages([one.language for one in examples], of, losses, is_right),
        )

    def results(
        self, out: Path | None, task: Task, *, has_id: bool
    ) -> AbstractContextManager[Callable[[Any | Skipped], None]]:
        return nullcontext(lambda answer: None)

    def check_results(self, out: Path | None) -> None:
        demand(
            out is None,
            f"--out {out}: {self.measure.asked} have no answer of each text to write; "
            f"leave --out away",
        )

    def scores_json(self, scores: Scores) -> dict[str, Any]:
        return {
            "tokens": scores.answers,
            "perplexity": scores.perplexity,
            "languages": [asdict(one) for one in scores.languages],
        }

    def report(self, scores: Scores) -> list[Table]:
        """Figures of each language, and of all."""
        rows = [
            [
                shown(one.language) or "none named",
                str(one.texts),
                str(one.answers),
                f"{one.perplexity:.2f}",
                share(one.accuracy),
            ]
            for one in scores.languages
        ]
        every = [str(scores.texts), str(scores.answers), f"{scores.perplexity:.2f}"]
        rows.append(["all", *every, share(scores.accuracy)])
        heads = ("texts", self.asked, "perplexity", "guessed")
        title = f"perplexity {scores.perplexity:.2f}, loss {scores.loss:.3f}"
        return [Table([Column("language", "word"), *map(Column, heads)], rows, title)]


def _languages(
    named: Sequence[str], of: np.ndarray, losses: np.ndarray, is_right: np.ndarray
) -> tuple[LanguageScores, ...]:
    """Figures language by language; none where no text names one.

    Args:
        named: Each text's language.
        of: Of which text each answer is.
        losses: Cross-entropy of each answer, in nats.
        is_right: Whether each answer is the masked word.
    """
    found = []
    for language in sorted(set(named)) if any(named) else []:
        texts = [row for row, one in enumerate(named) if one == language]
        mine = np.isin(of, texts)
        loss, right = float(losses[mine].mean(dtype=np.float64)), float(is_right[mine].mean())
        count = int(mine.sum())
        found.append(LanguageScores(language, len(texts), count, right, bounded_perplexity(loss)))
    return tuple(found)
