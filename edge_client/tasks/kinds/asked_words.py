"""Kinds of task that ask for words of a text, answered by the base's own head.

They need no labels, so all of a device's texts are trained on.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from smidgen.edge_client.errors import demand
from smidgen.edge_client.tables import Column, Table, share, shown
from smidgen.edge_client.tasks.counts import Confusion
from smidgen.edge_client.tasks.kind import Engine, HeadSpec, Opened, TaskKind
from smidgen.edge_client.tasks.output import Skipped, pieces
from smidgen.edge_client.tasks.scores import (
    Evaluation,
    LanguageScores,
    Scores,
    TextAnswers,
    bounded_perplexity,
    check_any,
    evaluation_of,
    scores_from,
)
from smidgen.edge_client.tasks.task import Masking, Task
from smidgen.edge_client.texts.accounting import Accounting
from smidgen.edge_client.texts.examples import Example, Found
from smidgen.edge_client.texts.prompts.patterns import TaskError


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
