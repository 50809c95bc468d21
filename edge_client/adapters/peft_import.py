"""Adapters that PEFT made elsewhere: read into our own spec and tensors, without PEFT or torch."""

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np

from edge_client.adapters.fitting import fitting
from edge_client.adapters.initial import initial_adapter
from edge_client.adapters.peft_folder import (
    CONFIG,
    WEIGHTS,
    adapter_state,
    decode_weights,
)
from edge_client.adapters.ranks import LORA_ALPHA, ModuleRank
from edge_client.adapters.spec import (
    PREFIX,
    AdapterError,
    AdapterSpec,
    has_peft_form,
    layer_pattern,
    layers_of,
)
from edge_client.bases.architectures import FAMILIES
from edge_client.bases.base import Base
from edge_client.errors import demand
from edge_client.tables import plain
from edge_client.texts.tasks import Task
from edge_client.wire.tensors import AdapterState

LARGEST = 9999  # rank or tokens of a prompt, as in an adapter's name
LARGEST_ALPHA = 1_000_000
LONGEST_LINE = 200
# Options of LoRA that say nothing of the function, or that are read; whatever else is on may.
KNOWN = {"r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "init_lora_weights"} | {
    *("peft_type", "peft_version", "task_type", "auto_mapping", "base_model_name_or_path"),
    *("revision", "inference_mode", "runtime_config", "lora_dropout", "modules_to_save", "bias"),
    *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern"),
    *("megatron_core", "loftq_config", "eva_config", "qalora_group_size", "ensure_weight_tying"),
}
LEAVES_BASE = (True, False, None, "gaussian", "eva", "orthogonal")  # ways to begin that change none
LONGEST_PATTERN = 10_000  # characters of a regular expression; names of all modules fit in


