"""How far cloze is ahead of a classification head, and what that depends on: one thing at a time.

AUG-FedPrompt's table 2 has cloze far ahead where labels are few and even. Here both are trained in
the reference setting of `simulate aug-fedprompt table2`, and then in settings that differ from it
in one thing each. Cloze and head of a setting share texts, deal and cohorts of every seed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from edge_client.errors import demand
from edge_client.tables import Column, Table
from simulation.experiments.experiment import FULL, Experiment
from simulation.experiments.result import mean_and_spread
from simulation.papers.few_shot import setting
from simulation.papers.few_shot.scenarios import PRINTED
from simulation.papers.few_shot.setting import CLOZE, HEAD, size_of
from simulation.papers.paired import by_seed, differences, ends, interval, known, points
from simulation.papers.published import pet
from simulation.papers.published.aug_fedprompt import COLUMN, FEW_SHOT, LABELS
from simulation.papers.published.figure import Figure
from simulation.papers.scenario import SUMMARY, Cell, Measured, Scenario

Change = Callable[[Experiment], Experiment]
REFERENCE, ROUNDS, PATTERN = "reference", "rounds", "pattern"
PAIRS = ("mnli",)  # which patterns of one text do not ask
LORA = "lora:8"


def trained(asked: Experiment, **more: Any) -> Experiment:
    """An experiment with something else in its training."""
    return replace(asked, training=replace(asked.training, **more))


def slower(asked: Experiment, by: float) -> Experiment:
    """At a fraction of its own learning rate."""
    return trained(asked, lr=asked.training.lr / by)


def dealt(asked: Experiment, **more: Any) -> Experiment:
    """An experiment whose labels are dealt in another way."""
    return replace(asked, deal=replace(asked.deal, **more))


def adapted(asked: Experiment, adapter: str) -> Experiment:
    """An experiment that trains something else, with a head where it has one, at its usual rate."""
    kind = f"{adapter}+head" if asked.adapter.endswith("head") else adapter
    usual = setting.training(kind, asked.dataset, asked.training.epochs)
    return trained(replace(asked, adapter=kind), lr=usual.lr)


def every_weight(asked: Experiment, lr: float) -> Experiment:
    """Every weight trained, at one rate for both."""
    return trained(adapted(asked, FULL[0]), lr=lr)


def head_alone(asked: Experiment) -> Experiment:
    """A head on the base as it is, and beside it cloze on the base as it is."""
    is_head = asked.adapter.endswith("head")
    return replace(asked, adapter="head") if is_head else replace(asked, rounds=0)


def by_pattern(asked: Experiment, pattern: str) -> Experiment:
    """Cloze by another pattern; a head is asked by none."""
    return asked if asked.adapter.endswith("head") else replace(asked, pattern=pattern)


# factor -> setting -> what it changes. Every other thing is the reference's.
FACTORS: Mapping[str, Mapping[str, Change]] = {
    "none": {},
    "rate, both slower": {"/10": partial(slower, by=10)},
    ROUNDS: {str(n): partial(replace, rounds=n) for n in (5, 10)},
    "rate, one for both": {f"{lr:g}": partial(trained, lr=lr) for lr in (2e-3, 5e-3)},
    "epochs": {"1": partial(trained, epochs=1)},
    "labels": {str(n): partial(dealt, labelled=n) for n in (16,)},
    "clients with labels": {"8": partial(dealt, labelled_clients=8)},
    "clients a round": {"32": partial(replace, cohort=32)},
    "tokens": {"32": partial(trained, tokens=32)},
    PATTERN: {
        one.replace("{text}", "..."): partial(by_pattern, pattern=one)
        for one in ("[MASK] : {text}", "( [MASK] ) {text}")
    },
    "what is trained": {"head alone": head_alone},
    "all weights, one rate": {f"{lr:g}": partial(every_weight, lr=lr) for lr in (1e-5, 1e-4, 1e-3)},
}
WITHOUT_PRIOR = ("cloze, prior off", "head, prior off")
TEXTS, QUICK_TEXTS = 500, 100
QUICK = ("rate, both slower", ROUNDS)
NOTES = (
    f"{REFERENCE}: as `simulate aug-fedprompt table2` has the even column; every other row differs "
    "from it in what it names",
    "gap: cloze minus head of equal seed, hence equal texts, deal and cohorts; 95 %: of its mean "
    "over seeds (Student's t)",
    "head: on the first token a dense layer, tanh and a projection, both new, as RoBERTa's own "
    "classifier has them; without dropout",
    "learning rates of the reference are table2's own; none was chosen by this table",
)
FIRST_TEXT = f"{PATTERN}: where a folder keeps two fields apart, it asks the first of them alone"


def cloze_gap(
    base: str,
    dataset: str,
    quick: bool,
    factors: Sequence[str] = (),
    others: Sequence[str] = (),
) -> Scenario:
    """Cloze and head in the reference setting, and in every one that differs in one thing.

    Args:
        base: `embedded`, a folder or a hub name.
        dataset: One of `LABELS`.
        quick: Fewer rounds, test texts and factors.
        factors: Only these of `FACTORS`; none means all that fit the set.
        others: Other bases, one setting each.

    Raises:
        WrongInput: Two of `others` are called the same, or a factor does not fit the set.
    """
    is_fit = PATTERN not in factors or dataset not in PAIRS
    demand(
        is_fit, f"--factor {PATTERN}: its patterns ask one text, and {dataset} has two in each row"
    )
    every = (one for one in FACTORS if one != PATTERN or dataset not in PAIRS)
    chosen = factors or (QUICK if quick else tuple(every))
    settings: dict[str, Change] = {REFERENCE: lambda asked: asked}
    settings |= {
        f"base: {name}": partial(replace, base=one)
        for one, name in setting.names_of(others).items()
    }
    settings |= {
        f"{factor}: {name}": change for factor in chosen for name, change in FACTORS[factor].items()
    }
    cells = [
        Cell(
            named,
            row,
            change(experiment(base, dataset, kind, quick)),
            is_fixed=named.startswith(f"{ROUNDS}: "),
        )
        for named, change in settings.items()
        for row, kind in setting.methods(LORA)
    ]
    title = (
        f"Cloze against a head on {dataset}, {LABELS[dataset]} even labels: what the gap depends "
        "on: accuracy in %"
    )
    told = (*NOTES, FIRST_TEXT) if PATTERN in chosen else NOTES
    return Scenario(
        "cloze-gap", title, tuple(cells), (*told, *setting.notes(size_of(quick), dataset))
    )


def experiment(base: str, dataset: str, adapter: str, quick: bool) -> Experiment:
    """The reference: table 2's even column, judged before the first round and after the last."""
    return replace(
        setting.experiment(base, dataset, adapter, size_of(quick)),
        evaluate_every=0,
        test_texts=QUICK_TEXTS if quick else TEXTS,
    )


