from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("fastapi")

from benchmarks.comparisons.zero_compute import Echoes, zero_rounds
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.client.state import FinishedWork
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.updates.states import StepInputs
from smidgen.edge_client.wire.messages import Report, Work
from smidgen.edge_client.wire.tensors import Update, decode_adapter, encode_update
from smidgen.edge_client.wire.training import Training
from smidgen.profiling.instruments.made_up_run import ADDED
from smidgen.simulation.experiments.federation.devices import (
    NOTHING,
    Round,
    Rounds,
    SimulationError,
    Standing,
    schedule_of,
)
from smidgen.simulation.experiments.federation.run import federate
from smidgen.simulation.experiments.stage import Stage
from smidgen.simulation.experiments.virtual.devices import InProcess
from smidgen.simulation.population.deal import Deal
from tests.breadth import first_fast
from tests.simulation.experiments.experiments import staged

ONE_ROUND = Rounds(rounds=1, evaluate_every=0)


def rounds_of(on: Stage, start: Standing | None = None) -> list[Round]:
    """Run all that is left, on an engine of its own."""
    devices, seen = InProcess(on), list[Round]()
    names = [client.name for client in on.population if len(client.labelled)]
    schedule = schedule_of(on.experiment, len(names))
    federate(schedule, on.template(), start or devices.start(), names, devices, seen.append)
    devices.close()
    return seen


@pytest.mark.parametrize("adapter", first_fast(["prompt:3+head", "lora:2", "bias+head", "full"]))
def test_equal_seeds_give_equal_bytes(tiny_base: Base, hub_task: Task, adapter: str) -> None:
    first = rounds_of(staged(tiny_base, hub_task, adapter=adapter))
    again = rounds_of(staged(tiny_base, hub_task, adapter=adapter))
    assert first[-1].standing == again[-1].standing
    assert [closed.loss for closed in first] == [closed.loss for closed in again]
    assert first[-1].standing.adapter != first[0].standing.adapter


@pytest.mark.slow
def test_another_seed_gives_other_bytes(tiny_base: Base, hub_task: Task) -> None:
    first, other = (rounds_of(staged(tiny_base, hub_task, seed=seed)) for seed in (1, 2))
    assert first[-1].standing != other[-1].standing


@pytest.mark.slow
def test_going_on_from_any_round_ends_in_the_same_adapter(tiny_base: Base, hub_task: Task) -> None:
    on = staged(tiny_base, hub_task, rounds=3, evaluate_every=2)
    through = rounds_of(on)
    for closed in through[:-1]:
        assert rounds_of(on, closed.standing)[-1].standing == through[-1].standing


SGD = Training(epochs=2, batch=2, lr=0.05, tokens=32, optimizer="sgd")
SCAFFOLD = replace(SGD, scaffold=True)


@pytest.mark.slow
def test_control_variates_go_on_from_any_round_too(tiny_base: Base, hub_task: Task) -> None:
    on = staged(tiny_base, hub_task, rounds=4, training=SCAFFOLD)
    through = rounds_of(on)
    for closed in through[:-1]:
        assert rounds_of(on, closed.standing)[-1].standing == through[-1].standing


def test_the_first_round_with_control_variates_is_plain_sgds(
    tiny_base: Base, hub_task: Task
) -> None:
    plain, shifted = (
        rounds_of(staged(tiny_base, hub_task, rounds=2, training=training))
        for training in (SGD, SCAFFOLD)
    )
    adapters = [[closed.standing.adapter for closed in run] for run in (plain, shifted)]
    assert adapters[0][1] == adapters[1][1] and adapters[0][2] != adapters[1][2]


@pytest.mark.slow
def test_one_client_alone_has_no_drift(tiny_base: Base, hub_task: Task) -> None:
    """Its own control variate is the population's: c - c_i is nothing but rounding."""
    found = [
        rounds_of(staged(tiny_base, hub_task, rounds=3, training=one, deal=Deal(clients=1)))[-1]
        for one in (SGD, SCAFFOLD)
    ]
    plain, shifted = (decode_adapter(closed.standing.adapter) for closed in found)
    for name, tensor in plain.items():
        np.testing.assert_allclose(shifted[name], tensor, atol=1e-5)


@pytest.mark.slow
def test_the_control_variate_is_what_comes_down_more(tiny_base: Base, hub_task: Task) -> None:
    plain, shifted = (
        rounds_of(staged(tiny_base, hub_task, rounds=2, training=training))
        for training in (SGD, SCAFFOLD)
    )
    assert shifted[1].bytes_down == plain[1].bytes_down
    # Twice the adapter, but for what the longer names of the header take: none here.
    assert shifted[2].bytes_down == 2 * plain[2].bytes_down
    more = shifted[2].bytes_up - plain[2].bytes_up
    assert 0 <= more < 64 * len(plain[2].cohort)  # the number of steps


