"""`smidgen client evaluate`: how an adapter does on texts whose answers are known."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from edge_client.api.evaluate import Scoring, open_scoring, scored_file
from edge_client.api.labeller import Answer
from edge_client.api.scores import Scores
from edge_client.api.tagger import Tagging
from edge_client.bases.base import EMBEDDED
from edge_client.commands.answers import check_other, progress
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
)
from edge_client.commands.kinds import labels, masked, tagging
from edge_client.errors import demand
from edge_client.formats.dialect import Dialect
from edge_client.planning.cuda.accelerator import CPU
from edge_client.planning.sizes import AUTO
from edge_client.tables import Table, show
from edge_client.texts.tasks import Kind


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
    kind = scoring.labeller.task.kind
    CHECKS[kind](out)
    with _results(scoring, out) as write, progress(is_shown=True) as advance:

        def on_answer(answer: Answer | Tagging) -> None:
            write(answer)
            advance()

        scores = scoring.score(on_answer)
    for told in scores.notes:
        print(f"{file}: {told}", file=sys.stderr)
    if json_output:
        print(json.dumps(_answer(scores, out, JSON[kind])))
        return
    show(*REPORTS[kind](scores))
    if out is not None:
        print(f"\neach text's answer written to {out}")


@contextmanager
def _results(scoring: Scoring, out: Path | None) -> Iterator[Callable[[Any], None]]:
    task = scoring.labeller.task
    if task.kind == "tagging":
        with tagging.results(out, task, is_gold=True) as write:
            yield write
    elif task.kind == "labels":
        with labels.results(out, task, is_gold=True, has_id=scoring.has_id) as written:
            yield written
    else:
        yield lambda answer: None


def _no_results(out: Path | None) -> None:
    said = f"--out {out}: masked words have no answer of each text to write; leave --out away"
    demand(out is None, said)


CHECKS: dict[Kind, Callable[[Path | None], None]] = {
    "labels": labels.check,
    "tagging": tagging.check,
    "mlm": _no_results,
}
JSON: dict[Kind, Callable[[Scores], dict[str, Any]]] = {
    "labels": labels.scores_json,
    "tagging": tagging.scores_json,
    "mlm": masked.scores_json,
}
REPORTS: dict[Kind, Callable[[Scores], list[Table]]] = {
    "labels": lambda scores: labels.report(scores.confusion, scores.loss),
    "tagging": tagging.report,
    "mlm": masked.report,
}


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
