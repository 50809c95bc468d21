import tracemalloc
from collections import Counter
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.simulation.population.clients import (
    Client,
    Population,
    PopulationError,
    apportion,
    by_field,
    deal,
    few_shot,
    merged,
    mixed,
    quantity_skewed,
)

EVENNESS = st.sampled_from([1e-300, 1e-6, 0.001, 0.3, 1.0, 10.0, 1e6, 1e300, inf])
LABELS = st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=80)
SEEDS = st.integers(0, 2**63 - 1)
NEWS = [label for label in ("business", "sports", "tech", "world") for _ in range(500)]


def news(
    *,
    clients: int = 100,
    labelled_total: int = 64,
    labelled_clients: int = 32,
    gamma: float = inf,
    alpha: float = 1.0,
    seed: int = 0,
) -> Population:
    return few_shot(
        NEWS,
        clients=clients,
        labelled_total=labelled_total,
        labelled_clients=labelled_clients,
        gamma=gamma,
        alpha=alpha,
        seed=seed,
        tests=200,
    )


def texts_of(population: Population) -> list[int]:
    parts = [part for client in population for part in (client.labelled, client.unlabelled)]
    return sorted(np.concatenate(parts).tolist())


def judging(population: Population) -> list[int]:
    return sorted(np.concatenate([client.test for client in population]).tolist())


def counts(client: Client, values: list[str]) -> Counter[str]:
    return Counter(values[index] for index in (*client.labelled, *client.unlabelled))


@given(LABELS, st.data(), EVENNESS, EVENNESS, SEEDS)
def test_few_shot_deals_every_text_once_and_labels_exactly_n(
    labels: list[str], data: st.DataObject, gamma: float, alpha: float, seed: int
) -> None:
    clients = data.draw(st.integers(1, 50))
    n, xi = data.draw(st.integers(1, len(labels))), data.draw(st.integers(1, clients))
    tests = data.draw(st.integers(0, 60))
    size = {"clients": clients, "labelled_total": n, "labelled_clients": xi, "tests": tests}
    population = few_shot(labels, gamma=gamma, alpha=alpha, seed=seed, **size)
    assert texts_of(population) == list(range(len(labels)))
    assert judging(population) == list(range(tests))
    assert sum(len(client.labelled) for client in population[:xi]) == n
    assert not any(len(client.labelled) for client in population[xi:])
    shares = [len(client.unlabelled) for client in population]
    assert max(shares) - min(shares) <= 1


@given(LABELS, st.integers(1, 50), EVENNESS, st.data(), SEEDS)
def test_quantity_skew_deals_every_text_once(
    labels: list[str], clients: int, beta: float, data: st.DataObject, seed: int
) -> None:
    n = data.draw(st.none() | st.integers(1, len(labels)))
    population = quantity_skewed(labels, clients=clients, beta=beta, seed=seed, labelled_total=n)
    assert texts_of(population) == list(range(len(labels)))
    assert sum(len(client.labelled) for client in population) == (n or len(labels))


@given(LABELS, st.integers(1, 20), st.floats(0, 1), SEEDS)
def test_mixtures_deal_every_text_once(
    languages: list[str], clients: int, mixture: float, seed: int
) -> None:
    asked = languages[::2]
    for population in (
        mixed(languages, asked, clients=clients, mixture=mixture, seed=seed),
        by_field(languages, asked, mixture=mixture, seed=seed),
    ):
        assert texts_of(population) == list(range(len(languages)))
        assert judging(population) == list(range(len(asked)))


@given(
    st.lists(st.floats(0, 1e6), min_size=1, max_size=50).filter(lambda weights: sum(weights) > 0),
    st.integers(0, 10_000),
)
def test_a_number_is_shared_out_exactly(weights: list[float], total: int) -> None:
    exact = np.array(weights) / sum(weights) * total
    shares = apportion(np.array(weights), total)
    assert shares.sum() == total
    assert np.all(np.abs(shares - exact) < 1 + 1e-6)


