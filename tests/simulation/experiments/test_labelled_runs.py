from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("fastapi")
pytest.importorskip("matplotlib")

from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.training import Labelling
from smidgen.simulation.experiments.experiment import Experiment, ExperimentError
from smidgen.simulation.experiments.federation.devices import Round, schedule_of
from smidgen.simulation.experiments.federation.run import federate
from smidgen.simulation.experiments.runner import Place, run
from smidgen.simulation.experiments.stage import Stage, stage
from smidgen.simulation.experiments.texts import gated
from smidgen.simulation.experiments.virtual.devices import InProcess
from smidgen.simulation.population.deal import Deal
from tests.simulation.experiments.experiments import staged
from tests.simulation.experiments.test_runner import news, place, plain  # noqa: F401 - a fixture

EASY = Labelling(keep_first=0.5, keep_last=1.0, confidence=0.5, compute_share=1.0)
DEAL = Deal(clients=4, labelled=2, labelled_clients=1)


def labelled(base: Base, **said: Any) -> Experiment:
    """Four clients, one of which has labels."""
    usual = {"deal": DEAL, "labelling": EASY, "gate_texts": 2, "rounds": 3}
    return news(base, **(usual | said))


def test_clients_without_labels_train_on_what_they_found(tiny_base: Base, place: Place) -> None:  # noqa: F811
    result = run(labelled(tiny_base), place)
    steps = [row.labels for row in result.rows if row.labels]
    assert len(steps) == 3 and all(step.looking.gate_forwards for step in steps)
    assert steps[0].looking.texts_read
    assert result.rows[-1].clients == 4 and result.rows[-1].labels == steps[-1]
    assert 0 <= steps[-1].held.right <= steps[-1].held.asked


def test_a_labelled_run_cut_anywhere_ends_as_if_it_had_not_been(
    tiny_base: Base,
    place: Place,  # noqa: F811
    tmp_path: Path,
) -> None:
    class Cut(Exception):
        """Ends the process's work as a power cut would."""

    def stop(closed: Any) -> None:
        raise Cut

    through = run(labelled(tiny_base), place)
    cut = replace(place, out=tmp_path / "cut")
    for _ in range(3):
        with pytest.raises(Cut):
            run(labelled(tiny_base), cut, stop)
    assert plain(run(labelled(tiny_base), cut).rows) == plain(through.rows)
    assert len(list(cut.out.glob("*/*.memory"))) == 1


def rounds_of(on: Stage) -> list[Round]:
    """All rounds of an experiment that labels."""
    devices, seen = InProcess(on), list[Round]()
    names = [client.name for client in on.population]
    schedule = schedule_of(on.experiment, len(names), on.dataset.task.labels)
    texts = {client.name: len(client.labelled) for client in on.population}
    federate(schedule, on.template(), devices.start(), names, devices, seen.append, texts=texts)
    devices.close()
    return seen


def test_no_client_sees_the_labels_of_its_unlabelled_texts(tiny_base: Base, hub_task: Task) -> None:
    on = staged(
        tiny_base, hub_task, deal=Deal(clients=3, labelled=4, labelled_clients=1), labelling=EASY
    )
    labels = hub_task.labels
    wrong = tuple(
        replace(one, label=labels[(labels.index(one.label or "") + 1) % len(labels)])
        for one in on.dataset.train
    )
    gold = {row for client in on.population for row in client.labelled.tolist()}
    train = tuple(
        right if row in gold else other
        for row, (right, other) in enumerate(zip(on.dataset.train, wrong, strict=True))
    )
    lied = replace(on, dataset=replace(on.dataset, train=train))
    ends = [rounds_of(stage)[-1].standing.adapter for stage in (on, lied)]
    assert ends[0] == ends[1]


@pytest.mark.slow
def test_a_cache_saves_layers_and_changes_no_label(tiny_base: Base, hub_task: Task) -> None:
    deal = Deal(clients=3, labelled=4, labelled_clients=1)
    said = {"adapter": "lora:2/top1", "deal": deal, "labelling": EASY, "rounds": 3}
    plain_rounds = rounds_of(staged(tiny_base, hub_task, **said))
    kept = rounds_of(staged(tiny_base, hub_task, cache_bytes=1 << 24, **said))
    looked = [[one.looking for one in seen if one.looking] for seen in (plain_rounds, kept)]
    assert [one.texts_read for one in looked[0]] == [one.texts_read for one in looked[1]]
    assert sum(one.label_forwards for one in looked[1]) < sum(
        one.label_forwards for one in looked[0]
    )
    assert sum(one.layer_forwards for one in kept) < sum(one.layer_forwards for one in plain_rounds)


def test_gate_texts_are_nobodys(tiny_base: Base, hub_task: Task) -> None:
    population = staged(tiny_base, hub_task, deal=DEAL).population
    rest, gate = gated(population, 5, seed=3)
    before = [row for client in population for row in client.unlabelled.tolist()]
    left = [row for client in rest for row in client.unlabelled.tolist()]
    assert len(gate) == 5 and sorted([*left, *gate]) == sorted(before)
    assert gated(population, 5, seed=3) == (rest, gate) and gated(population, 5, seed=4)[1] != gate


def test_who_labels_holds_the_labels_of_who_does_not(tiny_base: Base, place: Place) -> None:  # noqa: F811
    asked = labelled(tiny_base)
    with_labels = [
        [client.labelled.tolist() for client in stage(one, place.data).population]
        for one in (asked, replace(asked, labelling=None))
    ]
    assert with_labels[0] == with_labels[1] and any(with_labels[0])


def test_a_gate_needs_texts_that_nobody_has_a_label_of(tiny_base: Base, place: Place) -> None:  # noqa: F811
    asked = labelled(tiny_base, gate_texts=1_000)
    with pytest.raises(ExperimentError, match="gate_texts = 1000, and one more, of texts that no"):
        stage(asked, place.data)


@pytest.mark.slow
def test_a_cached_run_cut_anywhere_costs_what_it_costs_through(
    tiny_base: Base,
    place: Place,  # noqa: F811
    tmp_path: Path,
) -> None:
    asked = labelled(tiny_base, adapter="lora:2/top1", cache_bytes=1 << 24)
    through, cut = run(asked, place), replace(place, out=tmp_path / "cut")

    def stop(closed: Round) -> None:
        if closed.round_index == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(asked, cut, stop)
    assert plain(run(asked, cut).rows) == plain(through.rows)
    assert through.total("all_forwards") > through.total("layer_forwards") > 0


def test_who_trains_alone_does_not_label(tiny_base: Base) -> None:
    with pytest.raises(ExperimentError, match="paradigm is local; federated expected"):
        labelled(tiny_base, paradigm="local")
