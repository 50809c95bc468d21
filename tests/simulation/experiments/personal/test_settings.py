from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.adapters.spec import AdapterError
from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.personal.methods import METHODS
from smidgen.edge_client.tasks.ready_tasks import NEWS
from smidgen.simulation.experiments.experiment import Experiment, ExperimentError
from smidgen.simulation.experiments.personal_settings import GUIDED, Personal, left_out
from smidgen.simulation.experiments.personalization import part_of, parts
from smidgen.simulation.population.deal import Deal

SILOS = Experiment(
    "silos",
    "masakhanews",
    languages=("eng", "hau", "orm", "tir", "yor"),
    deal=Deal(by="language", clients=0),
    adapter="lora:2",
    rounds=0,
)
LANGUAGES = st.sets(st.text("abc", min_size=1, max_size=4), min_size=2, max_size=20)


@given(LANGUAGES, st.data())
def test_each_language_is_left_out_once_by_groups_alike_in_size(
    languages: set[str], data: st.DataObject
) -> None:
    groups = data.draw(st.integers(2, len(languages)))
    found = left_out(sorted(languages), groups)
    assert sorted(name for group in found for name in group) == sorted(languages)
    assert len(found) == groups and max(map(len, found)) - min(map(len, found)) <= 1


@given(LANGUAGES, st.randoms())
def test_the_order_of_languages_moves_none_of_them(languages: set[str], draw: Any) -> None:
    shuffled = draw.sample(sorted(languages), len(languages))
    assert left_out(shuffled, 2) == left_out(sorted(languages), 2)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"method": "magic"}, "personal.method 'magic' is not one of fedp2eft"),
        ({"rank_budget": 0}, "personal.rank budget 0: 1 to 16, the bank's ranks"),
        ({"rank_budget": 17}, "personal.rank budget 17: 1 to 16"),
        ({"lr": float("nan")}, "personal.lr: "),
        ({"groups": 1}, "personal.groups: 0, or 2 to 1000"),
        ({"start": 1}, "personal.start = 1: 0 or more rounds, with tuned or interpolated"),
        ({"method": "tuned", "above": "lora:2"}, "personal.above: tuned has nothing above it"),
        ({"method": "lora", "stages": 1}, "personal.stages: 0; 1 to 1000 with above"),
        ({"method": "lora", "above": "lura:2"}, "lura:2"),
        ({"method": "tuned", "start": -1}, "personal.start = -1: 0 or more rounds"),
        (
            {"method": "tuned", "start": 1, "groups": 2},
            "personal.start and personal.above: go without groups",
        ),
    ],
)
def test_a_wrong_value_is_named(said: dict[str, Any], reason: str) -> None:
    with pytest.raises(WrongInput, match=reason):
        Personal(**said)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"paradigm": "local"}, "personal: paradigm `federated` of an adapter"),
        ({"adapter": "full"}, "personal: paradigm `federated` of an adapter"),
        ({"rounds": 2}, "personal.method lora: rounds = 2; 0 is expected"),
        ({"personal": Personal(groups=2)}, "personal.groups: a method with rounds"),
        ({"personal": Personal("fedl2p")}, "personal.method fedl2p: rounds = 0"),
        (
            {"personal": Personal("lora", above="lora:2", stages=3), "rounds": 2},
            "personal.above: 2 rounds; 1 or more, and as many as stages, are expected",
        ),
        (
            {"personal": Personal("tuned", start=3), "rounds": 2},
            "personal.start = 3: 0 to 2, the rounds before it, is expected",
        ),
        (
            {"personal": Personal("fedl2p"), "rounds": 2},
            r"adapter lora:2@q,v; lora:2@q,k,v,o,up,down\+rates is expected",
        ),
        (
            {"personal": Personal("tuned"), "adapter": "lora:2+rates", "rounds": 2},
            "only fedl2p goes by that",
        ),
    ],
)
def test_what_a_personal_phase_lacks_is_named(said: dict[str, Any], reason: str) -> None:
    with pytest.raises(ExperimentError, match=reason):
        replace(SILOS, **({"personal": Personal()} | said))


@pytest.mark.parametrize("above", ["prompt:8", "head", "lora:8+head", "lora:8+generator"])
def test_only_lora_lies_below_one_s_own(above: str) -> None:
    with pytest.raises(AdapterError, match="LoRA alone is expected below one's own"):
        Personal("lora", above=above)


def test_a_personal_phase_is_part_of_the_key_and_none_is_not() -> None:
    def key(said: Experiment) -> str:
        return said.key("base", "texts", NEWS, "torch")

    every = [
        replace(SILOS, personal=Personal(method)) for method in METHODS if method not in GUIDED
    ]
    assert len({key(one) for one in (SILOS, *every)}) == len(every) + 1


def test_clients_without_rounds_have_no_part_before_them() -> None:
    local = replace(SILOS, personal=Personal())
    assert parts(local).every == () and part_of(local, "eng") == 0


def test_rounds_before_know_nothing_of_what_comes_after_them() -> None:
    asked = [
        replace(SILOS, rounds=3, name=name, personal=Personal("tuned", epochs=epochs))
        for name, epochs in (("short", 1), ("long", 9))
    ]
    [first], [second] = (parts(one).every for one in asked)
    assert first == second and first.personal is None and first.rounds == 3


def test_a_group_goes_on_from_rounds_without_its_languages() -> None:
    asked = replace(SILOS, rounds=1, personal=Personal("tuned", groups=2))
    before = parts(asked).given
    for language in SILOS.languages:
        assert language not in before[part_of(asked, language)].languages
    assert {name for part in before for name in part.languages} == set(SILOS.languages)
