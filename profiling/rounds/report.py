"""Rounds for people: a table of what each gave and cost."""

from collections.abc import Iterator, Sequence

from edge_client.tables import Column, Table, seconds, share, sizes
from edge_client.wire.figures import BY_KERNEL, BY_PAYLOAD, Row, by_round, counted, traffic_of
from profiling.records.record import Conditions, Figure, Record
from profiling.rounds.costs import RoundCost

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
            *([_perplexity(cost)] if is_masked else []),
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


def _perplexity(cost: RoundCost) -> str:
    return "-" if cost.perplexity is None else f"{cost.perplexity:.2f}"


def _labels(cost: RoundCost) -> tuple[str, str]:
    if not cost.labellers:
        return "-", "-"
    return str(cost.pseudo_labels), seconds(cost.phases_s.get("label", 0.0))


KINDS, WAIT = ("label", "train", "evaluate"), "wait"


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
