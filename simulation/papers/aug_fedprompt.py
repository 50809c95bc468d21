"""AUG-FedPrompt's experiments: few labels on few of many clients, asked by cloze or by a head.

Cai et al. 2023, "Towards Practical Few-shot Federated NLP" (EuroMLSys). 1,000 clients, 5 of those
with labels asked per round, FedAvg. The paper trains all weights of RoBERTa-large; here an adapter
(or, with `--adapter full`, all weights) of whatever base is given.
"""

from edge_client.wire.labelling import Labelling
from edge_client.wire.training import Training
from simulation.experiments.experiment import FULL, Experiment, ExperimentError
from simulation.papers.published.aug_fedprompt import (
    ALPHA,
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
    UNIFORM,
    USABLE_LABELS,
)
from simulation.papers.published.figure import shown
from simulation.papers.scenario import Cell, Scenario
from simulation.population.deal import Deal

NAMES = ("table2", "fig2", "fig4")
HEAD, CLOZE = "FedCLS (head)", "FedPrompt (cloze)"
COLUMNS = ("uniform", "skewed")
PRINTED = {  # our cell -> the paper's row
    (HEAD, "uniform"): "Uniform FedCLS",
    (HEAD, "skewed"): "Skewed FedCLS",
    (CLOZE, "uniform"): "Uniform FedPrompt",
    (CLOZE, "skewed"): "Skewed FedPrompt",
}
AUGMENTED = "skewed + pseudo-labels"
# The paper has 1,000; where a sample has few texts, so many that each has some unlabelled ones.
CLIENTS = {"ag_news": 1000, "mnli": 1000, "yahoo_answers": 40, "yelp_review_full": 200}
TOKENS = {"ag_news": 64, "mnli": 96, "yahoo_answers": 64, "yelp_review_full": 128}
QUICK_SKEWS = (UNIFORM, 0.1, SKEWED)
LABELLING = Labelling(infer_clients=25, compute_share=1.0)  # a client has no more than ten texts
LABELLING_NOTE = (
    f"pseudo-labels: before every round {LABELLING.infer_clients} clients look for some; 64 "
    "training texts, with labels that the other columns do not have, are kept aside to judge "
    "adapters by before they label"
)
SHOTS = (16, 32, 64, 128, 256, 512)


def scenario(name: str, base: str, dataset: str, adapter: str, quick: bool) -> Scenario:
    """One of the paper's experiments.

    Args:
        name: One of `NAMES`.
        base: `embedded`, a folder or a hub name.
        dataset: One of `LABELS`.
        adapter: Adapter of the cloze rows; the head's rows train the same with a head.
        quick: Fewer rounds, test texts and cells.

    Raises:
        ExperimentError: The adapter has a head, or is none.
    """
    if adapter.endswith("head"):
        raise ExperimentError(f"--adapter {adapter} is of the cloze rows; give it without a head")
    makers = {"table2": table2, "fig2": fig2, "fig4": fig4}
    return makers[name](base, dataset, adapter, quick)


def table2(base: str, dataset: str, adapter: str, quick: bool) -> Scenario:
    """Cloze against a classification head, labels spread evenly or skewed."""
    cells = [Cell("zero-shot", "uniform", experiment(base, dataset, None, quick))]
    for row, kind in methods(adapter):
        for column, gamma in zip(COLUMNS, (UNIFORM, SKEWED), strict=True):
            asked = experiment(base, dataset, kind, quick, gamma=gamma)
            figure = FEW_SHOT.at(PRINTED[row, column], COLUMN[dataset])
            cells.append(Cell(row, column, asked, figure))
    told = list(notes(quick))
    augmented = FEW_SHOT.at("Skewed w/ augment", COLUMN[dataset])
    if adapter in FULL:
        told.append(
            f"no pseudo-labels here (published: {shown(augmented)}): --adapter {adapter} trains "
            "the base itself, and labelling needs an adapter that leaves the base as it is"
        )
    else:
        looked = experiment(base, dataset, adapter, quick, gamma=SKEWED, labelling=LABELLING)
        cells.append(Cell(CLOZE, AUGMENTED, looked, augmented))
        told.append(LABELLING_NOTE)
    title = (
        f"Table 2 of AUG-FedPrompt on {dataset}: accuracy in %; {LABELS[dataset]} "
        f"labels on {LABELLED_CLIENTS} of {CLIENTS[dataset]:,} clients, {COHORT} a round"
    )
    return Scenario("aug-fedprompt table2", title, tuple(cells), tuple(told), FEW_SHOT.source)


