"""Adapters that PEFT made elsewhere: read into our own spec and tensors, without PEFT or torch."""

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np

from edge_client.adapters.initial import initial_adapter
from edge_client.adapters.peft_folder import CONFIG, WEIGHTS
from edge_client.adapters.spec import (
    LORA_ALPHA,
    PREFIX,
    AdapterError,
    AdapterSpec,
    layer_pattern,
    layers_of,
)
from edge_client.bases.architectures import FAMILIES
from edge_client.bases.base import Base
from edge_client.wire.tensors import AdapterState, decode_adapter


def read_peft_adapter(
    folder: Path, base: Base, num_labels: int
) -> tuple[AdapterSpec, AdapterState]:
    """Read `adapter_config.json` and `adapter_model.safetensors` of LoRA or prompt tuning.

    Another alpha than 16 (or rank-stabilized LoRA) is folded into LoRA's B, so the adapted model
    is the same function. Linears without LoRA get one of zeros, but in layers below all LoRA.

    Args:
        folder: What `PeftModel.save_pretrained` wrote.
        base: The base it is for.
        num_labels: Rows of a classification head.

    Raises:
        AdapterError: No such folder, another kind of adapter, or one for another model.
        WireError: The weights are damaged.
    """
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        state = decode_adapter((folder / WEIGHTS).read_bytes())
        kind = config["peft_type"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise AdapterError(
            f"{folder} is not a PEFT adapter; a folder with {CONFIG} and {WEIGHTS} is expected"
        ) from error
    if kind == "PROMPT_TUNING":
        spec = AdapterSpec(prompt_tokens=int(config["num_virtual_tokens"]))
    elif kind == "LORA":
        spec, state = _lora(config, state, base)
    else:
        raise AdapterError(f"{folder}: PEFT type {kind} is not supported; LORA or PROMPT_TUNING is")
    wanted = {name: t.shape for name, t in initial_adapter(spec, base, num_labels, 0).items()}
    _same_names(folder, base, wanted, state)
    return spec, {name: state[name] for name in wanted}


def _lora(
    config: dict[str, Any], state: AdapterState, base: Base
) -> tuple[AdapterSpec, AdapterState]:
    for option in ("use_dora", "rank_pattern", "alpha_pattern", "lora_bias", "fan_in_fan_out"):
        if config.get(option):
            raise AdapterError(f"PEFT option {option} is not supported; plain LoRA is")
    rank, alpha = int(config["r"]), float(config["lora_alpha"])
    scaling = alpha / math.sqrt(rank) if config.get("use_rslora") else alpha / rank
    factor = np.float32(scaling * rank / LORA_ALPHA)
    targets = _targets(state, base)
    has_head = any("lora_" not in name for name in state)
    spec = AdapterSpec(rank=rank, targets=targets, head=has_head, top=_top(state, base))
    zeros = {
        name: np.zeros_like(tensor)
        for name, tensor in initial_adapter(spec, base, 1, 0).items()
        if "lora_" in name
    }
    scaled = {name: t * factor if "lora_B" in name else t for name, t in state.items()}
    return spec, zeros | scaled


def _top(state: AdapterState, base: Base) -> int:
    """How many top layers hold all of the LoRA; 0: all layers."""
    layers, is_shared = layers_of(state, base.architecture), base.shape.stored_layers < base.layers
    return 0 if is_shared or not layers or not layers[0] else max(0, base.layers - layers[0])


def _targets(state: AdapterState, base: Base) -> tuple[str, ...]:
    """Short names of the linears that carry LoRA, in our order."""
    family = FAMILIES[base.architecture]
    layer = layer_pattern(base.architecture)
    found = set()
    for name in state:
        match = re.fullmatch(f"{re.escape(PREFIX)}{layer}(.+)\\.lora_[AB]\\.weight", name)
        if match:
            found.add(match[1])
        elif "lora_" in name:
            raise AdapterError(
                f"LoRA on {name.removeprefix(PREFIX)} is not supported for a {base.architecture}; "
                f"expected the linears {', '.join(family.linears.values())} of its layers"
            )
    return tuple(short for short, module in family.linears.items() if module in found)


def _same_names(
    folder: Path, base: Base, wanted: dict[str, tuple[int, ...]], state: AdapterState
) -> None:
    for name, shape in wanted.items():
        if name not in state:
            raise AdapterError(f"{folder}: no tensor {name}, which base {base.name} wants")
        if state[name].shape != shape:
            raise AdapterError(
                f"{folder}: {name} is {state[name].shape}, base {base.name} wants {shape}"
            )
    if extra := sorted(set(state) - set(wanted)):
        raise AdapterError(f"{folder}: tensor {extra[0]} has no place in base {base.name}")
