import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.engine.trainer import epoch_batches, in_turn, offsets_of
from smidgen.edge_client.tasks.counts import Confusion, Mistake
from smidgen.edge_client.texts.tokens import Prompt


@given(st.lists(st.integers(1, 500), max_size=200), st.integers(1, 33), st.integers(0, 2**63 - 1))
def test_an_epoch_sees_every_text_once(lengths: list[int], batch: int, seed: int) -> None:
    generator = np.random.Generator(np.random.PCG64(seed))
    batches = epoch_batches(lengths, batch, generator)
    assert sorted(row for rows in batches for row in rows) == list(range(len(lengths)))
    assert all(1 <= len(rows) <= batch for rows in batches)


def test_batches_hold_texts_of_similar_length() -> None:
    lengths = [10, 500] * 32
    batches = epoch_batches(lengths, 8, np.random.Generator(np.random.PCG64(0)))
    padded = sum(max(lengths[row] for row in rows) * len(rows) for rows in batches)
    assert padded == pytest.approx(sum(lengths), rel=0.01)


@given(st.integers(1, 9), st.integers(1, 5), st.integers(0, 99))
def test_in_as_many_epochs_as_patterns_each_asks_every_text_once(
    texts: int, patterns: int, first: int
) -> None:
    asked = [
        [Prompt([text], [pattern], [0]) for text in range(texts)] for pattern in range(patterns)
    ]
    epochs = [in_turn(asked, epoch) for epoch in range(first, first + patterns)]
    for text, prompts in enumerate(zip(*epochs, strict=True)):
        assert all(prompt.ids == [text] for prompt in prompts)
        assert sorted(prompt.mask_position for prompt in prompts) == list(range(patterns))
    assert in_turn(asked, 3)[0].mask_position == 3 % patterns


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40))
def test_an_adjusted_loss_adds_the_logarithm_of_each_labels_share(labels: list[int]) -> None:
    found = offsets_of(labels, None, 4)
    assert np.exp(found.astype(np.float64)).sum() == pytest.approx(1.0, rel=1e-6)
    counts = np.bincount(labels, minlength=4)
    assert (np.argsort(found, kind="stable") == np.argsort(counts, kind="stable")).all()
    same = offsets_of(labels, [1.0] * len(labels), 4)
    assert found.tobytes() == same.tobytes()


def test_equal_counts_change_no_loss() -> None:
    assert set(offsets_of([0, 1, 2, 3], None, 4).tolist()) == {np.float32(np.log(0.25)).item()}
    halves = offsets_of([0, 0, 1], [0.5, 0.5, 1.0], 2)
    assert halves[0] == halves[1]


# The figures per label: their laws, and scikit-learn's where it is installed

NAMES = ("a", "b", "c", "d")
INDEX = st.integers(0, len(NAMES) - 1)
PAIRS = st.lists(st.tuples(INDEX, INDEX))


def table(pairs: list[tuple[int, int]]) -> Confusion:
    return Confusion.of(NAMES, [gold for gold, _ in pairs], [read for _, read in pairs])


@given(PAIRS)
def test_every_text_is_counted_once(pairs: list[tuple[int, int]]) -> None:
    found = table(pairs)
    assert found.total == len(pairs) == sum(score.count for score in found.scores())
    wrong = sum(mistake.count for mistake in found.mistakes())
    right = sum(gold == read for gold, read in pairs)
    assert wrong + right == len(pairs)
    assert found.accuracy == (right / len(pairs) if pairs else None)


@given(PAIRS, st.permutations(range(len(NAMES))))
def test_another_order_of_the_labels_gives_the_same_figures(
    pairs: list[tuple[int, int]], order: list[int]
) -> None:
    place = {label: index for index, label in enumerate(order)}
    names = [NAMES[label] for label in order]
    moved = Confusion.of(names, [place[g] for g, _ in pairs], [place[r] for _, r in pairs])
    found = table(pairs)
    assert {s.label: s for s in moved.scores()} == {s.label: s for s in found.scores()}
    assert moved.accuracy == found.accuracy
    for name, mean in moved.macro().items():
        assert mean == pytest.approx(found.macro()[name])


@given(PAIRS)
def test_precision_and_recall_change_places_with_label_and_reading(
    pairs: list[tuple[int, int]],
) -> None:
    turned = table([(read, gold) for gold, read in pairs])
    for one, other in zip(table(pairs).scores(), turned.scores(), strict=True):
        assert (one.precision, one.recall, one.f1) == (other.recall, other.precision, other.f1)


@given(PAIRS)
def test_f1_is_the_harmonic_mean_where_both_are_known(pairs: list[tuple[int, int]]) -> None:
    for score in table(pairs).scores():
        if score.precision is None or score.recall is None:
            assert not score.f1
        elif score.precision + score.recall == 0:
            assert score.f1 == 0
        else:
            both = score.precision * score.recall / (score.precision + score.recall)
            assert score.f1 == pytest.approx(2 * both)


def test_the_largest_confusions_come_first_and_no_right_answer() -> None:
    found = table([(0, 0), (0, 1), (2, 0), (2, 0), (3, 1)])
    assert found.mistakes() == [Mistake("c", "a", 2), Mistake("a", "b", 1), Mistake("d", "b", 1)]


def test_what_is_a_share_of_nothing_is_not_known() -> None:
    empty = table([])
    assert empty.accuracy is None and set(empty.macro().values()) == {None}
    never_read = table([(0, 1), (0, 1)]).scores()
    assert (never_read[0].precision, never_read[0].recall, never_read[0].f1) == (None, 0.0, 0.0)
    assert (never_read[1].precision, never_read[1].recall, never_read[1].f1) == (0.0, None, 0.0)


@given(PAIRS.filter(bool))
def test_figures_are_scikit_learns(pairs: list[tuple[int, int]]) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    gold, read = zip(*pairs, strict=True)
    theirs = metrics.confusion_matrix(gold, read, labels=range(len(NAMES)))
    found = table(pairs)
    np.testing.assert_array_equal(found.counts, theirs)
    present = sorted(set(gold))
    mine = [found.macro()[name] for name in ("precision", "recall", "f1")]
    means = metrics.precision_recall_fscore_support(
        gold, read, labels=present, average="macro", zero_division=0
    )
    np.testing.assert_allclose(np.array(mine, float), means[:3])
