"""How many pseudo-labels a run held round by round, and how many of them were right."""

from collections.abc import Sequence
from typing import Any

from edge_client.tables import Column, Table, share
from simulation.papers.labelling.spent import mean_of, spent
from simulation.papers.published.aug_fedprompt import RIGHT_EARLY, RIGHT_LATE
from simulation.papers.scenario import NAMED, SUMMARY, Measured


def label_table(found: Sequence[Measured]) -> tuple[Table, list[dict[str, Any]]]:
    """How many pseudo-labels there were round by round, and how many of them were right."""
    rows = []
    for item in found:
        if item.cell.experiment.labelling is not None:
            rows += _by_round(item)
    lines = [
        [
            row["row"],
            str(row["round"]),
            f"{row['held']:.0f}",
            share(row["right"]),
            f"{row['texts_read']:.0f}",
            share(row["gate"]),
            share(row["labelling_share"]),
        ]
        for row in rows
    ]
    names = ("round", "held", "right", "texts read", "gate", "labelling")
    columns = [Column(NAMED, "text"), *(Column(name) for name in names)]
    notes = [
        "held: pseudo-labels on all clients; right: against the data set's labels, which no client "
        f"knows (paper: {RIGHT_EARLY} % in the first three rounds, {RIGHT_LATE} % at convergence); "
        "gate: accuracy of the adapter on the texts kept aside; labelling: its share of all "
        "layer-forwards so far"
    ]
    title = "pseudo-labels that clients train on (mean over seeds)"
    return Table(columns, lines, title, notes, SUMMARY), rows


def _by_round(item: Measured) -> list[dict[str, Any]]:
    known = [{row.round_index: row for row in one.rows if row.labels} for one in item.results]
    rounds = sorted(set.intersection(*(set(one) for one in known)))
    wanted = sorted({*rounds[:3], *rounds[4::5], *rounds[-1:]})
    rows = []
    for index in wanted:
        labels = [one[index].labels for one in known]
        steps = [one for one in labels if one is not None]
        so_far = [
            spent([row for row in one.rows if row.round_index <= index]) for one in item.results
        ]
        right = [one.held.share for one in steps if one.held.asked]
        gates = [
            one.looking.gate_accuracy for one in steps if one.looking.gate_accuracy is not None
        ]
        rows.append(
            {
                "row": item.name,
                "round": index,
                "held": mean_of([float(one.held.asked) for one in steps]),
                "right": mean_of(right),
                "texts_read": mean_of([float(one.looking.texts_read) for one in steps]),
                "gate": mean_of(gates),
                "labelling_share": mean_of([one.labelling_share for one in so_far]),
            }
        )
    return rows
