"""`smidgen client predict`, `evaluate`, `generate`: an adapter's answers, and their score."""

import json
import os
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

from smidgen.edge_client.api.generate import GeneratedText, generate
from smidgen.edge_client.api.labeller import Labeller, adapter_or_own, open_labeller
from smidgen.edge_client.api.predict import evaluate as score
from smidgen.edge_client.api.predict import predict as label
from smidgen.edge_client.api.predict import with_prior
from smidgen.edge_client.commands.console import (
    DelimiterOption,
    EncodingOption,
    JsonOption,
    TextColumnOption,
    progress,
)
from smidgen.edge_client.commands.labels import WriteOption, check_proposals, proposals
from smidgen.edge_client.errors import WrongInput, demand
from smidgen.edge_client.formats.source import DataError, Dialect, find
from smidgen.edge_client.formats.source import Source as File
from smidgen.edge_client.options import options_of
from smidgen.edge_client.outputs import check_other
from smidgen.edge_client.personal.choice import chosen_in
from smidgen.edge_client.tables import prints, show, shown
from smidgen.edge_client.tasks.kind import kind_named, kind_of
from smidgen.edge_client.tasks.kinds.asked_words import TOP
from smidgen.edge_client.tasks.scores import Formatter, Scores, Skipped, skipped
from smidgen.edge_client.texts.accounting import Accounting
from smidgen.edge_client.texts.examples import Example, Found, every_row, streamed
from smidgen.edge_client.texts.parts import ANY, Wanted, read_as, wanted_by

FROM = (
    "File of texts: csv, tsv, jsonl, or txt with one per line; for tagging also conll, iob or bio; "
    "- reads stdin, one text per line."
)
ANSWERS = "File for the answers: .csv or .jsonl; for tags .jsonl or .conll; for guesses .jsonl."
STDIN = Path("-")
TOPMOST = f"Guesses for each [MASK], in tasks that ask for masked words; default {TOP}."


@options_of(label, without=("texts",), personal={"metavar": "STATE"})
def predict(
    call: "partial[object]",
    adapter: Path | None,
    personal: Path | None,
    texts: Annotated[
        list[str] | None, typer.Argument(help="Texts to answer, or - to read them from stdin.")
    ] = None,
    file: Annotated[Path | None, typer.Option(help=FROM)] = None,
    out: Annotated[Path | None, typer.Option(help=ANSWERS)] = None,
    text_column: TextColumnOption = "",
    delimiter: DelimiterOption = "",
    encoding: EncodingOption = "",
    top: Annotated[int | None, typer.Option(help=TOPMOST)] = None,
    write: WriteOption = "",
    json_output: JsonOption = False,
) -> None:
    """Answer texts with an adapter, or with the base alone, as the task asks.

    Labels them (also zero-shot); finds their entities, however long a text is; or guesses the
    words behind each [MASK], and gives the perplexity of texts without one.
    """
    given = list(texts or [])
    if given == [str(STDIN)]:
        given, file = [], STDIN
    adapter = adapter_or_own(adapter, personal)
    dialect = Dialect(text_column, "", delimiter, encoding)
    source = Source(given, file, dialect)
    source.check()
    check_other(out, file)
    if personal is not None:
        print(chosen_in(personal)[1], file=sys.stderr)
    typed = call.keywords
    names = ("task", "base", "engine", "memory_budget", "device")
    labeller = open_labeller(adapter, **{name: typed[name] for name in names})
    demand(
        not (given and labeller.needs_pairs),
        f"{shown(labeller.task.name)} asks of two texts; give --file with text_a and text_b",
    )
    source = replace(source, wanted=wanted_by(labeller.task))
    telling = formatter_of(with_prior(labeller, typed["prior"], source.dialect), top)
    _check(telling, out, write)
    _predict(telling, source, out, json_output, write)


