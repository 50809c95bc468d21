"""PEFT folders: an adapter as `adapter_config.json` and `adapter_model.safetensors`.

Written and read without PEFT or torch; `PeftModel.from_pretrained(base, folder)` loads them, and so
do PEFT's auto classes (except for soft prompts) where the base is found by its name. Beside PEFT's
two files are `smidgen.json`, with the adapter's origin and prompts, and a model card; the card's
Python (`with_peft.py.txt`) answers texts with these files alone. LoRA of a causal language model is
there once more as `adapter.gguf`, which llama.cpp loads. On request the base lies beside it, as it
is or with the adapter in its weights.

Ridge regression (`lora:8+ridge`) lies in `ridge.safetensors`, which PEFT does not look for.

One adapter has no PEFT form: a soft prompt whose head reads the text's first token, where PEFT's
reads the prompt's. Its folder has `smidgen_adapter.safetensors` instead.
"""

import json
import re
import shutil
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from smidgen.edge_client.adapters.card import (
    README,
    Card,
    loadable_name,
    merged_card,
    model_card,
    portable_name,
)
from smidgen.edge_client.adapters.exports import (
    ADAPTER,
    MERGED,
    check_mergeable,
    has_gguf_form,
    write_gguf_adapter,
    write_merged,
)
from smidgen.edge_client.adapters.initial import fitting
from smidgen.edge_client.adapters.spec import (
    LORA_ALPHA,
    PREFIX,
    AdapterError,
    AdapterSpec,
    has_peft_form,
    head_modules,
    layers_of,
    lora_modules,
    parse_adapter,
    target_pattern,
)
from smidgen.edge_client.bases.base import HUB_FILES, Base
from smidgen.edge_client.bases.families import family_of
from smidgen.edge_client.bases.gguf.header import GgufFile, is_gguf
from smidgen.edge_client.bases.gguf.model import config_of
from smidgen.edge_client.bases.layout import linear_size
from smidgen.edge_client.bases.tokenizer import open_tokens
from smidgen.edge_client.errors import demand
from smidgen.edge_client.files import from_json
from smidgen.edge_client.outputs import check_out_folder, new_folder
from smidgen.edge_client.tables import plain
from smidgen.edge_client.tasks.kind import kind_of
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.updates.forms import LORA_A, LORA_B, Core, is_lora
from smidgen.edge_client.updates.ridge import WEIGHT
from smidgen.edge_client.wire.messages import WireError
from smidgen.edge_client.wire.tensors import AdapterState, decode_adapter, encode_adapter
from smidgen.edge_client.wire.training import Training

CONFIG, WEIGHTS, ORIGIN = "adapter_config.json", "adapter_model.safetensors", "smidgen.json"
OWN_WEIGHTS = "smidgen_adapter.safetensors"  # of what PEFT has no form for
RIDGE_WEIGHTS = "ridge.safetensors"
COPY = "base"  # folder of a base that is copied beside its adapter
MINE = (CONFIG, WEIGHTS, OWN_WEIGHTS, RIDGE_WEIGHTS, ADAPTER, README, COPY, MERGED)
WithBase = Literal["copied", "merged"]
COPIED = (*HUB_FILES, README, "LICENSE", "NOTICE")
FORMAT = 2  # of `smidgen.json`; adapters of format 1 were asked by prompts of other ids
BARE = "base_model."  # what `PREFIX` is beside a soft prompt
CAUSAL = "CAUSAL_LM"  # PEFT's task type
MASKED = {"base_model_class": "AutoModelForMaskedLM", "parent_library": "transformers"}


@dataclass(frozen=True)
class Exported:
    """Where an exported adapter comes from, kept beside PEFT's own two files.

    Attributes:
        adapter: The adapter's name, such as `lora:8@q,v`.
        base_name: The base's name on the hub, `embedded`, or `./NAME` of a folder.
        base_id: SHA-256 of the base it was trained on.
        architecture: The base's `model_type`.
        task: What it was trained for.
        words: Label -> its word's token ids at the mask, of an adapter that is asked by patterns;
            the label's logit is the mean of theirs. Alike in all patterns that are asked.
        tokens: Longest input in tokens, a soft prompt's aside.
        format: Of this file, and of the prompts behind the adapter.
    """

    adapter: str
    base_name: str
    base_id: str
    architecture: str
    task: Task
    words: dict[str, list[int]] = field(default_factory=dict)
    tokens: int = Training.tokens
    format: int = FORMAT


