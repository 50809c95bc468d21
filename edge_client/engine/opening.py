"""Opens an engine: resolves its name and device, checks that it is installed, finds its backend.

card = find_card("cuda", base.bits)  # None for "cpu"; torch is imported only here
"""

import subprocess
import sys
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from smidgen.edge_client.adapters.banks import computed
from smidgen.edge_client.adapters.initial import check_asked, initial_adapter
from smidgen.edge_client.adapters.spec import AdapterSpec, frozen_layers
from smidgen.edge_client.bases.architectures import Shape
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.bases.tokenizer import open_tokens
from smidgen.edge_client.engine.engine import Engine, EngineError
from smidgen.edge_client.engine.linear import with_core, with_ridge
from smidgen.edge_client.errors import demand, installing
from smidgen.edge_client.metering.memory import sizes
from smidgen.edge_client.planning.allocator import (
    before_torch,
    resident_bytes,
    trim,
    use_one_arena,
)
from smidgen.edge_client.planning.budget import Budget, Guard, PeakGuard
from smidgen.edge_client.planning.cuda_memory import CPU, CUDA, Accelerator
from smidgen.edge_client.planning.plan import AUTO, Plan
from smidgen.edge_client.tasks.encoder import Encoder
from smidgen.edge_client.tasks.kind import kind_of
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.updates.forms import is_lora
from smidgen.edge_client.updates.ridge import WEIGHT
from smidgen.edge_client.wire.training import Training

DEVICE_HELP = "cpu or cuda; cuda is the first CUDA device that torch sees."


def check_device(device: str, engine: str) -> None:
    """Refuse a device that is not known, and an engine that does not compute on it.

    Raises:
        EngineError: Says which of the two.
    """
    demand(device in (CPU, CUDA), f"--device {device!r} is not known; {CPU} or {CUDA}", EngineError)
    if device == CUDA and engine == "onnx":
        raise EngineError(
            "--engine onnx --device cuda: the onnx engine computes on the processor; use --engine "
            "torch, or --device cpu"
        )


def find_card(device: str, bits: int) -> Accelerator | None:
    """The CUDA device, tried out; None for the processor.

    Args:
        device: `cpu` or `cuda`.
        bits: Of the base's weights; those of 4 bits need bitsandbytes.

    Raises:
        EngineError: There is none that computes; says why.
    """
    found: Accelerator | None = None if device == CPU else _card().find_card(bits)
    return found


def open_guard(card: Accelerator | None, budget_bytes: int) -> PeakGuard:
    """What watches the peak of the memory that a budget is of.

    Args:
        card: The CUDA device that computes; None: the processor.
        budget_bytes: What may be taken of its memory.
    """
    if card is None:
        return Guard(budget_bytes)
    guard: PeakGuard = _card().CardGuard(budget_bytes, card.is_unified)
    return guard


def measured_card_flops() -> float:
    """Operations per second of float32 products on the CUDA device, measured."""
    return float(_card().measured_flops())


def _card() -> Any:
    # By name: it imports torch.
    return import_module("smidgen.edge_client.engine.torch_backend.card")


@dataclass(frozen=True)
class Installation:
    """What an engine computes with.

    Attributes:
        library: The package that must be installed.
        extra: The extra of smidgen that brings it; empty for none.
        module: Its backend, reached by name so that nothing is imported before it computes.
        runtime_bytes: Resident bytes of a process that has loaded the library and nothing else,
            where they cannot be measured.
        warm_up: Python that touches what a first step would load.
    """

    library: str
    extra: str
    module: str
    runtime_bytes: int
    warm_up: str = ""


ENGINES = {
    "torch": Installation(
        library="torch",
        extra="torch",
        module="smidgen.edge_client.engine.torch_backend.backend",
        runtime_bytes=240 << 20,
        warm_up="""
import torch
x = torch.ones(64, 64)
for dtype in (torch.float32, torch.bfloat16):
    x.to(dtype) @ x.to(dtype)
""",
    ),
    "onnx": Installation(
        library="onnxruntime",
        extra="",
        module="smidgen.edge_client.engine.onnx_backend.backend",
        runtime_bytes=80 << 20,
    ),
}
ENGINE_HELP = "auto, torch or onnx; auto is torch where it is installed."
RUNTIME_STEP_BYTES = 1 << 20
READY = """
from smidgen.edge_client.engine.opening import load_engine
load_engine("{engine}")
{warm_up}
print(open("/proc/self/status").read())
"""


