"""The learning rates that AUG-FedPrompt's settings were chosen from, beside each other.

Few labels are asked in as many rounds as the size says and, where those have several passes over a
client's texts, in so many more rounds of one pass: the same texts are read, adapters meet oftener.

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

    Where a round has several passes, so many more rounds of one pass stand beside it.

    Args:
        base: `embedded`, a folder or a hub name.
        dataset: One of `LABELS`.
        adapter: What is trained.
        size: How large.
    """
    few = [
        (f"{row}, {_passes(one.epochs)}", experiment(base, dataset, kind, one), False)
        for one in _spans(size)
        for row, kind in methods(adapter)
    ]
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
    spans = " or ".join(f"{one.rounds} of {_passes(one.epochs)}" for one in _spans(size))
    said = (*notes(size, dataset), f"rounds of few labels: {spans}", told)
    return Scenario("aug-fedprompt rates", title, tuple(cells), said)


def _spans(size: Size) -> list[Size]:
    """In how many rounds of how many passes the same texts are read."""
    short = replace(size, rounds=size.rounds * size.epochs, epochs=1)
    return [size, short] if size.epochs > 1 else [size]


def _passes(epochs: int) -> str:
    return "1 pass" if epochs == 1 else f"{epochs} passes"


def _at(lr: float, asked: Experiment, dataset: str) -> Experiment:
    return replace(
        asked,
        judged_on="dev",
        test_texts=min(asked.test_texts, KEPT_ASIDE.get(dataset, asked.test_texts)),
        seed=SEED,
        training=replace(asked.training, lr=lr),
        evaluate_every=0,
    )
