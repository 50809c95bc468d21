"""The formulas of the onnx engine: their laws, and what its rooms really take."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.spec import frozen_layers, parse_adapter
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.bases.layout import checked_shape, lay_out
from smidgen.edge_client.engine.activation_cache import ActivationCache
from smidgen.edge_client.engine.frozen_layers_cache import FrozenPrefix
from smidgen.edge_client.engine.onnx_backend.network import Network
from smidgen.edge_client.planning.onnx_memory import estimate
from smidgen.edge_client.planning.plan import BudgetError, Plan, Workload
from smidgen.edge_client.planning.planner import choose, options, plans
from smidgen.edge_client.planning.step_cost import Rates, step_seconds
from smidgen.edge_client.texts.batches import Batch
from tests.edge_client.engine.plans import AVX512, LARGE, MIB, ONNX_WORKS, RATES, RUNTIME, large

BUDGETS = st.integers(100 * MIB, 3000 * MIB)
TEXTS, TOKENS = 5, 37
SIZES = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 2000,
    "max_position_embeddings": 130,
    "pad_token_id": 1,
    "type_vocab_size": 1,
    "embedding_size": 32,
}


def total(work: Workload, plan: Plan) -> int:
    return estimate(work, plan, RUNTIME).total


def any_plan(work: Workload, data: st.DataObject) -> Plan:
    return data.draw(st.sampled_from(list(plans(work, ("float32", "bfloat16")))))


# Laws


@given(ONNX_WORKS, st.data())
def test_shorter_texts_never_predict_more(work: Workload, data: st.DataObject) -> None:
    plan = any_plan(work, data)
    shorter = replace(plan, tokens=data.draw(st.integers(1, plan.tokens)))
    kept = [estimate(work, each, RUNTIME).kept for each in (shorter, plan)]
    assert kept[0] <= kept[1]


@given(ONNX_WORKS, st.data())
def test_recomputing_more_layers_never_predicts_more(work: Workload, data: st.DataObject) -> None:
    plan = any_plan(work, data)
    lowest = work.shape.layers - plan.depth
    count = data.draw(st.integers(len(plan.recompute), plan.depth))
    again = replace(plan, recompute=tuple(range(lowest, lowest + count)))
    assert total(work, again) <= total(work, plan)


@given(ONNX_WORKS, st.data())
def test_fewer_trained_layers_never_predict_more(work: Workload, data: st.DataObject) -> None:
    plan = any_plan(work, data)
    depth = data.draw(st.integers(1, plan.depth))
    lowest = work.shape.layers - depth
    left = tuple(index for index in plan.recompute if index >= lowest)
    assert total(work, replace(plan, depth=depth, recompute=left)) <= total(work, plan)


@given(ONNX_WORKS.filter(lambda work: work.shape.layers >= 4), st.data())
def test_inputs_in_half_precision_never_predict_more(work: Workload, data: st.DataObject) -> None:
    plan = replace(any_plan(work, data), is_kept_in_half=False)
    if work.spec.is_in_layers:
        half = replace(plan, is_kept_in_half=True, is_spilled=False)
        assert total(work, half) <= total(work, replace(plan, is_spilled=False))


def test_an_input_that_waits_in_half_precision_takes_half() -> None:
    work, whole = replace(large(), engine="onnx"), Plan("float32", 4, tuple(range(24)), 24, 256)
    sizes = [
        estimate(work, replace(whole, is_kept_in_half=is_half), 0).kept for is_half in (False, True)
    ]
    state = 4 * 256 * 1024 * 4
    assert sizes[0] - sizes[1] == (24 // 2 - 2) * state  # two more rooms take turns


def test_a_matrix_that_is_stored_in_float32_is_not_made_dense() -> None:
    plan = Plan("float32", 1, (), 24, 64)
    sizes = [
        estimate(replace(large(bits=bits), engine="onnx"), plan, 0).scratch
        for bits in (4, 8, 16, 32)
    ]
    assert sizes == [4 * 1024 * 4096] * 3 + [0]


def test_a_head_of_all_words_holds_its_arrays_beside_what_graphs_hold() -> None:
    work, plan = replace(large(), engine="onnx"), Plan("float32", 4, (), 24, 256)
    asked = [estimate(replace(work, masked=masked), plan, 0) for masked in (0, 200, 256)]
    none, few, many = (each.transient for each in asked)
    assert few > none and many - few == 4 * 4 * 56 * 9 * 1024  # nine states of each answer
    assert asked[2].kept - asked[1].kept == 4 * 4 * 56 * 2048  # and a logit of each word of a slice


def test_attention_in_parts_holds_keys_and_values_of_fewer_heads() -> None:
    shape = replace(LARGE, architecture="llama", is_decoder=True, rope_theta=1e4)
    work = Workload(shape, 4, parse_adapter("lora:8"), 1, 1024, engine="onnx", masked=1)
    plan = Plan("float32", 1, (), 24, 1024)
    few = replace(work, shape=replace(shape, kv_heads=4))
    held = [estimate(each, plan, 0).transient for each in (work, few)]
    assert held[0] - held[1] == 4 * 6 * 1024 * (1024 - 4 * 64)


@given(ONNX_WORKS, st.data())
def test_slices_never_predict_more_nor_a_faster_step(work: Workload, data: st.DataObject) -> None:
    plan = replace(any_plan(work, data), dtype="float32", is_sliced=False)
    sliced = replace(plan, is_sliced=True)
    assert total(work, sliced) <= total(work, plan)
    assert step_seconds(work, sliced, AVX512) >= step_seconds(work, plan, AVX512)


def test_slices_and_parts_of_a_feed_forward_are_small_whatever_the_matrix_takes() -> None:
    work, plan = replace(large(), engine="onnx"), Plan("float32", 1, (), 24, 64)
    assert estimate(work, replace(plan, is_sliced=True), 0).scratch == 8 * MIB
    assert estimate(work, plan, 0).scratch == 16 * MIB


# Planning


@given(ONNX_WORKS, RATES)
def test_this_engine_is_planned_in_float32_alone(work: Workload, rates: Rates) -> None:
    found = options(work, RUNTIME, rates)
    assert {option.plan.dtype for option in found} == {"float32"}
    assert len({option.plan for option in found}) == len(found)
    halves = {option.plan.is_kept_in_half for option in found}
    assert halves == ({False, True} if work.spec.is_in_layers else {False})


@given(ONNX_WORKS, RATES, BUDGETS)
def test_matrices_are_in_slices_only_where_no_plan_as_deep_fits_without_or_with_a_file(
    work: Workload, rates: Rates, budget: int
) -> None:
    found = options(work, RUNTIME, rates)
    whole = [option for option in found if not option.plan.is_sliced]
    try:
        chosen = choose(found, budget)
    except BudgetError:
        return
    fits = [option for option in whole if option.predicted_peak_bytes <= budget]
    if chosen.plan.is_sliced:  # of plans as deep a file comes after slices
        filed = [option for option in fits if option.plan.is_spilled > chosen.plan.is_spilled]
        assert all(one.plan.depth < chosen.plan.depth or one in filed for one in fits)
    else:
        assert chosen == choose(whole, budget)


def test_with_memory_enough_nothing_is_split_recomputed_or_halved() -> None:
    found = options(replace(large(), engine="onnx"), RUNTIME, AVX512)
    assert choose(found, 8 << 30).plan == Plan("float32", 4, (), LARGE.layers, 256)


# What rooms take


def zeros(family: str, layers: int, folder: Path, pooling: str = "cls") -> Base:
    """An int8 base of zeros: only the sizes matter here."""
    config = SIZES | {"model_type": family, "num_hidden_layers": layers}
    config |= {"classifier_pooling": pooling} if pooling == "mean" else {}
    layout = lay_out(config, 8)
    header = layout.header
    (folder / "model.safetensors").write_bytes(header + bytes(layout.file_bytes - len(header)))
    (folder / "config.json").write_text(json.dumps(config))
    return Base(family, folder, "zeros", checked_shape(config), 8)


def rooms_after_a_step(
    base: Base,
    work: Workload,
    plan: Plan,
    cache: ActivationCache | None = None,
    shortest: int = TOKENS,
) -> int:
    """Bytes of all rooms but the one for a dense matrix."""
    state = initial_adapter(work.spec, base, 2, seed=0, is_of_words=work.is_of_words)
    words = None if work.masked else [] if work.spec.head else [[5], [6]]
    network = Network(base, work.spec, state, words, 2)
    cut = frozen_layers(work.spec, base.layers)
    network.prefix = FrozenPrefix(cache, cut) if cache is not None and cut else None
    ids = np.full((TEXTS, TOKENS), 7)
    attention = np.ones_like(ids)
    attention[1, shortest:] = 0
    answers, labels = np.full(TEXTS, 3), np.arange(TEXTS) % 2
    batch = Batch(ids, attention, answers, labels)
    if work.masked or work.is_of_words:
        asked = work.masked or 30  # as many tokens as each text has
        places, texts = np.tile(np.arange(asked), TEXTS), np.arange(TEXTS)
        labels = places % work.num_labels
        of = np.repeat(texts, asked)
        batch = replace(batch, mask_positions=places, labels=labels, texts=of)
    network.backward(batch, plan)
    taken = network._bench.rooms.bytes - estimate(work, plan, 0).scratch
    network.close()
    return taken


WHOLE = Plan("float32", TEXTS, (), 4, TOKENS)
BELOW = tuple(range(4))
# Plans, and how many states the formula says too many: where one layer is trained, that layer is
# the top one, whose queries are one row per text, and nothing asks for the gradient at its input.
PLANS = [
    (WHOLE, 0),
    (replace(WHOLE, micro_batch=2), 0),
    (replace(WHOLE, recompute=(0, 1)), 0),
    (replace(WHOLE, recompute=BELOW, micro_batch=3), 0),
    (replace(WHOLE, is_kept_in_half=True), 0),
    (replace(WHOLE, is_kept_in_half=True, recompute=BELOW), 0),
    (replace(WHOLE, is_spilled=True), 0),
    (replace(WHOLE, is_spilled=True, recompute=BELOW), 0),
]
SHALLOW = [
    (replace(WHOLE, depth=3), 0),
    (replace(WHOLE, depth=3, recompute=(1, 2)), 0),
    (replace(WHOLE, depth=2, is_kept_in_half=True), 0),
    (replace(WHOLE, depth=2, is_spilled=True), 0),
    (replace(WHOLE, depth=1), 2),
    (replace(WHOLE, depth=1, recompute=(3,)), 2),
]
CASES = [
    *(("roberta", "lora:4", *each) for each in (*PLANS, *SHALLOW)),
    *(("roberta", "lora:2@q,o,up,down", *each) for each in PLANS[2:4]),
    ("roberta", "lora:2@q,o,up,down", WHOLE, 1),  # no room for what all layers keep themselves
    *(("albert", "prompt:5", *each) for each in PLANS[:4]),
    *(("bert", "bias", *each) for each in (PLANS[0], PLANS[3], SHALLOW[0])),
    ("bert", "bias", replace(WHOLE, depth=1), 1),
    ("bert", "head", WHOLE, 0),
]


@pytest.mark.few(10)
@pytest.mark.parametrize(("family", "adapter", "plan", "too_many"), CASES)
def test_the_rooms_of_a_step_take_what_the_formula_says(
    tmp_path: Path, family: str, adapter: str, plan: Plan, too_many: int
) -> None:
    base, spec = zeros(family, 4, tmp_path), parse_adapter(adapter)
    work = Workload(base.shape, 8, spec, TEXTS, TOKENS, engine="onnx")
    said = estimate(work, plan, 0).kept
    taken = rooms_after_a_step(base, work, plan)
    if family == "albert":
        taken -= 4 * plan.micro_batch * (TOKENS + spec.prompt_tokens) * base.shape.embedding
    state = 4 * plan.micro_batch * (TOKENS + spec.prompt_tokens) * base.shape.hidden
    # Left out of the formula: what goes on in the top layer, one row per text.
    tops = 4 * plan.micro_batch * (6 * base.shape.hidden + base.shape.intermediate)
    assert 0 <= taken - (said - too_many * state) <= tops


def test_a_shorter_text_takes_less_room(tmp_path: Path) -> None:
    base = zeros("roberta", 4, tmp_path)
    work = Workload(base.shape, 8, parse_adapter("lora:4"), TEXTS, TOKENS, engine="onnx")
    whole, short = (rooms_after_a_step(base, work, WHOLE, None, n) for n in (TOKENS, 9))
    rows, least = TEXTS * TOKENS, TEXTS * TOKENS - (TOKENS - 9)
    assert short < whole and short == pytest.approx(whole * least / rows, rel=0.02)


@pytest.mark.few(5)
@pytest.mark.parametrize(
    ("family", "adapter", "plan"),
    [
        *(("roberta", "lora:4", plan) for plan, _ in (*PLANS, *SHALLOW[:3])),
        ("roberta", "lora:2@q,o,up,down", PLANS[3][0]),
        ("albert", "prompt:5", PLANS[3][0]),
        ("bert", "bias", PLANS[0][0]),
        ("llama", "lora:4", PLANS[0][0]),
        ("llama", "lora:4@q,v", PLANS[5][0]),
    ],
)
def test_the_rooms_of_a_step_that_asks_for_all_words_take_what_the_formula_says(
    tmp_path: Path, family: str, adapter: str, plan: Plan
) -> None:
    base, spec = zeros(family, 4, tmp_path), parse_adapter(adapter)
    work = Workload(base.shape, 8, spec, TEXTS, TOKENS, engine="onnx", masked=6)
    taken = rooms_after_a_step(base, work, plan)
    if family == "albert":
        taken -= 4 * plan.micro_batch * (TOKENS + spec.prompt_tokens) * base.shape.embedding
    assert taken == estimate(work, plan, 0).kept


@pytest.mark.few(6)
@pytest.mark.parametrize(
    ("family", "adapter", "plan"),
    [
        *(("roberta", "lora:4+head", plan) for plan, _ in (*PLANS, *SHALLOW[:3])),
        ("roberta", "lora:2@q,o,up,down+head", PLANS[3][0]),
        ("albert", "prompt:5+head", PLANS[3][0]),
        ("bert", "bias+head", PLANS[0][0]),
        ("roberta", "lora:4/top2+head", replace(WHOLE, depth=2)),
        ("bert", "head", WHOLE),
        ("bert", "head", replace(WHOLE, micro_batch=2)),
    ],
)
def test_the_rooms_of_a_step_that_tags_words_take_what_the_formula_says(
    tmp_path: Path, family: str, adapter: str, plan: Plan
) -> None:
    base, spec = zeros(family, 4, tmp_path), parse_adapter(adapter)
    work = Workload(base.shape, 8, spec, TEXTS, TOKENS, engine="onnx", is_of_words=True)
    cache = ActivationCache(tmp_path, 1 << 20, "zeros")  # read where lower layers are frozen
    taken = rooms_after_a_step(base, work, plan, cache)
    if family == "albert":
        taken -= 4 * plan.micro_batch * (TOKENS + spec.prompt_tokens) * base.shape.embedding
    assert taken == estimate(work, plan, 0).kept


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("adapter", "plan"),
    [("lora:4+head", plan) for plan, _ in PLANS]
    + [("lora:4/top2+head", replace(WHOLE, depth=2)), ("head", WHOLE)],
)
def test_the_rooms_of_a_step_whose_head_reads_the_mean_take_what_the_formula_says(
    tmp_path: Path, adapter: str, plan: Plan
) -> None:
    base, spec = zeros("modernbert", 4, tmp_path, "mean"), parse_adapter(adapter)
    work = Workload(base.shape, 8, spec, TEXTS, TOKENS, engine="onnx")
    cache = ActivationCache(tmp_path, 1 << 20, "zeros")  # read where lower layers are frozen
    assert rooms_after_a_step(base, work, plan, cache) == estimate(work, plan, 0).kept


# Adapters of top layers with a cache, and how many states the formula says too many.
CUT = [
    ("lora:4/top2", replace(WHOLE, depth=2), 0),
    ("lora:4/top2", replace(WHOLE, depth=2, recompute=(2, 3)), 0),
    ("lora:4/top2", replace(WHOLE, depth=2, is_kept_in_half=True), 0),
    ("lora:4/top2", replace(WHOLE, depth=2, is_spilled=True), 0),
    ("lora:4/top3", replace(WHOLE, depth=2), 0),
    ("bias/top3", replace(WHOLE, depth=3, micro_batch=2), 0),
    ("lora:4/top1", replace(WHOLE, depth=1), 2),
]


@pytest.mark.few(3)
@pytest.mark.parametrize(("adapter", "plan", "too_many"), CUT)
def test_the_rooms_of_a_step_with_a_cache_take_what_the_formula_says(
    tmp_path: Path, adapter: str, plan: Plan, too_many: int
) -> None:
    base, cache = zeros("roberta", 4, tmp_path), ActivationCache(tmp_path, 1 << 20, "zeros")
    work = Workload(base.shape, 8, parse_adapter(adapter), TEXTS, TOKENS, engine="onnx")
    said = estimate(work, plan, 0).kept
    state = 4 * plan.micro_batch * TOKENS * base.shape.hidden
    tops = 4 * plan.micro_batch * (6 * base.shape.hidden + base.shape.intermediate)
    computed = rooms_after_a_step(base, work, plan, cache)
    assert 0 <= computed - (said - too_many * state) <= tops
    assert rooms_after_a_step(base, work, plan, cache) < computed  # what was kept is read


@given(st.integers(2, 24), st.sampled_from(["lora:8", "bias"]), st.data())
def test_plans_of_top_layers_keep_the_laws(top: int, name: str, data: st.DataObject) -> None:
    work = replace(large(f"{name}/top{top}"), engine="onnx")
    plan = any_plan(work, data)
    assert plan.depth <= top
    fewer = data.draw(st.integers(1, plan.depth))
    left = tuple(index for index in plan.recompute if index >= LARGE.layers - fewer)
    assert total(work, replace(plan, depth=fewer, recompute=left)) <= total(work, plan)
    whole = replace(plan, is_kept_in_half=False)
    half = replace(whole, is_kept_in_half=True, is_spilled=False)
    assert total(work, half) <= total(work, replace(whole, is_spilled=False))
