"""What a `config.json` says of a model: defaults, other names, and what is refused.

A key that is not there has the default of its family's class in transformers, since save_pretrained
may leave out what equals it. Every attribute of those classes is read (`DEFAULTS`), refused unless
it has the one value computed here (`FIXED`), or has no effect on a prediction (`IDLE`); a test
holds the tables complete against the installed classes. Keys that a class does not know are
ignored, as transformers ignores them.
"""

import json
from collections.abc import Mapping
from typing import Any

from edge_client.bases.architectures import FAMILIES, ArchitectureError, Shape, family_of

_BERT: dict[str, Any] = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
    "tie_word_embeddings": True,
}
_XLM_ROBERTA = _BERT | {"pad_token_id": 1}
_LLAMA: dict[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,  # as many as heads
    "head_dim": None,  # hidden_size / heads; not in Qwen2's class, but read by its layers
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}
DEFAULTS: dict[str, dict[str, Any]] = {
    "bert": _BERT,
    "roberta": _XLM_ROBERTA | {"vocab_size": 50265},
    "xlm-roberta": _XLM_ROBERTA,
    "camembert": _XLM_ROBERTA,
    "albert": _BERT
    | {
        "vocab_size": 30000,
        "embedding_size": 128,
        "hidden_size": 4096,
        "num_hidden_groups": 1,
        "num_attention_heads": 64,
        "intermediate_size": 16384,
        "hidden_act": "gelu_new",
    },
    "electra": _BERT
    | {
        "embedding_size": 128,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "intermediate_size": 1024,
    },
    "distilbert": {
        "vocab_size": 30522,
        "max_position_embeddings": 512,
        "n_layers": 6,
        "n_heads": 12,
        "dim": 768,
        "hidden_dim": 3072,
        "activation": "gelu",
        "pad_token_id": 0,
        "tie_word_embeddings": True,
    },
    "llama": _LLAMA,
    "qwen2": _LLAMA
    | {
        "vocab_size": 151936,
        "intermediate_size": 22016,
        "num_key_value_heads": 32,
        "max_position_embeddings": 32768,
    },
}
# Other names of keys (`attribute_map` in transformers). Where both are there, this one wins.
ALIASES: dict[str, dict[str, str]] = {
    "distilbert": {"hidden_size": "dim", "num_attention_heads": "n_heads"}
    | {"num_hidden_layers": "n_layers"}
}
_ANY: dict[str, Any] = {
    "is_encoder_decoder": False,
    "quantization_config": None,
    "per_layer_config": None,
    "pruned_heads": {},  # before transformers 5
}
_ENCODER = _ANY | {"is_decoder": False, "add_cross_attention": False}
_ENCODER |= {"position_embedding_type": "absolute"}  # before transformers 5
_DECODER = _ANY | {"rope_scaling": None, "rope_parameters": None}  # see `_rope_theta`
_DECODER |= {"is_causal": True}  # no attribute of the classes, but their attention looks for it
FIXED: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert", "electra"), _ENCODER),
    "distilbert": _ENCODER,
    "albert": _ENCODER | {"inner_group_num": 1},
    "llama": _DECODER | {"attention_bias": False, "mlp_bias": False},
    "qwen2": _DECODER | {"use_sliding_window": False, "layer_types": None},
}
IDLE = frozenset(  # of training, of generation, of other heads, of what is given back
    {
        *("architectures", "model_type", "transformers_version", "dtype", "_name_or_path"),
        *("output_hidden_states", "output_attentions", "return_dict", "use_cache"),
        *("chunk_size_feed_forward", "pretraining_tp"),  # the same sums in other pieces
        *("id2label", "label2id", "problem_type", "initializer_range"),
        *("bos_token_id", "eos_token_id"),
        *("hidden_dropout_prob", "attention_probs_dropout_prob", "attention_dropout", "dropout"),
        *("classifier_dropout", "classifier_dropout_prob", "qa_dropout", "seq_classif_dropout"),
        *("summary_type", "summary_use_proj", "summary_activation", "summary_last_dropout"),
        "sinusoidal_pos_embds",  # how the table of positions began; the file holds the table
        *("sliding_window", "max_window_layers"),  # only with use_sliding_window
    }
)
# Activations by transformers' names -> the one of the engines that computes the same.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_new",
    "gelu_fast": "gelu_new",
    "gelu_accurate": "gelu_new",
    "gelu_pytorch_tanh": "gelu_pytorch_tanh",
    "gelu_python_tanh": "gelu_pytorch_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
NULLABLE = ("num_key_value_heads", "head_dim", "pad_token_id")
ROPE_THETA = 10000.0


def shape_of(config: Mapping[str, Any]) -> Shape:
    """Read a Hugging Face configuration as transformers reads it.

    Raises:
        ArchitectureError: A family or a variant of it that is not known here, or a value that
            transformers does not take either.
    """
    architecture = str(config.get("model_type", ""))
    family_of(architecture)
    values = read_values(architecture, config)
    _refuse_variants(architecture, config)
    shape = _shape(architecture, values, config)
    if shape.head_dim * shape.heads != shape.hidden:
        raise ArchitectureError(
            f"config.json of this {architecture} has {shape.heads} heads of {shape.head_dim} for "
            f"a width of {shape.hidden}; only heads that fill the width are supported here"
        )
    return shape


