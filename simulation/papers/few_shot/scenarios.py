"""AUG-FedPrompt's experiments: few labels on few of many clients, asked by cloze or by a head."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

from edge_client.bases.base import EMBEDDED
from simulation.experiments.experiment import FULL, ExperimentError
from simulation.papers.few_shot.rates import rates
from simulation.papers.few_shot.setting import (
    CLIENTS,
    CLOZE,
    FIXED,
    HEAD,
    LABELLING,
    WHOLE,
    WHOLE_BATCH,
    Size,
    experiment,
    methods,
    names_of,
    notes,
    whole_set,
)
from simulation.papers.paired import columns_apart, rows_apart
from simulation.papers.published.aug_fedprompt import (
    BASES_DRAWN,
    COHORT,
    COLUMN,
    FEW_SHOT,
    LABELLED_CLIENTS,
    LABELS,
    LARGEST_GAP,
    PAPER,
    SKEW_COSTS,
    SKEWED,
    SKEWS,
    THOUSANDTH,
    UNIFORM,
    USABLE_LABELS,
)
from simulation.papers.published.figure import shown
from simulation.papers.scenario import Cell, Scenario

NAMES = ("table2", "fig2", "fig4", "fig5", "rates")
COLUMNS = ("uniform", "skewed")
PRINTED = {  # our cell -> the paper's row
    (HEAD, "uniform"): "Uniform FedCLS",
    (HEAD, "skewed"): "Skewed FedCLS",
    (CLOZE, "uniform"): "Uniform FedPrompt",
    (CLOZE, "skewed"): "Skewed FedPrompt",
}
AUGMENTED, AUGMENTED_FIXED = "skewed + pseudo-labels", "skewed + pseudo-labels above 0.9"
AUG, ALL = "AUG-FedPrompt (cloze + pseudo-labels)", "all"
LABELLING_NOTE = (
    f"pseudo-labels: before every round {LABELLING.infer_clients} clients look for some; 64 "
    "training texts, with labels that the other columns do not have, are kept aside to judge "
    "adapters by before they label"
)
FIXED_NOTE = (
    f"{AUGMENTED_FIXED}: the paper's filter, one confidence of {FIXED.confidence:g} for all "
    "classes, as near as runs can be told: none falls below it, and all texts above it are kept; "
    "of a class that has more than its even share of all texts above it the surest are. The column "
    "before has a threshold for each class (docs/decisions/007)"
)
QUICK_SKEWS = (UNIFORM, SKEWED)
# Figure 2's numbers of labels; the paper names 1,024, and of Yahoo 500 training texts are here.
QUANTITIES = {"yahoo_answers": (64, 128, 256)}
SHOTS = {
    "ag_news": (16, 32, 64, 128, 256, 512),
    "mnli": (64, 256, 1024),
    "yahoo_answers": (16, 32, 64, 128, 256),
    "yelp_review_full": (16, 64, 256, 512),
}
AUGMENTED_SHOTS = (16, 64, 256)  # whose labelling costs most of the figure
MOST_LABELS = {"yahoo_answers": 400}  # of the 500 texts that are here


def scenario(
    name: str, base: str, dataset: str, adapter: str, size: Size, bases: Sequence[str] = ()
) -> Scenario:
    """One of the paper's experiments.

    Args:
        name: One of `NAMES`.
        base: `embedded`, a folder or a hub name.
        dataset: One of `LABELS`.
        adapter: Adapter of the cloze rows; the head's rows train the same with a head.
        size: How large.
        bases: What `fig5` compares; none: the embedded one and `base`.

    Raises:
        ExperimentError: The adapter has a head, or is none.
        WrongInput: Two of `bases` are called the same.
    """
    if adapter.endswith("head"):
        raise ExperimentError(f"--adapter {adapter} is of the cloze rows; give it without a head")
    if name == "fig5":
        return fig5(tuple(dict.fromkeys(bases or (EMBEDDED, base))), dataset, adapter, size)
    makers = {"table2": table2, "fig2": fig2, "fig4": fig4, "rates": rates}
    return makers[name](base, dataset, adapter, size)


def table2(base: str, dataset: str, adapter: str, size: Size) -> Scenario:
    """Cloze against a classification head, labels spread evenly or skewed."""
    cells = [Cell("zero-shot", "uniform", experiment(base, dataset, None, size))]
    for row, kind in methods(adapter):
        for column, gamma in zip(COLUMNS, (UNIFORM, SKEWED), strict=True):
            asked = experiment(base, dataset, kind, size, gamma=gamma)
            figure = FEW_SHOT.at(PRINTED[row, column], COLUMN[dataset])
            cells.append(Cell(row, column, asked, figure))
    told = list(notes(size, dataset))
    augmented = FEW_SHOT.at("Skewed w/ augment", COLUMN[dataset])
    if adapter in FULL:
        told.append(_no_labelling(adapter, f"published: {shown(augmented)}"))
    else:
        for column, labelling in ((AUGMENTED, LABELLING), (AUGMENTED_FIXED, FIXED)):
            looked = experiment(base, dataset, adapter, size, gamma=SKEWED, labelling=labelling)
            cells.append(Cell(CLOZE, column, looked, augmented))
        told += [LABELLING_NOTE, FIXED_NOTE]
    title = (
        f"Table 2 of AUG-FedPrompt on {dataset}: accuracy in %; {size.labels(LABELS[dataset])} "
        f"labels on {LABELLED_CLIENTS} of {CLIENTS[dataset]:,} clients, {COHORT} a round"
    )
    pairs = (
        *rows_apart(cells, (CLOZE, HEAD)),
        *columns_apart(cells, COLUMNS, (AUGMENTED, "skewed"), (AUGMENTED_FIXED, "skewed")),
        *columns_apart(cells, (AUGMENTED, "uniform"), (AUGMENTED, AUGMENTED_FIXED)),
    )
    return Scenario(
        "aug-fedprompt table2", title, tuple(cells), tuple(told), FEW_SHOT.source, pairs
    )


def _no_labelling(adapter: str, published: str) -> str:
    return (
        f"no pseudo-labels here ({published}): --adapter {adapter} trains the base itself, and "
        "labelling needs an adapter that leaves the base as it is"
    )


def fig2(base: str, dataset: str, adapter: str, size: Size) -> Scenario:
    """How skew of the labelled texts hurts, gamma from even to one client; of Yahoo by number."""
    chosen = QUICK_SKEWS if size.is_quick else SKEWS
    usual = size.labels(LABELS[dataset])
    cells = [
        Cell(
            f"{row}, {labels} labels",
            f"gamma {gamma:g}",
            experiment(base, dataset, kind, size, gamma=gamma, labelled=labels),
        )
        for row, kind in methods(adapter)
        for labels in _quantities(dataset, row, size)
        for gamma in chosen
    ]
    title = f"Skew of labelled texts of {dataset}: accuracy in %"
    drawn = (
        f"published: {PAPER}, figure 2 is a drawing whose values are not known; its text says "
        f"{SKEW_COSTS} %: {SKEW_COSTS.row}, {SKEW_COSTS.remark}",
        f"the head is asked with {usual} labels alone",
    )
    pairs = columns_apart(cells, (f"gamma {UNIFORM:g}", f"gamma {SKEWED:g}"))
    return Scenario(
        "aug-fedprompt fig2", title, tuple(cells), (*notes(size, dataset), *drawn), pairs=pairs
    )


def _quantities(dataset: str, row: str, size: Size) -> tuple[int, ...]:
    usual = (size.labels(LABELS[dataset]),)
    return QUANTITIES.get(dataset, usual) if row == CLOZE and not size.is_quick else usual


def fig4(base: str, dataset: str, adapter: str, size: Size) -> Scenario:
    """How many labels are needed by cloze, by a head and with pseudo-labels; and the whole set."""
    every = SHOTS[dataset]
    chosen = tuple(n for n in every if n <= size.most_labels)[::2] if size.is_quick else every
    cells = [
        Cell(row, f"{shots}", experiment(base, dataset, kind, size, labelled=shots))
        for row, kind in methods(adapter)
        for shots in chosen
    ]
    told = list(notes(size, dataset))
    if adapter in FULL:
        told.append(_no_labelling(adapter, "published: drawn"))
    else:
        cells += [
            Cell(AUG, f"{shots}", replace(asked, labelling=LABELLING))
            for shots in chosen
            if shots in AUGMENTED_SHOTS
            for asked in [experiment(base, dataset, adapter, size, labelled=shots)]
        ]
        told.append(LABELLING_NOTE)
    whole = whole_set(base, dataset, adapter, size)
    cells.append(Cell(WHOLE, ALL, whole, is_fixed=True))
    title = f"Labelled texts of {dataset} in all, spread evenly: accuracy in %"
    gap = LARGEST_GAP[dataset]
    by_dev = "chosen on dev texts (`aug-fedprompt rates`)"
    searched = "not searched" if adapter in FULL else by_dev
    told += [
        f"published: {PAPER}, figure 4 is a drawing whose values are not known; its text says that "
        f"AUG-FedPrompt is ahead of FedCLS by up to {gap} %, {gap.remark}, and reaches 90 % of the "
        f"whole set's accuracy with this many labels: {shown(USABLE_LABELS[dataset])}",
        f"{WHOLE}: every training text that is here, in one place, batches of {WHOLE_BATCH}, "
        f"{whole.rounds} pass{'es' if whole.rounds > 1 else ''}, learning rate "
        f"{whole.training.lr:g}, {searched}",
    ]
    pairs = rows_apart(cells, (CLOZE, HEAD), (AUG, CLOZE))
    return Scenario("aug-fedprompt fig4", title, tuple(cells), tuple(told), pairs=pairs)


def fig5(bases: Sequence[str], dataset: str, adapter: str, size: Size) -> Scenario:
    """Bases beside each other: 0.1 % of the published set's labels, spread evenly.

    Raises:
        WrongInput: Two bases are called the same.
    """
    wanted = THOUSANDTH[dataset]
    labels = size.labels(min(wanted, MOST_LABELS.get(dataset, wanted)))
    names = names_of(bases)
    cells = [
        Cell(name, "zero-shot", experiment(base, dataset, None, size))
        for base, name in names.items()
    ]
    cells += [
        Cell(name, CLOZE, experiment(base, dataset, adapter, size, labelled=labels))
        for base, name in names.items()
    ]
    title = f"Bases on {dataset}: accuracy in %; {labels} labels on {LABELLED_CLIENTS} clients"
    less = f"; {labels} here" if labels < wanted else ""
    told = (
        *notes(size, dataset, "models of 12 to 355 M parameters"),
        f"published: {PAPER}, figure 5 is a drawing whose values are not known; its text says that "
        f"{BASES_DRAWN.row} by up to {BASES_DRAWN} %, {BASES_DRAWN.remark}",
        f"0.1 % of the published set's training texts: {wanted} labels{less}",
    )
    ordered = [(upper, lower) for lower, upper in combinations(names.values(), 2)]
    pairs = rows_apart([cell for cell in cells if cell.column == CLOZE], *ordered)
    return Scenario("aug-fedprompt fig5", title, tuple(cells), told, pairs=pairs)