@dataclass(frozen=True)
class Source:
    """Where the texts come from.

    Attributes:
        given: Texts of the command line.
        file: A file, or `-`; None: the command line.
        dialect: How the file is written down.
        wanted: What of the task says how its texts are read.
    """

    given: list[str]
    file: Path | None
    dialect: Dialect
    wanted: Wanted = ANY

    @property
    def name(self) -> str:
        """What messages call it."""
        return "stdin" if self.file == STDIN else str(self.file)

    def check(self) -> None:
        """Refuse what cannot be read, before anything is opened.

        Raises:
            WrongInput: No texts or two sources, an empty text, a path as a text, no such file or
                columns.
        """
        demand(
            bool(self.given) != (self.file is not None),
            "give texts, or --file with a file of them (- for stdin), one of the two",
        )
        for number, text in enumerate(self.given, start=1):
            demand(text.strip() != "", f"text {number} is empty; there is nothing to label in it")
            demand(
                {*"./"}.isdisjoint(text[1:]) or not os.access(text, os.F_OK),
                f"text {number} is a path; --file {text} reads a file",
            )
        if self.file is not None and self.file != STDIN:
            demand(self.file.exists(), f"--file {self.file}: there is no such file")
            next(self.texts([]), None)

    def texts(self, notes: list[str]) -> Iterator[Found]:
        """Every text in its order, or why a row holds none."""
        if self.file is None:
            rows = enumerate(self.given, start=1)
            named = ((number, f"text {number}", text) for number, text in rows)
            return (
                Found(number, {}, Example(read_as(self.wanted, text, what)))
                for number, what, text in named
            )
        if self.file == STDIN:
            stream = sys.stdin.buffer
            file = File(Path("stdin"), "text", self.dialect, notes=notes, stream=stream)
            return streamed(file, self.wanted)
        return every_row(self.file, self.wanted, False, notes, self.dialect)


def formatter_of(labeller: Labeller, top: int | None) -> Formatter[Any]:
    """How the answers of an adapter's kind of task are told.

    Raises:
        WrongInput: Guesses are wanted of what guesses nothing, or too many.
    """
    kind = kind_of(labeller.task)
    demand(
        top is None or kind.measure.has_perplexity,
        "--top says how many words are guessed for a mask; the adapter's task is of kind "
        f"{kind.name}: leave --top away",
    )
    return kind.show(labeller, top)


def _check(telling: Formatter[Any], out: Path | None, tool: str) -> None:
    if tool:
        check_proposals(out, tool)
        demand(telling.can_propose, f"--write {tool} takes labels and tags; guesses are neither")
    else:
        telling.check(out)


@contextmanager
def _results(
    telling: Formatter[Any], out: Path | None, has_id: bool, tool: str
) -> Iterator[Callable[[Any], None]]:
    """Writes each answer, or row that was left out, to a file; without one, nothing."""
    if tool and out is not None:
        with proposals(out, tool) as propose:
            yield (
                lambda answer: (
                    None if isinstance(answer, Skipped) else propose(telling.proposal(answer))
                )
            )
        return
    with telling.results(out, has_id=has_id) as write:
        yield write


def _predict(
    telling: Formatter[Any], source: Source, out: Path | None, as_json: bool, tool: str
) -> None:
    accounting, kept, counts, texts = Accounting(), list[Any](), Counter[str](), 0
    found, has_id = _with_ids(source.texts(accounting.notes))
    with (
        _results(telling, out, has_id, tool) as write,
        progress(out is not None or as_json) as advance,
    ):
        for answer in _in_order(telling, found, accounting):
            write(answer)
            if isinstance(answer, Skipped):
                continue
            advance()
            texts += 1
            counts.update(telling.counted(answer))
            if out is None and as_json:
                kept.append(answer)
            elif out is None:
                print(telling.line(answer), flush=source.file == STDIN)
        if not texts:
            why = f": {accounting}" * bool(accounting.left_out)
            raise DataError(f"{source.name} holds no text to read{why}")
    _tell(source, accounting)
    rows = {"left_out": accounting.lines, "rows": accounting.as_json()}
    if as_json and out is not None:
        print(json.dumps({"out": str(out), "texts": texts, **telling.summary(counts)} | rows))
    elif as_json:
        print(json.dumps(telling.collected(kept) | (rows if source.file is not None else {})))
    elif out is not None:
        print(f"{texts} texts {telling.done}, written to {out}")


