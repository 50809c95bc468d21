"""The formulas of a card, on facts given as data; none was compared with a card."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.planning.cuda_memory import (
    CUDA,
    FIXED_BYTES,
    UNIFIED,
    Accelerator,
    copied_bytes,
    dense_bytes,
    estimate,
    seconds,
    weight_bytes,
)
from smidgen.edge_client.planning.plan import BudgetError, Plan
from smidgen.edge_client.planning.planner import (
    Option,
    choose,
    next_smaller,
    options,
    plan_in_words,
    plans,
)
from smidgen.edge_client.planning.torch_memory import stored_bytes
from tests.edge_client.engine.plans import LARGE, MIB, RUNTIME, WORKS, large

ORIN = Accelerator("Orin", (8, 7), 8, 8 << 30, 6 << 30, is_unified=True)
PLAIN = Accelerator("a card", (7, 5), 40, 8 << 30, 6 << 30)
ON_CARD = WORKS.map(lambda work: replace(work, device=CUDA))
KEPT = Plan("float32", 4, (), 24, 256)


def options_on(card: Accelerator, bits: int = 4) -> list[Option]:
    return options(replace(large(bits=bits), device=card.device), RUNTIME, card.nominal)


@given(ON_CARD, st.data())
def test_streamed_weights_never_take_more(work: Any, data: st.DataObject) -> None:
    plan = data.draw(st.sampled_from(list(plans(work, ("float32", "float16")))))
    streamed, kept = (replace(plan, is_streamed=flag) for flag in (True, False))
    assert estimate(work, streamed, 0).total <= estimate(work, kept, 0).total
    assert copied_bytes(work, kept) == 0 < copied_bytes(work, streamed)
    assert seconds(work, kept, PLAIN.nominal) < seconds(work, streamed, PLAIN.nominal)


@given(ON_CARD, st.data())
def test_the_libraries_count_where_there_is_one_memory_alone(
    work: Any, data: st.DataObject
) -> None:
    plan = data.draw(st.sampled_from(list(plans(work, ("float32",)))))
    own = [estimate(work, plan, runtime) for runtime in (0, RUNTIME)]
    shared = estimate(replace(work, device=UNIFIED), plan, RUNTIME)
    assert own[0] == own[1] and shared.runtime == RUNTIME
    assert shared.total >= own[0].total + RUNTIME


@pytest.mark.parametrize("bits", [4, 8, 16])
def test_all_stored_weights_lie_on_the_card_or_the_largest_alone(bits: int) -> None:
    work = replace(large(bits=bits), device=CUDA)
    sizes = [(1024, 1024)] * 4 + [(4096, 1024), (1024, 4096)]
    layers = 24 * sum(stored_bytes(size, bits) for size in sizes)
    assert weight_bytes(work, KEPT) == layers + stored_bytes((1024, 1024), bits)
    largest = stored_bytes((4096, 1024), bits)
    assert weight_bytes(work, replace(KEPT, is_streamed=True)) == largest


def test_a_weight_is_made_dense_unless_it_is_stored_as_it_is_used() -> None:
    assert dense_bytes(replace(large(bits=4), device=CUDA), KEPT) == 4 * 4096 * 1024
    half = replace(KEPT, dtype="bfloat16")
    assert dense_bytes(replace(large(bits=16), device=CUDA), half) == 0


@pytest.mark.few(1)
@pytest.mark.parametrize("card", [ORIN, PLAIN])
def test_less_memory_ends_in_streamed_weights_and_then_in_one_line(card: Accelerator) -> None:
    found = options_on(card, bits=16)
    smallest = min(option.predicted_peak_bytes for option in found)
    assert not choose(found, 64 << 30).plan.is_streamed
    assert choose(found, smallest).plan.is_streamed
    with pytest.raises(BudgetError, match=r"is below the smallest plan .* --device cpu"):
        choose(found, smallest - MIB)


def test_stepping_down_ends_on_a_card_too() -> None:
    found = options_on(PLAIN)
    option, seen = found[0], 0
    while (smaller := next_smaller(found, option)) is not None:
        assert smaller.predicted_peak_bytes < option.predicted_peak_bytes
        option, seen = smaller, seen + 1
    assert seen > 3 and option.plan.is_streamed


def test_a_cards_ceiling_is_its_predicted_memory() -> None:
    for card in (ORIN, PLAIN):
        option = options_on(card)[0]
        assert option.ceiling_bytes == option.memory.total - option.memory.runtime > FIXED_BYTES


def test_words_say_where_the_weights_are() -> None:
    found = options_on(PLAIN)
    told = {option.plan.is_streamed: plan_in_words(option) for option in found}
    assert "weights on the card" in told[False]
    assert "weights copied to the card at each use" in told[True]


def test_plans_of_the_processor_know_no_card() -> None:
    assert not any(plan.is_streamed for plan in plans(large(), ("float32",)))
    assert large().computer == "torch"
    assert replace(large(), device=CUDA).computer == "torch cuda"
    assert LARGE.layers == 24
