"""Policy alone: what is read, how sure an answer is, which are trained on, and at what price."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.labelling.pseudo_labels import (
    FEWEST,
    OwnTexts,
    Reading,
    affordable,
    agreed,
    calibrated,
    chosen,
    queue,
    readable,
    temperature_of,
    text_id,
)
from smidgen.edge_client.texts.examples import ClientData, Example

LABELS = ("mail", "power", "weather")
seeds = st.integers(0, 2**32 - 1)
readings_by_id = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=4),
    st.builds(
        Reading,
        st.sampled_from(LABELS),
        st.sampled_from((0.4, 0.6, 0.8, 0.9, 0.95)),
        st.just(1),
        st.sampled_from(("old", "near", "now")),
        st.just(2),
    ),
    max_size=30,
)
thresholds_by_label = st.fixed_dictionaries(
    {label: st.sampled_from((0.5, 0.8, 0.9)) for label in LABELS}
)


def answers(seed: int, texts: int, sharpness: float = 1.0) -> np.ndarray:
    """Log-probabilities of three labels."""
    generator = np.random.Generator(np.random.PCG64(seed))
    logits = sharpness * generator.standard_normal((texts, 3))
    found: np.ndarray = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    return found


# Names


def test_equal_texts_but_for_spaces_have_one_name() -> None:
    name = text_id(Example("the front  door", "opened"))
    assert name == text_id(Example("\tthe front door ", "opened\n", label="mail"))
    assert len(name) == 16
    others = (Example("the front", "door opened"), Example("the front door opened"))
    assert name not in {text_id(other) for other in others}


def test_a_text_that_is_no_unicode_has_a_name() -> None:
    assert len(text_id(Example("\ud800"))) == 16


# Which may get one


def known(example: Example) -> float:
    return 0.0


def test_every_text_comes_once_and_in_order() -> None:
    texts = [Example("b"), Example("a"), Example(" b "), Example("a", "a")]
    assert list(readable(texts, [], known).values()) == [texts[0], texts[1], texts[3]]


def test_gold_and_revoked_texts_are_left_out() -> None:
    texts = [Example("a"), Example("b"), Example("c")]
    data = ClientData((Example("a ", label="mail"),), tuple(texts), ())
    found = OwnTexts(data, known).to_label([text_id(texts[1])])
    assert found == {text_id(texts[2]): texts[2]}


def test_texts_mostly_of_unknown_tokens_are_left_out() -> None:
    texts = [Example("a"), Example("b"), Example("c")]
    shares = dict(zip("abc", (0.5, 0.51, 1.0), strict=True))
    assert list(readable(texts, [], lambda text: shares[text.text]).values()) == texts[:1]


# How sure


@given(seeds, st.integers(0, 12), st.floats(0.1, 10.0))
def test_calibrated_answers_are_probabilities_in_the_same_order(
    seed: int, texts: int, temperature: float
) -> None:
    raw = answers(seed, texts)
    found = calibrated(raw.astype(np.float32), (), temperature)
    assert found.shape == (texts, 3) and found.dtype == np.float64
    np.testing.assert_allclose(found.sum(axis=1), 1.0)
    assert (found.argmax(axis=1) == raw.argmax(axis=1)).all()


@given(seeds)
def test_a_prior_of_the_mean_makes_the_means_equal(seed: int) -> None:
    raw = answers(seed, 40) + np.array([3.0, 0.0, -2.0])
    found = np.log(calibrated(raw, raw.mean(axis=0)))
    np.testing.assert_allclose(found.mean(axis=0), found.mean(), atol=1e-9)


def test_hotter_is_less_sure() -> None:
    sure = [calibrated(answers(0, 5), (), heat).max(axis=1) for heat in (0.5, 1.0, 2.0)]
    assert (sure[0] > sure[1]).all() and (sure[1] > sure[2]).all()


@pytest.mark.few
@pytest.mark.parametrize("heat", [0.3, 1.0, 1.7, 4.0])
@pytest.mark.parametrize("prior", [(), (0.5, -0.2, -0.3)])
def test_a_known_temperature_is_found_again(heat: float, prior: tuple[float, ...]) -> None:
    """Labels are drawn as often as answers at that temperature say: its cross-entropy is least."""
    rare = answers(1, 60)
    shares = np.round(200 * calibrated(rare, prior, heat)).astype(int)
    gold = np.concatenate([np.repeat(np.arange(3), row) for row in shares])
    rows = np.repeat(rare, shares.sum(axis=1), axis=0)
    assert temperature_of(rows, gold, prior) == pytest.approx(heat, rel=0.05)


@given(seeds, st.integers(FEWEST, 30))
def test_no_other_temperature_is_better(seed: int, texts: int) -> None:
    raw = answers(seed, texts, 3.0)
    gold = np.random.Generator(np.random.PCG64(seed + 1)).integers(0, 3, texts)
    gold[:2] = 0, 1

    def loss(heat: float) -> float:
        return -float(np.log(calibrated(raw, (), heat)[np.arange(texts), gold]).mean())

    found = temperature_of(raw, gold)
    assert 0.1 <= found <= 10.0
    assert loss(found) <= min(loss(heat) for heat in np.geomspace(0.1, 10.0, 60)) + 1e-6


def test_too_few_texts_or_one_label_alone_tell_no_temperature() -> None:
    raw = answers(2, 20, 5.0)
    assert temperature_of(raw[: FEWEST - 1], np.arange(FEWEST - 1) % 3) == 1.0
    assert temperature_of(raw, np.ones(20, int)) == 1.0
    assert temperature_of(raw[:FEWEST], np.arange(FEWEST) % 3) != 1.0


# Which are trained on


@given(readings_by_id, thresholds_by_label, st.integers(0, 12), st.floats(0.05, 1.0), st.randoms())
def test_chosen_are_the_surest_in_whatever_order_and_keep_every_bound(  # type: ignore[no-untyped-def]
    readings: dict[str, Reading], thresholds: dict[str, float], limit: int, share: float, random
) -> None:
    found = chosen(readings, thresholds, limit, share)
    mixed = list(readings.items())
    random.shuffle(mixed)
    assert chosen(dict(mixed), thresholds, limit, share) == found
    counts = Counter(one.label for one in found.values())
    assert len(found) <= limit and max(counts.values(), default=0) <= math.ceil(share * limit)
    assert all(one.confidence >= thresholds[one.label] for one in found.values())
    for name, one in readings.items():  # nobody left out is surer than any other of its label
        if name not in found and one.confidence >= thresholds[one.label]:
            same = [held.confidence for held in found.values() if held.label == one.label]
            assert all(one.confidence <= confidence for confidence in same)


@given(readings_by_id, thresholds_by_label, st.integers(0, 12), st.integers(0, 12))
def test_a_smaller_limit_or_a_higher_threshold_gives_a_part(
    readings: dict[str, Reading], thresholds: dict[str, float], limit: int, more: int
) -> None:
    found = chosen(readings, thresholds, limit)
    assert found.items() <= chosen(readings, thresholds, limit + more).items()
    sure = sum(one.confidence >= thresholds[one.label] for one in readings.values())
    assert len(found) == min(limit, sure)
    higher = {label: least + 0.1 for label, least in thresholds.items()}
    every = chosen(readings, thresholds, len(readings))
    assert chosen(readings, higher, len(readings)).items() <= every.items()


def test_a_label_without_a_threshold_is_never_held() -> None:
    assert chosen({"a": Reading("old", 1.0, 1, "now", 2)}, {"mail": 0.5}, 5) == {}


# What is read


@given(readings_by_id, thresholds_by_label, st.integers(0, 20), st.floats(0.05, 1.0))
def test_the_queue_has_unread_texts_first_and_then_what_may_have_changed(
    readings: dict[str, Reading], thresholds: dict[str, float], unread: int, share: float
) -> None:
    order = [*(f"new{number}" for number in range(unread)), *readings]
    order.sort(key=lambda name: name[::-1])

    def stands(reading: Reading) -> bool:
        return reading.adapter_sha256 in ("near", "now")

    whole = queue(order, readings, thresholds, stands, "now")
    new = [name for name in order if name not in readings]
    again = [
        name
        for name in order
        if (one := readings.get(name))
        and (
            one.adapter_sha256 == "old"
            or (one.adapter_sha256 == "near" and one.confidence < thresholds[one.label])
        )
    ]
    assert whole == [*new, *again]
    part = queue(order, readings, thresholds, stands, "now", share)
    assert part == whole[: math.ceil(share * len(order))]
    assert queue(order, readings, thresholds, stands, "now", 1.0, True) == [*again, *new]


def test_what_an_adapter_has_read_it_does_not_read_again_even_if_it_has_moved_from_itself() -> None:
    unsure = Reading("mail", 0.1, 1, "now", 2)
    assert queue(["a"], {"a": unsure}, {"mail": 0.9}, lambda _: False, "now") == []
    other = replace(unsure, adapter_sha256="old")
    assert queue(["a"], {"a": other}, {"mail": 0.9}, lambda _: False, "now") == ["a"]


@given(st.lists(st.tuples(st.sampled_from(LABELS), st.booleans()), min_size=1, max_size=12))
def test_readings_in_a_row_agree_while_they_are_sure_of_one_label(
    told: list[tuple[str, bool]],
) -> None:
    least, known = dict.fromkeys(LABELS, 0.8), dict[str, Reading]()
    for number, (label, is_sure) in enumerate(told):
        new = {"a": Reading(label, 0.9 if is_sure else 0.7, number, "now", 2)}
        known = agreed(new, known, least)
    last = told[-1][0] if told[-1][1] else None
    same = next(
        (count for count, one in enumerate(reversed(told)) if one != (last, True)), len(told)
    )
    assert known["a"].agreeing == same


def test_a_text_that_was_never_read_agrees_with_nothing_before() -> None:
    new = {"a": Reading("mail", 0.9, 1, "now", 2), "b": Reading("old", 1.0, 1, "now", 2)}
    found = agreed(new, {"c": Reading("mail", 0.9, 1, "now", 2, 5)}, {"mail": 0.8})
    assert [found[name].agreeing for name in "ab"] == [1, 0]


# At what price


@given(
    st.floats(0.01, 0.99),
    st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500)), max_size=30),
    st.integers(1, 40),
)
def test_labelling_stays_within_its_share(
    share: float, rounds: list[tuple[int, int]], chunk: int
) -> None:
    """Whoever reads while anything is left goes over by less than a chunk."""
    labelling = training = 0
    for wanted, planned in rounds:
        while wanted > 0 and affordable(share, labelling, training, planned) > 0:
            labelling, wanted = labelling + chunk, wanted - chunk
        training += planned
        assert labelling - chunk <= share * (labelling - chunk + training) + 1e-6


@given(st.floats(0.01, 0.99), st.integers(0, 500), st.integers(0, 500), st.integers(0, 500))
def test_taking_all_that_is_left_takes_the_share(
    share: float, labelling: int, training: int, planned: int
) -> None:
    left = affordable(share, labelling, training, planned)
    assert left >= 0.0
    if left > 0.0:
        spent = labelling + left
        assert spent == pytest.approx(share * (spent + training + planned))


def test_a_share_of_all_is_no_limit() -> None:
    assert affordable(1.0, 10**9, 0, 0) == math.inf
