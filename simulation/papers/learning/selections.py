"""Whom a round asks: policies of selection beside `random`, where labels are few and skewed.

The same texts, dealt the same way, with the same draws: a run differs from random's of the same
seed in its cohorts alone. Without pseudo-labels only clients that hold labelled texts can train,
which is what `coverage` prefers them for: there it draws what `random` draws, bit by bit, and has
no row. With pseudo-labels every client can, most of them with none but their own guesses.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from coordinator.rounds.learning.settings import Learning
from edge_client.tables import Column, Table
from edge_client.wire.labelling import Labelling
from simulation.experiments.experiment import Experiment
from simulation.experiments.result import Result, mean_and_spread
from simulation.papers.learning.setting import AG_NEWS
from simulation.papers.paired import beside, by_seed, differences, paired, points
from simulation.papers.scenario import SUMMARY, Cell, Measured, Scenario
from simulation.population.deal import Deal

CLIENTS, COHORT, LABELLED = 32, 5, 256
TEXTS = 2368  # of all clients: about 64 without a label on each, and those that judge adapters
ROUNDS, QUICK_ROUNDS = 20, 6
EARLY = 5  # the round after which accuracy is told too
GAMMA = ALPHA = 0.1
RANDOM, COVERAGE, UTILITY = "random", "coverage", "utility"
POLICIES = (RANDOM, COVERAGE, UTILITY)
LOOKING = Labelling(infer_clients=10, compute_share=1.0)  # a client has few texts to read
CLASSES, NUMBERS, BOTH = "classes skewed", "numbers skewed", "both skewed"
PSEUDO = " + pseudo-labels"
# column -> gamma, alpha, and how clients label their own texts
SPLITS: dict[str, tuple[float, float, Labelling | None]] = {
    CLASSES: (math.inf, ALPHA, None),
    NUMBERS: (GAMMA, math.inf, None),
    BOTH: (GAMMA, ALPHA, None),
    NUMBERS + PSEUDO: (GAMMA, math.inf, LOOKING),
    BOTH + PSEUDO: (GAMMA, ALPHA, LOOKING),
}
NOTES = (
    f"AG News, {LABELLED} labels on {CLIENTS} clients, {COHORT} a round, 2 local epochs, batch 4, "
    "AdamW, lr 0.005, LoRA of rank 8",
    f"{CLASSES}: alpha {ALPHA:g}, clients hold equally many labels of few kinds; {NUMBERS}: gamma "
    f"{GAMMA:g}, few clients hold most labels and most hold none; {BOTH}: both",
    f"pseudo-labels: before every round {LOOKING.infer_clients} clients look for some, so that "
    "clients without a label train too; else only those that hold labels are asked",
    f"{COVERAGE} is left out without pseudo-labels: all who can be asked hold labels, and it draws "
    f"as {RANDOM} does",
    f"{UTILITY} goes by texts and loss alone: no clock runs here, so nobody is slow",
    "memory and balance:TAG are left out: simulated clients have no memory of their own and no "
    f"tags, and without these both draw as {RANDOM} does",
)


def selections(base: str, quick: bool, policies: Sequence[str] = POLICIES) -> Scenario:
    """Every policy on every split on which it can differ from `random`.

    Args:
        base: `embedded`, a folder or a hub name.
        quick: Fewer rounds and test texts.
        policies: Rows beside random, of `POLICIES`.
    """
    cells = [
        Cell(row, split, experiment(base, row, split, quick))
        for row in dict.fromkeys((RANDOM, *policies))
        for split, (_, _, labelling) in SPLITS.items()
        if row != COVERAGE or labelling is not None
    ]
    title = "Whom rounds ask on AG News: final accuracy in %"
    return Scenario("selections", title, tuple(cells), NOTES)


def experiment(base: str, policy: str, split: str, quick: bool) -> Experiment:
    """One policy on one split."""
    gamma, alpha, labelling = SPLITS[split]
    return replace(
        AG_NEWS,
        name="selections",
        base=base,
        deal=Deal(clients=CLIENTS, labelled=LABELLED, gamma=gamma, alpha=alpha),
        learning=Learning(selection=policy),
        rounds=QUICK_ROUNDS if quick else ROUNDS,
        cohort=COHORT,
        evaluate_every=1,
        labelling=labelling,
        train_texts=TEXTS,
        test_texts=60 if quick else 500,
    )


def early_table(found: Sequence[Measured]) -> tuple[Table, Any]:
    """Accuracy in the end and early, beside random's of the same seed; the same for machines."""
    plain = [_told(item, found) for item in found]
    rows = [
        [
            str(one["policy"]),
            str(one["split"]),
            points(one["accuracy"]),
            points(one["difference"], "+"),
            by_seed(one["difference_by_seed"]),
            points(one["early"]),
            points(one["early_difference"], "+"),
            by_seed(one["early_difference_by_seed"]),
            str(one["num_examples"]),
        ]
        for one in plain
    ]
    columns = [Column("policy", "text"), Column("split", "text"), Column("final")]
    names = ("paired", "by seed", f"after {EARLY}", "paired", "by seed", "texts")
    columns += [Column(name) for name in names]
    notes = (
        f"paired: minus {RANDOM} of the same split and seed; ±: standard deviation over seeds",
        f"after {EARLY}: after {EARLY} rounds, or the last where there are fewer",
        "texts: trained on in all rounds, all clients together, mean over seeds",
    )
    return Table(columns, rows, f"minus {RANDOM}", list(notes), SUMMARY), plain


def _told(item: Measured, found: Sequence[Measured]) -> dict[str, Any]:
    first = beside(item, found, RANDOM)
    earlier = differences(item, first, early)
    return {
        "policy": item.cell.row,
        "split": item.cell.column,
        **paired(item, first),
        "early": mean_and_spread([early(one) for one in item.results]),
        "early_difference": mean_and_spread(earlier),
        "early_difference_by_seed": earlier,
        "num_examples": round(item.total("num_examples")),
    }


def early(result: Result) -> float:
    """Accuracy of the last evaluated round that is the fifth or before."""
    return [score.accuracy for index, score in result.curve() if index <= EARLY][-1]
