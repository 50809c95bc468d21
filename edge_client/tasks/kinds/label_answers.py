"""Answers that are one label per text: on a screen, in files, as JSON, and as scores."""

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from smidgen.edge_client.formats.annotation.answers import Proposal
from smidgen.edge_client.outputs import check_out_file, new_file
from smidgen.edge_client.tables import NARROW, Column, Table, render, share, shown
from smidgen.edge_client.tasks.counts import Confusion, LabelScores, Mistake
from smidgen.edge_client.tasks.kind import Decision, Opened
from smidgen.edge_client.tasks.output import Skipped, pieces, write_json
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.accounting import Accounting
from smidgen.edge_client.texts.examples import Example, Found
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


def report(table: Confusion, loss: float) -> list[Table]:
    """Figures for people."""
    title = f"accuracy {share(table.accuracy)} on {table.total} texts, loss {loss:.3f}"
    mean = ["mean over labels", str(table.total), *map(share, table.macro().values())]
    return [by_label("label", "texts", table.scores(), title, [mean]), _confused(table)]


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
