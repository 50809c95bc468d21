"""Costs and results of rounds, summed from the figures that a coordinator keeps, and their table.

A figure is one line of `rounds.jsonl`: `round_index`, `kind` and `device_id` beside the fields of
`smidgen.edge_client.wire.messages.Report`, all of them measured by the device that reports them.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Literal, get_args

import msgspec

from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.tables import Column, Table, seconds, share, sizes
from smidgen.edge_client.tasks.counts import Entities, EntityScores, pooled, scores_of
from smidgen.edge_client.tasks.kind import kind_named
from smidgen.edge_client.tasks.scores import perplexity
from smidgen.edge_client.wire.figures import (
    BY_KERNEL,
    BY_PAYLOAD,
    Moved,
    Row,
    by_round,
    counted,
    entities_of,
    traffic_of,
    weighted,
)
from smidgen.edge_client.wire.reports import Cost, Phase
from smidgen.profiling.records.record import Conditions, Figure, Record

PHASES: tuple[str, ...] = get_args(Phase)


class FiguresError(WrongInput):
    """A file that is not a list of figures."""


class Told(msgspec.Struct):
    """What is read of a line; see `smidgen.edge_client.wire.messages.Report`."""

    run_id: str
    round_index: int
    kind: str
    device_id: str
    outcome: str
    cost: Cost
    is_late: bool = False
    attempt: int = 1
    num_examples: int = 0
    accuracy: float | None = None
    loss: float | None = None
    pseudo_labels: int = 0
    layer_forwards: int = 0
    entities: Entities | None = None


@dataclass(frozen=True)
class RoundCost:
    """One round over its clients.

    Attributes:
        round_index: 1-based; 0 is the evaluation before any training.
        accuracy: Mean over clients weighted by test texts, or None where none was evaluated; of
            tagging the share of words, most of which are outside of any entity.
        accuracy_median: The median client's accuracy, of tagging its F1: one client's word,
            however false, moves it little.
        loss: Mean training loss over clients weighted by labelled texts, in nats, or None.
        clients: Clients whose update counted; a late one's costs are still in the medians.
        labellers: Clients that labelled before the round; a late one's costs still count.
        pseudo_labels: Pseudo-labels that they then held, all together.
        layer_forwards: Median per client, all its work of the round.
        phases_s: Median seconds per client by phase, training work only; `label` of label work.
        bytes_up: Median bytes sent per client, all its work of the round.
        bytes_down: Median bytes received per client, all its work of the round. A round's adapter
            is fetched once: by its evaluation, if there is one, else by the next training.
        peak_rss_bytes: Highest over the clients.
        failed: Number of pieces of work that failed.
        is_by_kernel: Whether bytes are those of TCP, by the devices' kernels; else of bodies alone.
        f1: F1 of entities over all clients, each way and by type; None but of tagging.
        perplexity: Of masked words; None but of a task that masks some.
    """

    round_index: int
    accuracy: float | None
    loss: float | None
    clients: int
    labellers: int
    pseudo_labels: int
    layer_forwards: int
    phases_s: dict[str, float]
    bytes_up: int
    bytes_down: int
    peak_rss_bytes: int
    failed: int
    is_by_kernel: bool = True
    accuracy_median: float | None = None
    f1: EntityScores | None = None
    perplexity: float | None = None

    @property
    def score(self) -> float | None:
        return self.accuracy if self.f1 is None else self.f1.strict


def read_figures(path: Path) -> list[Row]:
    """Read a `rounds.jsonl`.

    Raises:
        FiguresError: Names the file and the line.
    """
    figures = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise FiguresError(
            f"{path} cannot be read: {getattr(error, 'strerror', error)}; give a rounds.jsonl"
        ) from error
    for number, line in enumerate(lines, start=1):
        try:
            figure = json.loads(line)
            told = msgspec.convert(figure, Told)
            figure |= msgspec.to_builtins(told) | {"cost": asdict(told.cost)}
        except (ValueError, KeyError, TypeError) as error:
            raise FiguresError(
                f"{path}, line {number}: a figure from `smidgen coordinator figures` expected, "
                "of this version of smidgen"
            ) from error
        figures.append(figure)
    if not figures:
        raise FiguresError(f"{path} holds no figures yet")
    return figures


def cost_by_round(figures: Sequence[Row]) -> list[RoundCost]:
    moved = traffic_of(figures)
    return [_cost(found, index, moved) for index, found in by_round(figures).items()]


def _cost(figures: Sequence[Row], round_index: int, moved: Moved) -> RoundCost:
    evaluated = counted(figures, "evaluate")
    told = [one for one in map(entities_of, evaluated) if one is not None]
    kinds = [kind_named(row["task"]) for row in evaluated if "task" in row]
    is_masked = any(kind.measure.has_perplexity for kind in kinds)
    done = [figure for figure in figures if figure["outcome"] == "done"]
    trained = [figure for figure in done if figure["kind"] == "train"]
    labelled = [figure for figure in done if figure["kind"] == "label"]
    updates, labels = counted(figures, "train"), counted(figures, "label")
    phases = {}
    for name in PHASES:
        asked = labelled if name == "label" else trained
        spent = [figure["cost"]["phases_s"] for figure in asked]
        if any(name in seconds for seconds in spent):
            phases[name] = median(seconds.get(name, 0.0) for seconds in spent)
    return RoundCost(
        round_index=round_index,
        accuracy=weighted(evaluated, "accuracy"),
        loss=weighted(updates, "loss"),
        clients=len(updates),
        labellers=len(labels),
        pseudo_labels=sum(figure["pseudo_labels"] for figure in labels),
        layer_forwards=_median_by_device(done, lambda row: row.get("layer_forwards", 0)),
        phases_s=phases,
        bytes_up=_median_by_device(done, lambda row: moved.bytes_of(row, "up")),
        bytes_down=_median_by_device(done, lambda row: moved.bytes_of(row, "down")),
        peak_rss_bytes=max((f["cost"]["peak_rss_bytes"] or 0 for f in figures), default=0),
        failed=len(figures) - len(done),
        is_by_kernel=moved.is_by_kernel,
        accuracy_median=_median_score(evaluated),
        f1=pooled((one, 1.0) for one in told) if told else None,
        perplexity=perplexity(weighted(evaluated, "loss")) if is_masked else None,
    )


def _median_score(evaluated: Sequence[Row]) -> float | None:
    """Of clients that hold test texts; of tagging, of those whose texts have entities."""
    told = [row for row in evaluated if row.get("accuracy") is not None and row["num_examples"] > 0]
    shares = [
        row["accuracy"] if (one := entities_of(row)) is None else scores_of(one).strict
        for row in told
    ]
    known = [share for share in shares if share is not None]
    return median(known) if known else None


def _median_by_device(figures: Sequence[Row], count: Callable[[Row], int]) -> int:
    totals: dict[str, int] = {}
    for figure in figures:
        totals[figure["device_id"]] = totals.get(figure["device_id"], 0) + count(figure)
    return int(median(totals.values())) if totals else 0


def per_client_round(figures: Sequence[Row], way: Literal["up", "down"]) -> float:
    """Bytes moved, mean over clients and rounds, all kinds of work together."""
    pairs = {(f["device_id"], f["round_index"]) for f in figures if f["kind"] == "train"}
    moved = traffic_of(figures)
    return sum(moved.bytes_of(figure, way) for figure in figures) / max(1, len(pairs))


NOTES = (
    "round: 0 is the first adapter, before any training; {}: on the devices' test texts; "
    "median: the median device's; "
    "trained: devices whose update counted; failed: tasks that a device could not do, of any kind",
    "training: seconds of training alone; training, sent, received: medians over devices; peak: "
    "highest resident memory of a device",
)
LABELS = "labels: texts that devices labelled themselves; labelling: median over devices"


def rounds_table(costs: Sequence[RoundCost]) -> Table:
    """One row per round; two more columns where devices labelled."""
    is_labelled = any(cost.labellers for cost in costs)
    is_masked = any(cost.perplexity is not None for cost in costs)
    word = "F1" if any(cost.f1 is not None for cost in costs) else "accuracy"
    sent = sizes([cost.bytes_up for cost in costs])
    received = sizes([cost.bytes_down for cost in costs])
    peaks = sizes([cost.peak_rss_bytes for cost in costs])
    rows = [
        [
            str(cost.round_index),
            share(cost.score),
            share(cost.accuracy_median),
            *(["-" if cost.perplexity is None else f"{cost.perplexity:.2f}"] if is_masked else []),
            "-" if cost.loss is None else f"{cost.loss:.3f}",
            str(cost.clients),
            str(cost.failed),
            seconds(cost.phases_s.get("train", 0.0)) if cost.clients else "-",
            *here,
            *(_labels(cost) if is_labelled else ()),
        ]
        for cost, *here in zip(costs, sent, received, peaks, strict=True)
    ]
    columns = [Column("round"), Column(word), Column("median", optional=1)]
    columns += [Column("perplexity")] if is_masked else []
    columns += [Column(name) for name in ("loss", "trained", "failed")]
    columns += [Column("training"), Column("sent", optional=1), Column("received", optional=1)]
    columns += [Column("peak", optional=2)]
    columns += [Column("labels"), Column("labelling", optional=3)] if is_labelled else []
    title = "what each round gave and cost (measured by the devices)"
    is_by_kernel = all(cost.is_by_kernel for cost in costs)
    said, training = NOTES
    what = {"F1": "F1 of entities, words and type right", "accuracy": "accuracy"}[word]
    told = said.format(f"{what}, perplexity" if is_masked else what)
    notes = (told, training, f"sent, received: {BY_KERNEL if is_by_kernel else BY_PAYLOAD}")
    return Table(columns, rows, title, (*notes, LABELS) if is_labelled else notes)


def _labels(cost: RoundCost) -> tuple[str, str]:
    if not cost.labellers:
        return "-", "-"
    return str(cost.pseudo_labels), seconds(cost.phases_s.get("label", 0.0))


KINDS, WAIT = ("label", "train", "evaluate"), "wait"  # in the order of a round; others follow


def round_records(rows: Sequence[Row], session: str) -> Iterator[Record]:
    """One record for each round and kind of work; work that failed or came late is left out.

    The rows do not say what base and adapter a run has, nor on what machines its devices ran: the
    run's id and the names of the devices stand for them. So records of two runs do not agree in
    their conditions; whoever compares them `--across machine` knows that the runs are alike.
    Waiting (`wait`) is left out: it is the others' time, not the device's.

    Args:
        rows: From `rounds.jsonl`.
        session: Of the command that writes them.
    """
    moved = traffic_of(rows)
    counter = "TCP_INFO" if moved.is_by_kernel else "bodies"
    for index, mine in by_round(rows).items():
        for kind in KINDS:
            done = counted(mine, kind)
            if not done:
                continue
            devices = sorted({row["device_id"] for row in done})
            runs = sorted({row["run_id"] for row in done})
            phases = sorted({name for row in done for name in row["cost"]["phases_s"]} - {WAIT})
            figures = {
                f"{name}_s": Figure(
                    tuple(row["cost"]["phases_s"].get(name, 0.0) for row in done), "clock"
                )
                for name in phases
            }
            peaks = [row["cost"]["peak_rss_bytes"] for row in done]
            if told := tuple(float(peak) for peak in peaks if peak is not None):
                figures["peak_rss_bytes"] = Figure(told, "VmHWM")
            for way in ("up", "down"):
                counts = tuple(float(moved.bytes_of(row, way)) for row in done)
                figures[f"{way}_bytes"] = Figure(counts, counter)
            yield Record(
                kind="round",
                subject={"round": index, "work": kind},
                figures=figures,
                conditions=Conditions(
                    machine={"run_id": " ".join(runs), "devices": devices}, versions={}
                ),
                session=session,
            )
