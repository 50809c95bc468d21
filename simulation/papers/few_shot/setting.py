"""AUG-FedPrompt's setting as experiments here: who holds which labels, what is trained, how long.

Cai et al. 2023, "Towards Practical Few-shot Federated NLP" (EuroMLSys). 1,000 clients, 5 of those
with labels asked per round, FedAvg. The paper trains all weights of RoBERTa-large; here an adapter
(or, with `--adapter full`, all weights) of whatever base is given.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from edge_client.errors import demand
from edge_client.wire.labelling import Labelling
from edge_client.wire.training import Training
from simulation.experiments.experiment import FULL, Experiment
from simulation.papers.published.aug_fedprompt import (
    ALPHA,
    COHORT,
    LABELLED_CLIENTS,
    LABELS,
    SKEWED,
    UNIFORM,
)
from simulation.population.deal import Deal

HEAD, CLOZE, WHOLE = "FedCLS (head)", "FedPrompt (cloze)", "full set, cloze"
# The paper has 1,000; where a sample has few texts, so many that each has some unlabelled ones.
CLIENTS = {"ag_news": 1000, "mnli": 1000, "yahoo_answers": 40, "yelp_review_full": 200}
TOKENS = {"ag_news": 64, "mnli": 96, "yahoo_answers": 64, "yelp_review_full": 128}
# Learning rates of LoRA by cloze and with a head, and of all weights. The first two were chosen on
# dev texts of AG News; MNLI, which stays at chance at them, has its own.
LR, HEAD_LR, FULL_LR = 5e-3, 2e-3, 1e-4
OTHER_LR = {"mnli": (2e-3, 1e-3)}  # see `rates`
WHOLE_BATCH = 16
WHOLE_LR = 1e-3  # chosen on dev texts: see `rates`
WHOLE_PASSES = {"ag_news": 1, "mnli": 1, "yahoo_answers": 8, "yelp_review_full": 2}
LABELLING = Labelling(infer_clients=25, compute_share=1.0)  # a client has no more than ten texts
# The paper's filter as near as it can be said: no class below 0.9, and all that are above are kept.
# What a class has beyond its even share of all texts still has to be surer than that.
FIXED = replace(LABELLING, keep_first=1.0, keep_last=1.0, class_floor=LABELLING.confidence)


@dataclass(frozen=True)
class Size:
    """How large the experiments are.

    Attributes:
        rounds: Of training.
        epochs: Passes of a client over its texts in each.
        evaluate_every: Rounds between evaluations.
        test_texts: Texts that adapters are judged by.
        most_labels: Labelled texts in all, at most; 0: as many as the paper has.
    """

    rounds: int = 40
    epochs: int = 2
    evaluate_every: int = 10
    test_texts: int = 1000
    most_labels: int = 0

    @property
    def is_quick(self) -> bool:
        return self.most_labels > 0

    def labels(self, wanted: int) -> int:
        """As many of the labels as there may be."""
        return min(wanted, self.most_labels) if self.is_quick else wanted


QUICK = Size(rounds=4, epochs=1, evaluate_every=2, test_texts=100, most_labels=64)
# For all of the paper's tables with three seeds in some hours of two cores, and MNLI's in as many:
# inference is learned late, in rounds of one pass sooner than in half as many of two. A client that
# holds nearly all labels reads them all in every round, so other sets with many have fewer.
LISTED = {
    "ag_news": Size(rounds=20, test_texts=500),
    "mnli": Size(rounds=80, epochs=1, evaluate_every=20, test_texts=500),
    "yahoo_answers": Size(rounds=20, epochs=1, test_texts=500),
    "yelp_review_full": Size(rounds=10, epochs=1, test_texts=500),
}


def size_of(quick: bool) -> Size:
    """How large, as `--quick` says."""
    return QUICK if quick else Size()


def methods(adapter: str) -> list[tuple[str, str]]:
    """Rows and what they train."""
    return [(HEAD, f"{adapter}+head"), (CLOZE, adapter)]


def experiment(
    base: str,
    dataset: str,
    adapter: str | None,
    size: Size,
    gamma: float = UNIFORM,
    labelled: int = 0,
    labelling: Labelling | None = None,
) -> Experiment:
    """One experiment in the paper's setting.

    Args:
        base: `embedded`, a folder or a hub name.
        dataset: One of `LABELS`.
        adapter: What is trained; None for nothing.
        size: How large.
        gamma: Skew of the labelled texts.
        labelled: Labelled texts in all; 0 for the paper's number.
        labelling: How clients label their own texts, if they do.
    """
    trained = adapter or "lora:8"
    deal = Deal(
        clients=CLIENTS[dataset],
        labelled=size.labels(labelled or LABELS[dataset]),
        labelled_clients=LABELLED_CLIENTS,
        gamma=gamma,
        alpha=ALPHA,
    )
    return Experiment(
        name="table2",
        dataset=dataset,
        base=base,
        adapter=trained,
        deal=deal,
        training=training(trained, dataset, size.epochs),
        rounds=size.rounds if adapter else 0,
        cohort=COHORT,
        evaluate_every=size.evaluate_every,
        labelling=labelling,
        test_texts=size.test_texts,
    )


def names_of(bases: Sequence[str]) -> dict[str, str]:
    """What rows call bases: each by the last part of its folder or hub name.

    Raises:
        WrongInput: Two of them are called the same; their rows would be one.
    """
    by_name: dict[str, str] = {}
    for base in bases:
        other = by_name.setdefault(Path(base).name, base)
        told = (
            f"bases {other} and {base} share the name {Path(base).name!r}, which names their rows; "
        )
        demand(other == base, f"{told}rename a folder, or leave one out")
    return {base: name for name, base in by_name.items()}


def whole_set(base: str, dataset: str, adapter: str, size: Size) -> Experiment:
    """All texts with their labels in one place: the line that few labels are held against.

    Args:
        base: `embedded`, a folder or a hub name.
        dataset: One of `LABELS`.
        adapter: What is trained.
        size: How large.
    """
    said = experiment(base, dataset, adapter, size)
    lr = said.training.lr if adapter in FULL else WHOLE_LR
    return replace(
        said,
        name="whole",
        paradigm="centralised",
        deal=Deal(clients=1),
        training=replace(said.training, epochs=1, batch=WHOLE_BATCH, lr=lr),
        rounds=1 if size.is_quick else WHOLE_PASSES[dataset],
        cohort=0,
        evaluate_every=0,
        train_texts=size.most_labels,
    )


def training(adapter: str, dataset: str, epochs: int) -> Training:
    """A client's training in one round.

    Learning rates of LoRA were chosen on texts kept aside from training (`judged_on = "dev"`). On
    AG News cloze's is the best of three on each of three small bases; the head's does as well as
    0.005 with even labels and holds under skew.
    """
    cloze, head = OTHER_LR.get(dataset, (LR, HEAD_LR))
    lr = head if adapter.endswith("head") else cloze
    return Training(
        epochs=epochs, batch=4, lr=FULL_LR if adapter in FULL else lr, tokens=TOKENS[dataset]
    )


def notes(size: Size, dataset: str, models: str = "RoBERTa-large") -> tuple[str, ...]:
    """How this differs from the paper.

    Args:
        size: How large it is here.
        dataset: One of `LABELS`.
        models: What the paper trains.
    """
    cloze, head = OTHER_LR.get(dataset, (LR, HEAD_LR))
    of_set = "of this set" if dataset in OTHER_LR else "of AG News"
    found = [
        f"published: {models}, whose every weight is sent, learning rate 1e-5, 1 local iteration, "
        f"256 tokens; ours: the base, adapter and texts named here, {size.epochs} local pass"
        f"{'es' if size.epochs > 1 else ''}; labels are even by gamma {UNIFORM:g} and skewed by "
        f"gamma {SKEWED:g}, as section 2 calls them",
        f"learning rates: LoRA {cloze:g}, with a head {head:g}, chosen on dev texts {of_set}; "
        f"other adapters have LoRA's, all weights {FULL_LR:g}, not searched",
        "only clients that hold labelled texts are asked; where skew leaves fewer than "
        f"{COHORT} of them, all are",
    ]
    if size.is_quick:
        found.append(f"--quick: fewer rounds, texts and cells; {size.most_labels} labels at most")
    return tuple(found)
