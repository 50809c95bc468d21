from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("fastapi")

from smidgen.edge_client.adapters.spec import PREFIX, TARGETS, AdapterSpec, lora_modules
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.engine.engine import Engine
from smidgen.edge_client.personal.methods import METHODS, UNRANKED, Method
from smidgen.edge_client.wire.tensors import decode_adapter
from smidgen.simulation.experiments.experiment import Experiment, ExperimentError
from smidgen.simulation.experiments.federation.devices import Between
from smidgen.simulation.experiments.personal_settings import GUIDED, Personal
from smidgen.simulation.experiments.record import Result, Row, adapter_of
from smidgen.simulation.experiments.runner import Place, run, run_all
from smidgen.simulation.experiments.stage import stage
from smidgen.simulation.population.deal import Deal
from tests.breadth import first_fast
from tests.simulation.experiments.experiments import small, tagging_in
from tests.simulation.experiments.test_runner import place_in, plain

ALONE = tuple(method for method in METHODS if method not in (*GUIDED, *UNRANKED))
NETS: dict[Method, str] = {
    "fedp2eft": "lora:4@q,k,v,o,up,down+generator",
    "fedl2p": "lora:2@q,k,v,o,up,down+rates",
}
FEW = Personal(rank_budget=2, bank=4, lr=0.02, search_steps=2, epochs=2, batch=2)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return place_in(tmp_path)


def own(base: Base, method: Method, **said: Any) -> Experiment:
    """Two languages, each of which adapts for itself."""
    usual = {
        "rounds": 0,
        "personal": replace(FEW, method=method),
        "deal": Deal(by="language", clients=0),
    }
    return small(base, dataset="masakhanews", cohort=0, **(usual | said))


@pytest.mark.parametrize("method", first_fast(ALONE))
def test_every_client_keeps_the_budget_and_is_judged_by_its_own_texts(
    tiny_base: Base, place: Place, method: Method
) -> None:
    found = run(own(tiny_base, method), place)
    assert [row.arm for row in found.rows] == ["eng", "hau"]
    for row in found.rows:
        assert sum(row.ranks.values()) == 2 * len(row.ranks) == 2 * 12
        assert row.score is not None and list(row.score.by_client) == [row.arm]
        assert row.bytes_up == 0 and row.layer_forwards > 0 and row.failed == 0
    assert set(found.final().by_language) == {"eng", "hau"}


@pytest.mark.slow
@pytest.mark.parametrize("method", first_fast(["adalora", "lora", "bt-lora"]))
def test_one_s_own_of_a_tagger_has_a_head(tiny_base: Base, place: Place, method: Method) -> None:
    rooms = tagging_in(place.out.parent / "rooms")
    asked = replace(own(tiny_base, method, adapter="lora:2+head"), dataset=rooms)
    [found] = run_all([asked], place)
    folder = place.out / stage(asked, place.data).key
    for row in found.rows:
        own_adapter = decode_adapter(adapter_of(folder, row))
        assert any("lora_" not in name for name in own_adapter) and row.failed == 0
        assert row.score is not None and list(row.score.entities_by_client) == [row.arm]


@pytest.mark.few(2)
@pytest.mark.parametrize("method", ALONE)
def test_an_own_adapter_has_the_ranks_that_its_row_tells(
    tiny_base: Base, place: Place, method: Method
) -> None:
    asked = own(tiny_base, method)
    [row, _] = run(asked, place).rows
    folder = place.out / stage(asked, place.data).key
    found = decode_adapter(adapter_of(folder, row))
    every = lora_modules(AdapterSpec(rank=1, targets=TARGETS), tiny_base.shape)
    ranks = {
        f"{one.layer}.{one.target}": len(found[f"{PREFIX}{name}.lora_A.weight"])
        for name, one in every.items()
        if f"{PREFIX}{name}.lora_A.weight" in found
    }
    assert ranks == {name: rank for name, rank in row.ranks.items() if rank}
    assert any(tensor.any() for name, tensor in found.items() if name.endswith("lora_B.weight"))


def test_a_phase_cut_between_clients_ends_as_if_it_had_not_been(
    tiny_base: Base, place: Place, tmp_path: Path
) -> None:
    class Cut(Exception):
        """Ends the process's work as a power cut would."""

    def cut(_closed: object) -> None:
        raise Cut

    asked = own(tiny_base, "bt-lora")
    whole = run(asked, replace(place, out=tmp_path / "whole"))
    with pytest.raises(Cut):
        run(asked, place, cut)
    assert plain(run(asked, place).rows) == plain(whole.rows)


