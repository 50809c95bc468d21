"""Tables by language: distance from pretraining, end of training, ranks, own and shared adapters.

The distance is -log cos(v, V_p) of Multilingual Federated Prompt Tuning (arXiv:2507.03003): v is a
language's vector of typological features, V_p the mean of the pretraining mixture's vectors,
weighted by share: `distance("hau", {"eng": 3.0, "fra": 1.0})`.

`data/typology.csv` has textbook facts on 29 languages, written by hand for this project: 21
features after the questions of the World Atlas of Language Structures (Dryer & Haspelmath 2013; the
number is the chapter), and ISO 15924 scripts. A language without a value has no plain answer known
to us; none is guessed. Codes are ISO 639-3; two-letter ones are those that data sets use.
"""

import csv
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.papers.paired import points
from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.personal.interpolation import ALPHAS
from smidgen.edge_client.tables import Column, Table, share
from smidgen.simulation.experiments.record import Row, mean_and_spread
from smidgen.simulation.report.scenario import (
    NAMED,
    SUMMARY,
    Measured,
    Ranks,
    modules_of,
    ranks_of,
    rows_by_arm,
)

TABLE = Path(__file__).parents[1] / "data" / "typology.csv"


class TypologyError(WrongInput):
    """A language without a vector, a mixture that is none, or a vector without a direction."""


@cache
def read_table() -> tuple[dict[str, np.ndarray], str]:
    """Vectors by code, one element per feature and value, and where they are from in one line."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        (_, _, _, *codes), (_, _, _, *short), *answers = csv.reader(file)
    matrix = np.array([has for _, _, _, *has in answers], np.float64)
    features = dict.fromkeys(source for source, _, _, *_ in answers)
    chapters = " ".join(one.removeprefix("WALS ") for one in features if one.startswith("WALS"))
    source = f"own table, {len(features)} features: WALS chapters {chapters}; ISO 15924 scripts"
    return dict(zip([*codes, *short], [*matrix.T, *matrix.T], strict=True)), source


def vector_of(language: str) -> np.ndarray:
    """A language's vector, shape (features,).

    Raises:
        TypologyError: There is none for it.
    """
    vectors, _ = read_table()
    if language not in vectors:
        known = ", ".join([*vectors][:29])
        raise TypologyError(f"no typological vector for language {language!r}; {known}")
    return vectors[language]


def distance(language: str, pretraining: Mapping[str, float]) -> float:
    """-log cos between a language's vector and the mixture's mean vector.

    Zero if and only if they have the same direction, never negative, infinite where they share
    nothing; only the ratios of the weights matter. The more of the mixture the language itself
    is, the smaller.

    Args:
        language: ISO 639-3, or the two-letter code of one in the table.
        pretraining: Language -> its share, none negative.

    Raises:
        TypologyError: A language has no vector, or no weight is positive, or one is not a number.
    """
    shares = pretraining.values()
    if not all(math.isfinite(share) and share >= 0 for share in shares) or not any(shares):
        raise TypologyError(
            "a pretraining mixture needs finite weights, none negative and one positive"
        )
    most = max(shares)
    mixture = sum(share / most * vector_of(name) for name, share in pretraining.items())
    return minus_log_cosine(vector_of(language), np.asarray(mixture))


def minus_log_cosine(a: np.ndarray, b: np.ndarray) -> float:
    """-log of the cosine between two vectors that have no negative element; 0 to infinity.

    Raises:
        TypologyError: A vector is all zeros, or holds a negative, infinite or undefined element.
    """
    a, b = _of_largest_one(a), _of_largest_one(b)
    cosine = float(a @ b) / math.sqrt(float(a @ a) * float(b @ b))
    return math.inf if cosine <= 0 else max(0.0, -math.log(cosine))


def _of_largest_one(vector: np.ndarray) -> np.ndarray:
    """A vector's direction, so scaled that no square of an element overflows."""
    vector = np.asarray(vector, np.float64)
    largest = float(vector.max(initial=0.0))
    if not (np.isfinite(vector) & (vector >= 0)).all() or largest == 0.0:
        raise TypologyError(
            "a typological vector needs finite elements, none negative, one above 0"
        )
    return vector / largest


# The embedded base's card: passages it was taught.
EMBEDDED_MIXTURE = {"en": 25_850.0, "es": 9_276.0, "fr": 9_334.0, "de": 3_512.0}
COMMON = "mean, one end for all"


def parse_mixture(text: str) -> dict[str, float]:
    """Read `en=0.6,fr=0.4`.

    Raises:
        TypologyError: No such list.
    """
    try:
        pairs = [part.split("=") for part in text.split(",")]
        return {name.strip(): float(share) for name, share in pairs}
    except ValueError as error:
        raise TypologyError(f"--pretraining {text!r}: en=0.6,fr=0.4 is expected") from error


def distance_table(
    found: Sequence[Measured], pretraining: Mapping[str, float]
) -> tuple[Table, list[dict[str, Any]]]:
    """Languages by distance from the mixture, with what each cell gave them.

    Raises:
        TypologyError: A language without a vector.
    """
    shares = {item.cell.row: item.by_language() for item in found}
    languages = sorted(next(iter(shares.values())), key=lambda name: distance(name, pretraining))
    plain, lines = list[dict[str, Any]](), []
    for language in languages:
        far = distance(language, pretraining)
        values = [accuracy[language] for accuracy in shares.values()]
        gain = values[-1] - values[0]
        cells = [f"{100 * value:.1f} %" for value in values]
        lines.append([language, f"{far:.3f}", *cells, f"{100 * gain:+.1f}"])
        plain.append({"language": language, "distance": far, "gain": gain})
    fars, gains = ([float(row[name]) for row in plain] for name in ("distance", "gain"))
    notes = [
        "gain: points that federation adds, the last column of accuracies less the first",
        f"V_p: {', '.join(f'{name} {share:g}' for name, share in pretraining.items())}",
        read_table()[1],
    ]
    if len(plain) >= 8 and np.std(gains) > 0:  # of fewer a correlation says nothing
        slope = float(np.corrcoef(fars, gains)[0, 1])
        notes.append(f"correlation of distance and gain {slope:+.2f}")
    columns = [Column("language", "word"), *map(Column, ("distance", *shares, "gain"))]
    title = "language distance -log cos(v, V_p), and accuracy"
    return Table(columns, lines, title, notes, SUMMARY), plain