def test_rounds_are_scored_when_they_are_due(tiny_base: Base, hub_task: Task) -> None:
    seen = rounds_of(staged(tiny_base, hub_task, rounds=3, evaluate_every=2))
    assert [closed.round_index for closed in seen] == [0, 1, 2, 3]
    assert [closed.score is not None for closed in seen] == [True, False, True, True]
    assert [len(closed.cohort) for closed in seen] == [0, 2, 2, 2]


@pytest.mark.slow
def test_patience_ends_an_experiment_wherever_it_goes_on_from(
    tiny_base: Base, hub_task: Task
) -> None:
    training = Training(epochs=1, batch=4, lr=1e-12, tokens=32)  # which changes no answer
    on = staged(tiny_base, hub_task, rounds=9, patience=2, training=training)
    through = rounds_of(on)
    assert [closed.round_index for closed in through] == [0, 1, 2]
    for closed in through[:-1]:
        assert rounds_of(on, closed.standing)[-1].standing == through[-1].standing
    assert rounds_of(on, through[-1].standing) == []


def test_no_rounds_ask_the_base_alone(tiny_base: Base, hub_task: Task) -> None:
    [only] = rounds_of(staged(tiny_base, hub_task, rounds=0))
    assert only.round_index == 0 and only.score is not None and only.score.total.asked == 12


def test_a_mean_of_equal_answers_is_the_answer(tiny_base: Base, hub_task: Task) -> None:
    on = staged(tiny_base, hub_task)
    start = Standing(on.first_adapter(on.open_engine()))
    echoes, names = Echoes(start.adapter), ["a", "b", "c"]
    last = federate(ONE_ROUND, on.template(), start, names, echoes)
    before, after = decode_adapter(start.adapter), decode_adapter(last.adapter)
    assert all(abs(after[name] - before[name] - ADDED).max() < 1e-6 for name in before)


class Failing(Echoes):
    """Nobody can train."""

    def do(
        self,
        adapter: bytes,
        asked: Sequence[tuple[str, Work]],
        inputs: Mapping[str, StepInputs] = NOTHING,
    ) -> Iterator[FinishedWork]:
        for name, work in asked:
            failed = Report(work.work_id, "failed", failure="training")
            yield FinishedWork(failed, None, f"{name}: no texts")


def test_a_round_without_updates_says_why(tiny_base: Base, hub_task: Task) -> None:
    on = staged(tiny_base, hub_task)
    start = Standing(on.first_adapter(on.open_engine()))
    with pytest.raises(SimulationError, match=r"round 1: 0 of 2 clients could .* a: no texts"):
        federate(ONE_ROUND, on.template(), start, ["a", "b"], Failing(b""))


class Broken(Echoes):
    """One client sends NaN."""

    def do(
        self,
        adapter: bytes,
        asked: Sequence[tuple[str, Work]],
        inputs: Mapping[str, StepInputs] = NOTHING,
    ) -> Iterator[FinishedWork]:
        for finished, (name, work) in zip(super().do(adapter, asked), asked, strict=True):
            delta = {key: t * np.nan for key, t in decode_adapter(adapter).items()}
            bad = encode_update(Update(work.work_id, 1, delta))
            yield replace(finished, update=bad) if name == "b" else finished


def test_an_update_that_is_refused_is_a_failure_and_no_more(
    tiny_base: Base, hub_task: Task
) -> None:
    on, seen = staged(tiny_base, hub_task), list[Round]()
    start = Standing(on.first_adapter(on.open_engine()))
    names = ["a", "b", "c"]
    federate(ONE_ROUND, on.template(), start, names, Broken(b""), seen.append)
    assert list(seen[-1].errors) == ["b"] and "NaN" in seen[-1].errors["b"]
    assert seen[-1].num_examples == 2


def test_nobody_to_ask_is_said(tiny_base: Base, hub_task: Task) -> None:
    on = staged(tiny_base, hub_task)
    with pytest.raises(SimulationError, match="1 or more clients that can train; there are 0"):
        federate(ONE_ROUND, on.template(), Standing(b""), [], Echoes(b""))


def test_rounds_without_computing_are_quick_and_all_there() -> None:
    found = zero_rounds(clients=40, rounds=2)
    assert len(found.round_s) == 2 and found.adapter_bytes > 90_000
