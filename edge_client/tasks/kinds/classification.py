"""Classification: each text has one of the task's labels.

Labels are predicted by cloze patterns and label words, or by a trained head. `Labelling` and the
functions here serve the other kinds whose answer is a label as well.

Answers that are one label per text: on a screen, in files, as JSON, and as scores.
"""

import csv
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from smidgen.edge_client.errors import demand
from smidgen.edge_client.formats.annotation.answers import Proposal
from smidgen.edge_client.outputs import check_out_file, new_file
from smidgen.edge_client.tables import NARROW, Column, Table, render, share, shown
from smidgen.edge_client.tasks.counts import Confusion, LabelScores, Mistake
from smidgen.edge_client.tasks.kind import (
    Decision,
    Engine,
    HeadSpec,
    Inputs,
    Opened,
    Sentences,
    TaskKind,
)
from smidgen.edge_client.tasks.scores import (
    Evaluation,
    Measure,
    Scores,
    Skipped,
    TextAnswers,
    check_any,
    finite,
    pieces,
    scores_from,
    write_json,
)
from smidgen.edge_client.tasks.task import Masking, Task
from smidgen.edge_client.texts.accounting import Accounting
from smidgen.edge_client.texts.examples import Example, Found
from smidgen.edge_client.texts.parts import Files
from smidgen.edge_client.texts.prompts.patterns import TaskError, check_pattern
from smidgen.edge_client.texts.tokens import Prompt
from smidgen.edge_client.texts.written import NO_LABEL

Decide: TypeAlias = "Callable[[np.ndarray], Decision]"  # of a row of log-probabilities
FORMATS = (".csv", ".jsonl")
MISTAKES = 10  # pairs of labels that are shown where there are too many for a table
LABEL = 24  # characters of a label in a table


@dataclass(frozen=True)
class Answer:
    """How a text is read.

    Attributes:
        found: The text, where it stands and its id.
        example: The text.
        log_probabilities: Of each label, in label order.
    """

    found: Found
    example: Example
    log_probabilities: np.ndarray

    @property
    def index(self) -> int:
        return int(self.log_probabilities.argmax())

    def probabilities(self, labels: Sequence[str]) -> dict[str, float]:
        values = np.exp(self.log_probabilities.astype(np.float64)).round(6).tolist()
        return dict(zip(labels, values, strict=True))


def answers(opened: Opened, texts: Iterable[Found], accounting: Accounting) -> Iterator[Answer]:
    """Label texts in their order; those without a text are counted in `accounting`."""
    for piece in pieces(texts, accounting, opened.needs_pairs):
        examples = [example for _, example in piece]
        rows = _without(opened.engine.predict(examples), opened.prior)
        for (found, example), row in zip(piece, rows, strict=True):
            yield Answer(found, example, row)


def _without(rows: np.ndarray, prior: Sequence[float]) -> np.ndarray:
    """Log-probabilities with the prior taken off, which sum to 1 again."""
    if not prior:
        return rows
    scores = rows.astype(np.float64) - np.asarray(prior)
    highest = scores.max(axis=1, keepdims=True)
    found: np.ndarray = scores - highest - np.log(np.exp(scores - highest).sum(1, keepdims=True))
    return found


@dataclass(frozen=True)
class LabelTelling:
    """See `Formatter`.

    Attributes:
        opened: The adapter.
        decide: What a row of log-probabilities comes to.
    """

    opened: Opened
    decide: Decide
    done: str = "labelled"
    can_propose: bool = True

    def check(self, out: Path | None) -> None:
        check(out)

    def answers(self, texts: Iterable[Found], accounting: Accounting) -> Iterator[Answer]:
        return answers(self.opened, texts, accounting)

    def results(
        self, out: Path | None, *, has_id: bool
    ) -> AbstractContextManager[Callable[[Answer | Skipped], None]]:
        return results(out, self.opened.task, self.decide, is_gold=False, has_id=has_id)

    def proposal(self, answer: Answer) -> Proposal:
        text, decision = answer.example, self.decide(answer.log_probabilities)
        score, id_ = round(decision.confidence, 4), answer.found.id
        return Proposal(text.text, text.text_b, decision.label, score=score, id=id_)

    def line(self, answer: Answer) -> str:
        width = max(len(shown(label)) for label in self._labels)
        texts = f"{answer.example.text} {answer.example.text_b}"
        decision = self.decide(answer.log_probabilities)
        return f"{shown(decision.label):<{width}} {decision.confidence:.2f}  {shown(texts)}"

    def counted(self, answer: Answer) -> Sequence[str]:
        return [self.decide(answer.log_probabilities).label]

    def collected(self, kept: Sequence[Answer]) -> dict[str, Any]:
        decisions = [self.decide(answer.log_probabilities) for answer in kept]
        return {
            "labels": [one.label for one in decisions],
            "confidences": [round(one.confidence, 4) for one in decisions],
            "log_probabilities": [answer.log_probabilities.tolist() for answer in kept],
        }

    def summary(self, counts: Mapping[str, int]) -> dict[str, Any]:
        return {"labels": dict(counts)}

    @property
    def _labels(self) -> tuple[str, ...]:
        return self.opened.task.labels


