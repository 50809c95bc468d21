from dataclasses import replace
from pathlib import Path

from smidgen.edge_client.api.plan import plans_of
from smidgen.edge_client.commands.train import _plan_answer, _plans_table
from smidgen.edge_client.planning.cuda_memory import CUDA, UNIFIED, Accelerator
from smidgen.edge_client.planning.resources import Resources, read_facts
from smidgen.edge_client.tables import render
from tests.edge_client.engine.plans import MIB, RUNTIME, large

VOLTA = Accelerator("Tesla V100", (7, 0), 80, 16 << 30, 15 << 30)
ORIN = Accelerator("Orin", (8, 7), 8, 8 << 30, 5 << 30, is_unified=True)


def facts(card: Accelerator | None) -> Resources:
    return read_facts(RUNTIME, Path("/"), "x86_64", card)


def test_auto_is_of_the_cards_memory_or_of_the_machines_where_that_is_one() -> None:
    here = facts(None)
    assert facts(VOLTA).budgeted_bytes == 15 << 30
    assert abs(facts(ORIN).budgeted_bytes - here.budgeted_bytes) < 1 << 30  # read a moment later
    assert (here.device, facts(VOLTA).device, facts(ORIN).device) == ("cpu", CUDA, UNIFIED)


def test_sixteen_bits_are_those_that_a_card_computes_fast() -> None:
    assert VOLTA.dtypes == ("float16",) and ORIN.dtypes == ("bfloat16",)
    assert replace(VOLTA, capability=(6, 2)).dtypes == ()
    assert set(facts(VOLTA).nominal.flops_per_s) == {"float32", "float16"}


def test_equal_cards_have_equal_rates_and_larger_ones_higher_ones() -> None:
    assert VOLTA.nominal == replace(VOLTA, free_bytes=1).nominal
    larger = replace(VOLTA, processors=160).nominal
    assert larger.flops_per_s["float32"] == 2 * VOLTA.nominal.flops_per_s["float32"]


def test_a_plan_for_a_card_names_it_and_what_lies_beside_it() -> None:
    work = replace(large(), device=CUDA)
    plans = plans_of(work, facts(VOLTA), None, flops_per_s=1e13)
    assert plans.budget_bytes == (15 << 30) * 60 // 100
    assert plans.process_bytes is not None and plans.process_bytes > RUNTIME
    told = render(_plans_table(plans))
    assert "of Tesla V100 (estimated)" in told and "weights" in told
    assert "CUDA context is in neither figure" in " ".join(told.split())
    answer = _plan_answer(plans)
    assert answer["accelerator"]["capability"] == (7, 0)
    assert answer["process_bytes"] == plans.process_bytes


def test_a_plan_for_unified_memory_is_one_sum() -> None:
    work = replace(large(), device=UNIFIED)
    plans = plans_of(work, facts(ORIN), 4 << 30, flops_per_s=1e12)
    assert plans.process_bytes is None
    assert plans.chosen.option.memory.runtime == RUNTIME
    assert plans.chosen.predicted_peak_bytes > RUNTIME + 100 * MIB
    assert "of Orin" in render(_plans_table(plans))
