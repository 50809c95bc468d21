import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.architectures import Shape
from smidgen.edge_client.planning.plan import (
    BudgetError,
    Plan,
    Workload,
    auto_budget,
    parse_budget,
    parse_cache_size,
    parse_size,
    size_text,
)
from smidgen.edge_client.planning.planner import (
    FAST_ENOUGH_S,
    Option,
    choose,
    depths,
    estimate,
    halvings,
    next_smaller,
    options,
    plans,
    preference,
    recomputations,
    undominated,
)
from smidgen.edge_client.planning.step_cost import (
    Rates,
    layer_forwards,
    nominal_rates,
    step_seconds,
)
from smidgen.edge_client.planning.torch_memory import parts
from tests.edge_client.engine.plans import (
    AVX512,
    LARGE,
    MIB,
    NEON,
    ONNX_WORKS,
    RATES,
    REPEATED,
    RUNTIME,
    SMALL,
    WORKS,
    large,
    options_of,
)

BUDGETS = st.integers(100 * MIB, 3000 * MIB)
of_each_engine = pytest.mark.parametrize("works", [WORKS, ONNX_WORKS], ids=["torch", "onnx"])
Works = st.SearchStrategy[Workload]


# What a plan takes


@of_each_engine
@given(st.data())
def test_a_smaller_micro_batch_never_predicts_more(works: Works, data: st.DataObject) -> None:
    work = data.draw(works)
    plan = data.draw(st.sampled_from(list(plans(work, ("float32", "bfloat16")))))
    smaller = replace(plan, micro_batch=data.draw(st.integers(1, plan.micro_batch)))
    sizes = [estimate(work, each, RUNTIME).total for each in (smaller, plan)]
    assert sizes == sorted(sizes)


@of_each_engine
@given(st.data())
def test_the_parts_are_the_whole_and_none_is_negative(works: Works, data: st.DataObject) -> None:
    work = data.draw(works)
    for plan in plans(work, ("float32", "bfloat16")):
        estimated = estimate(work, plan, RUNTIME)
        named = parts(estimated)
        assert sum(named.values()) == estimated.total and min(named.values()) >= 0
        assert list(named.values()) == sorted(named.values(), reverse=True)


# Choosing


@of_each_engine
@given(st.data(), RATES, BUDGETS)
def test_the_chosen_plan_fits_or_the_error_names_a_budget_that_does(
    works: Works, data: st.DataObject, rates: Rates, budget: int
) -> None:
    found = options_of(data.draw(works), rates)
    try:
        assert choose(found, budget).predicted_peak_bytes <= budget
    except BudgetError as error:
        named = parse_budget(str(error).split("(")[1].split(")")[0])
        assert named is not None and named > budget
        assert choose(found, named).predicted_peak_bytes <= named


@given(WORKS, RATES, BUDGETS, st.integers(0, 2000 * MIB))
def test_more_memory_never_gives_a_shallower_or_slower_plan(
    work: Workload, rates: Rates, budget: int, more: int
) -> None:
    found = options_of(work, rates)
    smallest = min(option.predicted_peak_bytes for option in found)
    poor, rich = (choose(found, max(size, smallest)) for size in (budget, budget + more))
    assert preference(rich) <= preference(poor)
    assert rich.plan.depth >= poor.plan.depth
    if rich.plan.depth == poor.plan.depth:
        assert rich.nominal_step_s <= max(poor.nominal_step_s, FAST_ENOUGH_S)


@of_each_engine
@given(st.data(), RATES)
def test_stepping_down_gets_smaller_each_time_and_ends(
    works: Works, data: st.DataObject, rates: Rates
) -> None:
    found = options_of(data.draw(works), rates)
    current: Option | None = found[0]
    peaks = []
    while current is not None:
        peaks.append(current.predicted_peak_bytes)
        current = next_smaller(found, current)
    assert all(after < before for before, after in pairwise(peaks))
    assert peaks[-1] == min(option.predicted_peak_bytes for option in found)


@given(WORKS, RATES, BUDGETS)
def test_the_chosen_plan_is_among_those_shown(work: Workload, rates: Rates, budget: int) -> None:
    found = options_of(work, rates)
    smallest = min(option.predicted_peak_bytes for option in found)
    assert choose(found, max(budget, smallest)) in undominated(found)