def check(out: Path | None) -> None:
    """Refuse a file of answers that cannot be written."""
    if out is not None:
        # What a file of these answers begins with
        check_out_file("--out", out, FORMATS, sign="confidence")


@contextmanager
def results(
    out: Path | None,
    task: Task,
    decide: Decide,
    *,
    is_gold: bool,
    has_id: bool,
) -> Iterator[Callable[[Answer | Skipped], None]]:
    """Writes an answer per row as CSV or JSONL, an empty one for `Skipped`; without `out`, nothing.

    Args:
        out: The file, whose ending says the format.
        task: Its labels, each with a column of its probability.
        decide: What a row of log-probabilities comes to.
        is_gold: Whether texts have a label of their own, which is written too.
        has_id: Whether ids are written to CSV.
    """
    if out is None:
        yield lambda answer: None
        return
    with new_file("--out", out) as file:
        if out.suffix == ".jsonl":
            yield lambda answer: write_json(
                file,
                answer.as_json("text", "label", "confidence", "probabilities")
                if isinstance(answer, Skipped)
                else _row(answer, task, decide, is_gold),
            )
            return
        texts = ["text", "text_b"] if "{text_b}" in "".join(task.patterns) else ["text"]
        labels = [f"p({label})" for label in task.labels]
        gold = ["label", "read_as"] if is_gold else ["label"]
        writer = csv.writer(file)
        columns = [*texts, *gold, "confidence", *labels]
        writer.writerow([*(["id"] if has_id else []), *columns])

        def write(answer: Answer | Skipped) -> None:
            if isinstance(answer, Skipped):
                writer.writerow([*([answer.id] if has_id else []), *[""] * len(columns)])
                return
            row = _row(answer, task, decide, is_gold)
            told = [row.get(name, "") for name in (*texts, *gold, "confidence")]
            own = [answer.found.id] if has_id else []
            writer.writerow([*own, *told, *row["probabilities"].values()])

        yield write


def _row(answer: Answer, task: Task, decide: Decide, is_gold: bool) -> dict[str, Any]:
    (read_as, confidence, _), example = decide(answer.log_probabilities), answer.example
    told = {"label": example.label, "read_as": read_as} if is_gold else {"label": read_as}
    return {
        **({"id": answer.found.id} if answer.found.id else {}),
        "text": example.text,
        **({"text_b": example.text_b} if example.text_b else {}),
        **{name: label or NO_LABEL for name, label in told.items()},
        "confidence": round(confidence, 4),
        "probabilities": answer.probabilities(task.labels),
    }


def by_label(
    name: str,
    counted: str,
    scores: Iterable[LabelScores],
    title: str,
    more: Sequence[Sequence[str]] = (),
) -> Table:
    """Precision, recall and F1, a row per label.

    Args:
        name: What a label is called.
        counted: What is counted of it.
        scores: Of each label.
        title: Above the table.
        more: Further rows.
    """
    rows = [
        [shown(one.label, LABEL), str(one.count), *map(share, (one.precision, one.recall, one.f1))]
        for one in scores
    ]
    columns = [Column(name, "word"), *map(Column, (counted, "precision", "recall", "F1"))]
    return Table(columns, [*rows, *more], title)


def _confused(table: Confusion) -> Table:
    """The table of labels by what they are read as; of many labels the largest confusions."""
    numbers = [str(number) for number in range(1, len(table.labels) + 1)]
    heads = [f"{number} {shown(table.labels[int(number) - 1], LABEL)}" for number in numbers]
    rows = [
        [head, *map(str, counts)] for head, counts in zip(heads, table.counts.tolist(), strict=True)
    ]
    columns = [Column("label, read as:", "word"), *map(Column, numbers)]
    whole = Table(columns, rows)
    is_narrow = max(map(len, render(whole).splitlines())) <= NARROW
    return whole if is_narrow else _largest(table.mistakes())


def _largest(mistakes: Sequence[Mistake]) -> Table:
    rows = [
        [shown(mistake.label, LABEL), shown(mistake.read_as, LABEL), str(mistake.count)]
        for mistake in mistakes[:MISTAKES]
    ]
    more = len(mistakes) - MISTAKES
    said = f"and {more} other pairs of labels; --json has them all" if more > 0 else ""
    none = "" if mistakes else "no text was read as another label"
    columns = [Column("label", "word"), Column("read as", "word"), Column("texts")]
    return Table(columns, rows, notes=[note for note in (said, none) if note])


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
        table = scores.confusion
        title = f"accuracy {share(table.accuracy)} on {table.total} texts, loss {scores.loss:.3f}"
        mean = ["mean over labels", str(table.total), *map(share, table.macro().values())]
        return [by_label("label", "texts", table.scores(), title, [mean]), _confused(table)]


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
