"""AdaLoRA: the chain rule, the schedule, what is masked and what is left of it."""

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smidgen.edge_client.adapters.banks import LAMBDA, bank_spec
from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.spec import PREFIX, lora_modules, parse_adapter
from smidgen.edge_client.bases.architectures import Shape
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.engine.opening import open_engine
from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.personal.bank import BudgetOfRanks, largest, modules_of
from smidgen.edge_client.personal.fitting import FitTerms, fit
from smidgen.edge_client.personal.svd import (
    Importance,
    PruningSchedule,
    Svd,
    every_rank,
    initial_rank,
    mask,
    orthogonality,
    schedule_of,
    svd_numbers,
)
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.updates.forms import LORA_A, LORA_B
from smidgen.edge_client.wire.tensors import AdapterState, encode_adapter
from smidgen.edge_client.wire.training import Training
from tests.edge_client.engine.engines import KINDS, TEXTS

pytestmark = pytest.mark.few

TINY = Shape("bert", 2, 2, 8, 2, 2, 4, 8, 50, 8, 16, "gelu", 1e-12, 0)
FACTORS = st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.5]), min_size=1, max_size=5)
SCORES = st.dictionaries(st.sampled_from("abcdef"), FACTORS.map(np.array), min_size=1)
SCHEDULES = st.builds(
    PruningSchedule, st.integers(1, 4), st.integers(0, 5), st.integers(0, 5), st.integers(1, 4)
)


def numbers_of(seed: int, rank: int = 3) -> AdapterState:
    """Two modules of unequal shapes."""
    draw = np.random.Generator(np.random.PCG64(seed))
    found: AdapterState = {}
    for module, rows, columns in (("one", 5, 4), ("two", 4, 6)):
        found[module + LORA_A] = draw.standard_normal((rank, columns)).astype(np.float32)
        found[module + LORA_B] = draw.standard_normal((rows, rank)).astype(np.float32)
        found[module + LAMBDA] = draw.standard_normal(rank).astype(np.float32)
    return found


def loss_of(numbers: AdapterState, gains: AdapterState, weight: float) -> float:
    """Linear in the adapter, plus the orthogonality term word by word."""
    total, distances = 0.0, 0.0
    for module in ("one", "two"):
        a, b, sigma = (numbers[module + part] for part in (LORA_A, LORA_B, LAMBDA))
        total += float((gains[module + LORA_A] * a).sum())
        total += float((gains[module + LORA_B] * (b * sigma)).sum())
        for gram in (a @ a.T, b.T @ b):
            distances += float(np.sqrt(np.square(gram - np.eye(len(gram))).sum()))
    return total + weight * distances / 4


@given(st.integers(0, 2**32 - 1), st.floats(0.0, 2.0))
@settings(max_examples=20, deadline=None)
def test_gradients_are_those_of_the_whole_loss(seed: int, weight: float) -> None:
    numbers = numbers_of(seed)
    gains = {name: one for name, one in numbers_of(seed + 1).items() if LAMBDA not in name}
    found = Svd(PruningSchedule(1), weight).pull(numbers, gains, 10)
    assert found.keys() == numbers.keys()
    wide = {name: one.astype(np.float64) for name, one in numbers.items()}
    for name, one in wide.items():
        for place in np.ndindex(one.shape):
            sides = []
            for step in (1e-5, -1e-5):
                moved = one.copy()
                moved[place] += step
                sides.append(loss_of(wide | {name: moved}, gains, weight))
            slope = (sides[0] - sides[1]) / 2e-5
            assert found[name][place] == pytest.approx(slope, rel=1e-4, abs=1e-4), name


def test_what_is_orthogonal_is_not_pushed() -> None:
    numbers = numbers_of(0)
    for module in modules_of(numbers):
        for part in (LORA_A, LORA_B):
            numbers[module + part] = np.eye(*numbers[module + part].shape, dtype=np.float32)
    gains = {name: np.zeros_like(one) for name, one in numbers.items() if LAMBDA not in name}
    assert orthogonality(numbers) == 0.0
    assert not any(
        one.any() for one in Svd(PruningSchedule(1), 2.0).pull(numbers, gains, 9).values()
    )


