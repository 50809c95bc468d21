"""`smidgen client evaluate`: how an adapter does on labelled texts, label by label."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from edge_client.api.evaluate import Scores, file_of, open_scoring
from edge_client.api.labeller import Answer
from edge_client.bases.base import EMBEDDED
from edge_client.commands.answers import check_results, progress, results
from edge_client.commands.console import (
    BaseOption,
    BudgetOption,
    DataOption,
    DelimiterOption,
    DeviceOption,
    EncodingOption,
    EngineOption,
    JsonOption,
    LabelColumnOption,
    PriorOption,
    TextColumnOption,
    shown,
)
from edge_client.engine.scores import Confusion, Mistake
from edge_client.planning.cuda.accelerator import CPU
from edge_client.planning.sizes import AUTO
from edge_client.tables import NARROW, Column, Table, render, share, show
from edge_client.texts.dialect import Dialect

MISTAKES = 10  # pairs of labels that are shown where there are too many for a table
LABEL = 24  # characters of a label in a table


def evaluate(
    data: DataOption,
    adapter: Annotated[
        Path | None, typer.Option(help="Exported adapter folder, or one PEFT itself saved.")
    ] = None,
    task: Annotated[
        Path | None,
        typer.Option(
            help="task.toml, by default --data's, or a ready-made one; an export keeps to its own."
        ),
    ] = None,
    base: BaseOption = EMBEDDED,
    engine: EngineOption = AUTO,
    device: DeviceOption = CPU,
    memory_budget: BudgetOption = AUTO,
    out: Annotated[
        Path | None, typer.Option(help="File for each text's answer, .csv or .jsonl.")
    ] = None,
    text_column: TextColumnOption = "",
    label_column: LabelColumnOption = "",
    delimiter: DelimiterOption = "",
    encoding: EncodingOption = "",
    prior: PriorOption = None,
    json_output: JsonOption = False,
) -> None:
    """Score an adapter (or the base alone) on labelled texts: test.* of a folder, or a file."""
    dialect = Dialect(text_column, label_column, delimiter, encoding)
    file = file_of(data)
    check_results(out, file)
    scoring = open_scoring(data, adapter, task, base, engine, memory_budget, dialect, device, prior)
    with (
        results(out, scoring.labeller.task, is_gold=True, has_id=scoring.has_id) as write,
        progress(is_shown=True) as advance,
    ):

        def on_answer(answer: Answer) -> None:
            write(answer)
            advance()

        scores = scoring.score(on_answer)
    for told in scores.notes:
        print(f"{file}: {told}", file=sys.stderr)
    if json_output:
        print(json.dumps(_answer(scores, out)))
        return
    show(*report(scores.confusion, scores.loss))
    if out is not None:
        print(f"\neach text's answer written to {out}")


def _answer(scores: Scores, out: Path | None) -> dict[str, Any]:
    table = scores.confusion
    return {
        "data": str(scores.data),
        "texts": scores.texts,
        "left_out": list(scores.left_out),
        "accuracy": scores.accuracy,
        "loss": scores.loss,
        "macro": table.macro(),
        "labels": [asdict(score) for score in scores.labels],
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