def stop_table(found: Sequence[Measured]) -> tuple[Table, list[dict[str, Any]]]:
    """After which round training ended that may end early, and which round's adapter was kept."""
    plain: list[dict[str, Any]] = [
        {
            "row": item.cell.row,
            "arm": arm,
            "ended": [rows[-1].round_index for rows in by_seed],
            "kept": [rows[-1].kept for rows in by_seed],
        }
        for item in found
        if item.cell.experiment.patience
        for arm, by_seed in rows_by_arm(item).items()
    ]
    lines = [
        [
            one["row"],
            one["arm"] or "all",
            *(", ".join(map(str, one[key])) for key in ("ended", "kept")),
        ]
        for one in plain
    ]
    columns = [Column("trained", "text"), Column("who", "word")]
    columns += [Column("ended after, by seed"), Column("kept, by seed")]
    return Table(columns, lines, "when training ended, in rounds", more=SUMMARY), plain


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
    modules = (name for _, ranks in shown for name in modules_of(ranks))
    linears = list(dict.fromkeys(name.split(".")[1] for name in modules))
    plain, rows = list[dict[str, Any]](), list[list[str]]()
    for item, ranks in shown:
        means = {
            one: fmean(
                rank
                for own in ranks.values()
                for name, rank in own.items()
                if name.endswith(f".{one}")
            )
            for one in linears
        }
        kept = [[row.ranks for row in result.rows if row.ranks] for result in item.results]
        differ, spread = mean_and_spread([apart(one) for one in kept if one])
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
    notes = (
        "ranks of a module, mean over layers, languages and seeds",
        "apart: share of their ranks that two languages have in other modules, mean over pairs",
    )
    columns = [Column(NAMED, "text"), *map(Column, (*linears, "apart"))]
    return Table(columns, rows, "ranks that were kept", list(notes), SUMMARY), plain


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
    shares = [right / score.total.asked for right in between.right]
    chosen = shares[ALPHAS.index(between.alpha)]
    return Ends(shares[0], shares[-1], chosen, max(shares), between.alpha)


def ends_by_arm(item: Measured) -> dict[str, list[Ends]]:
    return {arm: [ends_of(rows[-1]) for rows in seeds] for arm, seeds in rows_by_arm(item).items()}


def ends_told(ends: Sequence[Ends]) -> dict[str, Any]:
    kinds = ("shared", "own", "chosen", "best")
    told = {kind: mean_and_spread([getattr(one, kind) for one in ends]) for kind in kinds}
    return told | {"alphas": [one.alpha for one in ends]}


def alpha_table(found: Sequence[Measured]) -> tuple[Table, Any]:
    """Both ends, what was chosen and what would have been best, by language and for their mean."""
    kinds = ("shared", "own", "chosen", "best", "minus better end")
    columns = [Column("begun", "text"), Column("language", "text"), *map(Column, kinds)]
    columns.append(Column("alpha, by seed"))
    notes = (
        "shared: alpha 0; own: 1; chosen: by the client's texts kept aside; best: on the test "
        "texts themselves, which nobody knows beforehand; of 21 alphas",
        "minus better end: chosen minus the better of shared and own on the test texts with each "
        "seed, which may be another one in each language; ±: standard deviation over seeds",
        f"{COMMON}: minus the better of the two means, all languages at the same end",
    )
    told = {item.cell.row: _of_cell(item) for item in found}
    rows = [_line(row, one) for row, part in told.items() for one in part["languages"]]
    table = Table(columns, rows, "between shared and own", list(notes), SUMMARY)
    return table, {"begun": told, "alphas": list(ALPHAS)}


def _of_cell(item: Measured) -> dict[str, Any]:
    """Languages and their mean, and each language's right answers by alpha with the first seed."""
    by_name = ends_by_arm(item)
    by_seed = list(zip(*by_name.values(), strict=True))
    means = [
        Ends(*(sum(column) / len(ends) for column in zip(*map(astuple, ends), strict=True)))
        for ends in by_seed
    ]
    leads = [sum(one.lead for one in ends) / len(ends) for ends in by_seed]
    named = [(name, ends, [one.lead for one in ends]) for name, ends in by_name.items()]
    named += [("mean", means, leads), (COMMON, means, [one.lead for one in means])]
    languages = [
        {"language": name, **ends_told(ends), "chosen_minus_better_end": mean_and_spread(lead)}
        for name, ends, lead in named
    ]
    curves = {
        row.arm: list(row.between.right)
        for result in item.results[:1]
        for row in result.rows
        if row.between is not None
    }
    return {"languages": languages, "curves": curves}


def _line(row: str, one: dict[str, Any]) -> list[str]:
    kinds = ("shared", "own", "chosen", "best", "chosen_minus_better_end")
    figures = [points(one[kind], "+" if "minus" in kind else "") for kind in kinds]
    alphas = ", ".join(f"{alpha:.2f}" for alpha in one["alphas"])
    return [row, one["language"], *figures, alphas]
