from dataclasses import replace

from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import open_base
from smidgen.edge_client.planning.plan import Workload
from smidgen.edge_client.planning.planner import Option, options, plan_in_words
from smidgen.edge_client.planning.resources import read_facts


def option(adapter: str) -> Option:
    base, facts = open_base("embedded"), read_facts(runtime=1 << 20)
    work = Workload(base.shape, base.bits, parse_adapter(adapter), 8, 64, engine="onnx")
    return options(work, facts.runtime_bytes, facts.nominal)[0]


def test_a_plan_is_told_in_words() -> None:
    found = option("lora:8")
    plan = replace(found.plan, micro_batch=2, recompute=(1, 2), depth=3, is_kept_in_half=True)
    said = plan_in_words(replace(found, plan=plan, predicted_peak_bytes=147 << 20))
    assert said == (
        "2 of a batch's 8 texts at once, up to 64 tokens each, in float32, layers' inputs kept in "
        "float16; trained through the top 3 of 4 layers, 2 of them recomputed in backward; "
        "predicted peak 147 MiB (estimated)"
    )


def test_a_plan_with_matrices_in_slices_says_so() -> None:
    found = option("lora:8")
    said = plan_in_words(replace(found, plan=replace(found.plan, is_sliced=True)))
    assert "in backward; large matrices in slices; predicted peak" in said


def test_what_does_not_apply_is_not_told() -> None:
    assert "all 8 texts of a batch at once" in plan_in_words(option("bias"))
    assert "through all 4 layers, none recomputed" in plan_in_words(option("bias"))
    assert "nothing is trained in the layers" in plan_in_words(option("head"))
