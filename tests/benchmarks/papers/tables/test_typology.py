import csv
import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from benchmarks.papers.tables.languages import (
    TABLE,
    TypologyError,
    distance,
    minus_log_cosine,
    read_table,
)
from smidgen.simulation.datasets.hub import LAYOUTS
from smidgen.simulation.datasets.known import language_folders
from tests.conftest import shared

with TABLE.open(encoding="utf-8", newline="") as file:
    (_, _, _, *LANGUAGES), (_, _, _, *SHORT), *ANSWERS = csv.reader(file)
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

CODES = st.sampled_from(sorted(LANGUAGES))
MIXTURES = st.dictionaries(CODES, st.floats(0.01, 100), min_size=1, max_size=5)
POSITIVE = arrays(np.float64, 6, elements=st.floats(0.1, 9))


@given(POSITIVE, st.floats(0.01, 100))
def test_the_same_direction_is_at_distance_zero(vector: np.ndarray, scale: float) -> None:
    assert minus_log_cosine(vector, scale * vector) == pytest.approx(0, abs=1e-12)


@given(POSITIVE, POSITIVE)
def test_another_direction_is_farther_than_zero(a: np.ndarray, b: np.ndarray) -> None:
    apart = float(np.abs(a / np.linalg.norm(a) - b / np.linalg.norm(b)).max())
    assume(apart > 1e-3)
    assert 0 < minus_log_cosine(a, b) == pytest.approx(minus_log_cosine(b, a))


def test_what_shares_nothing_is_infinitely_far() -> None:
    assert minus_log_cosine(np.array([1.0, 0.0]), np.array([0.0, 2.0])) == math.inf


@given(CODES)
def test_a_base_of_the_language_alone_is_no_distance_away(language: str) -> None:
    assert distance(language, {language: 3.0}) == pytest.approx(0, abs=1e-12)


@given(CODES, MIXTURES, st.floats(0.01, 100))
def test_only_the_ratios_of_the_weights_matter(
    language: str, mixture: dict[str, float], scale: float
) -> None:
    scaled = {name: scale * weight for name, weight in mixture.items()}
    assert distance(language, scaled) == pytest.approx(distance(language, mixture), abs=1e-9)


@given(CODES, MIXTURES, st.floats(0, 1), st.floats(0, 1))
def test_the_more_of_the_language_is_in_the_mixture_the_nearer(
    language: str, mixture: dict[str, float], a: float, b: float
) -> None:
    total = sum(mixture.values())

    def mixed(share: float) -> float:
        weights = {name: (1 - share) * weight / total for name, weight in mixture.items()}
        return distance(language, weights | {language: weights.get(language, 0) + share})

    assert mixed(max(a, b)) <= mixed(min(a, b)) + 1e-9


@given(CODES, CODES)
def test_a_distance_between_two_languages_is_symmetric(a: str, b: str) -> None:
    assert distance(a, {b: 1}) == pytest.approx(distance(b, {a: 1}))


def test_relatives_are_nearer_than_strangers() -> None:
    for near, far in (("spa", "zho"), ("urd", "eng"), ("sna", "deu"), ("tir", "vie")):
        kin = {"spa": "por", "urd": "hin", "sna": "swa", "tir": "amh"}[near]
        assert distance(near, {kin: 1}) < distance(near, {far: 1})


def test_bantu_languages_are_far_from_what_xlm_r_was_pretrained_on() -> None:
    far = [distance(language, CC_100) for language in ("lin", "lug", "run", "sna", "swa")]
    near = [distance(language, CC_100) for language in ("eng", "deu", "rus", "spa")]
    assert min(far) > 2 * max(near)


def test_two_letter_codes_are_the_same_languages() -> None:
    assert distance("sw", {"en": 2, "fra": 1}) == distance("swa", {"eng": 2, "fr": 1})
    assert len(set(SHORT)) == len(set(LANGUAGES)) == 29


NO_MIXTURES = [
    *({}, {"eng": 0.0}, {"eng": 2.0, "fra": -1.0}, {"eng": math.inf}, {"eng": math.nan}),
    *({"eng": math.nan, "fra": 1.0}, {"fra": 1.0, "eng": math.nan}),
]


@pytest.mark.parametrize("mixture", NO_MIXTURES)
def test_a_mixture_without_weight_is_refused(mixture: dict[str, float]) -> None:
    with pytest.raises(TypologyError, match="needs finite weights, none negative and one positive"):
        distance("eng", mixture)


@pytest.mark.parametrize("element", [math.nan, math.inf, -1.0, 0.0])
def test_a_vector_without_a_direction_is_refused(element: float) -> None:
    with pytest.raises(TypologyError, match="needs finite elements, none negative, one above 0"):
        minus_log_cosine(np.array([0.0, element]), np.array([1.0, 1.0]))


def test_weights_may_be_as_large_as_numbers_are() -> None:
    assert distance("hau", {"eng": 1e308, "fra": 1e308}) == distance("hau", {"eng": 1, "fra": 1})
    huge = np.array([1e300, 1e300])
    assert minus_log_cosine(huge, huge) == pytest.approx(0, abs=1e-12)


def test_an_unknown_language_is_named_with_the_known_ones() -> None:
    with pytest.raises(TypologyError, match="no typological vector for language 'xho'; amh, ara"):
        distance("xho", {"eng": 1})
    with pytest.raises(TypologyError, match="'tlh'"):
        distance("eng", {"tlh": 1})


def test_no_language_answers_a_question_twice() -> None:
    for feature in {answer[1] for answer in ANSWERS}:
        columns = zip(*(answer[3:] for answer in ANSWERS if answer[1] == feature), strict=True)
        assert all(column.count("1") <= 1 for column in columns), feature


def test_every_language_answers_most_questions() -> None:
    features = {answer[1] for answer in ANSWERS}
    assert len(features) == 21
    assert all(read_table()[0][code].sum() >= 0.8 * len(features) for code in LANGUAGES)


def test_the_output_can_say_where_vectors_come_from() -> None:
    _, source = read_table()
    assert "21 features" in source and "WALS chapters 81A" in source and "ISO 15924" in source


def test_every_language_of_our_sets_has_a_vector() -> None:
    news = language_folders(shared("data", "masakhanews"))
    for language in (*news, *LAYOUTS["facebook/xnli"].languages):
        assert distance(language, CC_100) < 1
