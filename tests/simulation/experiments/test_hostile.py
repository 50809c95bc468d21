from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("fastapi")

from benchmarks.comparisons.zero_compute import Echoes
from benchmarks.papers.grid import read_file
from smidgen.coordinator.rounds.admission import Refusal, check_report
from smidgen.coordinator.rounds.bounds import norm_of
from smidgen.coordinator.rounds.schedule import Learning
from smidgen.coordinator.rounds.scoring import FAR_NATS, class_thresholds, prior_of, ratio_of
from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.tasks.counts import Entities
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.messages import PROTOCOL, Report, Work
from smidgen.edge_client.wire.reports import BINS, Confidences
from smidgen.edge_client.wire.tensors import decode_adapter, encode_adapter
from smidgen.edge_client.wire.training import Labelling, Training
from smidgen.profiling.instruments.made_up_run import ADDED
from smidgen.simulation.demo.messages import TASK
from smidgen.simulation.experiments.experiment import Experiment, ExperimentError, read_experiment
from smidgen.simulation.experiments.federation.devices import Round, Rounds
from smidgen.simulation.experiments.federation.run import federate
from smidgen.simulation.experiments.hostile import (
    ATTACKS,
    CLAIMED_TESTS,
    HUGE,
    Attack,
    Hostile,
    evaluations,
    label_report,
    told_texts,
    without_tests,
)
from smidgen.simulation.experiments.scoring import Score, Tally
from smidgen.simulation.population.clients import Client
from smidgen.simulation.population.deal import Deal
from tests.edge_client.engine.engines import TEXTS

pytestmark = pytest.mark.few

MEANS = read_file("comparisons")[0]["scenarios"]["attacks-by-mean"]["vars"]["means"]

NAMES = [f"client-{number:04d}" for number in range(1, 11)]
LAST = frozenset(NAMES[-1:])
PROGRESS: dict[Attack, float] = {  # docs/results/hostile.md has them too
    **{"absent": 1.0, "huge": 1.21, "scaled": 1.21, "noise": 0.9, "flipped": 0.8},
    **{"claims": 0.75, "evaluations": 1.0, "together": 0.59},
}
LIARS = (Hostile(1, "evaluations"), frozenset({"b"}))
UPDATES: list[Attack] = ["huge", "scaled", "noise", "claims", "together"]


class Judged(Echoes):
    """Devices that add 0.01; each holds ten test texts, half of which are answered right."""

    def judge(self, adapter: bytes, arm: str, work: Work | None = None) -> Score:
        own = {name: Tally(5, 10) for name in NAMES if name not in LAST}
        return Score(Tally(45, 90), None, {}, own)


def rounds_with(
    attack: Attack,
    is_resisted: bool,
    rounds: int = 3,
    names: Sequence[str] = NAMES,
    last: int = 1,
    mean: str = "fedavg",
) -> list[Round]:
    """Rounds of ten devices, one of which is hostile, or as said."""
    hostile, seen = Hostile(last, attack), list[Round]()
    forgers = frozenset(names[-last:])
    names = names[:-last] if attack == "absent" else names
    schedule = Rounds(rounds=rounds, hostile=hostile, labels=TASK.labels)
    schedule = replace(schedule, learning=Learning(mean=mean))
    if is_resisted:
        schedule = replace(
            schedule, norm_bound="adaptive", max_examples="adaptive", is_guarded=True
        )
    template = Work(
        PROTOCOL, "own", "train", "small", 0, "base", "lora:8", "own", 0, TASK, Training(), 0
    )
    devices = Judged(encode_adapter({"a": np.zeros((4, 4), np.float32)}))
    texts = told_texts(dict.fromkeys(names, 1), hostile, forgers)
    start = devices.start()
    federate(schedule, template, start, names, devices, seen.append, texts=texts, forgers=forgers)
    return seen