def open_engine(
    kind: str,
    base: Base,
    task: Task,
    spec: AdapterSpec,
    training: Training,
    plan: Plan | None = None,
    budget: Budget | None = None,
    device: str = CPU,
) -> Engine:
    """Build an engine; the modules that compute are imported here and not before.

    Args:
        kind: `torch`, `onnx`, or `auto` for the best one installed.
        base: The frozen base.
        task: What is asked.
        spec: The adapter.
        training: Learning rate, longest input.
        plan: How a step is computed; by default in float32, whole and without recomputation.
        budget: Kept within; see `budgeted.open_within`.
        device: What it computes on: `cpu`, or `cuda` where `devices.find_card` finds one.

    Raises:
        AdapterError: No adapter of this kind is known for the base's architecture, or the base
            cannot answer such a task.
        EngineError: The engine's libraries are not installed, or it is not for this device.
        TaskError: A label word is unknown to this base's tokenizer, or a pattern too long.
    """
    module, form, spec = load_engine(kind, device), spec.form, computed(spec, base.shape)
    check_asked(spec, task, base)
    tokens = open_tokens(base)
    trim()  # reading it frees as much as it holds, or thrice that
    limit = min(training.tokens, base.shape.positions - spec.prompt_tokens)
    encoder = Encoder(tokens, task, not spec.head, limit, spec.prompt_tokens)
    head = kind_of(task).head(task)
    state = initial_adapter(spec, base, head.rows, seed=0, is_of_words=head.is_of_words)
    words: list[list[int]] | None = [] if spec.head else None
    if head.answers == "label words" and not spec.head:
        words = tokens.label_word_ids(task)
    elsewhere = {} if device == CPU else {"device": device}
    weight = state.pop(WEIGHT, None)
    backend = module.open_backend(base, spec, state, words, training, loss=head.loss, **elsewhere)
    backend = backend if is_lora(form) else with_core(backend, state, training)
    backend = backend if weight is None else with_ridge(backend, weight, base.shape.layers)
    cut = frozen_layers(spec, base.shape.layers)
    by = plan or unplanned(base.shape, training, base.shape.layers - cut)
    return Engine(backend, encoder, base.shape, by, cut, budget)


def engine_name(kind: str, device: str = CPU) -> str:
    """The engine that a name means: `auto` is torch if it is installed or needed, else onnx.

    Raises:
        EngineError: None is known by this name, or none for this device.
    """
    check_device(device, kind)
    if kind == AUTO:
        return "torch" if device != CPU or find_spec("torch") else "onnx"
    if kind not in ENGINES:
        raise EngineError(f"--engine {kind} is not known; {AUTO}, {' or '.join(ENGINES)}")
    return kind


def installed_engine(kind: str, device: str = CPU) -> str:
    """The engine that a name means, without importing it.

    Raises:
        EngineError: None is known by this name, or none for this device, or its libraries are not
            installed.
    """
    name = engine_name(kind, device)
    row = ENGINES[name]
    if find_spec(row.library) is None:
        extra = row.extra if device == CPU else "gpu"
        raise EngineError(f"the {name} engine needs {row.library}; {installing(extra)}")
    return name


def load_engine(kind: str, device: str = CPU) -> Any:
    """Import an engine's backend with all its libraries.

    Raises:
        EngineError: They are not installed, or the engine is not for this device.
    """
    name = installed_engine(kind, device)
    use_one_arena()
    before_torch()
    return import_module(ENGINES[name].module)


def unplanned(shape: Shape, training: Training, top: int = 0) -> Plan:
    """The plan for unlimited memory: float32, whole batches, nothing recomputed.

    Args:
        shape: The base's.
        training: Batch and longest input.
        top: How many top layers the adapter has, 0 for all.
    """
    return Plan(
        dtype="float32",
        micro_batch=training.batch,
        recompute=(),
        depth=top or shape.layers,
        tokens=min(training.tokens, shape.positions),
    )


def runtime_bytes(engine: str = "torch", python: str = sys.executable) -> int:
    """Resident bytes of a process that is ready to compute but has opened no base.

    This process's where it has loaded the engine; else measured in a fresh one; else, where the
    engine is not installed, a constant. Rounded up, so that the small differences between two
    starts do not change the plan.

    Args:
        engine: `torch` or `onnx`.
        python: The interpreter of a fresh process.
    """
    row = ENGINES[engine]
    if row.module in sys.modules:
        return _rounded_up(resident_bytes()) or row.runtime_bytes
    code = READY.format(engine=engine, warm_up=row.warm_up)
    try:
        done = subprocess.run(
            [python, "-c", code], capture_output=True, text=True, timeout=120, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return row.runtime_bytes
    return _rounded_up(sizes(done.stdout).get("VmRSS", 0)) or row.runtime_bytes


def _rounded_up(size_bytes: int) -> int:
    return -(-size_bytes // RUNTIME_STEP_BYTES) * RUNTIME_STEP_BYTES