@given(SCHEDULES, st.integers(1, 40), st.integers(1, 9), st.integers(0, 8))
def test_the_budget_falls_from_all_ranks_to_the_target(
    schedule: PruningSchedule, between: int, modules: int, above: int
) -> None:
    steps = schedule.warmup + between + schedule.final
    initial = (schedule.target + above) * modules
    found = [schedule.budget(step, steps, initial, modules) for step in range(1, steps + 1)]
    assert found == sorted(found, reverse=True)
    assert set(found[: schedule.warmup]) <= {initial}
    assert set(found[steps - schedule.final - 1 :]) == {schedule.target * modules}
    masked = [step for step in range(1, steps + 1) if schedule.masks(step, steps)]
    last = steps - schedule.final
    assert masked[-1] == last and masked[0] > schedule.warmup
    assert all(step % schedule.interval == 0 for step in masked[:-1])


@given(SCORES, st.data(), st.randoms())
def test_exactly_the_budget_is_kept_in_whatever_order_modules_come(
    scores: dict[str, np.ndarray], data: st.DataObject, random: Random
) -> None:
    count = data.draw(st.integers(0, sum(map(len, scores.values()))))
    kept = largest(scores, count)
    assert sum(map(len, kept.values())) == count
    inside = [scores[m][i] for m in scores for i in kept[m]]
    outside = [scores[m][i] for m in scores for i in range(len(scores[m])) if i not in kept[m]]
    assert not inside or not outside or min(inside) >= max(outside)
    names = list(scores)
    random.shuffle(names)
    assert largest({name: scores[name] for name in names}, count) == kept


def test_of_equal_importance_the_first_module_and_the_lowest_rank_stay() -> None:
    form, numbers = Svd(PruningSchedule(1)), numbers_of(0)
    form.settle(numbers, 1, 1)  # nothing was pulled: all are equal
    assert form.kept == {"one": (0, 1), "two": ()}
    assert numbers["one" + LAMBDA].all(where=[True, True, False])
    assert not numbers["one" + LAMBDA][2] and not numbers["two" + LAMBDA].any()


def test_a_rank_that_the_loss_leans_on_stays() -> None:
    numbers, importance = numbers_of(3), Importance()
    pulled = {name: np.full_like(one, 0.01) for name, one in numbers.items()}
    pulled["two" + LAMBDA][1] = 100.0
    for _ in range(3):
        importance.weigh(numbers, pulled)
    scores = importance.of_ranks(numbers)
    assert largest(scores, 1) == {"one": (), "two": (1,)}
    assert all((one >= 0).all() for one in scores.values())


def test_what_is_masked_comes_back_before_the_last_masking_and_not_after() -> None:
    form, numbers = Svd(PruningSchedule(1, final=2)), numbers_of(1)
    gains = {name: one for name, one in numbers_of(2).items() if LAMBDA not in name}
    for step in range(1, 7):
        form.pull(numbers, gains, 10)
        for module in modules_of(numbers):
            numbers[module + LAMBDA] += np.float32(0.5)  # as an optimizer would move it
        form.settle(numbers, step, 6)
        living = {
            module: tuple(np.flatnonzero(numbers[module + LAMBDA]))
            for module in modules_of(numbers)
        }
        assert living == form.kept
        if step == 4:
            last = form.kept
    assert form.kept == last and sum(map(len, last.values())) == 2


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=20)
def test_sigmas_of_one_are_plain_lora(seed: int) -> None:
    numbers = numbers_of(seed)
    plain = {name: one for name, one in numbers.items() if LAMBDA not in name}
    for module in modules_of(numbers):
        numbers[module + LAMBDA] = np.ones(3, np.float32)
    assert encode_adapter(Svd(PruningSchedule(1)).adapter(numbers)) == encode_adapter(plain)


def test_first_numbers_change_nothing_and_are_the_same_everywhere() -> None:
    drawn = svd_numbers(plain := numbers_of(0), 5)
    again = svd_numbers(dict(reversed(plain.items())), 5)
    assert encode_adapter(drawn) == encode_adapter(again)
    assert encode_adapter(drawn) != encode_adapter(svd_numbers(plain, 6))
    assert not any(drawn[module + LAMBDA].any() for module in modules_of(drawn))
    assert 0.0 < np.abs(drawn["one" + LORA_B]).max() < 0.1


def test_a_schedule_by_shares_is_that_of_fedp2eft() -> None:
    assert schedule_of(2, 100) == PruningSchedule(2, warmup=10, final=30)
    assert schedule_of(2, 1) == PruningSchedule(2)  # one step alone masks
    assert schedule_of(2, 1).masks(1, 1)
    assert [initial_rank(target) for target in (1, 2, 16)] == [2, 3, 24]