@given(st.integers(1, 30), st.integers(1, 8), st.integers(0, 9))
def test_equal_hands_take_equally_of_equal_piles(hands: int, piles: int, size: int) -> None:
    taken = deal(np.ones((hands, piles)), np.full(hands, size), np.full(piles, hands * size))
    assert np.ptp(taken.sum(axis=0)) <= 1
    assert np.ptp(taken) <= 1


def test_a_short_pile_goes_to_the_hand_that_wants_no_other() -> None:
    weights = np.array([[1.0, 0.0, 0.0], [0.9, 0.1, 0.0]])
    assert deal(weights, np.array([4, 4]), np.array([4, 3, 9])).tolist() == [[4, 0, 0], [0, 3, 1]]


def test_the_labels_are_balanced_where_clients_are_alike() -> None:
    held = Counter(NEWS[index] for client in news(alpha=inf) for index in client.labelled)
    assert held == {"business": 16, "sports": 16, "tech": 16, "world": 16}


def test_an_infinite_gamma_is_even_and_a_tiny_one_concentrates() -> None:
    assert {len(client.labelled) for client in news()[:32]} == {2}
    most = [max(len(c.labelled) for c in news(gamma=0.001, seed=seed)) for seed in range(5)]
    assert min(most) >= 60


def test_alpha_sets_how_like_each_other_clients_are() -> None:
    def top(alpha: float) -> float:
        held = [counts(client, NEWS) for client in news(alpha=alpha, labelled_total=32)]
        return float(np.mean([max(count.values()) / count.total() for count in held]))

    assert top(inf) < 0.32  # 20 texts of 4 labels: 5 or 6 each
    assert 0.6 < top(1.0) < 0.85
    assert top(0.001) > 0.95


def test_a_labelled_client_knows_labels_in_the_mix_of_its_texts() -> None:
    client = news(labelled_clients=1, alpha=0.1)[0]
    known = Counter(NEWS[index] for index in client.labelled)
    held = Counter(NEWS[index] for index in client.unlabelled)
    assert known.most_common(1)[0][0] == held.most_common(1)[0][0]


def test_another_gamma_leaves_the_unlabelled_clients_mixes_as_they_were() -> None:
    even, skewed = news(labelled_total=32), news(labelled_total=32, gamma=0.001)
    moved = [
        (counts(a, NEWS) - counts(b, NEWS)).total()
        for a, b in zip(even[32:], skewed[32:], strict=True)
    ]
    assert sum(moved) < 0.05 * len(NEWS)


def test_equal_seeds_make_equal_clients_and_others_do_not() -> None:
    assert news(seed=3) == news(seed=3) != news(seed=4)
    assert hash(news(seed=3)[0]) == hash(news(seed=3)[0])
    assert news()[0] != "client-0001"


def test_the_deal_of_a_seed_stays_what_it_is() -> None:
    """A change here changes every figure that was ever published with a seed."""
    population = few_shot(
        list("abab" * 5),
        clients=3,
        labelled_total=6,
        labelled_clients=2,
        gamma=10.0,
        alpha=1.0,
        seed=7,
        tests=5,
    )
    assert [client.labelled.tolist() for client in population] == [[10, 13], [0, 12, 14, 16], []]
    assert [client.unlabelled.tolist() for client in population] == [
        [3, 5, 7, 9, 19],
        [2, 4, 6, 8, 18],
        [1, 11, 15, 17],
    ]
    assert [client.test.tolist() for client in population] == [[0, 3], [2, 4], [1]]


def test_indices_are_ascending_read_only_and_the_clients_own() -> None:
    mine = np.array([3, 1, 2])
    client = Client("x", mine, mine[:0], mine[:0])
    mine[0] = 9
    assert client.labelled.tolist() == [1, 2, 3] and client.labelled.dtype == np.int32
    with pytest.raises(ValueError, match="read-only"):
        client.labelled[0] = 5


