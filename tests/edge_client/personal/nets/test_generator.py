"""The net that gives lambdas, what it reads, and what a device teaches it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.adapters.banks import (
    IN,
    LARGEST,
    OUT,
    OUT_BIAS,
    Generator,
    bank_spec,
    generator_of,
)
from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.spec import AdapterError, parse_adapter
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.engine.engine import Engine
from smidgen.edge_client.engine.opening import open_engine
from smidgen.edge_client.personal.bank import SMALLEST, lambdas_of, modules_of
from smidgen.edge_client.personal.fitting import Fitted, FitTerms
from smidgen.edge_client.personal.generator import (
    FARTHEST,
    ConstantBase,
    factors,
    ground_from,
    ground_of,
    lesson,
    pull,
    taught,
)
from smidgen.edge_client.tasks.scores import TrainingError
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.wire.tensors import AdapterState, encode_adapter
from smidgen.edge_client.wire.training import Training
from tests.edge_client.engine.engines import KINDS, TEXTS

SMALL = Generator(("a", "b"), 4, 3)
NAME = "lora:4@q,k,v,o,up,down"
UNLABELLED = [Example("rain today"), Example("a cake for grandma")]
TERMS, TEACHING = FitTerms(steps=4, batch=4, lr=0.01), FitTerms(steps=5, lr=1e-3)


def opened(base: Base, task: Task, kind: str) -> tuple[Engine, Generator, AdapterState]:
    spec = bank_spec(parse_adapter(NAME), base.shape)
    engine = open_engine(kind, base, task, spec, Training(tokens=48))
    return engine, generator_of(spec, base.shape), initial_adapter(spec, base, 6, seed=3)


def taken(
    engine: Engine, generator: Generator, bank: AdapterState, seed: int = 7
) -> tuple[AdapterState, tuple[AdapterState, Fitted, float]]:
    numbers = generator.first(1)
    given = (numbers, bank, TEXTS, UNLABELLED, TERMS, seed, TEACHING)
    return numbers, lesson(engine, generator, *given)


def test_it_starts_from_lambdas_of_1_whatever_it_reads() -> None:
    numbers = SMALL.first(5)
    SMALL.check(numbers)
    assert encode_adapter(numbers) == encode_adapter(SMALL.first(5))
    assert encode_adapter(numbers) != encode_adapter(SMALL.first(6))
    found = factors(SMALL, numbers, np.linspace(-3.0, 3.0, 6))
    assert list(found) == ["a", "b"]
    assert all(one.dtype == np.float32 and (one == 1.0).all() for one in found.values())


@given(st.lists(st.floats(-1e6, 1e6), min_size=8, max_size=8))
def test_lambdas_stay_within_their_range(biases: list[float]) -> None:
    numbers = SMALL.first(5) | {OUT_BIAS: np.array(biases, np.float32)}
    found = np.concatenate(list(factors(SMALL, numbers, np.zeros(6)).values()))
    assert ((found >= np.float32(SMALLEST)) & (found <= np.float32(LARGEST))).all()


def test_what_it_is_taught_it_gives_for_those_features_and_less_so_for_others() -> None:
    draw = np.random.Generator(np.random.PCG64(1))
    one, other = draw.normal(0.0, 1.0, 6), draw.normal(0.0, 1.0, 6)
    aims = {name: draw.uniform(0.1, 2.0, 4).astype(np.float32) for name in SMALL.modules}
    start = SMALL.first(5)
    numbers, before = taught(SMALL, start, one, aims, FitTerms(300, lr=0.01))
    after = [pull(SMALL, numbers, features, aims)[0] for features in (one, other)]
    assert before > 0.3 and after[0] < 0.05 and after[0] < after[1]
    assert encode_adapter(start) == encode_adapter(SMALL.first(5))


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (Generator(("a", "b"), 4, 5), "another base: it reads 10 features, and this base of 3"),
        (Generator(("a", "b"), 8, 3), "another bank: it gives 16 factors, and 2 modules of 4"),
        (Generator(("a",), 4, 3), "another bank: it gives 4 factors"),
    ],
)
def test_a_generator_of_another_base_or_bank_is_refused(other: Generator, said: str) -> None:
    with pytest.raises(AdapterError, match=said):
        SMALL.check(other.first(1))


@pytest.mark.parametrize("name", [IN, OUT])
def test_a_generator_of_one_axis_is_refused(name: str) -> None:
    numbers = SMALL.first(1)
    numbers[name] = numbers[name].ravel()
    with pytest.raises(AdapterError, match="the generator is of another"):
        SMALL.check(numbers)


def test_what_is_no_generator_is_refused(tiny_base: Base) -> None:
    state = initial_adapter(parse_adapter("lora:4"), tiny_base, 6, seed=3)
    with pytest.raises(AdapterError, match="no generator: it has other tensors"):
        SMALL.check(state)


def test_a_ground_takes_no_feature_from_what_does_not_move() -> None:
    spreads = [np.array([[1.0, 2.0 + step], [3.0, 4.0]]) for step in (-1.0, 1.0)]
    ground = ground_from(spreads)
    assert ground.standard(np.array([[9.0, 3.0], [9.0, 9.0]])).tolist() == [0.0, 1.0, 0.0, 0.0]
    assert ground.standard(np.array([[1.0, 1e9], [3.0, 4.0]])).tolist()[1] == FARTHEST


def test_a_base_that_reads_all_texts_alike_is_one_line() -> None:
    with pytest.raises(ConstantBase, match="the same for all texts") as raised:
        ground_from([np.full((3, 2), 0.1), np.full((3, 2), 0.1 + 1e-12)])
    assert "\n" not in str(raised.value)


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", KINDS)
def test_a_lesson_twice_gives_equal_bytes_and_leaves_what_it_was_given(
    tiny_base: Base, hub_task: Task, kind: str
) -> None:
    engine, generator, bank = opened(tiny_base, hub_task, kind)
    assert set(generator.modules) == set(modules_of(bank))
    before = encode_adapter(bank)
    numbers, (first, fitted, distance) = taken(engine, generator, bank)
    _, (again, _, _) = taken(engine, generator, bank)
    assert encode_adapter(first) == encode_adapter(again)
    assert encode_adapter(bank) == before and fitted.steps == TERMS.steps
    assert distance > 0 and all(
        not np.array_equal(first[n], numbers[n])
        for n in ("generator.lambda.weight", "generator.lambda.bias")
    )
    generator.check(first)


def test_both_engines_teach_nearly_the_same(tiny_base: Base, hub_task: Task) -> None:
    if len(KINDS) < 2:
        pytest.skip("one engine is installed here")
    found = [taken(*opened(tiny_base, hub_task, kind))[1][1] for kind in KINDS]
    ends = [lambdas_of(fitted.numbers) for fitted in found]
    for module, lambdas in ends[0].items():
        assert lambdas == pytest.approx(ends[1][module], abs=1e-3)


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", KINDS)
def test_the_ground_is_the_same_each_time_and_tells_some_layer_s_groups_apart(
    tiny_base: Base, hub_task: Task, kind: str
) -> None:
    engine, _, bank = opened(tiny_base, hub_task, kind)
    grounds = [ground_of(engine, bank) for _ in range(2)]
    assert np.array_equal(grounds[0].mean, grounds[1].mean)
    assert grounds[0].mean.shape == (engine.layers, 2) and (grounds[0].deviation > 0).any()


@pytest.mark.parametrize(
    ("labelled", "unlabelled", "said"),
    [
        (TEXTS[:1], [], "1 text here: a generator goes by 2 or more"),
        ([], [], "0 text"),
        ([], UNLABELLED, "no labelled texts"),
    ],
)
def test_too_few_texts_are_one_line(
    tiny_base: Base,
    hub_task: Task,
    labelled: list[Example],
    unlabelled: list[Example],
    said: str,
) -> None:
    engine, generator, bank = opened(tiny_base, hub_task, KINDS[0])
    given = (generator.first(1), bank, labelled, unlabelled, TERMS, 7)
    with pytest.raises(TrainingError, match=said) as raised:
        lesson(engine, generator, *given)
    assert "\n" not in str(raised.value)
