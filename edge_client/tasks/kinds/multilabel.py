"""Multi-label classification: each text has any number of the task's labels, or none.

Each label is decided by itself: by a trained head, or by its label word at the mask of a cloze
pattern, trained by binary cross-entropy (torch's `BCEWithLogitsLoss`, transformers' `problem_type =
"multi_label_classification"`). A label is given from its threshold on, 0.5 or the task file's
`thresholds`. The score is micro F1, since most texts lack most labels. A file names labels in one
of three ways:

    {"text": "late and cold", "label": ["service", "food"]}    a list
    late and cold,service|food                                 a column, `|` between labels
    late and cold,1,1,0                                        a column of 0 or 1 for each label

A text of which no label is true says `[]`, or 0 for each; an empty cell is one that nobody has
labelled.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from smidgen.edge_client.errors import demand
from smidgen.edge_client.formats.json_rows import type_name
from smidgen.edge_client.formats.source import Columns, find, named
from smidgen.edge_client.tables import Column, Table, share
from smidgen.edge_client.tasks.counts import Confusion, Entities, scores_of, type_scores
from smidgen.edge_client.tasks.kind import Decision, Engine, HeadSpec, Inputs, Opened
from smidgen.edge_client.tasks.kinds.classification import (
    Answer,
    Classification,
    answers,
    asked,
    by_label,
)
from smidgen.edge_client.tasks.scores import (
    Evaluation,
    Measure,
    Scores,
    TextAnswers,
    check_any,
    evaluation_of,
    scores_from,
)
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.accounting import Accounting, Fault, not_known
from smidgen.edge_client.texts.examples import Example, Found
from smidgen.edge_client.texts.parts import Files
from smidgen.edge_client.texts.prompts.patterns import TaskError
from smidgen.edge_client.texts.tokens import Prompt
from smidgen.edge_client.texts.written import NO_LABEL

SEPARATOR = "|"  # between the labels of one text
MANY = "labels"  # another name of the column
FLAGS = {"0": False, "1": True, "0.0": False, "1.0": True, "false": False, "true": True}
USUAL = 0.5  # from which probability on a label is told


def gold_of(row: Mapping[str, Any], columns: Columns, labels: Sequence[str]) -> str | Fault:
    """The labels of a row, in the task's order, with `|` between them.

    Args:
        row: Its columns.
        columns: Which of them hold what.
        labels: Those that are known; empty: any will do.
    """
    column = columns.label or find(list(row), MANY)
    value = row.get(column) if column is not None else None
    if value is None and column is None:
        return _flagged(row, labels)
    if value is None or (isinstance(value, str) and not value.strip()):
        return Fault("label", f"no label; {NO_LABEL} says that none applies")
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except ValueError:
            return Fault("label", f"`{named([column or ''])}` is not a list of labels as JSON")
    found: Any = value.split(SEPARATOR) if isinstance(value, str) else value
    found = [found] if type(found) is int else found
    if not isinstance(found, list | tuple) or any(isinstance(one, bool) for one in found):
        return Fault(
            "not text",
            f"`{named([column or ''])}` is {type_name(value)}; a list of labels is expected",
        )
    told = [str(one).strip() for one in found if str(one).strip()]
    for one in told:
        if labels and (fault := not_known(one, "", labels)):
            return Fault("label", fault)
    order = {label: number for number, label in enumerate(labels)}
    return SEPARATOR.join(sorted(dict.fromkeys(told), key=lambda one: order.get(one, 0)))


def _flagged(row: Mapping[str, Any], labels: Sequence[str]) -> str | Fault:
    told = []
    for label in labels:
        value = row.get(find(list(row), label) or label)
        flag = FLAGS.get(str("" if value is None else value).strip().lower())
        if flag is None:
            return Fault("label", f"column `{named([label])}` is neither 0 nor 1")
        told += [label] if flag else []
    return SEPARATOR.join(told)


def has_gold(names: Sequence[str], labels: Sequence[str]) -> bool:
    """Whether columns of these names tell labels otherwise than by one called `label`."""
    if find(names, MANY) is not None:
        return True
    if not labels:  # nobody has said a task yet: a text and two labels at least
        return len(names) > 2
    return all(find(names, one) is not None for one in labels)


class Multilabel(Classification):
    """Texts that get any number of labels."""

    name = "multilabel"
    measure = Measure(
        key="f1",
        word="F1",
        said="the F1 of the devices' labels was {}",
        asked="labels",
        note="F1: of all labels (micro), over the devices' test texts that were asked",
        own="f1_micro",
        name="F1 of labels (micro)",
        cells="texts all of whose labels are right, in %; not F1",
        beside="texts with all labels right",
    )
    files = Files(
        "multilabel",
        lacks="put a labelled.csv with columns text,label there, `|` between the labels of a text, "
        "or a column of 0 or 1 for each label",
        what="a folder with labelled.csv (text,label, with `|` between labels)",
        is_several=True,
        gold=gold_of,
        has_gold=has_gold,
    )
    card = Classification.card._replace(
        answers="It tells which of these labels a text has, each by itself, in this order:",
        limits="It does not write text and knows no other label than these. A label is told from a "
        "probability of 0.5 on, or from the threshold that `smidgen.json` says.",
    )
    options = ("thresholds",)
    is_one_label = False

    def check(self, task: Task) -> None:
        """See `TaskKind`."""
        super().check(task)
        said = f"task {task.name!r} of kind {self.name}"
        for label in task.labels:
            is_fine = SEPARATOR not in label and label == label.strip()
            demand(is_fine, f"{said}: a label holds no `|`, nor spaces around it", TaskError)
        least = task.options.get("thresholds", {})
        is_table = isinstance(least, dict)
        demand(is_table, f"{said}: thresholds is a table of labels and numbers", TaskError)
        for label, value in least.items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            is_fine = label in task.labels and is_number and 0 < value < 1
            demand(
                is_fine,
                f"{said}: thresholds: {label!r:.200}: one of its labels, and a number between "
                f"0 and 1",
                TaskError,
            )

    def head(self, task: Task) -> HeadSpec:
        return HeadSpec(len(task.labels), loss="sigmoid")

    def prompts(
        self, inputs: Inputs, examples: Sequence[Example], draw: int, first: int
    ) -> list[Prompt]:
        return asked(inputs, examples, matrix_of(inputs.task, examples).tolist())

    def answers(self, engine: Engine, examples: Sequence[Example]) -> list[TextAnswers]:
        task = engine.encoder.task
        gold, rows = matrix_of(task, examples), engine.predict(examples)
        told = self.told(task, rows)
        losses, is_right = losses_of(rows, gold), (told == gold).all(axis=1)
        return [
            TextAnswers(losses[[row]], is_right[[row]], counts=np.stack([gold[row], told[row]]))
            for row in range(len(examples))
        ]

    def told(self, task: Task, rows: np.ndarray) -> np.ndarray:
        """Which labels rows of log-probabilities tell, 1 or 0, as many."""
        said = task.options.get("thresholds", {})
        least = np.array([said.get(label, USUAL) for label in task.labels])
        return (np.exp(rows.astype(np.float64)) >= least).astype(np.int64)

    def score(self, task: Task, answers: Sequence[TextAnswers]) -> Evaluation:
        return evaluation_of(answers, counts_of([one.counts for one in answers]))

    def most_found(self, task: Task, num_examples: int) -> int:
        return num_examples * len(task.labels)

    def decide(self, task: Task, row: np.ndarray) -> Decision:
        """Sure of all labels as of the least sure one, told or not."""
        told = self.told(task, row)
        there = np.exp(row.astype(np.float64))
        sure = np.where(told > 0, there, 1.0 - there)
        labels = [label for label, one in zip(task.labels, told, strict=True) if one]
        return Decision(SEPARATOR.join(labels), float(sure.min()), int(sure.argmin()))

    def scores(
        self,
        opened: Opened,
        texts: Iterator[Found],
        accounting: Accounting,
        on_answer: Callable[[Answer], None],
    ) -> Scores:
        """See `TaskKind`."""
        task, counts, losses = opened.task, list[np.ndarray | None](), list[float]()
        for answer in answers(opened, texts, accounting):
            row, gold = answer.log_probabilities, matrix_of(task, [answer.example])
            counts.append(np.stack([gold[0], self.told(task, row)]))
            losses += losses_of(row[None], gold).tolist()
            on_answer(answer)
        check_any(counts, "labelled text", accounting)
        found = counts_of(counts)
        right = sum(one is not None and bool((one[0] == one[1]).all()) for one in counts)
        table, labels = Confusion.of((), (), ()), type_scores(task.labels, found)
        scores = scores_from(losses, len(counts), table, labels)
        return replace(scores, accuracy=right / len(counts), entities=scores_of(found))

    def scores_json(self, scores: Scores) -> dict[str, Any]:
        return {"f1": _averages(scores), "labels": [asdict(score) for score in scores.labels]}

    def report(self, scores: Scores) -> list[Table]:
        title = f"all labels right of {share(scores.accuracy)} of {scores.texts} texts, "
        table = by_label("label", "texts", scores.labels, f"{title}loss {scores.loss:.3f}")
        means = [[name, share(value)] for name, value in _averages(scores).items()]
        return [table, Table([Column("all labels", "word"), Column("F1")], means)]


KIND = Multilabel()


def _averages(scores: Scores) -> dict[str, float | None]:
    assert scores.entities is not None, "of labels"
    found = scores.entities
    return {"micro": found.strict, "macro": found.macro, "weighted": found.weighted}


def matrix_of(task: Task, examples: Sequence[Example]) -> np.ndarray:
    """Whether texts have each label, 1 or 0, or -1 of a text without labels; (texts, labels)."""
    found = np.zeros((len(examples), len(task.labels)), np.int64)
    for row, example in enumerate(examples):
        if example.label is None:
            found[row] = -1
            continue
        own = example.label.split(SEPARATOR)
        found[row] = [label in own for label in task.labels]
    return found


def losses_of(rows: np.ndarray, gold: np.ndarray) -> np.ndarray:
    """Mean binary cross-entropy of each text in nats, float32, (texts,).

    Args:
        rows: Log-probabilities, (texts, labels).
        gold: Whether texts have each label, as many.
    """
    there = rows.astype(np.float64)
    absent = np.log(np.maximum(-np.expm1(there), np.finfo(np.float64).tiny))
    losses: np.ndarray = -np.where(gold > 0, there, absent).mean(axis=1)
    return losses.astype(np.float32)


def counts_of(told: Sequence[np.ndarray | None]) -> Entities:
    """Texts that have each label, that it was told of, and both."""
    both = np.stack([one for one in told if one is not None])  # (texts, 2, labels)
    there, found = both.sum(axis=0).tolist()
    right = (both[:, 0] * both[:, 1]).sum(axis=0).tolist()
    return Entities(tuple(there), tuple(found), tuple(right))
