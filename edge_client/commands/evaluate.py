"""`smidgen client evaluate`: how an adapter does on labelled texts, label by label."""

import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from edge_client.bases.base import EMBEDDED
from edge_client.commands.answers import (
    Answer,
    Labeller,
    Left,
    answers,
    check_results,
    open_labeller,
    progress,
    results,
)
from edge_client.commands.console import (
    BaseOption,
    BudgetOption,
    DataOption,
    DelimiterOption,
    EncodingOption,
    EngineOption,
    JsonOption,
    LabelColumnOption,
    TextColumnOption,
    shown,
    task_file,
)
from edge_client.engine.scores import Confusion, Mistake
from edge_client.planning.sizes import AUTO
from edge_client.tables import NARROW, Column, Table, render, share, show
from edge_client.texts.dialect import Dialect, find
from edge_client.texts.examples import Found, every_row, files_of
from edge_client.texts.rows import DataError

MISTAKES = 10  # pairs of labels that are shown where there are too many for a table
LABEL = 24  # characters of a label in a table


def evaluate(
    data: DataOption,
    adapter: Annotated[
        Path | None, typer.Option(help="Exported adapter folder, or one PEFT itself saved.")
    ] = None,
    task: Annotated[
        Path | None,
        typer.Option(help="task.toml or a ready-made one; by default the export's or --data's."),
    ] = None,
    base: BaseOption = EMBEDDED,
    engine: EngineOption = AUTO,
    memory_budget: BudgetOption = AUTO,
    out: Annotated[
        Path | None, typer.Option(help="File for each text's answer, .csv or .jsonl.")
    ] = None,
    text_column: TextColumnOption = "",
    label_column: LabelColumnOption = "",
    delimiter: DelimiterOption = "",
    encoding: EncodingOption = "",
    json_output: JsonOption = False,
) -> None:
    """Score an adapter (or the base alone) on labelled texts: test.* of a folder, or a file."""
    dialect = Dialect(text_column, label_column, delimiter, encoding)
    file = _file(data)
    check_results(out, file)
    first = next(every_row(file, (), True, [], dialect), None)
    has_id = first is not None and find(list(first.row), "id") is not None
    own = task_file(data)
    chosen = task or (own if own.is_file() else None)
    labeller = open_labeller(adapter, chosen, base, engine, memory_budget)
    left, notes = Left(), list[str]()
    texts = every_row(file, labeller.task.labels, True, notes, dialect)
    with results(out, labeller.task, is_gold=True, has_id=has_id) as write:
        scored = _score(labeller, texts, left, write)
    for told in [f"read with {', '.join(notes)}"] * bool(notes) + [str(left)] * bool(left.lines):
        print(f"{file}: {told}", file=sys.stderr)
    if json_output:
        print(json.dumps(_answer(scored, file, left, out)))
        return
    show(*report(scored.table, scored.loss))
    if out is not None:
        print(f"\neach text's answer written to {out}")


def _file(data: Path) -> Path:
    """The labelled texts to score on.

    Raises:
        DataError: A folder without test texts.
    """
    found = files_of(data)
    if data.is_file():
        return data
    if "test" not in found:
        others = " or ".join(str(path) for part, path in found.items() if part == "labelled")
        hint = f", or give --data {others}, whose texts may have been trained on" if others else ""
        raise DataError(f"{data} holds no test.*; put a test.csv with columns text,label{hint}")
    return found["test"]


@dataclass(frozen=True)
class Scored:
    """How texts were read.

    Attributes:
        table: Counts by label.
        loss: Mean cross-entropy in nats.
    """

    table: Confusion
    loss: float


def _score(
    labeller: Labeller, texts: Iterator[Found], left: Left, write: Callable[[Answer], None]
) -> Scored:
    """Label texts and compare.

    Raises:
        DataError: There is none that can be used.
    """
    task, gold, read, losses = labeller.task, list[int](), list[int](), list[float]()
    index = {label: number for number, label in enumerate(task.labels)}
    with progress(is_shown=True) as advance:
        for answer in answers(labeller, texts, left):
            gold.append(index[answer.example.label or ""])
            read.append(answer.index)
            losses.append(-float(answer.log_probabilities[gold[-1]]))
            write(answer)
            advance()
    if not gold:
        raise DataError(f"there is no labelled text to score on; {left}")
    return Scored(Confusion.of(task.labels, gold, read), math.fsum(losses) / len(losses))


def _answer(scored: Scored, file: Path, left: Left, out: Path | None) -> dict[str, Any]:
    table = scored.table
    return {
        "data": str(file),
        "texts": table.total,
        "left_out": left.lines,
        "accuracy": table.accuracy,
        "loss": scored.loss,
        "macro": table.macro(),
        "labels": [asdict(score) for score in table.scores()],
        "confusion": {"labels": list(table.labels), "counts": table.counts.tolist()},
        "out": None if out is None else str(out),
    }


def report(table: Confusion, loss: float) -> list[Table]:
    """Figures for people."""
    return [_per_label(table, loss), _confused(table)]


def _per_label(table: Confusion, loss: float) -> Table:
    names = ("precision", "recall", "f1")
    rows = [
        [shown(score.label, LABEL), str(score.count), *(share(getattr(score, n)) for n in names)]
        for score in table.scores()
    ]
    macro = table.macro()
    rows.append(["mean over labels", str(table.total), *(share(macro[name]) for name in names)])
    columns = [Column("label", "word"), *map(Column, ("texts", "precision", "recall", "F1"))]
    title = f"accuracy {share(table.accuracy)} on {table.total} texts, loss {loss:.3f}"
    return Table(columns, rows, title)


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
