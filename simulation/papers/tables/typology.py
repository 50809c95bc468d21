"""How far a language is from what a base was pretrained on: -log cos(v, V_p).

Multilingual Federated Prompt Tuning (arXiv:2507.03003): v is a language's vector of typological
features, V_p that of the pretraining mixture, which is the mean of its languages' vectors weighted
by their share.

    distance("hau", {"eng": 3.0, "fra": 1.0})

`data/typology.csv` has what textbooks say of 29 languages: 21 features, most of them chapters of
WALS. Facts, written down by hand for this project, after the questions that the World Atlas of
Language Structures asks (Dryer & Haspelmath 2013; the number is the chapter) and ISO 15924 for
scripts. A language that no value of a feature has is one for which we know no plain answer, never
guessed. Codes are ISO 639-3; the two-letter ones are those that data sets use.
"""

import csv
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np

from edge_client.errors import WrongInput

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
    scaled: np.ndarray = vector / largest
    return scaled