@given(WORKS, BUDGETS, st.integers(0, 2000 * MIB))
def test_a_large_tokenizer_stays_where_there_is_room_and_is_predicted(
    work: Workload, budget: int, more: int
) -> None:
    work = replace(work, shape=replace(work.shape, vocabulary=250_002))
    found = options_of(work)
    budget = max(budget, min(option.predicted_peak_bytes for option in found))
    poor, rich = choose(found, budget), choose(found, budget + more)
    with_it = next(one for one in found if one.plan == poor.plan and one.work.keeps_vocabulary)
    assert poor.work.keeps_vocabulary == (with_it.predicted_peak_bytes <= budget)
    assert with_it.work.tokenizer_bytes.held > work.tokenizer_bytes.held
    assert preference(rich) <= preference(poor)


def test_equal_devices_choose_equal_plans_whatever_the_order() -> None:
    found = options_of(large())
    budgets = [size * MIB for size in (384, 400, 512, 1000)]
    first = [choose(found, budget) for budget in budgets]
    assert first == [choose(found[::-1], budget) for budget in budgets]
    assert len({option.plan for option in first}) == 4


def test_with_memory_enough_nothing_is_split_or_recomputed() -> None:
    plan = choose(options_of(large()), 8 << 30).plan
    assert plan == Plan("bfloat16", 4, (), 24, 256)


def test_half_a_gigabyte_trains_all_of_roberta_large() -> None:
    plan = choose(options_of(large()), 448 * MIB).plan
    assert plan.depth == 24 and plan.dtype == "bfloat16"
    assert plan.micro_batch < 4 or plan.recompute


def test_a_processor_without_16_bit_arithmetic_computes_in_float32() -> None:
    assert {option.plan.dtype for option in options_of(large(), NEON)} == {"float32"}


def test_a_small_model_keeps_full_precision() -> None:
    work = Workload(SMALL, 8, parse_adapter("lora:8"), 4, 64)
    found = options_of(work)
    assert choose(found, 4 << 30).plan == Plan("float32", 4, (), 2, 64)
    assert min(found, key=lambda option: option.nominal_step_s).plan.dtype == "bfloat16"


def test_depth_is_reduced_only_where_nothing_deeper_fits() -> None:
    found = options_of(large())
    deepest = [row.predicted_peak_bytes for row in found if row.plan.depth == 24]
    assert choose(found, min(deepest)).plan.depth == 24
    assert choose(found, min(deepest) - 1).plan.depth == 18


