"""PEFT's options: which are read, which have no effect on answers, which are refused by name.

The tables name every field of PEFT 0.21's `LoraConfig` and `PromptTuningConfig`. A test compares
them with the installed PEFT; the tables of docs/reference/peft-options.md are made of them.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from smidgen.edge_client.adapters.spec import AdapterError
from smidgen.edge_client.errors import demand
from smidgen.edge_client.tables import plain

LONGEST_LINE = 200
LONGEST_PATTERN = 10_000  # characters of a key of ranks or alphas
LONGEST_TARGETS = 100_000  # of a regular expression; names of all modules fit in
AT_THE_END = r"(.*\.)?({})$"  # PEFT's regular expressions
WHOLE = r"(^|.*\.){}($|\..*)"
LAYER, ANY_LAYER = r"(?:^|.*?\.){}\.(?P<idx>\d+)\.", r".*?\.[^.]*\.(?P<idx>\d+)\."
FORMS = {  # options that name modules, and what PEFT makes of each name
    "target_modules": "{}",
    "exclude_modules": "{}",
    "modules_to_save": WHOLE,
    "layers_pattern": LAYER,
}
CLASSIFIERS = ("classifier", "score")  # what PEFT saves of every classifier
_COMMON_READ = {
    "peft_type": "`LORA` or `PROMPT_TUNING`; every other type is refused by its name",
    "task_type": "`SEQ_CLS` for a task of labels, `TOKEN_CLS` for tagging, none or "
    "`FEATURE_EXTRACTION` for a masked language model; others are refused",
    "auto_mapping": "the model's class, where `task_type` is missing",
    "modules_to_save": "modules of the classifier; a tensor of any other module is refused",
}
_COMMON_UNUSED = {
    "peft_version": "which PEFT wrote the file",
    "base_model_name_or_path": "`--base` says which base; names and shapes of all tensors are "
    "compared with it",
    "revision": "the same",
    "inference_mode": "whether PEFT freezes the adapter",
}
# Options by what happens to them, each with what is worth saying.
READ: Mapping[str, Mapping[str, str]] = {
    "LORA": {
        **_COMMON_READ,
        "r": "1 to 9999",
        "lora_alpha": "folded into B",
        "use_rslora": "folded into B",
        "rank_pattern": "the first key in the file that matches, as PEFT reads it",
        "alpha_pattern": "the same; folded into B",
        "target_modules": "a list or a regular expression: says which tensors are expected; LoRA "
        "on a layer's linears is read, and on the pooler of a classifier, into which it is merged; "
        "on other modules it is refused",
        "exclude_modules": "likewise",
        "layers_to_transform": "likewise; only beside a list, as in PEFT",
        "layers_pattern": "likewise",
        "init_lora_weights": "`true`, `false`, `gaussian`, `orthogonal`, `eva` and `mica` leave "
        "the base as it is; others change its weights and are refused",
    },
    "PROMPT_TUNING": {
        **_COMMON_READ,
        "task_type": "`FEATURE_EXTRACTION` for a masked language model, `TOKEN_CLS` for tagging; "
        "without one PEFT leaves the prompt out, and its `SEQ_CLS` reads the prompt's first "
        "token: refused, as others are",
        "num_virtual_tokens": "1 to 9999",
        "num_transformer_submodules": "1 or none; 2 is for encoder-decoders and refused",
    },
}
UNUSED: Mapping[str, Mapping[str, str]] = {
    "LORA": {
        **_COMMON_UNUSED,
        "lora_dropout": "only for training",
        "fan_in_fan_out": "PEFT turns it off for linear layers",
        "megatron_core": "a module's name; see `megatron_config`",
        "loftq_config": "only for `init_lora_weights`",
        "eva_config": "only for `init_lora_weights`",
        "corda_config": "only for `init_lora_weights`",
        "lora_ga_config": "only for `init_lora_weights`",
        "qalora_group_size": "only for `use_qalora`",
        "runtime_config": "where PEFT computes",
        "ensure_weight_tying": "only for embeddings, on which LoRA is refused",
    },
    "PROMPT_TUNING": {
        **_COMMON_UNUSED,
        "token_dim": "the tensor's shape is compared with the base",
        "num_attention_heads": "only for prefix tuning",
        "num_layers": "only for prefix tuning",
        "prompt_tuning_init": "what the prompt started from",
        "prompt_tuning_init_text": "the same",
        "tokenizer_name_or_path": "the same",
        "tokenizer_kwargs": "the same",
    },
}
# Refused unless they are off: they make another function of base and tensors than plain LoRA's.
REFUSED: Mapping[str, Mapping[str, str]] = {
    "LORA": {
        "bias": "unless `none`",
        "lora_bias": "",
        "use_dora": "",
        "target_parameters": "",
        "trainable_token_indices": "",
        "layer_replication": "",
        "megatron_config": "",
        "velora_config": "",
        "alora_invocation_tokens": "",
        "use_qalora": "",
        "monteclora_config": "",
        "use_bdlora": "",
        "arrow_config": "",
        "kasa_config": "",
    },
    "PROMPT_TUNING": {},
}
LEAVES_BASE = ("gaussian", "orthogonal", "eva", "mica")  # ways to begin; so does a bool
CLASSES = {  # what a model's class says, where `task_type` does not
    "ForSequenceClassification": "SEQ_CLS",
    "ForTokenClassification": "TOKEN_CLS",
    "ForMaskedLM": "",
}


def check_options(config: Mapping[str, Any]) -> None:
    """Refuse by its name what changes the answers, or may.

    An option that is not in the tables is of a newer PEFT. It is refused unless it is off.

    Args:
        config: `adapter_config.json` of a type that is read here.

    Raises:
        AdapterError: Names the option.
    """
    kind = config["peft_type"]
    known = {*READ[kind], *UNUSED[kind]}
    what = {"LORA": "plain LoRA", "PROMPT_TUNING": "plain prompt tuning"}[kind]
    for option in sorted(set(config) - known):
        is_off = config[option] in (None, [], {}) or config[option] is False
        if not is_off and not (option == "bias" and config[option] == "none"):
            said = f"PEFT option {option} is not supported; {what} is"
            raise AdapterError(plain(said)[:LONGEST_LINE])
    begun = config.get("init_lora_weights")
    demand(
        begun is None or isinstance(begun, bool) or begun in LEAVES_BASE,
        f"PEFT option init_lora_weights = {plain(str(begun)):.40} changes the base too; save it as "
        "plain LoRA (`save_pretrained` with `path_initial_model_for_weight_conversion`)",
        AdapterError,
    )


def task_type(config: Mapping[str, Any], *, is_causal: bool = False) -> str:
    """PEFT's task type: `SEQ_CLS`, `TOKEN_CLS`, or "" for a language model as it is.

    Args:
        config: What PEFT saved.
        is_causal: Whether the base is a causal language model.

    Raises:
        AdapterError: Another one, or a class of models that is for none of these.
    """
    named = config.get("task_type")
    if named in ("SEQ_CLS", "TOKEN_CLS"):
        return str(named)
    known = "SEQ_CLS, TOKEN_CLS or, of a masked language model, none is expected"
    demand(
        named in (None, "FEATURE_EXTRACTION") or (is_causal and named == "CAUSAL_LM"),
        f"PEFT option task_type = {plain(str(named)):.40} is not supported; {known}",
        AdapterError,
    )
    mapping = config.get("auto_mapping")
    name = mapping.get("base_model_class") if isinstance(mapping, Mapping) else None
    if not isinstance(name, str):
        return ""
    found = next((kind for ending, kind in CLASSES.items() if name.endswith(ending)), None)
    if found is None:
        raise AdapterError(
            f"PEFT option auto_mapping names the class {plain(name):.60}; a model for masked "
            f"words, labels or tags (AutoModelForMaskedLM ...) is expected"
        )
    return found


def is_target(config: Mapping[str, Any], module: str) -> bool:
    """Whether PEFT puts LoRA on a linear of this full name.

    As `check_target_module_exists` of PEFT's `tuners_utils` has it: a list names whole ends of
    module names, a text is a regular expression of the whole name, and layers are looked at only
    beside a list. Modules that are saved whole carry none.

    Args:
        config: Of LoRA, looked over by `check_targets`.
        module: Such as `bert.encoder.layer.0.attention.self.query`.
    """
    targets, excluded = config["target_modules"], config.get("exclude_modules") or []
    whole = any(re.match(WHOLE.format(name), module) for name in _saved(config))
    if whole or _is_named(excluded, module):
        return False
    if isinstance(targets, str):
        return targets.lower() == "all-linear" or _is_named(targets, module)
    return module in targets or (_is_named(targets, module) and _is_in_layers(config, module))


def is_saved(config: Mapping[str, Any], module: str) -> bool:
    """Whether PEFT saves a module of this full name as a whole, as it does classifiers.

    It, or one that it lies in, has a name that ends so; `pre_classifier` ends in `classifier`.
    """
    parts = module.split(".")
    around = [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
    return any(one.endswith(tuple(_saved(config))) for one in around)


def _saved(config: Mapping[str, Any]) -> list[str]:
    is_classifier = config.get("task_type") in ("SEQ_CLS", "TOKEN_CLS")
    return [*(config.get("modules_to_save") or []), *(CLASSIFIERS if is_classifier else ())]


def _is_named(names: str | Sequence[str], module: str) -> bool:
    if isinstance(names, str):
        return re.fullmatch(names, module) is not None
    return any(module == name or module.endswith(f".{name}") for name in names)


def _is_in_layers(config: Mapping[str, Any], module: str) -> bool:
    layers, patterns = config.get("layers_to_transform"), config.get("layers_pattern") or []
    if layers is None or layers == []:
        return True
    patterns = [patterns] if isinstance(patterns, str) else patterns
    ways = [LAYER.format(pattern) for pattern in patterns] or [ANY_LAYER]
    found = (re.match(way, module) for way in ways)
    index = next((int(match["idx"]) for match in found if match), None)
    return index in (layers if isinstance(layers, list) else [layers])


def check_targets(config: Mapping[str, Any]) -> None:
    """Refuse what does not say which modules carry LoRA.

    Raises:
        AdapterError: Names the option and what is expected.
    """
    for option, form in FORMS.items():
        value = config.get(option)
        texts = [value] if isinstance(value, str) else value
        is_list = isinstance(texts, list) and all(isinstance(one, str) for one in texts)
        is_right = is_list and (option != "modules_to_save" or not isinstance(value, str))
        is_right = is_right or (value is None and option != "target_modules")
        demand(is_right, f"{_option(config, option)}; names of modules are expected", AdapterError)
        if isinstance(value, str) or form != "{}":
            for one in texts or []:
                check_pattern(one, form, _option(config, option))
    layers = config.get("layers_to_transform")
    numbers = [] if layers is None else layers if isinstance(layers, list) else [layers]
    demand(
        all(type(number) is int for number in numbers),
        f"{_option(config, 'layers_to_transform')}; numbers of layers are expected",
        AdapterError,
    )


def _option(config: Mapping[str, Any], option: str) -> str:
    value = f"is {plain(repr(config[option])):.40}" if option in config else "is missing"
    return f"PEFT option {option} {value}"


def check_pattern(pattern: str, form: str, said: str) -> None:
    """Refuse what is not a regular expression that PEFT could use.

    Args:
        pattern: The expression.
        form: What PEFT puts it into; some are well-formed only by themselves.
        said: Beginning of the message.

    Raises:
        AdapterError: It is too long, or is none.
    """
    most = LONGEST_PATTERN if form == AT_THE_END else LONGEST_TARGETS
    demand(
        len(pattern) <= most, f"{said}; names of up to {most} characters is expected", AdapterError
    )
    try:
        re.compile(form.format(pattern))
    except (re.error, RecursionError, OverflowError) as error:
        raise AdapterError(f"{said}; names as regular expressions is expected") from error


def matching(patterns: Mapping[str, float], module: str, other: float) -> float:
    """The number of the first pattern that fits the end of a module's name, as PEFT has it."""
    fits = (key for key in patterns if re.match(AT_THE_END.format(key), module))
    return next((patterns[key] for key in fits), other)
