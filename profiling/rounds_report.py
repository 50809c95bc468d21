"""Rounds for people: a table of what each gave and cost."""

from collections.abc import Sequence

from rich.table import Table

from profiling.rounds import RoundCost


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def rounds_table(costs: Sequence[RoundCost]) -> Table:
    """One row per round; two more columns where devices labelled."""
    table = Table(title="what each round gave and cost (medians over clients, measured)")
    names = ("round", "accuracy", "loss", "clients", "train s", "kB up", "kB down", "peak MB")
    is_labelled = any(cost.labellers for cost in costs)
    for name in (*names, *(("labels", "label s") if is_labelled else ())):
        table.add_column(name, justify="right", no_wrap=True)
    for cost in costs:
        labels = (f"{cost.pseudo_labels}", f"{cost.phases_s.get('label', 0.0):.2f}")
        table.add_row(
            "zero-shot" if cost.round_index == 0 else str(cost.round_index),
            percent(cost.accuracy),
            "-" if cost.loss is None else f"{cost.loss:.3f}",
            f"{cost.clients}" + (f" ({cost.failed} failed)" if cost.failed else ""),
            f"{cost.phases_s.get('train', 0.0):.2f}" if cost.clients else "-",
            f"{cost.bytes_up / 1000:.1f}",
            f"{cost.bytes_down / 1000:.1f}",
            f"{cost.peak_rss_bytes / 1e6:.0f}",
            *((labels if cost.labellers else ("-", "-")) if is_labelled else ()),
        )
    return table
