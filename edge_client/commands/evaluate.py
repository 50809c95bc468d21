"""`smidgen client evaluate`: how an adapter does on texts whose answers are known."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from edge_client.api.evaluate import open_scoring, scored_file
from edge_client.bases.base import EMBEDDED
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
    check_other,
    progress,
)
from edge_client.formats.dialect import Dialect
from edge_client.planning.cuda.accelerator import CPU
from edge_client.planning.sizes import AUTO
from edge_client.tables import show
from edge_client.tasks.kind import kind_of
from edge_client.tasks.scores import Scores


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
        Path | None,
        typer.Option(help="File for each text's answer: .csv or .jsonl; of tags .jsonl or .conll."),
    ] = None,
    text_column: TextColumnOption = "",
    label_column: LabelColumnOption = "",
    delimiter: DelimiterOption = "",
    encoding: EncodingOption = "",
    prior: PriorOption = None,
    json_output: JsonOption = False,
) -> None:
    """Score an adapter (or the base alone) on test.* of a folder, or on a file.

    Of labels, label by label; of tags, by the entities that they tell; of masked words, by
    perplexity, language by language where the file names any.
    """
    dialect = Dialect(text_column, label_column, delimiter, encoding)
    file = scored_file(data, adapter, task)
    check_other(out, file)
    scoring = open_scoring(data, adapter, task, base, engine, memory_budget, dialect, device, prior)
    asked = scoring.labeller.task
    kind = kind_of(asked)
    kind.check_results(out)
    opened = kind.results(out, asked, has_id=scoring.has_id)
    with opened as write, progress(is_shown=True) as advance:

        def on_answer(answer: Any) -> None:
            write(answer)
            advance()

        scores = scoring.score(on_answer)
    for told in scores.notes:
        print(f"{file}: {told}", file=sys.stderr)
    if json_output:
        print(json.dumps(_answer(scores, out, kind.scores_json)))
        return
    show(*kind.report(scores))
    if out is not None:
        print(f"\neach text's answer written to {out}")


def _answer(
    scores: Scores, out: Path | None, told: Callable[[Scores], dict[str, Any]]
) -> dict[str, Any]:
    return {
        "data": str(scores.data),
        "texts": scores.texts,
        "left_out": list(scores.left_out),
        "rows": scores.rows,
        "accuracy": scores.accuracy,
        "loss": scores.loss,
        **told(scores),
        "out": None if out is None else str(out),
    }
