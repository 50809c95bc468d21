from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.spec import AdapterError, parse_adapter
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.bases.tokenizer import LEFT_BYTES, TOKENIZERS
from smidgen.edge_client.planning.plan import LET_GO_BYTES, Plan, Workload
from smidgen.edge_client.planning.planner import plans
from smidgen.edge_client.planning.torch_memory import (
    FIXED_BYTES,
    dense_bytes,
    estimate,
    layer_parameters,
    moments,
    other_parameters,
    stored_bytes,
)
from smidgen.edge_client.updates.privacy import TextNoise
from smidgen.edge_client.updates.states import held_bytes
from smidgen.edge_client.wire.training import Training
from tests.edge_client.engine.plans import LARGE, MIB, RUNTIME, WORKS, large

ALL = tuple(range(24))


def most_kept(work: Workload, plan: Plan) -> int:
    return max(moment.kept for moment in moments(work, plan))


def total(work: Workload, plan: Plan) -> int:
    return estimate(work, plan, RUNTIME).total


@given(WORKS, st.data())
def test_shorter_texts_never_keep_more(work: Workload, data: st.DataObject) -> None:
    plan = data.draw(st.sampled_from(list(plans(work, ("float32", "bfloat16")))))
    shorter = replace(plan, tokens=data.draw(st.integers(1, plan.tokens)))
    assert most_kept(work, shorter) <= most_kept(work, plan)


def test_recomputing_more_layers_takes_less_and_never_more() -> None:
    work = large()
    sizes = [total(work, Plan("bfloat16", 4, ALL[:count], 24, 256)) for count in range(25)]
    assert sizes == sorted(sizes, reverse=True) and sizes[-1] < sizes[0] / 1.8


def test_fewer_trained_layers_take_less() -> None:
    sizes = [total(large(), Plan("float32", 4, (), depth, 256)) for depth in (1, 6, 12, 24)]
    assert sizes == sorted(sizes) and len(set(sizes)) == 4


def test_what_lies_below_the_trained_layers_keeps_nothing() -> None:
    shallow = most_kept(large(), Plan("float32", 4, (), 1, 256))
    state = 4 * 256 * 1024 * 4
    # The top layer: its input, the norm's output for LoRA on v, keys, values, two low ranks.
    assert shallow == 4 * state + 2 * 4 * 256 * 8 * 4


def test_a_kept_layer_holds_six_states_and_the_inner_one() -> None:
    work, state = large(), 1024 * 1024 * 2
    two, three = (Plan("bfloat16", 4, (), depth, 256) for depth in (2, 3))
    kept = [most_kept(work, plan) for plan in (two, three)]
    low_rank = 2 * 1024 * 8 * 2
    assert kept[1] - kept[0] == (6 + 4) * state + low_rank


def test_a_recomputed_layer_keeps_its_input_alone() -> None:
    work, state = large(), 1024 * 1024 * 2
    assert most_kept(work, Plan("bfloat16", 4, ALL, 24, 256)) == 24 * state


def test_lora_on_more_linears_keeps_their_inputs() -> None:
    plan, state = Plan("float32", 4, (), 24, 256), 1024 * 1024 * 4

    def kept(targets: str) -> int:
        return most_kept(large(f"lora:8@{targets}"), plan)

    low_rank = 24 * 1024 * 8 * 4
    assert kept("q,v,o") - kept("q,v") == 23 * state + low_rank
    assert kept("q,v,up") - kept("q,v") == 23 * state + low_rank
    assert kept("q,v,down") - kept("q,v") == 23 * 4 * state + low_rank


def test_a_bias_adapter_keeps_no_inputs_of_linears() -> None:
    plan = Plan("float32", 4, (), 24, 256)
    assert total(large("bias"), plan) < total(large("lora:8"), plan) - 23 * 4 * MIB


def test_a_head_alone_keeps_nothing() -> None:
    state = most_kept(large("head"), Plan("float32", 4, (), 24, 256))
    assert state == 4 * MIB  # the running one


def test_a_prompt_lengthens_every_text() -> None:
    plan = Plan("float32", 1, (), 24, 200)
    longer = replace(plan, tokens=239)
    assert most_kept(large("prompt:40"), plan) == most_kept(large("prompt:1"), longer)


def counted_in_layers(work: Workload) -> int:
    return sum(layer_parameters(work, layer) for layer in range(work.shape.stored_layers))