def gap_table(found: Sequence[Measured]) -> tuple[Table, Any]:
    """Every setting's cloze, head and gap, the published ones below; the same for machines."""
    plain = [_told(setting, found) for setting in dict.fromkeys(item.cell.row for item in found)]
    rows = [
        [
            *_parts(one["setting"]),
            f"{100 * one['untrained']:.1f}",
            points(one["cloze"]),
            points(one["head"]),
            f"{100 * one['gap']:+.1f}",
            ends(one["interval"]),
            by_seed(one["gap_by_seed"]),
            points(one["cloze_without_prior"]),
            points(one["head_without_prior"]),
        ]
        for one in plain
    ]
    printed = published_gaps(found[0].cell.experiment.dataset)
    rows += [["published", name, *cells] for name, cells in printed.items()]
    names = ("untrained", "cloze", "head", "gap", "95 %", "by seed", *WITHOUT_PRIOR)
    columns = [Column("factor", "text"), Column("setting", "text"), *map(Column, names)]
    notes = (
        "in %; ± is the sample standard deviation over seeds; untrained: cloze by the base as it "
        "is; prior off: the labels' mean log-probability over all test texts, off each answer",
        f"published: {FEW_SHOT.source}; {pet.IN_ONE_PLACE.source}",
    )
    return Table(columns, rows, "cloze minus head", list(notes), SUMMARY), plain


def _parts(setting: str) -> list[str]:
    factor, _, name = setting.partition(": ")
    return [factor, name]


def _told(setting: str, found: Sequence[Measured]) -> dict[str, Any]:
    here = {item.cell.column: item for item in found if item.cell.row == setting}
    cloze, head = here[CLOZE], here[HEAD]
    gaps = differences(cloze, head)
    return {
        "setting": setting,
        "untrained": mean_and_spread([one.curve()[0][1].accuracy for one in cloze.results])[0],
        "cloze": cloze.accuracy(),
        "head": head.accuracy(),
        "gap": mean_and_spread(gaps)[0],
        "interval": interval(gaps),
        "gap_by_seed": gaps,
        "cloze_without_prior": known([one.balanced for one in cloze.results]),
        "head_without_prior": known([one.balanced for one in head.results]),
    }


def published_gaps(dataset: str) -> dict[str, list[str]]:
    """What the papers print: AUG-FedPrompt's row, and PET's of the same model in one place."""
    federated = [FEW_SHOT.at(PRINTED[row, "uniform"], COLUMN[dataset]) for row in (CLOZE, HEAD)]
    table, column = pet.IN_ONE_PLACE, pet.COLUMN[dataset]
    untrained = table.at("untrained", column)
    lines = {f"RoBERTa-large, {LABELS[dataset]} labels on clients": _line(None, *federated)}
    for labels in ("10", "50", "100", "1000"):
        pair = [table.at(f"{labels} {kind}", column) for kind in ("PET", "supervised")]
        lines[f"RoBERTa-large, {labels} labels in one place"] = _line(untrained, *pair)
    return lines


def _line(untrained: Figure | None, cloze: Figure | None, head: Figure | None) -> list[str]:
    assert cloze and head, "every row that is shown is printed"
    first = "-" if untrained is None else str(untrained)
    gap = f"{cloze.value - head.value:+.1f}"
    return [first, str(cloze), str(head), gap, *["-"] * 4]
