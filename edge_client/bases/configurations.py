"""Parsing of `config.json`: defaults, alternative names, and values that are refused.

A missing key has the default of its family's class in transformers, since save_pretrained may omit
values equal to it. Every attribute of those classes is read (`Family.defaults`), refused unless it
has the one value computed here (`Family.fixed`), or has no effect on a prediction (`IDLE`); a test
checks against the installed classes that the rows are complete. Keys unknown to a class are
ignored, as transformers does.
"""

from collections.abc import Mapping
from typing import Any

from smidgen.edge_client.bases.architectures import ArchitectureError, Shape, as_json
from smidgen.edge_client.bases.families import family_of

IDLE = frozenset(  # of training, of generation, of other heads, of what is given back
    {
        *("architectures", "model_type", "transformers_version", "dtype", "_name_or_path"),
        *("output_hidden_states", "output_attentions", "return_dict", "use_cache"),
        *("chunk_size_feed_forward", "pretraining_tp"),  # the same sums in other pieces
        *("id2label", "label2id", "problem_type", "initializer_range"),
        *("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"),
        *("hidden_dropout_prob", "attention_probs_dropout_prob", "attention_dropout", "dropout"),
        *("classifier_dropout", "classifier_dropout_prob", "qa_dropout", "seq_classif_dropout"),
        *(
            "embedding_dropout",
            "mlp_dropout",
            "resid_pdrop",
            "embd_pdrop",
            "initializer_cutoff_factor",
        ),
        *("deterministic_flash_attn", "sparse_prediction", "sparse_pred_ignore_index"),
        *("summary_type", "summary_use_proj", "summary_activation", "summary_last_dropout"),
        "sinusoidal_pos_embds",  # how the table of positions began; the file holds the table
        *("sliding_window", "max_window_layers"),  # only with use_sliding_window, or with others
        "_sliding_window_pattern",  # that layer_types follow, which are written too
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
NULLABLE = (
    *("num_key_value_heads", "head_dim", "pad_token_id"),
    *("layer_types", "rope_parameters", "no_rope_layers"),
)
NESTED: dict[str, type] = {  # null by default
    "layer_types": list,
    "rope_parameters": dict,
    "no_rope_layers": list,
}
# Other words of families for the same value; the first that a family reads counts.
EPSILONS = ("rms_norm_eps", "layer_norm_eps", "norm_eps")
ACTIVATION_KEYS = ("activation", "hidden_act", "hidden_activation")


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
    if shape.head_dim * shape.heads != shape.hidden and not shape.is_decoder:
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
    family = family_of(architecture)
    defaults, aliases = family.defaults, family.aliases
    renamed = {aliases[key]: config[key] for key in aliases if key in config}
    values = {key: {**config, **renamed}.get(key, default) for key, default in defaults.items()}
    for key, value in values.items():
        if not _is_of_type(value, key, defaults[key]):
            raise ArchitectureError(
                f"config.json of this {architecture} has {key} {as_json(value)}, which "
                "transformers does not take; correct it, or delete the key for the default "
                f"{as_json(defaults[key])}"
            )
    return values


def _is_of_type(value: object, key: str, default: object) -> bool:
    if value is None:
        return key in NULLABLE
    expected = NESTED.get(key, int) if default is None else type(default)
    return type(value) is expected or (expected is float and type(value) is int)


def _shape(architecture: str, values: Mapping[str, Any], config: Mapping[str, Any]) -> Shape:
    family = family_of(architecture)
    names = {alias: values[key] for alias, key in family.aliases.items()}
    values = {**values, **names}
    hidden, heads = values["hidden_size"], values["num_attention_heads"]
    layers, pad_id = values["num_hidden_layers"], _pad_id(architecture, values)
    eps = next((values[key] for key in EPSILONS if key in values), 1e-12)  # DistilBERT's is fixed
    shape = Shape(
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
        activation=activation_of(architecture, values, *ACTIVATION_KEYS),
        norm_eps=float(eps),
        pad_id=pad_id,
        is_tied=values["tie_word_embeddings"],
        segments=values.get("type_vocab_size", 0),
    )
    return family.read(shape, values, config)


def _pad_id(architecture: str, values: Mapping[str, Any]) -> int:
    if values["pad_token_id"] is not None:
        return int(values["pad_token_id"])
    family = family_of(architecture)
    if family.is_counted_behind_pad:
        raise ArchitectureError(
            f"config.json of this {architecture} has pad_token_id null, but positions are counted "
            f"from it; delete the key for the default {family.defaults['pad_token_id']}"
        )
    return 0


def activation_of(architecture: str, values: Mapping[str, Any], *keys: str) -> str:
    """The engines' activation by the first of these keys that is read.

    Raises:
        ArchitectureError: None that computes the same.
    """
    key = next(key for key in keys if key in values)
    if values[key] not in ACTIVATIONS:
        raise ArchitectureError(
            f"this {architecture} has {key} {as_json(values[key])}, which is not supported here; "
            f"supported are {', '.join(ACTIVATIONS)}"
        )
    return ACTIVATIONS[values[key]]


def _refuse_variants(architecture: str, config: Mapping[str, Any]) -> None:
    own, known = config.get("auto_map"), family_of(architecture).own_code
    if isinstance(own, Mapping) and any(
        str(name).startswith("AutoModel") and str(code).rpartition("--")[2] != known
        for name, code in own.items()
    ):
        raise ArchitectureError(
            f"config.json of this {architecture} names code of its own (auto_map), which is never "
            "run here; a model of transformers' own classes is expected"
        )
    for key, only in family_of(architecture).fixed.items():
        value = config.get(key)
        if value is None or value == only:
            continue
        if key == "layer_types" and value and set(map(str, value)) == {"full_attention"}:
            continue
        if key == "pruned_heads" and not value:
            continue
        raise ArchitectureError(
            f"config.json of this {architecture} has {key} {as_json(value)}, which is not supported"
            f" here, since it changes what the model computes; only {as_json(only)} is"
        )
