"""Who kept which ranks: by linear and layer, and how far clients differ in that."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from edge_client.tables import Column, Table, share
from profiling.canvas import SMALL, heading, new_figure, plain
from simulation.experiments.result import mean_and_spread
from simulation.papers.scenario import NAMED, SUMMARY, Measured

Ranks = Mapping[str, float]  # by module, as `layer.linear`
INCHES_OF_ROW = 0.17


def ranks_of(item: Measured) -> dict[str, dict[str, float]]:
    """Each client's rank of each module, mean over seeds; none where nobody has any to tell."""
    by_client: dict[str, list[Mapping[str, int]]] = {}
    for result in item.results:
        for row in result.rows:
            if row.ranks:
                by_client.setdefault(row.arm, []).append(row.ranks)
    return {
        name: {module: sum(one[module] for one in told) / len(told) for module in told[0]}
        for name, told in sorted(by_client.items())
    }


def is_choice(ranks: Mapping[str, Ranks]) -> bool:
    """Whether any client has other ranks in one module than in another."""
    return any(len(set(one.values())) > 1 for one in ranks.values())


def apart(ranks: Sequence[Ranks]) -> float:
    """Share of their ranks that two clients have in other modules, mean over all pairs.

    Laws: 0 where all have the same, 1 where no two have any in one module; the order in which
    clients come does not matter.

    Args:
        ranks: Of clients; the same number of ranks in all.
    """
    pairs = list(itertools.combinations(ranks, 2))
    kept = sum(ranks[0].values()) if ranks else 0
    if not pairs or not kept:
        return 0.0
    moved = [sum(abs(one[name] - other[name]) for name in one) / 2 for one, other in pairs]
    return sum(moved) / kept / len(pairs)


def ranks_table(found: Sequence[Measured]) -> tuple[Table, Any]:
    """Ranks by linear, and how far clients differ, of every cell whose clients have any."""
    shown = [(item, ranks) for item in found if (ranks := ranks_of(item))]
    linears = list(
        dict.fromkeys(name.split(".")[1] for _, ranks in shown for name in _modules(ranks))
    )
    plain, rows = list[dict[str, Any]](), list[list[str]]()
    for item, ranks in shown:
        means = {linear: _mean(ranks, linear) for linear in linears}
        differ, spread = mean_and_spread(_apart_by_seed(item))
        rows.append([item.name, *(f"{mean:.2f}" for mean in means.values()), share(differ)])
        plain.append(
            {
                "row": item.cell.row,
                "column": item.cell.column,
                "by_linear": means,
                "apart": differ,
                "apart_spread": spread,
                "by_client": ranks,
            }
        )
    columns = [Column(NAMED, "text"), *(Column(linear) for linear in linears), Column("apart")]
    notes = (
        "ranks of a module, mean over layers, languages and seeds",
        "apart: share of their ranks that two languages have in other modules, mean over pairs",
    )
    return Table(columns, rows, "ranks that were kept", list(notes), SUMMARY), plain


def ranks_figure(found: Sequence[Measured], title: str) -> Any:
    """One panel for each cell in which ranks were chosen: clients by modules.

    Args:
        found: At least one of them with such ranks.
        title: The first line of the picture.
    """
    shown = [(item, ranks) for item in found if is_choice(ranks := ranks_of(item))]
    modules = _modules(shown[0][1])
    height = sum(0.8 + INCHES_OF_ROW * len(ranks) for _, ranks in shown)
    figure = new_figure(max(6.4, 0.28 * len(modules) + 2), height + 1.2, title)
    panels = figure.subplots(len(shown), 1, squeeze=False)[:, 0]
    for axis, (item, ranks) in zip(panels, shown, strict=True):
        values = [[one[module] for module in modules] for one in ranks.values()]
        image = axis.imshow(values, aspect="auto", cmap="Greens", vmin=0)
        figure.colorbar(image, ax=axis, pad=0.01).ax.tick_params(labelsize=SMALL)
        axis.set_yticks(range(len(ranks)), list(ranks))
        axis.set_xticks(range(len(modules)), modules, rotation=90)
        many = ": mean over seeds" if len(item.results) > 1 else ""
        heading(axis, f"{item.cell.row}, {item.cell.column}, ranks by layer.linear{many}")
    plain(list(panels))
    return figure


def _modules(ranks: Mapping[str, Ranks]) -> list[str]:
    """Names of modules, layer by layer, in each as clients have them."""
    names = list(next(iter(ranks.values())))
    return sorted(names, key=lambda name: int(name.split(".")[0]))


def _mean(ranks: Mapping[str, Ranks], linear: str) -> float:
    values = [
        rank for one in ranks.values() for name, rank in one.items() if name.endswith(f".{linear}")
    ]
    return sum(values) / len(values)


def _apart_by_seed(item: Measured) -> list[float]:
    return [
        apart([row.ranks for row in result.rows if row.ranks])
        for result in item.results
        if any(row.ranks for row in result.rows)
    ]