class Collapsing(Judged):
    """Devices that answer nearly all right with the first adapter, and nothing with any other."""

    def judge(self, adapter: bytes, arm: str, work: Work | None = None) -> Score:
        right = 0 if decode_adapter(adapter)["a"].any() else 9
        own = {name: Tally(right, 10) for name in NAMES if name not in LAST}
        return Score(Tally(9 * right, 90), None, {}, own)


@pytest.mark.parametrize("is_guarded", [True, False])
def test_a_run_that_went_back_three_times_ends_with_its_best_adapter(is_guarded: bool) -> None:
    hostile, seen = Hostile(1, "flipped"), list[Round]()
    schedule = Rounds(rounds=6, hostile=hostile, labels=TASK.labels, is_guarded=is_guarded)
    template = Work(
        PROTOCOL, "own", "train", "small", 0, "base", "lora:8", "own", 0, TASK, Training(), 0
    )
    devices = Collapsing(encode_adapter({"a": np.zeros((4, 4), np.float32)}))
    first = devices.start()
    ended = federate(schedule, template, first, NAMES, devices, seen.append, forgers=LAST)
    assert sum(one.trouble.startswith("back to round 0") for one in seen) == 3 * is_guarded
    assert (ended.adapter == first.adapter) == is_guarded
    assert seen[-1].kept == (0 if is_guarded else None)


def length(closed: Round) -> float:
    return norm_of(decode_adapter(closed.standing.adapter))


@pytest.mark.parametrize("attack", UPDATES)
def test_one_of_ten_cannot_take_the_adapter_far(attack: Attack) -> None:
    honest = length(rounds_with("evaluations", is_resisted=True)[-1])
    assert length(rounds_with(attack, is_resisted=True)[-1]) < 2 * honest


@pytest.mark.parametrize("attack", ["huge", "scaled", "noise", "together"])
def test_without_defences_it_can(attack: Attack) -> None:
    honest = length(rounds_with("evaluations", is_resisted=True)[-1])
    assert length(rounds_with(attack, is_resisted=False)[-1]) > 20 * honest


@pytest.mark.few(4)
@pytest.mark.parametrize(("attack", "progress"), PROGRESS.items())
def test_two_of_twenty_cost_as_much_as_the_bounds_let_them(attack: Attack, progress: float) -> None:
    names = [f"client-{number:04d}" for number in range(20)]
    last = rounds_with(attack, is_resisted=True, rounds=10, names=names, last=2)[-1]
    mean = float(decode_adapter(last.standing.adapter)["a"].mean())
    assert mean / (10 * ADDED) == pytest.approx(progress, abs=0.05)


@pytest.mark.parametrize("attack", [*UPDATES, "flipped"])
@pytest.mark.parametrize("mean", MEANS[1:])
def test_where_honest_devices_agree_a_robust_mean_alone_goes_all_the_way(
    mean: str, attack: Attack
) -> None:
    names = [f"client-{number:04d}" for number in range(20)]
    last = rounds_with(attack, is_resisted=False, names=names, last=2, mean=mean)[-1]
    found = decode_adapter(last.standing.adapter)["a"]
    np.testing.assert_allclose(found, 3 * ADDED, rtol=1e-5)


def test_a_cohort_too_small_for_its_mean_stands_still_and_says_so() -> None:
    seen = rounds_with("scaled", is_resisted=False, mean="krum:5")
    assert {one.trouble for one in seen[1:]} == {"mean krum:5 needs 13 updates or more, 10 came"}
    assert length(seen[-1]) == 0.0


def test_false_evaluations_of_one_in_ten_are_not_heard() -> None:
    by_round = [closed.reported for closed in rounds_with("evaluations", is_resisted=True)]
    assert by_round == [0.5] * len(by_round)  # where all the others say 0.5


def test_without_a_lie_what_is_reported_is_the_truth() -> None:
    assert [one.reported for one in rounds_with("flipped", is_resisted=True)] == [0.5] * 4