@pytest.mark.parametrize(("method", "held"), [("lora", 0), ("interpolated", 3)])
def test_a_client_with_too_few_labelled_texts_is_named_before_any_round(
    tiny_base: Base, place: Place, method: Method, held: int
) -> None:
    rounds = 2 * (method == "interpolated")
    deal = Deal(by="language", clients=0, labelled=max(1, 2 * held))
    asked = own(tiny_base, method, deal=deal, rounds=rounds, evaluate_every=0)
    said = f"personal.method {method}: .* holds {held} labelled texts; "
    with pytest.raises(ExperimentError, match=said):
        run(asked, place)
    assert not list(place.out.glob("*/rows.jsonl"))


@pytest.mark.slow
def test_a_generator_s_rounds_read_the_unlabelled_texts_too(
    tiny_base: Base, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = list[int]()
    spread = Engine.spread

    def counted(self: Engine, examples: Any) -> Any:
        read.append(len(examples))
        return spread(self, examples)

    monkeypatch.setattr(Engine, "spread", counted)
    deal = Deal(by="language", clients=0, labelled=4)
    asked = own(tiny_base, "fedp2eft", adapter=NETS["fedp2eft"], rounds=1, deal=deal)
    sizes = {len(one.labelled) + len(one.unlabelled) for one in stage(asked, place.data).population}
    held = {len(one.labelled) for one in stage(asked, place.data).population}
    run(asked, place)
    assert sizes <= set(read) and not held & set(read)


@pytest.mark.slow
def test_random_ranks_differ_by_client_and_by_seed(tiny_base: Base, place: Place) -> None:
    def ranks(seed: int) -> list[dict[str, int]]:
        return [dict(row.ranks) for row in run(own(tiny_base, "random", seed=seed), place).rows]

    assert ranks(0)[0] != ranks(0)[1] and ranks(0) != ranks(1)


@pytest.mark.slow
def test_processes_and_their_number_change_nothing(
    tiny_base: Base, place: Place, tmp_path: Path
) -> None:
    asked = [own(tiny_base, method, name=method) for method in ("lora", "random")]
    alone = run_all(asked, place)
    both = run_all(asked, replace(place, out=tmp_path / "other"), jobs=2)

    def rows(results: list[Any]) -> list[list[Row]]:
        return [plain(result.rows) for result in results]

    assert rows(alone) == rows(both)


@pytest.mark.slow
def test_one_generator_serves_every_budget_and_is_trained_once(
    tiny_base: Base, place: Place
) -> None:
    by_generator = {"adapter": "lora:4@q,k,v,o,up,down+generator", "rounds": 2}
    asked = [
        own(
            tiny_base,
            "fedp2eft",
            personal=replace(FEW, method="fedp2eft", rank_budget=budget),
            **by_generator,
        )
        for budget in (1, 3)
    ]
    few, many = run_all(asked, place)
    for found, budget in ((few, 1), (many, 3)):
        assert [row.arm for row in found.rows] == ["eng", "hau"]
        assert all(sum(row.ranks.values()) == budget * 12 for row in found.rows)
    for row, other in zip(few.rows, many.rows, strict=True):
        assert all(row.ranks[name] <= other.ranks[name] for name in row.ranks)
    assert len(list(place.out.glob("*/rows.jsonl"))) == 3
    assert few.total("bytes_up") > 0


def test_rounds_are_run_once_for_all_that_go_on_from_them(tiny_base: Base, place: Place) -> None:
    asked = [
        own(tiny_base, "tuned", rounds=2, personal=replace(FEW, method="tuned", epochs=epochs))
        for epochs in (1, 2)
    ]
    short, long = run_all(asked, place)
    assert short.rows != long.rows and len({one.experiment.name for one in short.parts}) == 1
    assert len(list(place.out.glob("*/rows.jsonl"))) == 3
    assert plain(short.parts[0].rows) == plain(long.parts[0].rows)
    assert short.total("bytes_up") == short.parts[0].total("bytes_up") > 0
    assert {row.round_index for row in short.rows} == {3}


@pytest.mark.slow
def test_one_s_own_may_begin_before_the_rounds_are_over(tiny_base: Base, place: Place) -> None:
    late = replace(FEW, method="interpolated")
    found = {
        start: run(
            own(tiny_base, "interpolated", rounds=2, personal=replace(late, start=start)), place
        )
        for start in (None, 0, 1, 2)
    }
    told = {
        start: [(row.adapter_sha256, row.between.right) for row in result.rows if row.between]
        for start, result in found.items()
    }
    assert told[2] == told[None]
    assert told[0] != told[1] != told[None] != told[0]
    for start in (0, 1):
        ends = [(one.right[0], other.right[0]) for one, other in _pairs(found[start], found[None])]
        assert len(ends) == 2 and all(mine == theirs for mine, theirs in ends)  # the shared one
        assert [part.experiment.rounds for part in found[start].parts] == [2, start]


def _pairs(one: Result, other: Result) -> list[tuple[Between, Between]]:
    both = zip(one.rows, other.rows, strict=True)
    return [(a.between, b.between) for a, b in both if a.between and b.between]


@pytest.mark.few(1)
@pytest.mark.parametrize("above", ["", "lora:3"])
def test_a_head_of_one_s_own_leaves_what_lies_below_as_it_is(
    tiny_base: Base, place: Place, above: str
) -> None:
    alone = replace(FEW, method="head", above=above)
    found = run(own(tiny_base, "head", personal=alone, rounds=2 * bool(above)), place)
    folder = place.out / stage(found.experiment, place.data).key
    eng, hau = (decode_adapter(adapter_of(folder, row)) for row in found.rows)
    heads = [name for name in eng if "lora_" not in name]
    assert heads and all(not np.array_equal(eng[name], hau[name]) for name in heads)
    below = {name: one for name, one in eng.items() if name not in heads}
    assert bool(below) == bool(above)
    assert all(np.array_equal(hau[name], one) for name, one in below.items())
    assert [row.ranks for row in found.rows] == [{}, {}]


@pytest.mark.slow
@pytest.mark.parametrize("method", first_fast(["lora", "bt-lora", "adalora", "fedp2eft", "fedl2p"]))
def test_one_s_own_is_trained_above_the_shared_one_as_it_is_in_turn(
    tiny_base: Base, place: Place, method: Method
) -> None:
    usual = {"rounds": 2, "adapter": NETS.get(method, "lora:1")}
    above = replace(FEW, method=method, above="lora:3")
    found = {
        stages: run(own(tiny_base, method, personal=replace(above, stages=stages), **usual), place)
        for stages in (0, 2)
    }
    for stages, result in found.items():
        rounds = [part.experiment.rounds for part in result.parts]
        assert rounds == [2] * (method in NETS) + [0, 1][:stages] + [2]
        assert [row.arm for row in result.rows] == ["eng", "hau"]
        for row in result.rows:
            assert sum(row.ranks.values()) == 2 * len(row.ranks) == 2 * 12 and row.failed == 0
    assert found[0].rows[0].adapter_sha256 != found[2].rows[0].adapter_sha256
    shared = found[0].parts[-1]
    folder = place.out / stage(shared.experiment, place.data).key
    below = decode_adapter(adapter_of(folder, shared.rows[-1]))
    for result in found.values():
        folder = place.out / stage(result.experiment, place.data).key
        last = result.rows[-1]
        joined = decode_adapter(adapter_of(folder, last))
        for name, tensor in below.items():
            if name.endswith("lora_A.weight"):
                assert np.array_equal(joined[name][: len(tensor)], tensor)


@pytest.mark.slow
def test_who_is_left_out_of_rounds_goes_on_from_the_others(tiny_base: Base, place: Place) -> None:
    alone = replace(FEW, method="tuned", groups=2)
    two = {"languages": ("eng", "hau"), "rounds": 1, "evaluate_every": 0}
    found = run(own(tiny_base, "tuned", personal=alone, **two), place)
    assert sorted(part.experiment.languages for part in found.parts) == [("eng",), ("hau",)]
    assert [row.arm for row in found.rows] == ["eng", "hau"]


@pytest.mark.slow
def test_processes_wait_for_the_rounds_that_they_go_on_from(
    tiny_base: Base, place: Place, tmp_path: Path
) -> None:
    asked = [
        own(tiny_base, "tuned", rounds=1, personal=replace(FEW, method="tuned", epochs=epochs))
        for epochs in (1, 2)
    ]
    alone = run_all(asked, place)
    both = run_all(asked, replace(place, out=tmp_path / "other"), jobs=2)
    assert [plain(one.rows) for one in alone] == [plain(one.rows) for one in both]
