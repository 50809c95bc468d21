"""The learning rates that AUG-FedPrompt's settings were chosen from, beside each other.

Judged by training texts that are kept aside, with seeds that no table has: what is chosen here has
not seen what the tables are judged by.
"""

from dataclasses import replace

from simulation.experiments.experiment import FULL, Experiment
from simulation.papers.few_shot.setting import WHOLE, Size, experiment, methods, notes, whole_set
from simulation.papers.published.aug_fedprompt import LABELS
from simulation.papers.scenario import Cell, Scenario

RATES = (5e-4, 1e-3, 2e-3, 5e-3)
RATES_OF_ALL = (1e-5, 1e-4, 1e-3)  # with all weights trained
SEED = 100  # the first
KEPT_ASIDE = {"yahoo_answers": 100}  # of the 500 training texts that are here


def rates(base: str, dataset: str, adapter: str, size: Size) -> Scenario:
    """Few even labels by cloze and by a head, and the whole set, at several rates.

    Args:
        base: `embedded`, a folder or a hub name.
        dataset: One of `LABELS`.
        adapter: What is trained.
        size: How large.
    """
    few = [(row, experiment(base, dataset, kind, size), False) for row, kind in methods(adapter)]
    whole = (WHOLE, whole_set(base, dataset, adapter, size), True)
    chosen = RATES_OF_ALL if adapter in FULL else RATES
    cells = [
        Cell(row, f"{lr:g}", _at(lr, asked, dataset), is_fixed=is_fixed)
        for row, asked, is_fixed in (*few, whole)
        for lr in chosen
    ]
    labels = size.labels(LABELS[dataset])
    title = f"Learning rates on {dataset}, {labels} even labels and all: accuracy in %"
    told = f"judged by training texts kept aside from training; seeds from {SEED} on"
    return Scenario("aug-fedprompt rates", title, tuple(cells), (*notes(size), told))


def _at(lr: float, asked: Experiment, dataset: str) -> Experiment:
    return replace(
        asked,
        judged_on="dev",
        test_texts=min(asked.test_texts, KEPT_ASIDE.get(dataset, asked.test_texts)),
        seed=SEED,
        training=replace(asked.training, lr=lr),
        evaluate_every=0,
    )