def test_honest_devices_that_tag_are_heard_beside_a_liar() -> None:
    task, mine = Task("rooms", ("Place", "Time"), kind="tagging"), Entities((3, 1), (2, 0), (1, 0))
    own = {"a": Tally(8, 10), "b": Tally(8, 10)}
    score = Score(Tally(16, 20), 0.4, {}, own, losses_by_client=dict.fromkeys(own, 0.4))
    score = replace(score, entities_by_client=dict.fromkeys(own, mine))
    members = [("1", "a"), ("2", "b"), ("3", "c")]
    told = evaluations(score, members, 1, task, *LIARS)
    assert [ratio_of(one) for one in told] == [(2, 6), (0, 2 * CLAIMED_TESTS), (0, 0)]
    assert [one.loss for one in told] == [0.4, None, None] and told[0].entities == mine
    with pytest.raises(Refusal):
        evaluations(replace(score, entities_by_client={}), members, 1, task, *LIARS)


def test_what_one_in_ten_tells_of_labels_moves_neither_prior_nor_thresholds_far() -> None:
    hostile, work = Hostile(1, "labels"), Report("", "done")
    gate = replace(work, num_examples=20, accuracy=0.5, mean_log_probabilities=(-1.0,) * 6)
    members = [(name, name) for name in NAMES]
    told = evaluations(None, members, 1, TASK, hostile, LAST, gate)
    lie = told[-1].mean_log_probabilities
    assert lie == (HUGE, *(-HUGE,) * 5) and {one.right for one in told} == {10}
    np.testing.assert_allclose(prior_of(told), -1.0, atol=FAR_NATS / len(NAMES) + 1e-9)
    sure = Confidences(20, ((0,) * (BINS - 2) + (3, 1), *((0,) * BINS,) * 5))
    false = label_report(replace(work, labelled=4, confidences=sure), TASK, hostile)
    check_report(false, TASK)
    assert false.labelled == CLAIMED_TESTS and false.confidences is not None
    bound = (*[sure] * 9, false.confidences), (*[sure] * 9, replace(sure, texts=60))
    all_sure, honest = (class_thresholds(one, Labelling(), TASK.labels, 0.1) for one in bound)
    assert all_sure == pytest.approx(honest, abs=0.05)


def test_nobody_is_judged_by_the_texts_of_hostile_devices() -> None:
    nothing = np.empty(0, np.int32)
    population = tuple(
        Client(name, nothing, nothing, np.array(rows, np.int32))
        for name, rows in (("a", [3, 0]), ("b", [1]), ("c", [2]))
    )
    clients, tests = without_tests(population, TEXTS[:4], frozenset({"b"}))
    assert tests == (TEXTS[0], TEXTS[2], TEXTS[3])
    assert [list(client.test) for client in clients] == [[0, 2], [], [1]]


def test_an_experiment_says_who_is_hostile(tmp_path: Path) -> None:
    path = tmp_path / "attacked.toml"
    path.write_text("dataset = 'hub'\n[hostile]\ndevices = 2\nattack = 'scaled'\n")
    assert read_experiment(path).hostile == Hostile(2, "scaled")
    path.write_text("dataset = 'hub'\n[hostile]\ndevices = 2\nattack = 'rude'\n")
    with pytest.raises(ExperimentError, match="Invalid enum value 'rude'"):
        read_experiment(path)
    with pytest.raises(ExperimentError, match="hostile: paradigm `federated`"):
        Experiment("a", "hub", paradigm="local", hostile=Hostile(1, "huge"))
    nothing = np.empty(0, np.int32)
    with pytest.raises(WrongInput, match="fewer than the 1 clients"):
        Hostile(1, "huge").names((Client("a", nothing, nothing, nothing),))


def test_attacks_differ_in_their_results_key() -> None:
    said = [Experiment("a", "hub", deal=Deal(clients=3), hostile=Hostile(1, a)) for a in ATTACKS]
    assert len({one.key("base", "texts", TASK, "onnx") for one in said}) == len(ATTACKS)