def test_a_mixture_of_zero_is_one_language_a_client_and_of_one_all_alike() -> None:
    languages = [*("eng",) * 60, *("hau",) * 30, *("swa",) * 90]
    apart = mixed(languages, [], clients=6, mixture=0.0, seed=0)
    assert [counts(client, languages) for client in apart[:3]] == [
        {"eng": 30},
        {"hau": 15},
        {"swa": 45},
    ]
    alike = mixed(languages, languages, clients=6, mixture=1.0, seed=0)
    for client in alike:
        assert counts(client, languages) == {"eng": 10, "hau": 5, "swa": 15}
        assert Counter(languages[i] for i in client.test) == {"eng": 10, "hau": 5, "swa": 15}


def test_half_a_mixture_is_half_ones_own_language_and_half_of_all() -> None:
    languages = ["eng", "hau", "swa", "yor"] * 80
    population = by_field(languages, [], mixture=0.5, seed=0)
    assert [client.name for client in population] == ["eng", "hau", "swa", "yor"]
    for client in population:
        assert counts(client, languages)[client.name] == 50  # (1/2 + 1/2 * 1/4) of 80
        assert len(client.labelled) == 80


def test_fewer_clients_than_languages_own_several_each() -> None:
    languages = ["a", "b", "c", "d", "e"] * 4
    first, second = mixed(languages, [], clients=2, mixture=0.0, seed=0)
    assert set(counts(first, languages)) == {"a", "c", "e"}
    assert set(counts(second, languages)) == {"b", "d"}


def test_quantity_skew_changes_sizes_and_not_labels() -> None:
    population = quantity_skewed(NEWS, clients=10, beta=0.3, seed=0, labelled_total=100, tests=20)
    sizes = [counts(client, NEWS).total() for client in population]
    assert max(sizes) > 4 * np.median(sizes)
    for client in population:
        of_labels = counts(client, NEWS).values()
        assert not of_labels or max(of_labels) - min(of_labels) <= 1
        assert abs(len(client.labelled) - len(client.unlabelled) * 100 / 1900) < 1


@given(st.integers(1, 30), EVENNESS)
def test_merging_keeps_everything_once(clients: int, gamma: float) -> None:
    population = news(clients=clients, labelled_clients=clients, gamma=gamma)
    everything = merged(population)
    assert everything.name == "all"
    assert len(everything.labelled) == 64
    assert texts_of((everything,)) == list(range(len(NEWS)))
    assert everything.test.tolist() == list(range(200))


def test_a_client_costs_less_than_a_kilobyte_beyond_its_indices() -> None:
    news(clients=2, labelled_clients=2)  # whatever is imported late is imported now
    tracemalloc.start()
    population = news(clients=1000)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    indices = 4 * (len(NEWS) + 200)
    assert len(population) == 1000
    assert held - indices < 1000 * 1000


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"clients": 0}, "clients is 0; at least 1"),
        ({"labelled_clients": 101}, "labelled_clients is 101; 1 to 100 .* 100 clients"),
        ({"labelled_clients": 0}, "labelled_clients is 0"),
        ({"labelled_total": 2001}, "labelled_total is 2001; 1 to 2000 .* 2000 training texts"),
        ({"gamma": 0.0}, "gamma is 0; a number above 0"),
        ({"alpha": float("nan")}, "alpha is nan"),
    ],
)
def test_a_deal_that_cannot_be_is_explained(wrong: dict[str, int], said: str) -> None:
    with pytest.raises(PopulationError, match=said):
        news(**wrong)


def test_wrong_mixtures_and_languages_are_named() -> None:
    with pytest.raises(PopulationError, match=r"mixture is 1\.5; 0 .* to 1"):
        by_field(["a"], [], mixture=1.5, seed=0)
    with pytest.raises(PopulationError, match="test texts of 'c', but no training text"):
        mixed(["a", "b"], ["c"], clients=2, mixture=0.5, seed=0)
    with pytest.raises(PopulationError, match="no training texts"):
        by_field([], [], seed=0)
    with pytest.raises(PopulationError, match="tests is -1"):
        quantity_skewed(["a"], clients=1, beta=1.0, seed=0, tests=-1)
