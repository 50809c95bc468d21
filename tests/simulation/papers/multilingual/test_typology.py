import math
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from simulation.datasets.hub_layouts import LAYOUTS
from simulation.datasets.known import language_folders
from simulation.papers.multilingual.typology import (
    CC_100,
    TypologyError,
    Vectors,
    distance,
    minus_log_cosine,
    table_vectors,
    uriel_vectors,
)
from simulation.papers.multilingual.typology_table import FEATURES, LANGUAGES, SHORT
from tests.conftest import shared

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
    assert set(SHORT.values()) == set(LANGUAGES)


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
    for feature in FEATURES:
        codes = [code for answer in feature.values.values() for code in answer.split()]
        assert len(codes) == len(set(codes)) and set(codes) <= set(LANGUAGES), feature.name


def test_every_language_answers_most_questions() -> None:
    assert table_vectors().matrix.sum(1).min() >= 0.8 * len(FEATURES)


def test_the_output_can_say_where_vectors_come_from() -> None:
    source = table_vectors().source
    assert "21 features" in source and "WALS chapters 81A" in source and "ISO 15924" in source


def test_every_language_of_our_sets_has_a_vector() -> None:
    news = language_folders(shared("data", "masakhanews"))
    for language in (*news, *LAYOUTS["facebook/xnli"].languages):
        assert distance(language, CC_100) < 1


def test_uriel_is_read_where_its_package_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "lang2vec"
    (folder / "data").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise ImportError('nobody imports this')\n")
    values = np.array([[1, 0, 1], [1, 1, 0]], np.float32)[:, :, None]
    path = folder / "data" / "feature_predictions.npz"
    np.savez(path, langs=np.array(["abc", "eng"]), data=values)
    monkeypatch.syspath_prepend(str(tmp_path))
    vectors = uriel_vectors()
    assert distance("abc", {"en": 1}, vectors) == pytest.approx(math.log(2))
    assert "URIEL" in vectors.source and "CC BY-SA" in vectors.source
    path.write_bytes(b"broken")
    with pytest.raises(TypologyError, match=r"feature_predictions\.npz of lang2vec is not as"):
        uriel_vectors()


def test_without_the_package_its_name_is_said() -> None:
    if find_spec("lang2vec"):
        pytest.skip("lang2vec is installed")
    with pytest.raises(TypologyError, match="pip install lang2vec"):
        uriel_vectors()


def ranks(values: list[float]) -> np.ndarray:
    return np.argsort(np.argsort(values))


def test_the_table_ranks_languages_much_as_uriel_does() -> None:
    if not find_spec("lang2vec"):
        pytest.skip("lang2vec, which carries URIEL, is not installed (pip install lang2vec)")
    own, uriel = table_vectors(), uriel_vectors()

    def agreement(pairs: list[tuple[str, dict[str, float]]]) -> float:
        both: list[Vectors] = [own, uriel]
        ours, theirs = ([distance(a, mixture, v) for a, mixture in pairs] for v in both)
        return float(np.corrcoef(ranks(ours), ranks(theirs))[0, 1])

    assert agreement([(language, CC_100) for language in LANGUAGES]) > 0.85
    assert agreement([(a, {b: 1.0}) for a, b in combinations(LANGUAGES, 2)]) > 0.7
