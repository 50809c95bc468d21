"""Rounds of a run as records: each figure with one repetition per device."""

from collections.abc import Iterator, Sequence

from edge_client.wire.figures import Row, by_round, counted, traffic_of
from profiling.records.record import Conditions, Figure, Record

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
