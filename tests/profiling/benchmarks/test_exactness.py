import json
import math
from pathlib import Path

import pytest

from tests.command_line import smidgen

pytest.importorskip("peft")

from smidgen.edge_client.bases.base import Base
from smidgen.profiling.benchmarks.exactness import PlanError
from smidgen.profiling.benchmarks.report import exactness_table
from tests.breadth import SLOW


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("adapter", "task"),
    [
        ("lora:8", "labels"),
        ("bias+head", "tagging"),
        *(pytest.param(*each, marks=SLOW) for each in (("prompt:4", "labels"), ("lora:8", "mlm"))),
    ],
)
def test_every_plan_of_a_base_is_exact(tiny_base: Base, adapter: str, task: str) -> None:
    arguments = ["gradients", "--base", str(tiny_base.folder), "--bits", "8", "--json"]
    arguments += ["--adapter", adapter, "--task", task]
    result = smidgen("profile", *arguments)
    assert result.exit_code == 0, result.output
    plans = json.loads(result.stdout.splitlines()[-1])["plans"]
    assert len(plans) >= 6 and all(plan["is_exact"] for plan in plans)
    assert {len(plan["plan"]["recompute"]) for plan in plans} != {0}


def test_a_plan_that_is_not_exact_is_shown_as_such() -> None:
    plan = {"micro_batch": 2, "recompute": [], "depth": 3}
    wrong, silent = (
        PlanError(plan, 0.0, "a.lora_A", error, zero)
        for error, zero in ((math.inf, []), (0.0, ["a.lora_A"]))
    )
    assert not wrong.is_exact and not silent.is_exact
    assert len(exactness_table([wrong, silent]).rows) == 2


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--base", "/no/such/base"], "no base at /no/such/base"),
        (["--base", "embedded", "--adapter", "head"], "compared without a head"),
        (
            ["--base", "embedded", "--task", "tags"],
            "--task tags is not one of labels, tagging, mlm",
        ),
        (["--base", "embedded", "--task", "tagging"], "lora:8+head has one"),
        (["--base", "embedded", "--task", "mlm", "--adapter", "head"], "compared without a head"),
        (["--base", "embedded", "--batch", "0"], "--batch 0 is less than 1"),
        (["--base", "embedded", "--tokens", "9000"], "--tokens 9000: base embedded takes"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments: list[str], expected: str) -> None:
    result = smidgen("profile", "gradients", *arguments)
    assert result.exit_code == 2 and expected in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
