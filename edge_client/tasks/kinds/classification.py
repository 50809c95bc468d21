"""Classification: each text has one of the task's labels.

Labels are predicted by cloze patterns and label words, or by a trained head. `Labelling` and the
functions here serve the other kinds whose answer is a label as well.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from smidgen.edge_client.errors import demand
from smidgen.edge_client.tables import Table
from smidgen.edge_client.tasks.counts import Confusion
from smidgen.edge_client.tasks.kind import (
    Decision,
    Engine,
    HeadSpec,
    Inputs,
    Opened,
    Sentences,
    TaskKind,
)
from smidgen.edge_client.tasks.kinds.label_answers import (
    Answer,
    LabelTelling,
    answers,
    check,
    report,
    results,
)
from smidgen.edge_client.tasks.output import Skipped
from smidgen.edge_client.tasks.scores import (
    Evaluation,
    Measure,
    Scores,
    TextAnswers,
    check_any,
    finite,
    scores_from,
)
from smidgen.edge_client.tasks.task import Masking, Task
from smidgen.edge_client.texts.accounting import Accounting
from smidgen.edge_client.texts.examples import Example, Found
from smidgen.edge_client.texts.parts import Files
from smidgen.edge_client.texts.prompts.patterns import TaskError, check_pattern
from smidgen.edge_client.texts.tokens import Prompt


class Classification(TaskKind):
    """Texts that get one label each."""

    name = "labels"
    measure = Measure(
        key="accuracy",
        word="accuracy",
        said="{} of the devices' texts were answered right",
        asked="texts",
        note="accuracy: over the devices' test texts that were asked",
        chance=lambda labels: 1 / max(1, len(labels)),
        hears_loss=False,
        name="accuracy",
    )
    files = Files("labels")
    card = Sentences(
        answers="It tells apart these labels, in this order:",
        limits="It does not write text and knows no other label than these: a text of none of them "
        "gets one all the same.",
        auto="ForSequenceClassification",
        pipeline="text-classification",
    )
    keys = ("labels", "patterns")
    has_patterns = is_one_label = is_labelled = True

    def check(self, task: Task) -> None:
        check_cloze(task)

    def head(self, task: Task) -> HeadSpec:
        return HeadSpec(len(task.labels))

    def prompts(
        self, inputs: Inputs, examples: Sequence[Example], draw: int, first: int
    ) -> list[Prompt]:
        return asked(inputs, examples, [[label] for label in inputs.labels(examples)])

    def answers(self, engine: Engine, examples: Sequence[Example]) -> list[TextAnswers]:
        rows, labels = engine.predict(examples), np.array(engine.encoder.labels(examples))
        losses = -rows[np.arange(len(labels)), labels]
        right = rows.argmax(axis=1) == labels
        parts = zip(losses[:, None], right[:, None], rows, strict=True)
        return [TextAnswers(*part) for part in parts]

    def score(self, task: Task, answers: Sequence[TextAnswers]) -> Evaluation:
        losses = np.concatenate([one.losses for one in answers])
        right = np.concatenate([one.is_right for one in answers])
        rows = np.stack([one.log_probabilities for one in answers])
        means = tuple(float(mean) for mean in rows.mean(axis=0, dtype=np.float64))
        return finite(Evaluation(len(answers), float(right.mean()), float(losses.mean()), means))

    def decide(self, task: Task, row: np.ndarray) -> Decision:
        index = int(row.argmax())
        return Decision(task.labels[index], math.exp(float(row[index])), index)

    def show(self, opened: Opened, top: int | None = None) -> LabelTelling:
        return LabelTelling(opened, lambda row: self.decide(opened.task, row))

    def scores(
        self,
        opened: Opened,
        texts: Iterator[Found],
        accounting: Accounting,
        on_answer: Callable[[Answer], None],
    ) -> Scores:
        """See `TaskKind`."""
        right, read, losses = list[int](), list[int](), list[float]()
        index = {label: number for number, label in enumerate(opened.task.labels)}
        for answer in answers(opened, texts, accounting):
            right.append(index[answer.example.label or ""])
            read.append(answer.index)
            losses.append(-float(answer.log_probabilities[right[-1]]))
            on_answer(answer)
        check_any(right, "labelled text", accounting)
        table = Confusion.of(opened.task.labels, right, read)
        return scores_from(losses, len(right), table, tuple(table.scores()))

    def results(
        self, out: Path | None, task: Task, *, has_id: bool
    ) -> AbstractContextManager[Callable[[Answer | Skipped], None]]:
        decide = self.decide
        return results(out, task, lambda row: decide(task, row), is_gold=True, has_id=has_id)

    def check_results(self, out: Path | None) -> None:
        check(out)

    def scores_json(self, scores: Scores) -> dict[str, Any]:
        table = scores.confusion
        return {
            "macro": table.macro(),
            "labels": [asdict(score) for score in scores.labels],
            "confusion": {"labels": list(table.labels), "counts": table.counts.tolist()},
        }

    def report(self, scores: Scores) -> list[Table]:
        return report(scores.confusion, scores.loss)


KIND = Classification()


def check_cloze(task: Task) -> None:
    """Refuse labels, label words or patterns that do not fit together.

    Raises:
        TaskError: Says which.
    """
    demand(
        task.masking == Masking(),
        f'task {task.name!r}: masking is for kind = "mlm"; leave it out',
        TaskError,
    )
    if len(set(task.labels)) != len(task.labels) or len(task.labels) < 2:
        raise TaskError(f"task {task.name!r} needs two or more different labels")
    missing = [label for label in task.labels if not task.verbalizer.get(label, "").strip()]
    if missing:
        raise TaskError(f"task {task.name!r}: the verbalizer has no word for {missing[0]!r}")
    unknown = sorted(set(task.verbalizer) - set(task.labels))
    if unknown:
        raise TaskError(f"task {task.name!r}: the verbalizer names no label of it: {unknown[0]!r}")
    if len(set(task.verbalizer.values())) != len(task.labels):
        raise TaskError(f"task {task.name!r}: two labels share one label word")
    if not task.patterns:
        raise TaskError(f"task {task.name!r} needs a pattern such as '[MASK] : {{text}}'")
    for pattern in task.patterns:
        check_pattern(pattern)


def asked(
    inputs: Inputs, examples: Sequence[Example], answers: Sequence[list[int]]
) -> list[Prompt]:
    """Each text in the pattern, or as a classifier reads it, with its right answers."""
    tokens, limit = inputs.tokens, inputs.limit
    pattern = inputs.task.asked(inputs.tokens.is_causal)[inputs.pattern] if inputs.cloze else ""
    prompts = [
        tokens.cloze(pattern, example, limit) if inputs.cloze else tokens.plain(example, limit)
        for example in examples
    ]
    return [replace(one, answers=own) for one, own in zip(prompts, answers, strict=True)]