def test_a_budget_below_all_plans_says_what_to_do() -> None:
    smallest = min(option.predicted_peak_bytes for option in options_of(large()))
    with pytest.raises(BudgetError) as told:
        choose(options_of(large()), 300 * MIB // 2)
    assert str(told.value) == (
        f"--memory-budget 150M is below the smallest plan for this model ({size_text(smallest)}); "
        "raise it or use --engine onnx, which takes less"
    )


def test_a_budget_that_was_found_here_is_said_to_be() -> None:
    expected = (
        r"--memory-budget auto \(150M, 60 % of what is free here\) is below the smallest plan"
    )
    with pytest.raises(BudgetError, match=expected):
        choose(options_of(large()), 150 * MIB, is_auto=True)


def test_whoever_has_the_light_engine_is_told_what_else_takes_less() -> None:
    with pytest.raises(BudgetError, match="lower --tokens or pack the base with fewer --bits"):
        choose(options_of(replace(large(), engine="onnx")), MIB)


def test_whoever_trains_biases_is_not_told_to() -> None:
    with pytest.raises(BudgetError, match="lower --tokens"):
        choose(options_of(replace(large("bias"), engine="onnx")), MIB)


def test_a_step_down_is_clearly_smaller_while_there_is_one() -> None:
    found = options_of(large())
    below = next_smaller(found, found[0])
    assert below is not None and below.plan.depth == 24
    held = found[0].memory.kept + found[0].memory.transient
    assert below.predicted_peak_bytes <= found[0].predicted_peak_bytes - 0.2 * held


@pytest.mark.parametrize("shape", [LARGE, SMALL], ids=["large", "small"])
def test_layers_are_given_up_last(shape: Shape) -> None:
    found = options_of(Workload(shape, 8, parse_adapter("lora:8"), 4, 64))
    deep = [row.predicted_peak_bytes for row in found if row.plan.depth == shape.layers]
    current: Option | None = found[0]
    while current is not None and current.predicted_peak_bytes > min(deep):
        assert current.plan.depth == shape.layers
        current = next_smaller(found, current)
    assert current is not None and current.plan.depth == shape.layers


def test_a_small_model_under_a_large_runtime_halves_its_micro_batch() -> None:
    found = options_of(Workload(SMALL, 8, parse_adapter("lora:8"), 4, 64))
    below = next_smaller(found, found[0])
    assert below is not None and below.plan == Plan("float32", 2, (), 2, 64)


@pytest.mark.slow
def test_a_correction_moves_predictions_and_so_the_choice() -> None:
    plain = options_of(large())
    corrected = options(large(), RUNTIME, AVX512, lambda plan, size: size + 100 * MIB)
    assert [row.plan for row in corrected] == [row.plan for row in plain]
    assert choose(corrected, 512 * MIB).predicted_peak_bytes <= 512 * MIB
    assert choose(corrected, 512 * MIB).plan != choose(plain, 512 * MIB).plan


# Enumerating


@given(WORKS)
def test_every_plan_comes_once_and_is_sound(work: Workload) -> None:
    found = list(plans(work, ("float32", "bfloat16")))
    assert len(found) == len(set(found))
    for plan in found:
        lowest = work.shape.layers - plan.depth
        assert 1 <= plan.micro_batch <= work.batch and 1 <= plan.depth <= work.shape.layers
        assert plan.recompute == tuple(range(lowest, lowest + len(plan.recompute)))
        assert plan.tokens + work.spec.prompt_tokens <= work.shape.positions


def test_micro_batches_are_halvings() -> None:
    assert halvings(1) == [1]
    assert halvings(5) == [5, 3, 2, 1]
    assert halvings(8) == [8, 4, 2, 1]


def test_an_adapter_of_top_layers_is_planned_no_deeper() -> None:
    assert depths(large("lora:8/top8")) == [8, 6, 4, 2, 1]
    assert depths(large("bias/top1+head")) == [1]
    plan = choose(options_of(large("lora:8/top2")), 8 << 30).plan
    assert plan.depth == 2 and not plan.recompute


def test_fewer_adapted_layers_take_fewer_bytes_and_seconds() -> None:
    names = ("lora:8/top2", "lora:8/top12", "lora:8")
    best = [min(options_of(large(name)), key=preference) for name in names]
    for measure in ("predicted_peak_bytes", "nominal_step_s"):
        sizes = [getattr(option, measure) for option in best]
        assert sizes == sorted(sizes) and len(set(sizes)) == 3


def test_recomputed_layers_are_the_lowest_trained_ones_in_quarters() -> None:
    found = recomputations(large(), 8)
    assert [len(layers) for layers in found] == [0, 2, 4, 6, 8]
    assert found[1] == (16, 17) and found[-1] == tuple(range(16, 24))


def test_only_adapters_of_single_layers_can_be_shallow() -> None:
    assert depths(large()) == depths(large("bias")) == [24, 18, 12, 6, 1]
    assert depths(large("prompt:8")) == depths(large("head")) == [24]
    assert depths(Workload(REPEATED, 8, parse_adapter("lora:8"), 4, 64)) == [6]


def test_a_head_alone_has_nothing_to_recompute() -> None:
    assert {plan.recompute for plan in plans(large("head"), ("float32",))} == {()}


def test_inputs_longer_than_the_base_reads_are_planned_as_long_as_it_reads() -> None:
    assert {plan.tokens for plan in plans(large(tokens=9999), ("float32",))} == {512}
    assert {plan.tokens for plan in plans(large("prompt:12", tokens=9999), ("float32",))} == {500}


# Seconds


@given(WORKS, RATES, st.data())
def test_dearer_ways_never_take_less(work: Workload, rates: Rates, data: st.DataObject) -> None:
    plan = data.draw(st.sampled_from(list(plans(work, tuple(rates.flops_per_s)))))
    smaller = replace(plan, micro_batch=data.draw(st.integers(1, plan.micro_batch)))
    again = replace(plan, recompute=tuple(range(work.shape.layers - plan.depth, work.shape.layers)))
    seconds = step_seconds(work, plan, rates)
    assert 0 < seconds <= step_seconds(work, smaller, rates)
    assert seconds <= step_seconds(work, again, rates)


def test_a_batch_is_not_split_for_nothing() -> None:
    assert choose(options_of(large(bits=32), NEON), 8 << 30).plan == Plan("float32", 4, (), 24, 256)


def test_a_layer_forward_back_and_again_are_one_two_and_one() -> None:
    plan = Plan("float32", 4, (), 24, 256)
    assert layer_forwards(large(), plan) == 4 * 24 * 3
    assert layer_forwards(large(), replace(plan, recompute=(0, 1))) == 4 * (24 * 3 + 2)
    assert layer_forwards(large(), replace(plan, depth=6)) == 4 * (24 + 2 * 6)
    assert layer_forwards(large("head"), plan) == 4 * 24


def test_a_recomputation_leaves_out_the_last_linear() -> None:
    work, plan = large(bits=32), Plan("float32", 4, (), 24, 256)
    rates = Rates({"float32": 1.0}, {32: 1.0}, 0.0)
    first = replace(plan, recompute=(0,))
    cost = step_seconds(work, first, rates) - step_seconds(work, plan, rates)
    linears, attention = 2 * 1024 * (8 * 1024 * 1024), 4 * 1024 * 256 * 1024
    assert cost == pytest.approx(linears + attention)


def test_measured_rates_scale_seconds_and_leave_the_order() -> None:
    slow = AVX512.scaled(96e9)
    for option in options_of(large()):
        seconds = step_seconds(option.work, option.plan, slow)
        assert seconds == pytest.approx(2 * option.nominal_step_s)


def test_rates_are_known_for_every_fast_dtype_and_for_any_processor() -> None:
    assert nominal_rates((), ("bfloat16",), 1).flops_per_s == {"float32": 8e9}
    assert set(nominal_rates({"asimd", "asimdhp"}, ("float16",), 2).flops_per_s) == {
        "float32",
        "float16",
    }
    assert AVX512.flops_per_s == {"float32": 192e9, "bfloat16": 436e9}


# Sizes


@given(st.integers(1, 10_000_000))
def test_a_size_is_read_as_it_is_written(mebibytes: int) -> None:
    assert parse_budget(size_text(mebibytes * MIB)) == mebibytes * MIB


@given(st.integers(MIB, 1 << 43))
def test_a_size_is_written_so_that_it_is_enough(size: int) -> None:
    assert size <= (parse_budget(size_text(size)) or 0) < size + MIB
    assert size - MIB < (parse_budget(size_text(size, math.floor)) or 0) <= size


@pytest.mark.parametrize(
    ("text", "size"),
    [("512M", 512 * MIB), ("2G", 2 << 30), ("1.5G", 3 << 29), ("512m", 512 * MIB), ("auto", None)],
)
def test_a_budget_is_a_size_or_auto(text: str, size: int | None) -> None:
    assert parse_budget(text) == size


NO_SIZES = (
    "",
    "512",
    "512MB",
    "-1G",
    "0M",
    "0.1M",
    "1e3M",
    "nan",
    "infG",
    "٥G",
    "1.G",
    "M",
    "AUTO",
)


@pytest.mark.parametrize("text", [*NO_SIZES, " 512M", "512M\n", "9" * 400 + "G"])
def test_a_budget_that_is_no_size_says_what_was_expected(text: str) -> None:
    with pytest.raises(BudgetError, match=r"is not a size; expected such as 512M, 1\.5G or auto"):
        parse_budget(text)


def test_an_option_of_sizes_alone_expects_nothing_else() -> None:
    assert parse_size("--cgroup", "1.5G") == 1536 * MIB
    with pytest.raises(BudgetError, match=r"^--cgroup 'auto' .* such as 512M or 1\.5G$"):
        parse_size("--cgroup", "auto")


def test_auto_is_sixty_percent_of_what_is_available() -> None:
    assert auto_budget(1000) == 600 and auto_budget(0) == 0


def test_options_keep_the_order_of_preference() -> None:
    found = options_of(Workload(LARGE, 8, parse_adapter("bias"), 3, 100))
    assert found == sorted(found, key=preference)


@pytest.mark.parametrize(("text", "size"), [("0", 0), ("256M", 256 * MIB), ("1.5g", 1536 * MIB)])
def test_a_cache_size_may_be_none(text: str, size: int) -> None:
    assert parse_cache_size(text) == size


@pytest.mark.parametrize("text", ["auto", "", "00", "0M", "256", "-1G"])
def test_a_cache_size_is_a_size(text: str) -> None:
    with pytest.raises(BudgetError, match=r"--cache-size .* is not a size; .* or 0 for none"):
        parse_cache_size(text)