def fig2(base: str, dataset: str, adapter: str, quick: bool) -> Scenario:
    """How skew of the labelled texts hurts: gamma from even to one client."""
    chosen = QUICK_SKEWS if quick else SKEWS
    cells = [
        Cell(row, f"gamma {gamma:g}", experiment(base, dataset, kind, quick, gamma=gamma))
        for row, kind in methods(adapter)
        for gamma in chosen
    ]
    title = f"Skew of {LABELS[dataset]} labelled texts of {dataset}: accuracy in %"
    drawn = (
        f"published: {PAPER}, figure 2 is a drawing whose values are not known; its text says "
        f"{SKEW_COSTS} %: {SKEW_COSTS.row}, {SKEW_COSTS.remark}"
    )
    return Scenario("aug-fedprompt fig2", title, tuple(cells), (*notes(quick), drawn))


def fig4(base: str, dataset: str, adapter: str, quick: bool) -> Scenario:
    """How many labels are needed, by cloze and by a head."""
    chosen = SHOTS[::2] if quick else SHOTS
    cells = [
        Cell(row, f"{shots}", experiment(base, dataset, kind, quick, labelled=shots))
        for row, kind in methods(adapter)
        for shots in chosen
    ]
    title = f"Labelled texts of {dataset} in all, spread evenly: accuracy in %"
    drawn = (
        f"published: {PAPER}, figure 4 is a drawing whose values are not known; its text says that "
        f"FedPrompt is ahead of FedCLS by up to {LARGEST_GAP[dataset]} % and reaches 90 % of the "
        f"whole set's accuracy with this many labels: {shown(USABLE_LABELS[dataset])}"
    )
    return Scenario("aug-fedprompt fig4", title, tuple(cells), (*notes(quick), drawn))


def methods(adapter: str) -> list[tuple[str, str]]:
    """Rows and what they train."""
    return [(HEAD, f"{adapter}+head"), (CLOZE, adapter)]


def experiment(
    base: str,
    dataset: str,
    adapter: str | None,
    quick: bool,
    gamma: float = UNIFORM,
    labelled: int | None = None,
    labelling: Labelling | None = None,
) -> Experiment:
    """One experiment in the paper's setting.

    Args:
        base: `embedded`, a folder or a hub name.
        dataset: One of `LABELS`.
        adapter: What is trained; None for nothing.
        quick: Fewer rounds and test texts.
        gamma: Skew of the labelled texts.
        labelled: Labelled texts in all; None for the paper's number.
        labelling: How clients label their own texts, if they do.
    """
    deal = Deal(
        clients=CLIENTS[dataset],
        labelled=labelled or LABELS[dataset],
        labelled_clients=LABELLED_CLIENTS,
        gamma=gamma,
        alpha=ALPHA,
    )
    rounds = 15 if quick else 40
    return Experiment(
        name="table2",
        dataset=dataset,
        base=base,
        adapter=adapter or "lora:8",
        deal=deal,
        training=training(adapter or "lora:8", dataset),
        rounds=rounds if adapter else 0,
        cohort=COHORT,
        evaluate_every=5 if quick else 10,
        labelling=labelling,
        test_texts=300 if quick else 1000,
    )


def training(adapter: str, dataset: str) -> Training:
    """A client's training in one round.

    Learning rates of LoRA were chosen on AG News texts kept aside from training
    (`judged_on = "dev"`): cloze's is the best of three on each of three small bases; the head's
    does as well as 0.005 with even labels and holds under skew.
    """
    lr = 5e-3
    if adapter in FULL:
        lr = 1e-4
    elif adapter.endswith("head"):
        lr = 2e-3
    return Training(epochs=2, batch=4, lr=lr, tokens=TOKENS[dataset])


def notes(quick: bool) -> tuple[str, ...]:
    """How this differs from the paper."""
    found = [
        f"published: RoBERTa-large, all weights, learning rate 1e-5, 1 local iteration, 256 "
        f"tokens; ours: the base, adapter and texts named here, 2 epochs; labels are even by gamma "
        f"{UNIFORM:g} and skewed by gamma {SKEWED:g} in both",
        "learning rates: LoRA 0.005, with a head 0.002, chosen on dev texts of AG News; other "
        "adapters have LoRA's, all weights 0.0001, not searched",
        "only clients that hold labelled texts are asked; where skew leaves fewer than "
        f"{COHORT} of them, all are",
    ]
    if quick:
        found.append("--quick: fewer rounds, test texts and cells")
    return tuple(found)
