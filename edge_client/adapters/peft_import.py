"""Import of PEFT adapters into our own spec and tensors, without PEFT or torch.

The file must hold exactly the tensors that its configuration implies: PEFT itself ignores others
without an error, and draws missing ones at random.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from smidgen.edge_client.adapters.initial import fitting, initial_adapter
from smidgen.edge_client.adapters.peft_folder import BARE, CONFIG, WEIGHTS, adapter_state
from smidgen.edge_client.adapters.peft_options import (
    AT_THE_END,
    READ,
    check_options,
    check_pattern,
    check_targets,
    is_saved,
    is_target,
    matching,
    task_type,
)
from smidgen.edge_client.adapters.spec import (
    LORA_ALPHA,
    PREFIX,
    TARGETS,
    AdapterError,
    AdapterSpec,
    ModuleRank,
    has_peft_form,
    head_modules,
    head_sizes,
    layer_pattern,
    layers_of,
    lead,
)
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.bases.families import family_of
from smidgen.edge_client.bases.header import WeightsError, read_header
from smidgen.edge_client.bases.layout import pooler_of
from smidgen.edge_client.bases.quantization import from_bfloat16
from smidgen.edge_client.errors import demand
from smidgen.edge_client.tables import plain
from smidgen.edge_client.tasks.kind import kind_of
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.tensors import AdapterState

LARGEST = 9999  # rank or tokens of a prompt, as in an adapter's name
LARGEST_ALPHA = 1_000_000
PICKLED = "adapter_model.bin"
FLOATS = {"F32": "<f4", "F64": "<f8", "F16": "<f2", "BF16": "<u2"}  # numpy's; bfloat16 as its bits


def read_peft_adapter(folder: Path, base: Base, task: Task) -> tuple[AdapterSpec, AdapterState]:
    """Read `adapter_config.json` and `adapter_model.safetensors` of LoRA or prompt tuning.

    Another alpha than 16 (or rank-stabilized LoRA) is folded into LoRA's B, and LoRA on a
    classifier's pooler into the pooler, so the adapted model is the same function. Linears without
    LoRA get one of zeros, but in layers below all LoRA.

    Law: the logits are PEFT's, or the option that makes others is refused by its name.

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
        kind = config["peft_type"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise _no_adapter(folder) from error
    demand(
        isinstance(kind, str) and kind in READ,
        f"{folder}: PEFT type {plain(str(kind)):.40} is not supported; LORA or PROMPT_TUNING is",
        AdapterError,
    )
    state = _tensors(folder)
    check_options(config)
    if kind == "PROMPT_TUNING":
        spec, state = _prompt(folder, config, state, base, task)
    else:
        spec, state = _lora(folder, config, state, base, task)
    return spec, fitting(folder, spec, base, task, state)


def _no_adapter(folder: Path) -> AdapterError:
    return AdapterError(
        f"{folder} is not a PEFT adapter; a folder with {CONFIG} and {WEIGHTS} is expected"
    )


def _tensors(folder: Path) -> AdapterState:
    """The file's tensors, widened to float32.

    Raises:
        AdapterError: No such file, a damaged one, or numbers that float32 does not hold.
    """
    path = folder / WEIGHTS
    if not path.is_file() and (folder / PICKLED).is_file():
        raise AdapterError(
            f"{folder / PICKLED} is a pickle, which may hold code and is never opened here; load "
            "it with PEFT and save it again (`save_pretrained` writes safetensors)"
        )
    try:
        with path.open("rb") as file:
            entries = read_header(file, path)
            body = path.read_bytes()
    except OSError as error:
        raise _no_adapter(folder) from error
    except WeightsError as error:
        raise AdapterError(f"{path}: {error}; copy or save it again") from error
    state = {}
    for name, entry in entries.items():
        demand(
            entry.dtype in FLOATS,
            f"{path}: tensor {plain(name):.200} is {entry.dtype}; {', '.join(FLOATS)} is expected",
            AdapterError,
        )
        flat = np.frombuffer(body[entry.start : entry.end], FLOATS[entry.dtype])
        with np.errstate(over="ignore"):
            wide = from_bfloat16(flat) if entry.dtype == "BF16" else flat.astype(np.float32)
        demand(
            bool(np.isfinite(wide).all()),
            f"{path}: tensor {plain(name):.200} holds NaN, infinity or more than float32 does"
            f"; copy or save it again",
            AdapterError,
        )
        state[name] = wide.reshape(entry.shape)
    return state


def _prompt(
    folder: Path, config: dict[str, Any], state: AdapterState, base: Base, task: Task
) -> tuple[AdapterSpec, AdapterState]:
    kind = task_type(config, is_causal=base.shape.is_decoder)
    tokens = _count(folder, config, "num_virtual_tokens")
    head = [name for name in state if name.startswith(BARE)]
    spec = AdapterSpec(prompt_tokens=tokens, head=bool(head) or kind != "")
    demand(
        has_peft_form(spec, task),
        f"{folder}: a head behind a soft prompt reads the prompt in PEFT, and here the text"
        f"; train it here, or as LoRA there",
        AdapterError,
    )
    demand(
        config.get("task_type") is not None,
        "PEFT option task_type is missing, and without one PEFT leaves a soft prompt out; "
        "FEATURE_EXTRACTION or TOKEN_CLS is expected",
        AdapterError,
    )
    demand(
        config.get("num_transformer_submodules") in (None, 1),
        "PEFT option num_transformer_submodules is not supported but as 1",
        AdapterError,
    )
    _check_kind(folder, kind, spec, task)
    return spec, adapter_state(spec, state)


def _check_kind(folder: Path, kind: str, spec: AdapterSpec, task: Task) -> None:
    """Refuse a head of tags for labels and the other way round: their tensors may be alike."""
    wanted = kind_of(task).peft_type
    if spec.head and kind != wanted:
        found, wanted = f"PEFT option task_type is {kind or 'none'}", wanted or "none"
        raise AdapterError(
            f"{folder}: {found}, and task {task.name!r} of kind {task.kind} needs {wanted}; save "
            "the adapter with its task_type, or name a task of its kind"
        )


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
        check_pattern(
            pattern, AT_THE_END, f"{folder / CONFIG}: {option} is {plain(repr(found)):.40}"
        )
    return found


@dataclass(frozen=True)
class _Ranks:
    """What `r`, `lora_alpha`, their patterns and `use_rslora` say of each module."""

    rank: int
    alpha: float
    ranks: dict[str, float]
    alphas: dict[str, float]
    is_stabilized: bool

    def of(self, module: str) -> int:
        return int(matching(self.ranks, module, self.rank))

    def scaling(self, module: str) -> float:
        rank = self.of(module)
        alpha = matching(self.alphas, module, self.alpha)
        return alpha / (math.sqrt(rank) if self.is_stabilized else rank)


def _ranks(folder: Path, config: dict[str, Any]) -> _Ranks:
    return _Ranks(
        _count(folder, config, "r"),
        _alpha(folder, config),
        _patterns(folder, config, "rank_pattern", "a whole number from 1 to {}", LARGEST),
        _patterns(folder, config, "alpha_pattern", "a number up to {}", LARGEST_ALPHA),
        bool(config.get("use_rslora")),
    )


def _lora(
    folder: Path, config: dict[str, Any], state: AdapterState, base: Base, task: Task
) -> tuple[AdapterSpec, AdapterState]:
    check_targets(config)
    kind = task_type(config, is_causal=base.shape.is_decoder)
    ranks = _ranks(folder, config)
    modules = _linears(base)
    carried = [module for module in modules if is_target(config, module)]
    pooler = pooler_of(base.architecture) if kind == "SEQ_CLS" else ""
    folded = [pooler] if pooler and is_target(config, pooler) else []
    lora = [name for module in (*carried, *folded) for name in _lora_names(module)]
    _check_names(folder, base, state, lora, _head_names(base, kind, config))
    scaled: AdapterState = {}
    for module in carried:
        a, b = _lora_names(module)
        factor = ranks.scaling(module) * ranks.of(module) / LORA_ALPHA
        scaled |= {a: state[a], b: _scaled(folder, b, state[b], factor)}
    head = _head(folder, config, state, base, kind)
    for module in folded:
        head[f"{PREFIX}{module}.weight"] = _folded(folder, state, head, module, ranks)
    used = {modules[module][1] for module in carried}
    targets = tuple(target for target in TARGETS if target in used)
    named = tuple(
        ModuleRank(layer, target, own)
        for module, (layer, target) in modules.items()
        if target in targets and (own := ranks.of(module)) != ranks.rank
    )
    rank = ranks.rank if carried else 0
    spec = AdapterSpec(rank, targets, head=bool(head), top=_top(scaled, base), ranks=named)
    demand(
        bool(carried or head),
        "PEFT option target_modules names no linear of this base's layers; its LoRA is on none",
        AdapterError,
    )
    _check_kind(folder, kind, spec, task)
    first = initial_adapter(spec, base, 1, 0)
    zeros = {name: np.zeros_like(one) for name, one in first.items() if ".lora_" in name}
    return spec, zeros | scaled | head


def _linears(base: Base) -> dict[str, tuple[int, str]]:
    """Full name of each linear of the layers that may carry LoRA -> layer and short name."""
    family = family_of(base.architecture)
    return {
        family.linear(layer, target): (layer, lead(family, target))
        for layer in range(base.shape.stored_layers)
        for target in family.linears
        if target in TARGETS
    }


def _lora_names(module: str) -> tuple[str, str]:
    return f"{PREFIX}{module}.lora_A.weight", f"{PREFIX}{module}.lora_B.weight"


def _head_names(base: Base, kind: str, config: Mapping[str, Any]) -> list[str]:
    """The tensors of a classifier that the adapter holds itself."""
    linears = head_sizes(base.architecture, is_of_words=kind == "TOKEN_CLS") if kind else ()
    saved = [name for name in linears if is_saved(config, name)]
    return [f"{PREFIX}{name}.{part}" for name in saved for part in ("weight", "bias")]


def _check_names(
    folder: Path, base: Base, state: AdapterState, lora: list[str], head: list[str]
) -> None:
    """Refuse tensors that the configuration does not explain, and missing ones.

    Raises:
        AdapterError: Names the first of them, and the option.
    """
    path, known = folder / WEIGHTS, {*lora, *head}
    for name in sorted(set(state) - known):
        module, is_lora, _ = name.removeprefix(PREFIX).partition(".lora_")
        said = f"{path}: tensor {plain(name):.200} is not explained by "
        if not is_lora:
            said += "modules_to_save; a classifier is read, and no other module"
        elif module in _linears(base):
            said += "target_modules, so PEFT leaves it out; save the adapter again"
        elif re.match(layer_pattern(base.architecture), module):
            said += f"base {base.name}, which wants LoRA on {base.shape.stored_layers} layers"
        else:
            linears = ", ".join(family_of(base.architecture).linears.values())
            said = f"LoRA on {plain(module):.200} is not supported for a {base.architecture}; "
            said += f"expected the linears {linears} of its layers"
        raise AdapterError(said)
    for name in sorted(known - set(state)):
        raise AdapterError(f"{path}: tensor {name} is missing; save the adapter again")


def _head(
    folder: Path, config: dict[str, Any], state: AdapterState, base: Base, kind: str
) -> AdapterState:
    """A classifier's tensors: the adapter's, and the pooler of BERT and ALBERT from the base.

    Raises:
        AdapterError: Neither holds a linear of the classifier; says what to do.
    """
    found: AdapterState = {}
    linears = head_sizes(base.architecture, is_of_words=kind == "TOKEN_CLS") if kind else ()
    for name in linears:
        if is_saved(config, name):
            parts = {f"{PREFIX}{name}.{part}" for part in ("weight", "bias")}
            found |= {part: state[part] for part in sorted(parts)}
        elif not (own := _of_base(base, name)):
            modules = head_modules(base.architecture)
            known = "pooler" if name == pooler_of(base.architecture) else name
            raise AdapterError(
                f"{folder}: neither the adapter nor base {base.name} holds {name}, so PEFT's "
                "classifier reads one that transformers drew at random; train it again with "
                f'modules_to_save=["{known}", "{modules[-1]}"], or for a checkpoint that has it'
            )
        else:
            found |= own
    return found


def _of_base(base: Base, name: str) -> AdapterState:
    """The pooler that a base holds, by the names of an adapter; empty without one."""
    with base.open_weights() as weights:
        if name != pooler_of(base.architecture) or f"{name}.weight" not in weights:
            return {}
        rows, _ = weights.shape(f"{name}.weight")
        return {
            f"{PREFIX}{name}.weight": weights.rows(f"{name}.weight", range(rows)),
            f"{PREFIX}{name}.bias": weights.vector(f"{name}.bias"),
        }


def _folded(
    folder: Path, state: AdapterState, head: AdapterState, module: str, ranks: _Ranks
) -> np.ndarray:
    """A linear's weight with its LoRA added to it."""
    (a, b), weight = _lora_names(module), head[f"{PREFIX}{module}.weight"]
    shapes = (ranks.of(module), weight.shape[1]), (weight.shape[0], ranks.of(module))
    found = state[a].shape, state[b].shape
    demand(
        found == shapes,
        f"{folder}: LoRA of {module} is {found}, {shapes} is expected",
        AdapterError,
    )
    whole: np.ndarray = weight + _scaled(folder, b, state[b], ranks.scaling(module)) @ state[a]
    return whole


def _scaled(folder: Path, name: str, tensor: np.ndarray, factor: float) -> np.ndarray:
    with np.errstate(over="ignore"):
        found = tensor * np.float32(factor)
    demand(
        bool(np.isfinite(found).all()),
        f"{folder}: {name} times {factor:g} (lora_alpha) leaves float32's range",
        AdapterError,
    )
    return found


def _top(state: AdapterState, base: Base) -> int:
    """How many top layers hold all of the LoRA; 0: all layers."""
    layers, is_shared = layers_of(state, base.architecture), base.shape.stored_layers < base.layers
    return 0 if is_shared or not layers or not layers[0] else max(0, base.layers - layers[0])
