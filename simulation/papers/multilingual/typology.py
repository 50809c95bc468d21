"""How far a language is from what a base was pretrained on: -log cos(v, V_p).

Multilingual Federated Prompt Tuning (arXiv:2507.03003): v is a language's vector of typological
features, V_p that of the pretraining mixture, which is the mean of its languages' vectors weighted
by their share. The vectors are our own table's; those of URIEL (Littell et al. 2017) are taken
instead where the package lang2vec, which carries them, is installed and they are asked for.

    distance("hau", {"eng": 3.0, "fra": 1.0})
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from edge_client.errors import WrongInput
from simulation.papers.multilingual.typology_table import FEATURES, LANGUAGES, SHORT

# GiB of text in CC-100, which XLM-R was pretrained on (Conneau et al. 2020, arXiv:1911.02116,
# table 6), of those of its 100 languages that have vectors here: 1,321 of 2,394 GiB.
CC_100 = {
    "amh": 0.8,
    "ara": 28.0,
    "bul": 57.5,
    "deu": 66.6,
    "ell": 46.9,
    "eng": 300.8,
    "fra": 56.8,
    "hau": 0.3,
    "heb": 31.6,
    "hin": 20.2,
    "ita": 30.2,
    "orm": 0.1,
    "por": 49.1,
    "rus": 278.0,
    "som": 0.4,
    "spa": 53.3,
    "swa": 1.6,
    "tha": 71.7,
    "tur": 20.9,
    "urd": 5.7,
    "vie": 137.3,
    "zho": 63.5,
}


class TypologyError(WrongInput):
    """A language without a vector, a mixture that is none, or a vector without a direction."""


@dataclass(frozen=True)
class Vectors:
    """Typological vectors of languages, and where they come from.

    Attributes:
        source: One line for people: whose, how many features, licence.
        languages: Codes, ISO 639-3.
        matrix: One row per language, none negative, shape (languages, features).
    """

    source: str
    languages: tuple[str, ...]
    matrix: np.ndarray

    def of(self, language: str) -> np.ndarray:
        """A language's vector, shape (features,).

        Args:
            language: ISO 639-3, or the two-letter code of one in the table.

        Raises:
            TypologyError: There is none for it.
        """
        code = SHORT.get(language, language)
        if code not in self.languages:
            known = ", ".join(self.languages[:40])
            raise TypologyError(f"no typological vector for language {language!r}; {known}")
        row: np.ndarray = self.matrix[self.languages.index(code)]
        return row


def distance(
    language: str, pretraining: Mapping[str, float], vectors: Vectors | None = None
) -> float:
    """-log cos between a language's vector and the mixture's mean vector.

    Zero if and only if they have the same direction, never negative, infinite where they share
    nothing; only the ratios of the weights matter. The more of the mixture the language itself
    is, the smaller.

    Args:
        language: ISO 639-3, or the two-letter code of one in the table.
        pretraining: Language -> its share, none negative.
        vectors: The languages' vectors; None takes our own table's.

    Raises:
        TypologyError: A language has no vector, or no weight is positive, or one is not a number.
    """
    vectors = vectors or table_vectors()
    shares = pretraining.values()
    if not all(math.isfinite(share) and share >= 0 for share in shares) or not any(shares):
        raise TypologyError(
            "a pretraining mixture needs finite weights, none negative and one positive"
        )
    most = max(shares)
    mixture = sum(share / most * vectors.of(name) for name, share in pretraining.items())
    return minus_log_cosine(vectors.of(language), np.asarray(mixture))


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


@cache
def table_vectors() -> Vectors:
    """Vectors of our own table: one element per feature and value, 1 where the language has it."""
    answers = [(feature, value) for feature in FEATURES for value in feature.values]
    matrix = np.array(
        [
            [float(language in feature.values[value].split()) for feature, value in answers]
            for language in LANGUAGES
        ]
    )
    chapters = " ".join(f.source.removeprefix("WALS ") for f in FEATURES if "WALS" in f.source)
    source = f"own table, {len(FEATURES)} features: WALS chapters {chapters}; ISO 15924 scripts"
    return Vectors(source, tuple(LANGUAGES), matrix)


def uriel_vectors() -> Vectors:
    """URIEL's syntax, phonology and inventory features, gaps filled by URIEL's own prediction.

    Read from the installed package lang2vec without importing it: its code wants a setuptools of
    old. Its data are under CC BY-SA 4.0 and stay where they are.

    Raises:
        TypologyError: lang2vec is not installed, or is not what it was.
    """
    spec = find_spec("lang2vec")
    folder = Path(next(iter(spec.submodule_search_locations or ()), "")) if spec else None
    path = folder / "data" / "feature_predictions.npz" if folder else None
    if path is None or not path.is_file():
        raise TypologyError(
            "URIEL's vectors need the package lang2vec (10 MB, CC BY-SA 4.0): pip install lang2vec"
        )
    try:
        with np.load(path, allow_pickle=False) as data:
            languages, values = [str(code) for code in data["langs"]], data["data"][:, :, 0]
    except (BadZipFile, EOFError, KeyError, ValueError, IndexError, OSError) as error:
        raise TypologyError(f"{path.name} of lang2vec is not as expected: {error}") from error
    try:
        release = version("lang2vec")
    except PackageNotFoundError:
        release = "of unknown version"
    source = (
        f"URIEL by lang2vec {release}, {values.shape[1]} features, gaps predicted, CC BY-SA 4.0"
    )
    return Vectors(source, tuple(languages), np.asarray(values, np.float64))