def peft_config(
    spec: AdapterSpec,
    base_name: str,
    architecture: str,
    state: AdapterState,
    *,
    is_of_words: bool = False,
) -> dict[str, Any]:
    """Contents of the `adapter_config.json` with which PEFT loads a state of this spec.

    Args:
        spec: The adapter.
        base_name: What `from_pretrained` will be given for the base.
        architecture: The base's `model_type`.
        state: Only names and shapes are read; it has a PEFT form.
        is_of_words: Whether its head reads each word.
    """
    is_causal = family_of(architecture).is_causal
    common: dict[str, Any] = {"base_model_name_or_path": base_name, "inference_mode": True}
    if spec.prompt_tokens:
        tokens, width = state["prompt_embeddings"].shape
        # Layers and heads are read by PEFT's prefix tuning alone, but it wants them named.
        sizes = {"num_transformer_submodules": 1, "num_attention_heads": 1, "num_layers": 1}
        sizes |= {"num_virtual_tokens": tokens, "token_dim": width}
        kind = "TOKEN_CLS" if is_of_words else "FEATURE_EXTRACTION"
        kind = CAUSAL if is_causal else kind
        return common | sizes | {"peft_type": "PROMPT_TUNING", "task_type": kind}
    lora: dict[str, Any] = {
        "peft_type": "LORA",
        "r": spec.rank or 1,
        "lora_alpha": LORA_ALPHA,
        "lora_dropout": 0.0,
        # PEFT trains biases only beside LoRA: one linear carries a LoRA of zeros.
        "bias": "all" if spec.bias else "none",
        # The second is PEFT's own word for "no linear carries LoRA, load modules_to_save only".
        "target_modules": "dummy-target-modules",
    }
    if spec.rank:
        layers = layers_of(state, architecture) if spec.top else None
        lora["target_modules"] = target_pattern(spec, architecture, layers)
    if spec.ranks:
        lora |= _patterns(spec, architecture, state)
    if spec.bias:
        lora["target_modules"] = re.escape(_carrier(architecture, state))
    if spec.head:
        modules = head_modules(architecture, is_of_words=is_of_words)
        lora |= {"task_type": "TOKEN_CLS" if is_of_words else "SEQ_CLS", "modules_to_save": modules}
    elif is_causal:
        lora["task_type"] = CAUSAL
    else:  # PEFT has no task type for masked language models, but may be told their class
        lora |= {"task_type": None, "auto_mapping": MASKED}
    return common | lora


def _patterns(spec: AdapterSpec, architecture: str, state: AdapterState) -> dict[str, Any]:
    """PEFT's words for ranks by module: each that carries LoRA is named, the others are not."""
    family = family_of(architecture)
    ranks: dict[str, int] = {}
    alphas: dict[str, float] = {}
    named = {(one.layer, one.target): one for one in spec.ranks}
    found = []
    for layer in layers_of(state, architecture):
        for target in spec.adapted:
            module = family.linear(layer, target)
            if f"{PREFIX}{module}.lora_A.weight" not in state:
                continue
            found.append(re.escape(module))
            if one := named.get((layer, target)):
                ranks[re.escape(module)] = one.rank
                alphas |= {} if one.alpha == LORA_ALPHA else {re.escape(module): one.alpha}
    return {"target_modules": "|".join(found), "rank_pattern": ranks, "alpha_pattern": alphas}


def _carrier(architecture: str, state: AdapterState) -> str:
    """The linear that carries a bias adapter's LoRA of zeros, in the lowest of its layers."""
    family = family_of(architecture)
    square = "q" if len(family.fused("q")) == 1 else "o"
    return family.linear(layers_of(state, architecture)[0], square)


def peft_state(spec: AdapterSpec, architecture: str, state: AdapterState) -> AdapterState:
    """The tensors PEFT wants for an adapter: the adapter's own, but for `bias` (see `peft_config`).

    Beside a soft prompt PEFT names a head without the `model` in which others lie.

    Law: `adapter_state` of the result gives the adapter back.
    """
    if spec.prompt_tokens:
        return {name.replace(PREFIX, BARE, 1): tensor for name, tensor in state.items()}
    if not spec.bias:
        return state
    module = f"{PREFIX}{_carrier(architecture, state)}"
    layer = f"{PREFIX}{family_of(architecture).layer}".format(
        layer=layers_of(state, architecture)[0]
    )
    width = min(len(bias) for name, bias in state.items() if name.startswith(layer))  # the states'
    renamed = {
        name.replace(f"{module}.bias", f"{module}.base_layer.bias"): tensor
        for name, tensor in state.items()
    }
    return renamed | {
        f"{module}.lora_A.weight": np.zeros((1, width), np.float32),
        f"{module}.lora_B.weight": np.zeros((width, 1), np.float32),
    }