@pytest.mark.parametrize(
    "adapter", ["lora:8", "lora:3@q,k,v,o,up,down", "lora:8/0=0/1.v=3/1.up=2", "prompt:5"]
)
def test_parameters_are_counted_as_the_adapter_draws_them(tiny_base: Base, adapter: str) -> None:
    spec = parse_adapter(adapter)
    work = Workload(tiny_base.shape, 32, spec, 4, 32, num_labels=6)
    drawn = initial_adapter(spec, tiny_base, 6, seed=0).values()
    counted = counted_in_layers(work) + other_parameters(work)
    assert counted == sum(tensor.size for tensor in drawn)


def test_a_heads_parameters_are_counted(tiny_base: Base) -> None:
    spec = parse_adapter("lora:8+head")
    work = Workload(tiny_base.shape, 32, spec, 4, 32, num_labels=6)
    drawn = initial_adapter(spec, tiny_base, 6, seed=0).values()
    counted = counted_in_layers(work) + other_parameters(work)
    assert counted == sum(tensor.size for tensor in drawn)


@pytest.mark.parametrize("name", ["head", "lora:8+head", "prompt:5+head"])
@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "albert"])
def test_a_head_of_tags_is_one_linear(tiny_base: Base, family: str, name: str) -> None:
    spec = parse_adapter(name)
    shape = replace(tiny_base.shape, architecture=family)
    work = Workload(shape, 32, spec, 4, 32, num_labels=9, is_of_words=True)
    drawn = initial_adapter(spec, tiny_base, 9, seed=0, is_of_words=True)
    head = [tensor.size for part, tensor in drawn.items() if "classifier" in part]
    prompt = 5 * shape.embedding if spec.prompt_tokens else 0
    assert other_parameters(work) == sum(head) + prompt == 9 * (shape.hidden + 1) + prompt


def test_a_top_layer_that_is_read_at_many_places_keeps_as_much_as_any_other() -> None:
    plan = Plan("float32", 4, (), 24, 256)
    state = 4 * 256 * 1024 * 4
    short = most_kept(large("lora:8+head"), plan)
    tagging = most_kept(replace(large("lora:8+head"), is_of_words=True), plan)
    masked = most_kept(replace(large(), masked=39), plan)
    # Queries, the sum between and the feed-forward's inside are of all tokens.
    assert tagging == masked == short + (1 + 1 + 4) * state


def test_tags_of_many_types_take_room_of_their_own() -> None:
    work = replace(large("head"), is_of_words=True)
    plan = Plan("float32", 4, (), 24, 256)
    few, many = (list(moments(replace(work, num_labels=n), plan))[-1].transient for n in (9, 2001))
    words, states = 4 * 256, 4 * 4 * 256 * 1024
    assert few == 5 * states + 4 * words * 9
    assert many == 4 * states + 4 * 4 * words * 2001


def test_adapters_below_the_trained_depth_have_no_gradient() -> None:
    work = large()
    adapters = [estimate(work, Plan("float32", 1, (), depth, 8), 0).adapter for depth in (24, 23)]
    assert adapters[0] - adapters[1] == 4 * layer_parameters(work, 0)
    assert adapters[0] == 20 * 24 * 2 * 8 * 2048


@pytest.mark.parametrize(
    ("training", "bytes_each"),
    [
        (Training(), 20),
        (Training(proximal=0.1), 20),
        (Training(optimizer="sgd"), 12),
        (Training(optimizer="sgd", momentum=0.9), 16),
        (Training(optimizer="sgd", scaffold=True), 16),
    ],
)
def test_an_optimizer_costs_what_it_keeps(training: Training, bytes_each: int) -> None:
    work = replace(large(), moments=training.moments, shifts=int(training.scaffold))
    parameters = counted_in_layers(work)
    whole, less = (estimate(work, Plan("float32", 1, (), depth, 8), 0).adapter for depth in (24, 8))
    assert whole == bytes_each * parameters
    assert whole - less == 4 * 16 * layer_parameters(work, 0)  # what rests has no gradient


def test_noise_for_each_text_costs_what_its_step_holds() -> None:
    work, plan = large(), Plan("float32", 1, (), 24, 8)
    steps = held_bytes(["dp-text:0.1:1.0:8.0:1e-05", "codec:int8"])
    assert (steps, held_bytes(["dp:0.1:1.0:1:8.0:1e-05"])) == (TextNoise.held_bytes, 0)
    more = replace(work, held_bytes=steps)
    assert estimate(more, plan, 0).adapter - estimate(work, plan, 0).adapter == (
        steps * counted_in_layers(work)
    )
    assert more.what != work.what  # peaks of one say nothing of the other