def _with_ids(rows: Iterator[Found]) -> tuple[Iterator[Found], bool]:
    """The same rows, and whether those have ids, by the first that holds a text."""
    first = list[Found]()
    for row in rows:
        first.append(row)
        if row.example is not None:
            break
    has_id = bool(first) and find(list(first[-1].row), "id") is not None
    return chain(first, rows), has_id


def _in_order(
    telling: Formatter[Any], rows: Iterable[Found], accounting: Accounting
) -> Iterator[Any]:
    """Answers in the rows' order, a `Skipped` in the place of each row without one.

    Law: as many as there are rows.
    """
    waiting = deque[Found]()

    def passing() -> Iterator[Found]:
        for row in rows:
            waiting.append(row)
            yield row

    for answer in telling.answers(passing(), accounting):
        while (row := waiting.popleft()) is not answer.found:
            yield skipped(row)
        yield answer
    yield from map(skipped, waiting)


def _tell(source: Source, accounting: Accounting) -> None:
    if accounting.notes:
        print(f"{source.name} is read with {', '.join(accounting.notes)}", file=sys.stderr)
    if accounting.left_out:
        print(f"{source.name}: {accounting}", file=sys.stderr)


@options_of(score, without=("advance",))
def evaluate(
    call: Callable[..., Scores], out: Path | None, json_output: JsonOption = False
) -> None:
    with progress(is_shown=True) as advance:
        scores = call(advance=advance)
    kind = kind_named(scores.kind)
    for note in scores.notes:
        print(f"{scores.data}: {note}", file=sys.stderr)
    if json_output:
        facts = {name: getattr(scores, name) for name in ("texts", "rows", "accuracy", "loss")}
        facts |= {"data": str(scores.data), "left_out": list(scores.left_out)}
        written = {"out": None if out is None else str(out)}
        print(json.dumps(facts | kind.scores_json(scores) | written))
        return
    show(*kind.report(scores))
    if out is not None:
        print(f"\neach text's answer written to {out}")


@options_of(generate, without=("texts", "tell", "on_piece"), personal={"metavar": "STATE"})
def generate_command(
    call: Callable[..., list[GeneratedText]],
    texts: Annotated[
        list[str] | None, typer.Argument(help="Texts to answer, or - to read them from stdin.")
    ] = None,
    json_output: JsonOption = False,
) -> None:
    given = list(texts or [])
    if given == ["-"]:
        given = _typed()
    demand(bool(given), "no text; give some, or - and texts on stdin, one per line")
    shown = _Shown(is_quiet=json_output)
    found = call(given, tell=shown.note, on_piece=shown.piece)
    print(json.dumps([asdict(one) for one in found]) if json_output else "")


def _typed() -> list[str]:
    try:
        lines = sys.stdin.buffer.read().decode().split("\n")
    except UnicodeDecodeError as error:
        raise WrongInput(f"stdin is not UTF-8 at byte {error.start}; UTF-8 is expected") from None
    return [line.removesuffix("\r") for line in lines if line.strip()]


class _Shown:
    """Answers as they come, a line break between two; what would steer a terminal is `?`."""

    def __init__(self, *, is_quiet: bool) -> None:
        self._is_quiet, self._number = is_quiet, 1

    def note(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    def piece(self, number: int, piece: str) -> None:
        if self._is_quiet:
            return
        breaks, self._number = "\n" * (number - self._number), number
        safe = (letter if letter in "\n\t" or prints(letter) else "?" for letter in piece)
        print(breaks + "".join(safe), end="", flush=True)
