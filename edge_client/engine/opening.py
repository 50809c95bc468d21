"""Opening an engine: which one is meant, whether it is installed, and its backend by name."""

import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from edge_client.adapters.spec import AdapterSpec
from edge_client.bases.architectures import Shape
from edge_client.bases.base import Base
from edge_client.engine.engine import Engine, EngineError
from edge_client.planning.allocator import resident_bytes, use_one_arena
from edge_client.planning.plan import Plan
from edge_client.planning.resources import resident_bytes_in
from edge_client.planning.sizes import AUTO
from edge_client.texts.tasks import Task
from edge_client.wire.messages import Training

# Engine -> the library it computes with, and how one gets it.
INSTALL = {
    "torch": ("torch", "pip install 'smidgen[torch]'"),
    "onnx": ("onnxruntime", "pip install smidgen"),
}
ENGINE_HELP = "auto, torch or onnx; auto is torch where it is installed."


def open_engine(
    kind: str,
    base: Base,
    task: Task,
    spec: AdapterSpec,
    training: Training,
    plan: Plan | None = None,
) -> Engine:
    """Build an engine; the modules that compute are imported here and not before.

    Args:
        kind: `torch`, `onnx`, or `auto` for the best one installed.
        base: The frozen base.
        task: Labels and patterns.
        spec: The adapter.
        training: Learning rate, longest input.
        plan: How a step is computed; by default in float32, whole and without recomputation.

    Raises:
        EngineError: The engine's libraries are not installed.
        TaskError: A label word is unknown to this base's tokenizer, or a pattern too long.
    """
    module = load_engine(kind)
    if base.shape.is_decoder:
        raise EngineError(
            f"base {base.name} is a causal language model ({base.architecture}); tasks are asked "
            "of a masked one, such as roberta (`engine.torch_backend.network` trains decoders)"
        )
    build = {"torch": "TorchEngine", "onnx": "OnnxEngine"}[engine_name(kind)]
    engine: Engine = getattr(module, build)(
        base, task, spec, training, plan or unplanned(base.shape, training, spec.top)
    )
    return engine


def engine_name(kind: str) -> str:
    """The engine that is meant: `auto` is torch where it is installed, and else onnx.

    Raises:
        EngineError: None is known by this name.
    """
    if kind == AUTO:
        return "torch" if find_spec("torch") else "onnx"
    if kind not in INSTALL:
        raise EngineError(f"--engine {kind} is not known; {AUTO}, {' or '.join(INSTALL)}")
    return kind


def installed_engine(kind: str) -> str:
    """The engine that is meant, without importing it.

    Raises:
        EngineError: None is known by this name, or its libraries are not installed.
    """
    name = engine_name(kind)
    library, command = INSTALL[name]
    if find_spec(library) is None:
        raise EngineError(f"the {name} engine needs {library}; {command}")
    return name


def load_engine(kind: str) -> Any:
    """Import the module that computes, with all its libraries.

    Raises:
        EngineError: They are not installed.
    """
    name = installed_engine(kind)
    use_one_arena()
    return import_module(f"edge_client.engine.{name}_backend.backend")


def unplanned(shape: Shape, training: Training, top: int = 0) -> Plan:
    """The plan where memory is no matter: float32, whole batches, nothing computed twice.

    Args:
        shape: Of the base.
        training: Batch and longest input.
        top: Of the adapter: its top layers, 0 for all.
    """
    return Plan(
        dtype="float32",
        micro_batch=training.batch,
        recompute=(),
        depth=top or shape.layers,
        tokens=min(training.tokens, shape.positions),
    )


# A process that has loaded an engine's libraries and nothing else, where it cannot be measured.
RUNTIME_BYTES = {"torch": 240 << 20, "onnx": 80 << 20}
RUNTIME_STEP_BYTES = 8 << 20
READY = """
from edge_client.engine.engine import load_engine
load_engine("{engine}")
{warm_up}
print(open("/proc/self/status").read())
"""
WARM_UP = {
    "torch": """
import torch
x = torch.ones(64, 64)
for dtype in (torch.float32, torch.bfloat16):
    x.to(dtype) @ x.to(dtype)
""",
    "onnx": "",
}


def runtime_bytes(engine: str = "torch", python: str = sys.executable) -> int:
    """Resident bytes of a process that is ready to compute but has opened no base.

    Of this process where it has loaded the engine; else measured in a fresh one; else, where the
    engine is not installed, a constant. Rounded up, so that the small differences between two
    starts do not change the plan.

    Args:
        engine: `torch` or `onnx`.
        python: The interpreter of a fresh process.
    """
    if f"edge_client.engine.{engine}_backend.backend" in sys.modules:
        return _rounded_up(resident_bytes()) or RUNTIME_BYTES[engine]
    code = READY.format(engine=engine, warm_up=WARM_UP[engine])
    try:
        done = subprocess.run(
            [python, "-c", code], capture_output=True, text=True, timeout=120, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return RUNTIME_BYTES[engine]
    return _rounded_up(resident_bytes_in(done.stdout)) or RUNTIME_BYTES[engine]


def _rounded_up(size_bytes: int) -> int:
    return -(-size_bytes // RUNTIME_STEP_BYTES) * RUNTIME_STEP_BYTES