def read_values(architecture: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Every key that is read, with its value or its family's default.

    Raises:
        ArchitectureError: A value of another type than the default's.
    """
    defaults, aliases = DEFAULTS[architecture], ALIASES.get(architecture, {})
    renamed = {aliases[key]: config[key] for key in aliases if key in config}
    values = {key: {**config, **renamed}.get(key, default) for key, default in defaults.items()}
    for key, value in values.items():
        if not _is_of_type(value, key, defaults[key]):
            raise ArchitectureError(
                f"config.json of this {architecture} has {key} {_shown(value)}, which "
                "transformers does not take; correct it, or delete the key for the default "
                f"{_shown(defaults[key])}"
            )
    return values


def _shown(value: object) -> str:
    """A value as JSON, on one line; of a long one its type."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 40 else f"(a {type(value).__name__})"


def _is_of_type(value: object, key: str, default: object) -> bool:
    if value is None:
        return key in NULLABLE
    expected = int if default is None else type(default)
    return type(value) is expected or (expected is float and type(value) is int)


def _shape(architecture: str, values: Mapping[str, Any], config: Mapping[str, Any]) -> Shape:
    family, is_decoder = FAMILIES[architecture], architecture in ("llama", "qwen2")
    names = {alias: values[key] for alias, key in ALIASES.get(architecture, {}).items()}
    values = {**values, **names}
    hidden, heads = values["hidden_size"], values["num_attention_heads"]
    layers, pad_id = values["num_hidden_layers"], _pad_id(architecture, values)
    eps = values["rms_norm_eps"] if is_decoder else values.get("layer_norm_eps", 1e-12)
    return Shape(
        architecture=architecture,
        layers=layers,
        stored_layers=values.get("num_hidden_groups", layers),
        hidden=hidden,
        heads=heads,
        kv_heads=values.get("num_key_value_heads") or heads,
        head_dim=values.get("head_dim") or hidden // heads,
        intermediate=values["hidden_dim" if "hidden_dim" in values else "intermediate_size"],
        vocabulary=values["vocab_size"],
        embedding=values.get("embedding_size", hidden),
        positions=values["max_position_embeddings"] - family.first_position(pad_id),
        activation=_activation(architecture, values),
        norm_eps=float(eps),  # DistilBERT's is fixed in transformers
        pad_id=pad_id,
        rope_theta=_rope_theta(architecture, config) if is_decoder else 0.0,
        is_decoder=is_decoder,
        is_tied=values["tie_word_embeddings"],
        segments=values.get("type_vocab_size", 0),
    )


def _pad_id(architecture: str, values: Mapping[str, Any]) -> int:
    if values["pad_token_id"] is not None:
        return int(values["pad_token_id"])
    if FAMILIES[architecture].is_counted_behind_pad:
        raise ArchitectureError(
            f"config.json of this {architecture} has pad_token_id null, but positions are counted "
            f"from it; delete the key for the default {DEFAULTS[architecture]['pad_token_id']}"
        )
    return 0


def _activation(architecture: str, values: Mapping[str, Any]) -> str:
    key = "activation" if "activation" in values else "hidden_act"
    if values[key] not in ACTIVATIONS:
        raise ArchitectureError(
            f"this {architecture} has {key} {_shown(values[key])}, which is not supported here; "
            f"supported are {', '.join(ACTIVATIONS)}"
        )
    return ACTIVATIONS[values[key]]


def _rope_theta(architecture: str, config: Mapping[str, Any]) -> float:
    """Base of the rotary angles; `rope_scaling` is what `rope_parameters` was before version 5."""
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    theta = rope.get("rope_theta", config.get("rope_theta", ROPE_THETA))
    if type(theta) not in (int, float) or not theta > 0:
        raise ArchitectureError(
            f"config.json of this {architecture} has rope_theta {_shown(theta)}; a number above 0 "
            f"is expected, or no such key for the default {ROPE_THETA}"
        )
    return float(theta)


def _refuse_variants(architecture: str, config: Mapping[str, Any]) -> None:
    own = config.get("auto_map")
    if isinstance(own, Mapping) and any(str(name).startswith("AutoModel") for name in own):
        raise ArchitectureError(
            f"config.json of this {architecture} names code of its own (auto_map), which is never "
            "run here; a model of transformers' own classes is expected"
        )
    for key, only in FIXED[architecture].items():
        value = config.get(key)
        if value is None or value == only:
            continue
        if key.startswith("rope_") and _is_plain_rope(value):
            continue
        if key == "layer_types" and value and set(map(str, value)) == {"full_attention"}:
            continue
        if key == "pruned_heads" and not value:
            continue
        raise ArchitectureError(
            f"config.json of this {architecture} has {key} {_shown(value)}, which is not supported "
            f"here, since it changes what the model computes; only {_shown(only)} is"
        )


def _is_plain_rope(rope: object) -> bool:
    """Whether rotary angles are neither scaled nor different by layer."""
    if not isinstance(rope, Mapping) or any(isinstance(part, Mapping) for part in rope.values()):
        return False
    return bool(rope.get("rope_type", rope.get("type", "default")) == "default")
