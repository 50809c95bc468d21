"""Between the shared adapter and one's own: every alpha, and the one that a client chooses.

The federated healthcare paper's figure 3 mixes local and shared weights, alpha from 0 to 1 in steps
of 0.05. Here every language trains the shared adapter on for itself once the rounds are over, and
chooses alpha by a fifth of its labelled texts, which it keeps aside for that. The paper found that
one's own should not begin early; so beside the one that begins after all rounds stand two that
begin from the first adapter and after half of the rounds, trained for as many passes.
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

from edge_client.personal.interpolation import ALPHAS
from edge_client.tables import Column, Table
from edge_client.wire.training import Training
from simulation.experiments.experiment import Experiment
from simulation.experiments.personal.settings import Personal
from simulation.experiments.result import Row, mean_and_spread
from simulation.papers.multilingual.setting import MANY
from simulation.papers.paired import points
from simulation.papers.scenario import SUMMARY, Cell, Measured, Scenario
from simulation.population.deal import Deal

QUICK_LANGUAGES = ("eng", "hau", "orm")
TEXTS, QUICK_TEXTS = 100, 40
TESTS, QUICK_TESTS = 200, 40
ROUNDS, QUICK_ROUNDS = 10, 2
EPOCHS, QUICK_EPOCHS = 8, 2
LR = 5e-3
COLUMN = "mean of languages"
COMMON = "mean, one end for all"


def interpolate(base: str, quick: bool) -> Scenario:
    """Every language of MasakhaNEWS that lies here: rounds together, then each for itself.

    Args:
        base: `embedded`, a folder or a hub name.
        quick: Fewer languages, texts and rounds.
    """
    texts, rounds = (QUICK_TEXTS, QUICK_ROUNDS) if quick else (TEXTS, ROUNDS)
    epochs = QUICK_EPOCHS if quick else EPOCHS
    begun = {
        "own from the first adapter": 0,
        "own after half of the rounds": rounds // 2,
        "own after all rounds": None,
    }
    usual = Experiment(
        "interpolate",
        "masakhanews",
        languages=QUICK_LANGUAGES if quick else MANY,
        base=base,
        adapter="lora:8",
        deal=Deal(by="language", clients=0),
        training=Training(epochs=2, batch=8, lr=LR, tokens=64),
        rounds=rounds,
        evaluate_every=0,
        train_texts=texts,
        test_texts=QUICK_TESTS if quick else TESTS,
    )
    cells = [
        Cell(row, COLUMN, begun_at(usual, epochs, start), of_languages=True)
        for row, start in begun.items()
    ]
    notes = (
        f"{texts} labelled texts of each language, 64 tokens of each, asked by cloze; {rounds} "
        f"rounds of all languages, and {epochs} passes of each over four fifths of its own texts",
        f"learning rate {LR:g} in rounds and after; no other was tried",
        "alpha is chosen by a fifth of a client's texts that its own training leaves out and the "
        "rounds do not: that draws alpha to the shared adapter, most where one's own begins with "
        "the rounds, which has seen none of them",
    )
    title = "MasakhaNEWS, between the shared adapter and one's own: accuracy in %"
    return Scenario("interpolate", title, tuple(cells), notes)


def begun_at(usual: Experiment, epochs: int, start: int | None) -> Experiment:
    """The experiment whose languages begin their own after so many rounds; None: after all."""
    return replace(usual, personal=Personal("interpolated", lr=LR, epochs=epochs, start=start))


@dataclass(frozen=True)
class Ends:
    """Shares of right answers of one client with one seed.

    Attributes:
        shared: At alpha = 0.
        own: At 1.
        chosen: At the alpha that it chose.
        best: At the best alpha on the test texts themselves, which nobody knows beforehand.
        alpha: That it chose.
    """

    shared: float
    own: float
    chosen: float
    best: float
    alpha: float

    @property
    def lead(self) -> float:
        """Of what was chosen, over the better end."""
        return self.chosen - max(self.shared, self.own)


def ends_of(row: Row) -> Ends:
    """A client's row of such an experiment."""
    between, score = row.between, row.score
    assert between is not None and score is not None, f"{row.arm} went no way"
    tests = score.total.asked
    shares = [right / tests for right in between.right]
    chosen = shares[ALPHAS.index(between.alpha)]
    return Ends(shares[0], shares[-1], chosen, max(shares), between.alpha)


def alpha_table(found: Sequence[Measured]) -> tuple[Table, Any]:
    """Both ends, what was chosen and what would have been best, by language and for their mean."""
    columns = [Column("begun", "text"), Column("language", "text")]
    columns += [Column(one) for one in ("shared", "own", "chosen", "best", "minus better end")]
    notes = (
        "shared: alpha 0; own: 1; chosen: by the client's texts kept aside; best: on the test "
        "texts themselves, which nobody knows beforehand; of 21 alphas",
        "minus better end: chosen minus the better of shared and own on the test texts with each "
        "seed, which may be another one in each language; ±: standard deviation over seeds",
        f"{COMMON}: minus the better of the two means, all languages at the same end",
    )
    told = {item.cell.row: _of_cell(item) for item in found}
    rows = [_line(row, one) for row, part in told.items() for one in part["languages"]]
    columns.append(Column("alpha, by seed"))
    table = Table(columns, rows, "between shared and own", list(notes), SUMMARY)
    return table, {"begun": told, "alphas": list(ALPHAS)}


def _of_cell(item: Measured) -> dict[str, Any]:
    """Languages and their mean, and each language's right answers by alpha with the first seed."""
    by_name: dict[str, list[Ends]] = {}
    for result in item.results:
        for row in sorted(result.rows, key=lambda row: row.arm):
            by_name.setdefault(row.arm, []).append(ends_of(row))
    seeds = range(len(item.results))
    by_seed = [[ends[seed] for ends in by_name.values()] for seed in seeds]
    leads = [sum(one.lead for one in ends) / len(ends) for ends in by_seed]
    told = [
        {"language": name, **_told(ends, [one.lead for one in ends])}
        for name, ends in by_name.items()
    ]
    means = list(map(_mean, by_seed))
    told.append({"language": "mean", **_told(means, leads)})
    told.append({"language": COMMON, **_told(means, [one.lead for one in means])})
    curves = {
        row.arm: list(row.between.right)
        for result in item.results[:1]
        for row in result.rows
        if row.between is not None
    }
    return {"languages": told, "curves": curves}


def _line(row: str, one: dict[str, Any]) -> list[str]:
    kinds = ("shared", "own", "chosen", "best", "chosen_minus_better_end")
    figures = [points(one[kind], "+" if "minus" in kind else "") for kind in kinds]
    alphas = ", ".join(f"{alpha:.2f}" for alpha in one["alphas"])
    return [row, one["language"], *figures, alphas]


def _mean(ends: Sequence[Ends]) -> Ends:
    columns = zip(*map(astuple, ends), strict=True)
    return Ends(*(sum(column) / len(ends) for column in columns))


def _told(ends: Sequence[Ends], leads: Sequence[float]) -> dict[str, Any]:
    kinds = ("shared", "own", "chosen", "best")
    return {kind: mean_and_spread([getattr(one, kind) for one in ends]) for kind in kinds} | {
        "chosen_minus_better_end": mean_and_spread(leads),
        "alphas": [one.alpha for one in ends],
    }
