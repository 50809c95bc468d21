"""What an engine computes on: the processor, or a CUDA device if there is one.

card = find_card("cuda", base.bits)  # None for "cpu"; torch is imported here and not before
"""

from importlib import import_module
from typing import Any

from edge_client.engine.engine import EngineError
from edge_client.planning.cuda.accelerator import CPU, CUDA, Accelerator
from edge_client.planning.guard import Guard, PeakGuard

DEVICE_HELP = "cpu or cuda; cuda is the first CUDA device that torch sees."
CARD = "edge_client.engine.torch_backend.card"  # reached by name: it imports torch


def check_device(device: str, engine: str) -> None:
    """Refuse a device that is not known, and an engine that does not compute on it.

    Raises:
        EngineError: Says which of the two.
    """
    if device not in (CPU, CUDA):
        raise EngineError(f"--device {device!r} is not known; {CPU} or {CUDA}")
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
    return import_module(CARD)