@pytest.mark.parametrize(
    ("schedule", "steps", "says"),
    [
        (PruningSchedule(1, warmup=3, final=2), 5, "below the 5 steps"),
        (PruningSchedule(4), 1, "target 4: 1 to 3"),
    ],
)
def test_a_schedule_that_cannot_be_kept_is_one_line(
    schedule: PruningSchedule, steps: int, says: str
) -> None:
    with pytest.raises(WrongInput, match=says):
        Svd(schedule).settle(numbers_of(0), 1, steps)
    with pytest.raises(WrongInput, match="target"):
        PruningSchedule(0)
    with pytest.raises(WrongInput, match="together below 1"):
        schedule_of(1, 10, 0.5, 0.5)
    assert issubclass(BudgetOfRanks, WrongInput)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["lora:3@q,k,v,o,up,down", "lora:3@q,v+head"])
@pytest.mark.parametrize("kind", KINDS)
def test_training_keeps_the_budget_and_what_is_left_answers_as_it_did(
    tiny_base: Base, hub_task: Task, kind: str, name: str
) -> None:
    shape = tiny_base.shape
    spec = bank_spec(parse_adapter(name), shape)
    engine = open_engine(kind, tiny_base, hub_task, spec, Training(tokens=48))
    start = svd_numbers(initial_adapter(spec, tiny_base, 6, seed=3), 3)
    terms = FitTerms(steps=10, batch=4, lr=0.01, scale_lr=0.01)
    results = []
    for _ in range(2):
        form = Svd(schedule_of(1, terms.steps))
        results.append(fit(engine, form, start, TEXTS, terms, 7))
    first, again = results
    assert encode_adapter(first.numbers) == encode_adapter(again.numbers)
    modules = modules_of(start)
    assert sum(map(len, form.kept.values())) == len(modules)
    asked = engine.predict(TEXTS)
    left, adapter = form.plain(spec, shape, first.numbers)
    of_left = lora_modules(left, shape)
    assert {PREFIX + one: row.rank for one, row in of_left.items()} == {
        module: len(rows) for module, rows in form.kept.items() if rows
    }
    other = open_engine(kind, tiny_base, hub_task, left, Training(tokens=48))
    other.load_adapter(adapter)
    assert np.allclose(other.predict(TEXTS), asked, atol=1e-5)


def test_masking_is_in_place_and_every_rank_masks_nothing() -> None:
    numbers = numbers_of(0)
    before = encode_adapter(numbers)
    mask(numbers, every_rank(numbers))
    assert encode_adapter(numbers) == before
    mask(numbers, {})
    assert not any(numbers[module + LAMBDA].any() for module in modules_of(numbers))


@given(st.integers(0, 2**32 - 1), st.integers(1, 3))
@settings(max_examples=10, deadline=None)
def test_what_is_left_changes_the_base_as_the_masked_numbers_do(seed: int, target: int) -> None:
    bank = bank_spec(parse_adapter("lora:3@q,v,up"), TINY)
    draw = np.random.Generator(np.random.PCG64(seed))
    numbers: AdapterState = {}
    for name in lora_modules(bank, TINY):
        for part, size in ((LORA_A, (3, 8)), (LORA_B, (8, 3)), (LAMBDA, (3,))):
            numbers[PREFIX + name + part] = draw.standard_normal(size).astype(np.float32)
    form = Svd(PruningSchedule(target))
    form.pull(numbers, {n: t.copy() for n, t in numbers.items() if LAMBDA not in n}, 10)
    form.settle(numbers, 1, 2)
    form.settle(numbers, 2, 2)
    masked = form.adapter(numbers)
    left, adapter = form.plain(bank, TINY, numbers)
    made = {PREFIX + name: one for name, one in lora_modules(left, TINY).items()}
    assert sum(one.rank for one in made.values()) == target * len(modules_of(numbers))
    assert {one.scaling for one in made.values()} == {2.0}
    for module in modules_of(numbers):
        whole = masked[module + LORA_B] @ masked[module + LORA_A]
        own = adapter[module + LORA_B] @ adapter[module + LORA_A] if module in made else 0.0
        assert np.allclose(own, whole, atol=1e-5)
