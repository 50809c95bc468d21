"""Compares every plan's gradients on one base in a fresh process: `smidgen profile gradients`.

Our engine computes in float32, the reference (plain PyTorch + PEFT) in float64; see
`smidgen.profiling.benchmarks.gradients`, which the process runs.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from smidgen.edge_client.adapters.spec import AdapterError, parse_adapter
from smidgen.edge_client.engine.opening import ENGINES, check_device
from smidgen.edge_client.planning.cuda_memory import CPU
from smidgen.edge_client.tasks.kind import kind_named
from smidgen.edge_client.tasks.task import names
from smidgen.profiling.instruments.child import DONE, Line, run_child, silent
from smidgen.profiling.instruments.environment import (
    OFFLINE,
    BenchmarkError,
    demand_between,
    find_base,
    label_words,
)

EXACT = 1e-5  # relative, in Euclidean norm


@dataclass(frozen=True)
class PlanError:
    """How far one plan's gradients are from the reference's.

    Attributes:
        plan: What was computed, as `Plan` has it.
        loss_error: |loss - reference| / reference.
        worst_tensor: The adapter's tensor with the largest error.
        worst_error: Its |gradient - reference| / |reference| (Euclidean norms).
        zero_tensors: Tensors without any gradient that have one in the reference.
    """

    plan: dict[str, Any]
    loss_error: float
    worst_tensor: str
    worst_error: float
    zero_tensors: list[str]

    @property
    def is_exact(self) -> bool:
        """Whether errors are within 1e-5 and every trained tensor has the reference's gradient."""
        return max(self.worst_error, self.loss_error) <= EXACT and not self.zero_tensors

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"is_exact": self.is_exact}


@dataclass(frozen=True)
class Question:
    """What is compared with the reference.

    Attributes:
        base: Pack, folder, hub name or `embedded`; with random weights a shape's name.
        is_random: Use random weights; `--base` is then a shape such as roberta-large.
        bits: Bits of the base's weights: 4, 8 or 16. Default: as it is.
        adapter: Adapter: `lora:8`, `lora:8@q,v`, `prompt:8` or `bias`; with `+head` for tagging,
            and only for it.
        batch: Texts per step, 1 or more; all but the first are padded.
        tokens: Tokens of the longest text.
        seed: Seed for texts, adapter and random weights; equal seeds give equal texts.
        engine: Engine to check: `torch` or `onnx`.
        device: Where the engine computes: `cpu`, or `cuda`, the first CUDA device that torch sees;
            the reference always computes on the processor.
        task: What is predicted: `labels`, one per text; `mlm`, words at some places of a text;
            `tagging`, one of nine tags at most tokens.

    Raises:
        BenchmarkError: A value is out of range.
    """

    base: str
    is_random: bool = False
    bits: int | None = None
    adapter: str = "lora:8"
    batch: int = 2
    tokens: int = 32
    seed: int = 0
    engine: str = "torch"
    device: str = CPU
    task: str = "labels"

    def __post_init__(self) -> None:
        try:
            is_head = parse_adapter(self.adapter).head
        except AdapterError as error:
            raise BenchmarkError(str(error)) from error
        if self.task not in names():
            raise BenchmarkError(f"--task {self.task} is not one of {', '.join(names())}")
        is_tagged = kind_named(self.task).files.wants == "tags"
        if is_tagged and not is_head:
            raise BenchmarkError(
                f"--adapter {self.adapter}: words are tagged by a head; {self.adapter}+head has one"
            )
        if is_head and not is_tagged:
            raise BenchmarkError(
                f"--adapter {self.adapter}: compared without a head, but for --task tagging"
            )
        if self.engine not in ENGINES:
            raise BenchmarkError(f"--engine {self.engine} is not one of {', '.join(ENGINES)}")
        check_device(self.device, self.engine)
        demand_between(
            {
                "batch": (1, self.batch, 4096),
                "tokens": (8, self.tokens, 1_000_000),
                "seed": (0, self.seed, 2**63 - 1),
            }
        )


@dataclass(frozen=True)
class Comparison:
    """How far one plan was from the reference.

    Attributes:
        plans: One of each kind.
        plain_error: Worst error of plain PyTorch + PEFT itself in float32, for scale.
    """

    plans: list[PlanError]
    plain_error: float

    @property
    def is_exact(self) -> bool:
        return all(plan.is_exact for plan in self.plans)

    def to_json(self) -> dict[str, Any]:
        plans = [plan.to_json() for plan in self.plans]
        return {"plans": plans, "plain_error": self.plain_error, "is_exact": self.is_exact}


def compare(question: Question, listen: Callable[[Line], None] = silent) -> Comparison:
    """Every plan of `smidgen.profiling.benchmarks.gradients.every_plan`.

    Raises:
        BenchmarkError: No such base, texts that it does not read, or the process failed.
    """
    base = find_base(question.base, question.is_random, question.bits, question.seed)
    longest = base.shape.positions - parse_adapter(question.adapter).prompt_tokens
    if question.tokens > longest:
        raise BenchmarkError(f"--tokens {question.tokens}: base {question.base} takes {longest}")
    request = asdict(question) | {
        "base": str(base.folder.resolve()),
        "word_ids": list(label_words(base).values()),
    }
    command = [sys.executable, "-m", "smidgen.profiling.benchmarks.gradients", json.dumps(request)]
    child = run_child(command, None, 0, OFFLINE, listen)
    if child.outcome != DONE:
        refusal = child.refusal
        raise BenchmarkError(child.outcome if refusal is None else refusal["message"])
    rows = [line for line in child.lines if line["event"] == "plan"]
    plans = [PlanError(**{name: row[name] for name in PlanError.__annotations__}) for row in rows]
    plain = next(line["worst_error"] for line in child.lines if line["event"] == "plain")
    return Comparison(plans, plain)
