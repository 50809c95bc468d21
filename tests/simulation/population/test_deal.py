import math
from typing import Any

import pytest

from smidgen.edge_client.texts.examples import Example
from smidgen.simulation.population.clients import PopulationError
from smidgen.simulation.population.deal import Deal, population_of


def test_every_deal_is_dealt_as_it_says() -> None:
    texts = [
        Example(f"{i}", label="ab"[i % 2], language=("eng", "hau")[i // 30]) for i in range(60)
    ]
    few = population_of(Deal(clients=6, labelled=8, labelled_clients=2), texts, texts, seed=0)
    assert [len(client.labelled) for client in few] == [4, 4, 0, 0, 0, 0]
    assert [len(client.test) for client in few] == [10] * 6
    silos = population_of(Deal(by="language", clients=0), texts, texts, seed=0)
    assert [client.name for client in silos] == ["eng", "hau"]
    assert silos[1].test.tolist() == list(range(30, 60))
    mixed = population_of(Deal(by="language", clients=3, mixture=1.0), texts, [], seed=0)
    assert [len(client.labelled) for client in mixed] == [20] * 3
    skewed = population_of(Deal(clients=5, beta=0.1), texts, [], seed=0)
    assert max(len(client.labelled) for client in skewed) > 30
    by_label = population_of(
        Deal(by="language", clients=0), texts, [], 0, ([str(text.label) for text in texts], [])
    )
    assert [client.name for client in by_label] == ["a", "b"]


def test_even_is_the_default() -> None:
    assert math.isinf(Deal().gamma) and math.isinf(Deal().alpha)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"clients": 0}, "deal.clients: 1 to 1000000"),
        ({"clients": -1, "by": "language"}, "deal.clients: 0 to 1000000"),
        ({"labelled": -1}, "deal.labelled: 0 .all. or more"),
        ({"clients": 3, "labelled_clients": 4}, "deal.labelled_clients: 0 .all. to the 3 clients"),
        ({"gamma": 0}, "deal.gamma is 0; above 0, or inf"),
        ({"alpha": math.nan}, "deal.alpha is nan; above 0, or inf"),
        ({"mixture": 1.5}, "deal.mixture: 0 to 1"),
        ({"beta": 1.0, "alpha": 1.0}, "deal.beta: not together with gamma or alpha"),
        ({"by": "language", "gamma": 0.1}, "deal.by = language: deal.gamma means nothing there"),
        ({"by": "language", "labelled_clients": 2}, "deal.labelled_clients means nothing there"),
        ({"beta": 1.0, "labelled_clients": 2}, "deal.beta: deal.labelled_clients means nothing"),
        ({"mixture": 0.5}, "a deal without `by`: deal.mixture means nothing there"),
    ],
)
def test_what_cannot_be_dealt_is_named(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(PopulationError, match=said):
        Deal(**fields)
