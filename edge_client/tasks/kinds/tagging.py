"""Tagging: each word is outside, or the first or a further word of an entity of some type (BIO).

A word is classified at its first token (`smidgen.edge_client.tasks.kinds.tag_answers`); a head is
needed.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from smidgen.edge_client.errors import demand
from smidgen.edge_client.formats.tags import OUTSIDE
from smidgen.edge_client.tables import Column, Table, share
from smidgen.edge_client.tasks.counts import Confusion, counted, scores_of, type_scores
from smidgen.edge_client.tasks.kind import Engine, HeadSpec, Inputs, Opened, Sentences, TaskKind
from smidgen.edge_client.tasks.kinds.classification import by_label
from smidgen.edge_client.tasks.kinds.tag_answers import (
    Tagging,
    TagTelling,
    check,
    results,
    tagged,
    taggings,
    words_of,
)
from smidgen.edge_client.tasks.scores import (
    Evaluation,
    Measure,
    Scores,
    Skipped,
    TextAnswers,
    check_any,
    evaluation_of,
    scores_from,
)
from smidgen.edge_client.tasks.task import Masking, Task
from smidgen.edge_client.texts.accounting import Accounting
from smidgen.edge_client.texts.examples import Example, Found
from smidgen.edge_client.texts.parts import Files
from smidgen.edge_client.texts.prompts.patterns import TaskError
from smidgen.edge_client.texts.tokens import Prompt

WAYS = {
    "strict": "right words and type",
    "typed": "right type, a word in common",
    "partial": "right words, or half for some",
    "macro": "strict, mean of the types",
    "weighted": "strict, mean weighted by their entities",
}


class Tags(TaskKind):
    """Words that get one tag each, by a head."""

    name = "tagging"
    measure = Measure(
        key="f1",
        word="F1",
        said="the F1 of the devices' entities was {}",
        asked="entities",
        note="F1: of entities, words and type right, over the devices' test texts that were asked",
        name="F1 of entities",
        beside="accuracy of tags",
        cells="words that got the right tag, in %; not F1",
    )
    files = Files(
        kind="tagging",
        wants="tags",
        lacks="put a labelled.conll there, with a word and its tag on each line",
        what="a folder with labelled.conll (words and tags)",
        tests="put a test.conll with a word and its tag on each line",
    )
    card = Sentences(
        answers="It finds entities of these types in a text:",
        limits="It does not write text and knows no other type than these: an entity of none of "
        "them is not found, or gets one of these.",
        call="tag",
        auto="ForTokenClassification",
        pipeline="token-classification",
    )
    function = "smidgen.tag"
    asked = "words"
    peft_type = "TOKEN_CLS"

    def check(self, task: Task) -> None:
        """See `TaskKind`."""
        task.refuse_patterns()
        said = f"task {task.name!r} of kind {self.name}"
        demand(task.masking == Masking(), f"{said}: leave `masking` out", TaskError)
        demand(
            bool(task.labels) and len(set(task.labels)) == len(task.labels),
            f"{said} needs `labels`, the types of its entities, all different",
            TaskError,
        )
        for label in task.labels:
            is_name = label.isprintable() and label == label.strip() and not set(label) & set(" \t")
            demand(
                bool(label) and is_name,
                f"{said}: the type {label!r:.200} is expected as one word",
                TaskError,
            )
            is_tag = label == OUTSIDE or label.startswith(("B-", "I-"))
            told = f"{said}: {label!r:.200} is a tag; give types alone, such as "
            demand(not is_tag, told + repr(label[2:] or "Disease"), TaskError)

    def head(self, task: Task) -> HeadSpec:
        return HeadSpec(len(task.tags), None, is_of_words=True)

    def prompts(
        self, inputs: Inputs, examples: Sequence[Example], draw: int, first: int
    ) -> list[Prompt]:
        return tagged(inputs.tokens, inputs.task, examples, inputs.limit)

    def words_read(self, example: Example) -> Sequence[str]:
        return words_of(example)

    def answers(self, engine: Engine, examples: Sequence[Example]) -> list[TextAnswers]:
        """Words that are not read, of texts that are too long, count as told to be outside."""
        tags = engine.encoder.task.tags
        index = {tag: number for number, tag in enumerate(tags)}
        found = []
        for example, rows in zip(examples, engine.tag(examples), strict=True):
            gold = np.array([index[tag] for tag in example.tags[: len(rows)]])
            told = rows.argmax(axis=1)
            unread = (OUTSIDE,) * (len(example.tags) - len(rows))
            both = example.tags, (*(tags[tag] for tag in told.tolist()), *unread)
            losses = -rows[np.arange(len(gold)), gold]
            found.append(TextAnswers(losses, told == gold, tags=both))
        return found

    def score(self, task: Task, answers: Sequence[TextAnswers]) -> Evaluation:
        return evaluation_of(answers, counted(task.labels, [one.tags for one in answers]))

    def most_found(self, task: Task, num_examples: int) -> int:
        """No more entities than words."""
        return num_examples

    def show(self, opened: Opened, top: int | None = None) -> TagTelling:
        return TagTelling(opened)

    def scores(
        self,
        opened: Opened,
        texts: Iterator[Found],
        accounting: Accounting,
        on_answer: Callable[[Tagging], None],
    ) -> Scores:
        """All words of a text are read, in windows if it is long."""
        task, gold, read, losses = opened.task, list[int](), list[int](), list[float]()
        index = {tag: number for number, tag in enumerate(task.tags)}
        pairs = []
        for answer in taggings(opened, texts, accounting):
            tags = [index[tag] for tag in answer.example.tags]
            losses += (-answer.rows[np.arange(len(tags)), tags]).tolist()
            gold += tags
            read += answer.rows.argmax(axis=1).tolist()
            pairs.append((answer.example.tags, answer.told(task)))
            on_answer(answer)
        check_any(gold, "tagged text", accounting)
        found = counted(task.labels, pairs)
        table, types = Confusion.of(task.tags, gold, read), type_scores(task.labels, found)
        return replace(scores_from(losses, len(pairs), table, types), entities=scores_of(found))

    def results(
        self, out: Path | None, task: Task, *, has_id: bool
    ) -> AbstractContextManager[Callable[[Tagging | Skipped], None]]:
        return results(out, task, is_gold=True)

    def check_results(self, out: Path | None) -> None:
        check(out)

    def scores_json(self, scores: Scores) -> dict[str, Any]:
        assert scores.entities is not None, "of tagging"
        found = asdict(scores.entities)
        del found["by_type"]
        return {
            "words": scores.answers,
            "f1": found,
            "types": [asdict(score) for score in scores.labels],
        }

    def report(self, scores: Scores) -> list[Table]:
        """Figures of each type of entity, and of all by what counts as right."""
        assert scores.entities is not None, "of tagging"
        said = (
            f"accuracy {share(scores.accuracy)} of {scores.answers} words of {scores.texts} texts"
        )
        title = f"{said}, loss {scores.loss:.3f}"
        ways = [[name, share(getattr(scores.entities, name)), told] for name, told in WAYS.items()]
        columns = [Column("all types", "word"), Column("F1"), Column("what is right", "text")]
        by_type = by_label("type", "entities", scores.labels, title)
        return [by_type, Table(columns, ways)]


KIND = Tags()
