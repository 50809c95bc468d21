"""What is said of texts whose words were tagged, and of how many entities were found."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edge_client.api.labeller import Labeller
from edge_client.api.scores import Scores
from edge_client.api.tagger import TaggedText, Tagging, taggings
from edge_client.commands.answers import write_json
from edge_client.commands.console import shown
from edge_client.commands.kinds.telling import Skipped
from edge_client.formats.annotation.answers import Proposal
from edge_client.outputs import check_out_file, new_file
from edge_client.tables import Column, Table, share
from edge_client.texts.accounting import Accounting
from edge_client.texts.examples import Found
from edge_client.texts.tasks import Task

FORMATS = (".jsonl", ".conll")
# What a file of these answers begins with, and none that people tag themselves.
SIGNS = {".jsonl": '{"entities": [', ".conll": "# smidgen"}
TYPE = 24  # characters of a type in a table
WAYS = {
    "strict": "right words and type",
    "typed": "right type, a word in common",
    "partial": "right words, or half for some",
    "macro": "strict, mean of the types",
    "weighted": "strict, mean weighted by their entities",
}


@dataclass(frozen=True)
class TagTelling:
    """See `Telling`.

    Attributes:
        labeller: The adapter.
    """

    labeller: Labeller
    done: str = "tagged"
    can_propose: bool = True

    def check(self, out: Path | None) -> None:
        check(out)

    def answers(self, texts: Iterable[Found], accounting: Accounting) -> Iterator[Tagging]:
        return taggings(self.labeller, texts, accounting)

    @contextmanager
    def results(
        self, out: Path | None, *, has_id: bool
    ) -> Iterator[Callable[[Tagging | Skipped], None]]:
        with results(out, self.labeller.task, is_gold=False) as write:
            yield write

    def proposal(self, answer: Tagging) -> Proposal:
        told = answer.text(self.labeller.task)
        spans = [(one.start_character, one.end_character, one.type) for one in told.entities]
        least = min((one.probability for one in told.entities), default=None)
        return Proposal(told.text, spans=tuple(spans), score=least, id=answer.found.id)

    def line(self, answer: Tagging) -> str:
        return marked(answer.text(self.labeller.task))

    def counted(self, answer: Tagging) -> Sequence[str]:
        return [entity.type for entity in answer.text(self.labeller.task).entities]

    def collected(self, kept: Sequence[Tagging]) -> dict[str, Any]:
        return {"answers": [asdict(answer.text(self.labeller.task)) for answer in kept]}

    def summary(self, counts: Mapping[str, int]) -> dict[str, Any]:
        return {"entities": {label: counts.get(label, 0) for label in self.labeller.task.labels}}


def check(out: Path | None) -> None:
    """Refuse a file of answers that cannot be written."""
    if out is not None:
        check_out_file("--out", out, FORMATS, sign=SIGNS.get(out.suffix, ""))


def marked(text: TaggedText) -> str:
    """A text in one line, its entities in brackets with their type and probability."""
    parts, end = [], 0
    for entity in text.entities:
        said = f"{entity.text} | {entity.type} {entity.probability:.2f}"
        parts += [text.text[end : entity.start_character], f"[{said}]"]
        end = entity.end_character
    return shown("".join([*parts, text.text[end:]]))


@contextmanager
def results(
    out: Path | None, task: Task, *, is_gold: bool
) -> Iterator[Callable[[Tagging | Skipped], None]]:
    """Writes the tags of each text as JSONL or CoNLL's columns; without `out`, nothing.

    Args:
        out: The file, whose ending says the format.
        task: Its tags.
        is_gold: Whether texts have tags of their own, which are written too, before those told.
    """
    if out is None:
        yield lambda answer: None
        return
    with new_file("--out", out) as file:
        if out.suffix == ".jsonl":
            yield lambda answer: write_json(
                file,
                answer.as_json("entities", "text", "tokens", "tags")
                if isinstance(answer, Skipped)
                else _row(answer, task, is_gold),
            )
            return
        file.write(f"{SIGNS['.conll']}: a word{', its tag' * is_gold} and what it is read as\n")

        def write(answer: Tagging | Skipped) -> None:
            if isinstance(answer, Skipped):
                file.write(f"# left out: {answer.reason}\n\n")
                return
            told = answer.text(task)
            columns = [told.tokens, *([answer.example.tags] if is_gold else []), told.tags]
            file.writelines("\t".join(row) + "\n" for row in zip(*columns, strict=True))
            file.write("\n")

        yield write


def _row(answer: Tagging, task: Task, is_gold: bool) -> dict[str, Any]:
    told = asdict(answer.text(task))
    first = {"entities": told.pop("entities")}  # by which a file of ours is known
    if is_gold:
        told |= {"tags": answer.example.tags, "read_as": told["tags"]}
    return first | ({"id": answer.found.id} if answer.found.id else {}) | told


def scores_json(scores: Scores) -> dict[str, Any]:
    """Figures for machines."""
    assert scores.entities is not None, "of tagging"
    found = asdict(scores.entities)
    del found["by_type"]
    return {
        "words": scores.answers,
        "f1": found,
        "types": [asdict(score) for score in scores.labels],
    }


def report(scores: Scores) -> list[Table]:
    """Figures for people."""
    assert scores.entities is not None, "of tagging"
    rows = [
        [
            shown(one.label, TYPE),
            str(one.count),
            *(share(figure) for figure in (one.precision, one.recall, one.f1)),
        ]
        for one in scores.labels
    ]
    heads = ("entities", "precision", "recall", "F1")
    title = f"accuracy {share(scores.accuracy)} of {scores.answers} words of {scores.texts} texts, "
    by_type = Table([Column("type", "word"), *map(Column, heads)], rows, title + _loss(scores))
    ways = [[name, share(getattr(scores.entities, name)), said] for name, said in WAYS.items()]
    columns = [Column("all types", "word"), Column("F1"), Column("what is right", "text")]
    return [by_type, Table(columns, ways)]


def _loss(scores: Scores) -> str:
    return f"loss {scores.loss:.3f}"
