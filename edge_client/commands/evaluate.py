"""`smidgen client evaluate`: how an adapter does on labelled texts, label by label."""

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from edge_client.texts.dialect import Dialect, find
from edge_client.texts.examples import Found, every_row, files_of
from edge_client.texts.rows import DataError

WIDTH = 80  # of a terminal that anybody has
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
    print(report(scored.table, scored.loss))
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


def report(table: Confusion, loss: float) -> str:
    """Figures for people, at most 80 columns wide."""
    head = f"accuracy {table.accuracy:.3f} on {table.total} texts, loss {loss:.3f}"
    return "\n".join([head, "", *_per_label(table), "", *_confused(table)])


def _per_label(table: Confusion) -> list[str]:
    names = ("precision", "recall", "f1")
    rows = [
        [shown(score.label, LABEL), str(score.count), *(_figure(getattr(score, n)) for n in names)]
        for score in table.scores()
    ]
    macro = table.macro()
    rows.append(["mean over labels", str(table.total), *(_figure(macro[name]) for name in names)])
    return _aligned([["label", "texts", "precision", "recall", "F1"], *rows])


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _confused(table: Confusion) -> list[str]:
    """The table of labels by what they are read as; of many labels the largest confusions."""
    numbers = [str(number) for number in range(1, len(table.labels) + 1)]
    heads = [
        f"{number} {shown(label, LABEL)}"
        for number, label in zip(numbers, table.labels, strict=True)
    ]
    counts = [[str(count) for count in row] for row in table.counts.tolist()]
    rows = [[head, *row] for head, row in zip(heads, counts, strict=True)]
    lines = _aligned([["label, read as:", *numbers], *rows])
    return lines if max(map(len, lines)) <= WIDTH else _largest(table.mistakes())


def _largest(mistakes: Sequence[Mistake]) -> list[str]:
    if not mistakes:
        return ["no text was read as another label"]
    rows = [
        [shown(mistake.label, LABEL), shown(mistake.read_as, LABEL), str(mistake.count)]
        for mistake in mistakes[:MISTAKES]
    ]
    more = len(mistakes) - MISTAKES
    said = [f"and {more} other pairs of labels; --json has them all"] if more > 0 else []
    return [*_aligned([["label", "read as", "texts"], *rows], words=2), *said]


def _aligned(rows: Iterable[Sequence[str]], words: int = 1) -> list[str]:
    """Columns side by side: words to the left, numbers to the right."""
    columns = [
        [f"{cell:<{width}}" if index < words else f"{cell:>{width}}" for cell in column]
        for index, column in enumerate(zip(*rows, strict=True))
        for width in [max(map(len, column))]
    ]
    return ["  ".join(row).rstrip() for row in zip(*columns, strict=True)]