def read_peft_adapter(folder: Path, base: Base, task: Task) -> tuple[AdapterSpec, AdapterState]:
    """Read `adapter_config.json` and `adapter_model.safetensors` of LoRA or prompt tuning.

    Another alpha than 16 (or rank-stabilized LoRA) is folded into LoRA's B, so the adapted model
    is the same function; what that is not said of is refused. Linears without LoRA get one of
    zeros, but in layers below all LoRA.

    Args:
        folder: What `PeftModel.save_pretrained` wrote.
        base: The base it is for.
        task: What it is to answer; its labels or tags, in the order in which a head has them.

    Raises:
        AdapterError: No such folder, damaged files, another kind of adapter, or one for another
            model.
    """
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        body = (folder / WEIGHTS).read_bytes()
        kind = config["peft_type"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise AdapterError(
            f"{folder} is not a PEFT adapter; a folder with {CONFIG} and {WEIGHTS} is expected"
        ) from error
    state = decode_weights(folder / WEIGHTS, body)
    if kind == "PROMPT_TUNING":
        tokens = _count(folder, config, "num_virtual_tokens")
        spec = AdapterSpec(prompt_tokens=tokens, head=len(state) > 1)
        _check_place(folder, spec, task)
        state = adapter_state(spec, state)
    elif kind == "LORA":
        rank, alpha = _count(folder, config, "r"), _alpha(folder, config)
        spec, state = _lora(folder, config, state, base, rank, alpha)
    else:
        raise AdapterError(f"{folder}: PEFT type {kind} is not supported; LORA or PROMPT_TUNING is")
    return spec, fitting(folder, spec, base, task, state)


def _check_place(folder: Path, spec: AdapterSpec, task: Task) -> None:
    """Refuse a head that PEFT had read the prompt's first token, where ours reads the text's."""
    said = f"{folder}: a head behind a soft prompt reads the prompt in PEFT, and here the text"
    demand(has_peft_form(spec, task.kind), f"{said}; train it here, or as LoRA there", AdapterError)


def _count(folder: Path, config: dict[str, Any], option: str) -> int:
    value = config.get(option)
    if type(value) is not int or not 1 <= value <= LARGEST:
        raise _wrong(folder, config, option, f"a whole number from 1 to {LARGEST}")
    return value


def _alpha(folder: Path, config: dict[str, Any]) -> float:
    value: Any = config.get("lora_alpha")
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not abs(value) <= LARGEST_ALPHA:  # NaN is neither above nor below
        raise _wrong(folder, config, "lora_alpha", f"a number up to {LARGEST_ALPHA}")
    return float(value)


def _wrong(folder: Path, config: dict[str, Any], option: str, expected: str) -> AdapterError:
    found = f"is {repr(config[option])[:40]}" if option in config else "is missing"
    return AdapterError(f"{folder / CONFIG}: {option} {found}; {expected} is expected")


def _lora(
    folder: Path, config: dict[str, Any], state: AdapterState, base: Base, rank: int, alpha: float
) -> tuple[AdapterSpec, AdapterState]:
    _check_plain(config)
    ranks = _patterns(folder, config, "rank_pattern", "a whole number from 1 to {}", LARGEST)
    alphas = _patterns(folder, config, "alpha_pattern", "a number up to {}", LARGEST_ALPHA)
    targets = _targets(state, base)
    has_head = any("lora_" not in name for name in state)
    named: list[ModuleRank] = []
    scaled = dict(state)
    family = FAMILIES[base.architecture]
    for layer in range(base.shape.stored_layers):
        for target in targets:
            module = family.linear(layer, target)
            r, known = _matching(ranks, module, rank), _matching(alphas, module, alpha)
            factor = known / math.sqrt(r) if config.get("use_rslora") else known / r
            _check_whole(folder, f"{PREFIX}{module}", state)
            name = f"{PREFIX}{module}.lora_B.weight"
            if name in state:
                scaled[name] = _scaled(folder, name, state[name], factor * r / LORA_ALPHA)
            if r != rank:
                named.append(ModuleRank(layer, target, int(r)))
    top = _top(state, base)
    spec = AdapterSpec(rank=rank, targets=targets, head=has_head, top=top, ranks=tuple(named))
    zeros = {
        name: np.zeros_like(tensor)
        for name, tensor in initial_adapter(spec, base, 1, 0).items()
        if "lora_" in name
    }
    return spec, zeros | scaled


def _check_plain(config: dict[str, Any]) -> None:
    """Refuse what makes another function of base and tensors than LoRA's, or may."""
    for option in sorted(set(config) - KNOWN):
        if config[option]:
            said = f"PEFT option {option} is not supported; plain LoRA is"
            raise AdapterError(plain(said)[:LONGEST_LINE])
    bias = config.get("bias", "none")
    demand(bias == "none", "PEFT option bias is not supported; plain LoRA is", AdapterError)
    begun = config.get("init_lora_weights")
    demand(
        begun in LEAVES_BASE,
        f"PEFT option init_lora_weights = {plain(str(begun)):.40} changes the base too; save it as "
        "plain LoRA (`save_pretrained` with `path_initial_model_for_weight_conversion`)",
        AdapterError,
    )


def _check_whole(folder: Path, module: str, state: AdapterState) -> None:
    a, b = f"{module}.lora_A.weight", f"{module}.lora_B.weight"
    if (a in state) != (b in state):
        raise AdapterError(f"{folder / WEIGHTS}: tensor {a if b in state else b} is missing")


def _scaled(folder: Path, name: str, tensor: np.ndarray, factor: float) -> np.ndarray:
    with np.errstate(over="ignore"):
        found = tensor * np.float32(factor)
    said = f"{folder}: {name} times {factor:g} (lora_alpha) leaves float32's range"
    demand(bool(np.isfinite(found).all()), said, AdapterError)
    return found


def _patterns(
    folder: Path, config: dict[str, Any], option: str, expected: str, most: int
) -> dict[str, float]:
    """PEFT's regular expressions over module names, each with its number."""
    found = config.get(option) or {}
    is_whole = option == "rank_pattern"
    kinds = int if is_whole else int | float

    def is_right(value: object) -> bool:
        is_number = isinstance(value, kinds) and not isinstance(value, bool)
        return is_number and (1 if is_whole else -most) <= value <= most  # type: ignore[operator]

    if not isinstance(found, dict) or not all(map(is_right, found.values())):
        raise _wrong(folder, config, option, f"a table from names to {expected.format(most)}")
    for pattern in found:
        if len(pattern) > LONGEST_PATTERN:
            raise _wrong(folder, config, option, f"names of up to {LONGEST_PATTERN} characters")
        try:
            re.compile(_at_the_end(pattern))  # some are well-formed only by themselves
        except (re.error, RecursionError, OverflowError) as error:
            said = "names as regular expressions"
            raise _wrong(folder, config, option, said) from error
    return found


def _matching(patterns: dict[str, float], module: str, other: float) -> float:
    """The number of the first pattern that fits the end of a module's name, as PEFT has it."""
    fits = (key for key in patterns if re.match(_at_the_end(key), module))
    return next((patterns[key] for key in fits), other)


def _at_the_end(pattern: str) -> str:
    return rf"(.*\.)?({pattern})$"


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