def test_a_core_has_numbers_of_its_own_beside_loras() -> None:
    plan = Plan("float32", 1, (), 24, 8)
    names = ("lora:8", "lora:8+rolora", "lora:8+ffa", "lora:8+core")
    plain, turned, frozen, core = (estimate(large(name), plan, 0).adapter for name in names)
    assert turned == frozen == plain and core == plain + 8 * counted_in_layers(large())


def test_layers_without_an_adapter_cost_none() -> None:
    work = large("lora:8/top3")
    three, two = (estimate(work, Plan("float32", 1, (), depth, 8), 0).adapter for depth in (3, 2))
    assert three == 20 * 3 * layer_parameters(work, 23)
    assert three - two == 4 * layer_parameters(work, 23)


def test_top_layers_that_are_not_there_are_no_work() -> None:
    with pytest.raises(AdapterError, match="the base has 24 layers"):
        large("lora:8/top25")


def test_a_repeated_layer_has_one_adapter() -> None:
    shape = replace(LARGE, architecture="albert", stored_layers=1, embedding=128)
    work = Workload(shape, 8, parse_adapter("lora:8"), 4, 64)
    assert estimate(work, Plan("float32", 1, (), 24, 64), 0).adapter == 20 * 2 * 8 * 2048


def test_stored_weights_count_their_scales() -> None:
    assert stored_bytes((10, 128), 4) == 10 * 64 + 10 * 2 * 4
    assert stored_bytes((10, 128), 8) == 10 * 128 + 10 * 4
    assert stored_bytes((10, 128), 16) == 2 * 10 * 128


def test_weights_stored_as_they_are_computed_with_are_not_copied() -> None:
    assert dense_bytes((8, 64), 16, "bfloat16") == 0 == dense_bytes((8, 64), 32, "float32")
    assert dense_bytes((8, 64), 16, "float32") == 8 * 64 * 4
    assert dense_bytes((8, 64), 8, "bfloat16") == 8 * 64 * 2
    assert dense_bytes((8, 64), 4, "float32") == 8 * 64 * 6


def test_of_a_vocabulary_the_tokenizer_alone_is_felt_until_it_is_let_go() -> None:
    work, plan = large(), Plan("bfloat16", 4, ALL, 24, 256)
    let_go = -(-LET_GO_BYTES // TOKENIZERS["WordLevel"].held)
    few, more, many = (
        total(replace(work, shape=replace(LARGE, vocabulary=count)), plan)
        for count in (10_000, let_go - 1, let_go)
    )
    assert more - few == (let_go - 10_001) * TOKENIZERS["WordLevel"].held
    assert many - LEFT_BYTES[False] == few - 10_000 * TOKENIZERS["WordLevel"].held


def test_a_prompt_longer_than_the_base_reads_is_named() -> None:
    with pytest.raises(AdapterError, match="prompt:512 leaves no room"):
        large("prompt:512")


def test_the_runtime_and_the_fixed_part_are_always_there() -> None:
    smallest = estimate(large("head", batch=1, tokens=8), Plan("float32", 1, (), 24, 8), RUNTIME)
    assert smallest.total > RUNTIME + FIXED_BYTES


@pytest.mark.parametrize(
    ("bits", "plan", "measured_mib"),
    [
        # 2 cores, AVX-512, torch 2.13, 232 MiB before the base is opened; VmHWM of two steps.
        (4, Plan("bfloat16", 1, ALL[:18], 24, 256), 398),
        (16, Plan("bfloat16", 1, ALL, 24, 256), 401),
        (8, Plan("bfloat16", 4, (), 24, 256), 895),
        (4, Plan("bfloat16", 8, (), 24, 256), 1508),
    ],
)
def test_the_formula_is_near_peaks_measured_on_roberta_large(
    bits: int, plan: Plan, measured_mib: int
) -> None:
    work = large(batch=plan.micro_batch, tokens=plan.tokens, bits=bits)
    predicted = estimate(work, plan, 232 * MIB).total / MIB
    assert predicted == pytest.approx(measured_mib, rel=0.10)
