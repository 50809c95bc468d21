"""`smidgen client predict`: label texts with an adapter, or with the base alone."""

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

from edge_client.api.labeller import Answer, Labeller, Left, adapter_or_own, answers, open_labeller
from edge_client.api.prior import with_prior
from edge_client.bases.base import EMBEDDED
from edge_client.commands.answers import check_results, progress, results
from edge_client.commands.console import (
    BaseOption,
    BudgetOption,
    DelimiterOption,
    DeviceOption,
    EncodingOption,
    EngineOption,
    JsonOption,
    PriorOption,
    TextColumnOption,
    shown,
)
from edge_client.errors import demand
from edge_client.personal.choice import chosen_in
from edge_client.planning.cuda.accelerator import CPU
from edge_client.planning.sizes import AUTO
from edge_client.texts.dialect import Dialect, find
from edge_client.texts.examples import Example, Found, every_row, found_in
from edge_client.texts.rows import DataError, streamed_rows

STDIN = Path("-")


def predict(
    texts: Annotated[
        list[str] | None, typer.Argument(help="Texts to label, or - to read them from stdin.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(help="Texts to label: csv, tsv, jsonl, or txt with one per line; - is stdin."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File for the answers, .csv or .jsonl.")] = None,
    adapter: Annotated[
        Path | None, typer.Option(help="Exported adapter folder, or one PEFT itself saved.")
    ] = None,
    personal: Annotated[
        Path | None,
        typer.Option(
            metavar="STATE",
            help="State folder of `client run --personal` instead: its own adapter or the shared "
            "one, whichever is right more often on its test texts.",
        ),
    ] = None,
    task: Annotated[
        Path | None,
        typer.Option(help="task.toml or a ready-made one; an export keeps to its own."),
    ] = None,
    base: BaseOption = EMBEDDED,
    engine: EngineOption = AUTO,
    device: DeviceOption = CPU,
    memory_budget: BudgetOption = AUTO,
    text_column: TextColumnOption = "",
    delimiter: DelimiterOption = "",
    encoding: EncodingOption = "",
    prior: PriorOption = None,
    json_output: JsonOption = False,
) -> None:
    """Label texts with an adapter, or with the base alone (zero-shot)."""
    given = list(texts or [])
    if given == [str(STDIN)]:
        given, file = [], STDIN
    source = Source(given, file, Dialect(text_column, "", delimiter, encoding))
    source.check()
    check_results(out, file)
    if personal is not None:
        adapter = adapter_or_own(adapter, personal)
        print(chosen_in(personal)[1], file=sys.stderr)
    labeller = open_labeller(adapter, task, base, engine, memory_budget, device)
    pairs = f"{shown(labeller.task.name)} asks of two texts; give --file with text_a and text_b"
    demand(not (given and labeller.needs_pairs), pairs)
    labeller = with_prior(labeller, prior, source.dialect)
    _predict(labeller, source, out, json_output)


@dataclass(frozen=True)
class Source:
    """Where the texts come from.

    Attributes:
        given: Texts of the command line.
        file: A file, or `-`; None: the command line.
        dialect: How the file is written down.
    """

    given: list[str]
    file: Path | None
    dialect: Dialect

    @property
    def name(self) -> str:
        """What messages call it."""
        return "stdin" if self.file == STDIN else str(self.file)

    def check(self) -> None:
        """Refuse what cannot be read, before anything is opened.

        Raises:
            WrongInput: No texts or two sources, an empty text, no such file or columns.
        """
        expected = "give texts, or --file with a file of them (- for stdin)"
        demand(bool(self.given) != (self.file is not None), f"{expected}, one of the two")
        for number, text in enumerate(self.given, start=1):
            demand(text.strip() != "", f"text {number} is empty; there is nothing to label in it")
        if self.file is not None and self.file != STDIN:
            demand(self.file.is_file(), f"--file {self.file}: there is no such file")
            next(self.texts([]), None)

    def texts(self, notes: list[str]) -> Iterator[Found]:
        """Every text in its order, or why a row holds none."""
        if self.file is None:
            rows = enumerate(self.given, start=1)
            return (Found(number, {}, Example(text)) for number, text in rows)
        if self.file == STDIN:
            streamed = streamed_rows(sys.stdin.buffer, self.dialect, notes)
            return found_in(streamed, "", (), False, notes, self.dialect)
        return every_row(self.file, (), False, notes, self.dialect)


def _predict(labeller: Labeller, source: Source, out: Path | None, as_json: bool) -> None:
    left, notes, kept = Left(), list[str](), list[Answer]()
    labels, counts = labeller.task.labels, Counter[str]()
    found = source.texts(notes)
    first = next(found, None)
    has_id = first is not None and find(list(first.row), "id") is not None
    rows: Iterable[Found] = found if first is None else chain([first], found)
    with (
        results(out, labeller.task, is_gold=False, has_id=has_id) as write,
        progress(out is not None or as_json) as advance,
    ):
        for answer in answers(labeller, rows, left):
            write(answer)
            advance()
            counts[labels[answer.index]] += 1
            if out is None and as_json:
                kept.append(answer)
            elif out is None:
                print(_line(answer, labels), flush=source.file == STDIN)
        if not counts:
            raise DataError(
                f"{source.file} holds no text to label" + (f": {left}" * bool(left.lines))
            )
    _tell(source, left, notes)
    if as_json:
        print(
            json.dumps(
                _collected(kept, labels, left, source)
                if out is None
                else _summary(counts, left, out)
            )
        )
    elif out is not None:
        print(f"{counts.total()} texts labelled, written to {out}")


def _line(answer: Answer, labels: tuple[str, ...]) -> str:
    width = max(len(shown(label)) for label in labels)
    texts = f"{answer.example.text} {answer.example.text_b}"
    label = shown(labels[answer.index])
    return f"{label:<{width}} {answer.confidence:.2f}  {shown(texts)}"


def _tell(source: Source, left: Left, notes: list[str]) -> None:
    if notes:
        print(f"{source.name} is read with {', '.join(notes)}", file=sys.stderr)
    if left.lines:
        print(f"{source.name}: {left}", file=sys.stderr)


def _collected(
    kept: list[Answer], labels: tuple[str, ...], left: Left, source: Source
) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "labels": [labels[answer.index] for answer in kept],
        "confidences": [answer.confidence for answer in kept],
        "log_probabilities": [answer.log_probabilities.tolist() for answer in kept],
    }
    return answer | ({"left_out": left.lines} if source.file is not None else {})


def _summary(counts: Counter[str], left: Left, out: Path) -> dict[str, Any]:
    return {
        "out": str(out),
        "texts": counts.total(),
        "labels": dict(counts),
        "left_out": left.lines,
    }