def adapter_state(spec: AdapterSpec, tensors: AdapterState) -> AdapterState:
    """The adapter in PEFT's tensors."""
    if spec.prompt_tokens:
        return {
            PREFIX + name.removeprefix(BARE) if name.startswith(BARE) else name: tensor
            for name, tensor in tensors.items()
        }
    if not spec.bias:
        return tensors
    return {
        name.replace(".base_layer.bias", ".bias"): tensor
        for name, tensor in tensors.items()
        if ".lora_" not in name
    }


def check_adapter_folder(option: str, folder: Path) -> None:
    """Refuse a folder that an adapter may not be written to: see `check_out_folder`.

    Raises:
        OutputError: A file, or a folder of other things than an adapter that was exported here.
    """
    check_out_folder(option, folder, ORIGIN, MINE)


def write_peft_folder(
    folder: Path,
    exported: Exported,
    body: bytes,
    card: Card | None = None,
    base: Base | None = None,
    *,
    with_base: WithBase | None = None,
) -> None:
    """Write a PEFT folder, in one step; `read_peft_folder` gives origin and adapter back.

    That of an adapter without a PEFT form (`has_peft_form`) has no configuration for PEFT.

    Args:
        folder: Where to; absent, empty, or an adapter that was exported here.
        exported: Where the adapter comes from; a path in its base's name is left out.
        body: A safetensors file, which is copied, but where PEFT has other names (`peft_state`).
        card: What the model card tells beside it.
        base: The base, whose tokenizer says which tokens label words have; None: they are left out,
            and the Python in the card asks its tokenizer.
        with_base: `copied`: the base is copied beside it, so that PEFT's auto classes find it from
            any working folder, by its absolute path; of a GGUF file with `gguf_file=`. `merged`:
            see `write_merged`.

    Raises:
        OutputError: The folder holds other things, or is a file.
        AdapterError: The base that is to be copied is a pack, or a GGUF file whose adapter is to
            name another base; or see `check_mergeable`.
        Failed: It cannot be written.
    """
    spec, state = parse_adapter(exported.adapter), decode_adapter(body)
    if spec.form:
        spec, state = as_lora(spec, base, state)
        exported, body = replace(exported, adapter=str(spec)), encode_adapter(state)
    ridge = {WEIGHT: state.pop(WEIGHT)} if spec.ridge else {}
    if ridge:
        body = encode_adapter(state)
    known = replace(exported, base_name=portable_name(exported.base_name))
    if base is not None:
        known = _asked_of(known, spec, base)
        if with_base == MERGED:
            check_mergeable(spec, base)
        is_copied = with_base == "copied"
        demand(
            not (is_copied and base.manifest),
            f"--with-base: base {base.name} is a pack, which PEFT does not load; leave it out",
            AdapterError,
        )
        demand(
            not (is_copied and base.is_gguf) or is_gguf(known.base_name),
            f"--with-base: base {base.name} is a GGUF file, {known.base_name} is not; leave it out",
            AdapterError,
        )
    name, task, config = known.base_name, known.task, {}
    if has_peft_form(spec, task):
        place = str(folder.resolve() / COPY) if with_base == "copied" else loadable_name(name)
        is_of_words = spec.head and kind_of(task).head(task).is_of_words
        config = peft_config(spec, place, known.architecture, state, is_of_words=is_of_words)
        if spec.bias or spec.prompt_tokens:
            body = encode_adapter(peft_state(spec, known.architecture, state))
    has_gguf = base is not None and has_gguf_form(spec, base.shape)
    is_causal, card = family_of(known.architecture).is_causal, card or Card()
    known_config = None
    if base is not None and base.is_gguf:
        with GgufFile(base.folder) as header:
            known_config = config_of(header)
    text = model_card(
        known.adapter, name, task, card, has_gguf=has_gguf, is_causal=is_causal, config=known_config
    )
    with new_folder("--out", folder, ORIGIN, MINE) as part:
        if config:
            (part / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
        told = asdict(known)
        if not task.options:
            del told["task"]["options"]
        (part / ORIGIN).write_text(json.dumps(told, indent=2, sort_keys=True) + "\n")
        (part / README).write_text(text, encoding="utf-8")
        (part / weights_name(spec, task)).write_bytes(body)
        if ridge:
            (part / RIDGE_WEIGHTS).write_bytes(encode_adapter(ridge))
        if base is not None and has_gguf:
            write_gguf_adapter(part / ADAPTER, spec, base.shape, state)
        if with_base == MERGED and base is not None:
            write_merged(part / MERGED, base, spec, state)
            text = merged_card(known.adapter, name, task, card, bits=base.bits, is_causal=is_causal)
            (part / MERGED / README).write_text(text, encoding="utf-8")
        elif with_base and base is not None:
            (part / COPY).mkdir()
            files = {file: base.folder / file for file in COPIED}
            for file, source in ({Path(name).name: base.folder} if base.is_gguf else files).items():
                if source.is_file():
                    shutil.copyfile(source, part / COPY / file)


def as_lora(
    spec: AdapterSpec, base: Base | None, state: AdapterState
) -> tuple[AdapterSpec, AdapterState]:
    """An adapter of which other numbers are trained, as the LoRA that it is.

    Raises:
        AdapterError: The base is not here, whose shapes the fixed factors have.
    """
    lora = replace(spec, form="")
    demand(
        not spec.form or any(name.endswith(LORA_A) for name in state),
        f"adapter {spec}: LoRA's A is not in it; one of an earlier build, which drew it by its "
        "name",
        AdapterError,
    )
    if is_lora(spec.form):
        return lora, state
    if base is None:
        raise AdapterError(
            f"adapter {spec}: its base is needed to write it as LoRA, and is not here"
        )
    shapes = {
        f"{PREFIX}{module}{part}": (one.rank, columns) if part == LORA_A else (rows, one.rank)
        for module, one in lora_modules(lora, base.shape).items()
        for rows, columns in (linear_size(base.shape, one.target),)
        for part in (LORA_A, LORA_B)
    }
    heads = {name: tensor.shape for name, tensor in state.items() if ".lora_" not in name}
    return lora, Core(shapes | heads).expand(state)


def _asked_of(exported: Exported, spec: AdapterSpec, base: Base) -> Exported:
    """With what the base says of how texts are asked."""
    task, words = exported.task, dict[str, list[int]]()
    if kind_of(task).head(task).answers == "label words" and not spec.head and not spec.net:
        ids = open_tokens(base).label_word_ids(task)
        words = dict(zip(task.labels, ids, strict=True))
    tokens = min(Training.tokens, base.shape.positions - spec.prompt_tokens)
    return replace(exported, words=words, tokens=tokens)


def weights_name(spec: AdapterSpec, task: Task) -> str:
    """The file with an adapter's tensors: PEFT's name, or one that PEFT does not look for.

    A net's has PEFT's, as ever.
    """
    return WEIGHTS if spec.net or has_peft_form(spec, task) else OWN_WEIGHTS


def is_exported(folder: Path) -> bool:
    """Whether `write_peft_folder` wrote it, so that task and base are known."""
    return (folder / ORIGIN).is_file()


def read_peft_folder(folder: Path, base: Base | None = None) -> tuple[Exported, AdapterState]:
    """Read a folder that `write_peft_folder` wrote.

    Args:
        folder: The folder.
        base: The base it is to be used with; None: names and shapes are not compared.

    Raises:
        AdapterError: No such folder, an adapter that was not written here, damaged weights, or an
            adapter of another base.
    """
    origin = read_origin(folder)
    spec = parse_adapter(origin.adapter)
    names = [weights_name(spec, origin.task), *([RIDGE_WEIGHTS] if spec.ridge else [])]
    state: AdapterState = {}
    for name in names:
        try:
            body = (folder / name).read_bytes()
        except OSError as error:
            raise _not_exported(folder, name) from error
        state |= decode_weights(folder / name, body)
    if has_peft_form(spec, origin.task):
        state = adapter_state(spec, state)
    if base is None:
        return origin, state
    if origin.base_id != base.base_id:
        raise AdapterError(
            f"{folder} was trained on base {origin.base_name} ({origin.base_id[:12]}), not on "
            f"{base.name} ({base.base_id[:12]}); give --base with it"
        )
    return origin, fitting(folder, spec, base, origin.task, state)


def read_origin(folder: Path) -> Exported:
    """Where the adapter of a folder comes from, which `write_peft_folder` wrote.

    Raises:
        AdapterError: No such folder, or an adapter that was not written here.
    """
    try:
        body = (folder / ORIGIN).read_bytes()
        found = from_json(body, dict[str, Any]).get("format", 1)
        if found == FORMAT:
            return from_json(body, Exported)
    except (OSError, ValueError) as error:
        raise _not_exported(folder, WEIGHTS) from error
    raise AdapterError(
        f"{folder} is an adapter of format {plain(str(found)):.20}, this smidgen reads {FORMAT}: "
        "its prompts had other token ids; export it again from a run of today, or train it again"
    )


def _not_exported(folder: Path, weights: str) -> AdapterError:
    return AdapterError(
        f"{folder} is not an exported adapter; a folder with {ORIGIN} and {weights} that "
        "`smidgen coordinator export` or `smidgen client train` wrote is expected"
    )


def decode_weights(file: Path, body: bytes) -> AdapterState:
    """The tensors of a file of weights.

    Raises:
        AdapterError: They are damaged.
    """
    try:
        return decode_adapter(body)
    except WireError as error:
        raise AdapterError(f"{file}: {error}; copy or save it again") from error
