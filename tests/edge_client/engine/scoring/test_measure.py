"""What adapters of each kind of task are compared by, and tags written from entities."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.engine.scoring import badness, measured
from smidgen.edge_client.tasks.counts import counted, spans, tags_of, type_scores
from smidgen.edge_client.tasks.kind import kind_of
from smidgen.edge_client.tasks.scores import Evaluation
from smidgen.edge_client.tasks.task import Task

LABELS = Task("t", ("a", "b"), ("[MASK] {text}",), {"a": "good", "b": "bad"})
TAGGING, MASKED = Task("t", ("Drug",), kind="tagging"), Task("t", kind="mlm")
ANY = ("O", "B-Drug", "I-Drug", "B-Gene", "I-Gene")
TAGS = st.lists(st.sampled_from(ANY))


def told(gold: tuple[str, ...], read: tuple[str, ...]) -> Evaluation:
    return Evaluation(len(gold), 0.5, 1.0, entities=counted(("Drug",), [(gold, read)]))


def test_each_kind_has_a_figure_of_its_own() -> None:
    right, missed = told(("B-Drug", "O"), ("B-Drug", "O")), told(("B-Drug", "O"), ("O", "O"))
    assert measured(LABELS, right) == 0.5
    assert (measured(TAGGING, right), measured(TAGGING, missed)) == (1.0, 0.0)
    assert measured(MASKED, right) == pytest.approx(math.e)
    assert measured(TAGGING, told(("O",), ("O",))) == 1.0
    assert math.isfinite(measured(MASKED, Evaluation(1, 0.0, 1e9)))


def test_less_perplexity_is_better_and_more_of_all_else() -> None:
    words = kind_of(MASKED).measure
    assert words.is_better(2.0, 3.0) and not words.is_better(2.0, 2.0)
    assert all(kind_of(one).measure.is_better(0.9, 0.8) for one in (TAGGING, LABELS))
    low, high = Evaluation(9, 0.1, 1.0), Evaluation(9, 0.9, 2.0)
    assert badness(MASKED, low) < badness(MASKED, high)
    assert badness(LABELS, high) < badness(LABELS, low)
    assert words.in_words(12.345) == "12.35" and kind_of(TAGGING).measure.in_words(0.5) == "50.0 %"


@given(TAGS)
def test_tags_written_from_entities_tell_the_same_entities(tags: list[str]) -> None:
    written = tags_of(spans(tags), len(tags))
    assert spans(written) == spans(tags) and len(written) == len(tags)
    assert tags_of(spans(written), len(tags)) == written


@given(st.lists(st.tuples(st.sampled_from(ANY), st.sampled_from(ANY)), max_size=9))
def test_figures_by_type_are_those_of_all_their_entities(words: list[tuple[str, str]]) -> None:
    gold, read = [one for one, _ in words], [one for _, one in words]
    found = counted(("Drug", "Gene"), [(gold, read)])
    types = type_scores(("Drug", "Gene"), found)
    for one, right, told_ in zip(types, found.strict, found.found, strict=True):
        assert one.precision == (right / told_ if told_ else None)
        assert one.recall == (right / one.count if one.count else None)
        assert (one.f1 is None) == (not one.count and not told_)
