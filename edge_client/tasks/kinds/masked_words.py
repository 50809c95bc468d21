"""Words masked in texts, which the base's own head guesses (Devlin et al. 2019, arXiv:1810.04805).

Masked words are asked for in texts with labels or without, so all of a device's texts are trained
on; which are masked is drawn anew in each epoch (`masking`).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from edge_client.errors import demand
from edge_client.tables import Table
from edge_client.tasks.counts import Confusion
from edge_client.tasks.kind import Engine, HeadSpec, Inputs, Opened, Sentences, TaskKind
from edge_client.tasks.kinds.guesses import TOP, GuessTelling, check_top, report
from edge_client.tasks.kinds.masking import masked, masked_in, most_masked, pieces_of
from edge_client.tasks.scores import (
    Answers,
    Evaluation,
    LanguageScores,
    Measure,
    Scores,
    bounded_perplexity,
    check_any,
    evaluation_of,
    scores_from,
)
from edge_client.tasks.task import Task
from edge_client.tasks.telling import Skipped, pieces
from edge_client.texts.accounting import Accounting
from edge_client.texts.examples import Example, Found
from edge_client.texts.parts import Files
from edge_client.texts.prompts.patterns import MASK, TaskError
from edge_client.texts.tokens import Prompt


class MaskedWords(TaskKind):
    """See `TaskKind`.

    A coordinator goes by accuracy: it sums up what devices say, and a share, unlike a loss, has an
    end. A device compares adapters by perplexity, which tells smaller differences apart.
    """

    name = "mlm"
    measure = Measure(
        key="accuracy",
        word="accuracy",
        said="{} of the devices' masked words were guessed right",
        asked="masked words",
        note="accuracy, perplexity: of masked words, over the devices' test texts that were asked",
        own="perplexity",
        name="perplexity",
        beside="accuracy at masked tokens",
        cells="masked tokens that were guessed, in %; not perplexity",
    )
    files = Files(
        kind="mlm",
        wants="text",
        lacks="put an unlabelled.txt with a text on each line there, or a folder unlabelled of "
        ".txt files with paragraphs",
        what="a folder with unlabelled.txt or unlabelled/*.txt",
        tests="put a test.txt with a text on each line",
    )
    card = Sentences(
        answers="It guesses words that are masked in a text, by the base's own head.",
        limits="It writes no text from left to right; it guesses single words from those around "
        "them.",
        used=f'fill("a {MASK} text")',
        auto="",
        pipeline="fill-mask",
    )
    keys = ()
    function = "smidgen.fill"
    asked = "masked tokens"
    peft_type = ""
    is_drawn = True

    def check(self, task: Task) -> None:
        """See `TaskKind`."""
        task.refuse_patterns()
        said = f"task {task.name!r} of kind {self.name} has no labels; leave `labels` out"
        demand(not task.labels, said, TaskError)

    def head(self, task: Task) -> HeadSpec:
        return HeadSpec(0, "all words")

    def places(self, task: Task, tokens: int) -> int:
        return most_masked(task.masking, tokens)

    def prompts(
        self, inputs: Inputs, examples: Sequence[Example], draw: int, first: int
    ) -> list[Prompt]:
        return masked(inputs.tokens, inputs.task.masking, examples, inputs.limit, draw, first)

    def by_draw(self, inputs: Inputs, examples: Sequence[Example]) -> Callable[[int], list[Prompt]]:
        distinct = dict.fromkeys(examples)
        known = {one: pieces_of(inputs.tokens, one, inputs.limit) for one in distinct}
        read = [known[one] for one in examples]
        return lambda draw: masked_in(inputs.tokens, inputs.task.masking, read, draw)

    def answers(self, engine: Engine, examples: Sequence[Example]) -> list[Answers]:
        """Which words are masked is the same in each evaluation of the same texts."""
        return [Answers(*found) for found in engine.judge_each(examples)]

    def score(self, task: Task, answers: Sequence[Answers]) -> Evaluation:
        return evaluation_of(answers)

    def figure(self, score: Evaluation) -> float:
        return bounded_perplexity(score.loss)

    def show(self, opened: Opened, top: int | None = None) -> GuessTelling:
        check_top(TOP if top is None else top)
        return GuessTelling(opened, TOP if top is None else top)

    def scores(
        self,
        opened: Opened,
        texts: Iterator[Found],
        accounting: Accounting,
        on_answer: Callable[[Any], None],
    ) -> Scores:
        """All texts at once, as where a device evaluates; no answer is told."""
        every = pieces(texts, accounting)
        examples = [example for piece in every for _, example in piece]
        check_any(examples, "text", accounting)
        found = opened.engine.judge_each(examples)
        of = np.repeat(np.arange(len(found)), [len(losses) for losses, _ in found])
        losses, is_right = map(np.concatenate, zip(*found, strict=True))
        scores = scores_from(losses.tolist(), len(examples), Confusion.of((), (), ()), ())
        return replace(
            scores,
            accuracy=float(is_right.mean()),
            languages=_languages([one.language for one in examples], of, losses, is_right),
        )

    def results(
        self, out: Path | None, task: Task, *, has_id: bool
    ) -> AbstractContextManager[Callable[[Any | Skipped], None]]:
        return nullcontext(lambda answer: None)

    def check_results(self, out: Path | None) -> None:
        said = f"--out {out}: masked words have no answer of each text to write; leave --out away"
        demand(out is None, said)

    def scores_json(self, scores: Scores) -> dict[str, Any]:
        return {
            "tokens": scores.answers,
            "perplexity": scores.perplexity,
            "languages": [asdict(one) for one in scores.languages],
        }

    def report(self, scores: Scores) -> list[Table]:
        return report(scores)


KIND = MaskedWords()


def _languages(
    named: Sequence[str], of: np.ndarray, losses: np.ndarray, is_right: np.ndarray
) -> tuple[LanguageScores, ...]:
    """Figures language by language; none where no text names one.

    Args:
        named: Each text's language.
        of: Of which text each answer is.
        losses: Each answer's.
        is_right: Likewise.
    """
    found = []
    for language in sorted(set(named)) if any(named) else []:
        texts = [row for row, one in enumerate(named) if one == language]
        mine = np.isin(of, texts)
        loss, right = float(losses[mine].mean(dtype=np.float64)), float(is_right[mine].mean())
        count = int(mine.sum())
        found.append(LanguageScores(language, len(texts), count, right, bounded_perplexity(loss)))
    return tuple(found)
