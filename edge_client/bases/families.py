"""Model families, one row of data each: names, keys of config.json, and a layer's operations.

Other packages add families by entry points of the group `smidgen.families`, each a `Family` under
its `model_type`; `docs/extending.md` has an example. The engines do the computing.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, get_args

from smidgen.edge_client.bases.architectures import (
    BUCKETS,
    LINEARS,
    Activate,
    Answers,
    ArchitectureError,
    Attend,
    Family,
    Gate,
    Linears,
    Norm,
    Op,
    Rotary,
    Shape,
    as_json,
    reads,
    writes,
)
from smidgen.edge_client.errors import demand

GROUP = "smidgen.families"
ROPE_THETA = 10000.0
GLOBAL, LOCAL = "full_attention", "sliding_attention"
NORMS = ("attention_norm", "output_norm")

# Layers

POST_NORM = (  # BERT's
    Norm("output_norm", "x", "h", is_below=True, is_in_lowest=False),
    Linears(("k", "v"), "h"),
    Answers("h", "late"),
    Linears(("q",), "late"),
    Attend(),
    Linears(("o",), "context", plus="late", into="middle"),
    Norm("attention_norm", "middle", "m"),
    Linears(("up",), "m"),
    Activate("up", "active"),
    Linears(("down",), "active", plus="m", into="out"),
)
CAUSAL = (  # Llama's
    Norm("attention_norm", "x", "h"),
    Linears(("q", "k", "v"), "h"),
    Rotary(("q", "k")),
    Attend(),
    Linears(("o",), "context", plus="x", into="middle"),
    Norm("output_norm", "middle", "m"),
    Linears(("gate", "up"), "m"),
    Gate("gate", "up", "active"),
    Linears(("down",), "active", plus="middle", into="out"),
)

QK_NORMED = (  # Qwen3's
    Norm("attention_norm", "x", "h"),
    Linears(("q",), "h", into="query"),
    Linears(("k",), "h", into="key"),
    Linears(("v",), "h"),
    Norm("q_norm", "query", "q", is_by_head=True),
    Norm("k_norm", "key", "k", is_by_head=True),
    *CAUSAL[2:],
)
SANDWICHED = (  # Gemma 3's: normalized before and behind attention and the feed-forward
    *QK_NORMED[:-5],
    Linears(("o",), "context", into="attended"),
    Norm("attended_norm", "attended", "middle", plus="x"),
    Norm("output_norm", "middle", "m"),
    Linears(("gate", "up"), "m"),
    Gate("gate", "up", "active"),
    Linears(("down",), "active", into="fed"),
    Norm("fed_norm", "fed", "out", plus="middle"),
)
ROTARY = (  # ModernBERT's
    Norm("attention_norm", "x", "h", is_in_lowest=False),
    Linears(("k", "v"), "h"),
    Answers("h", "late"),
    Answers("x", "entry"),
    Linears(("q",), "late"),
    Rotary(("q", "k")),
    Attend(),
    Linears(("o",), "context", plus="entry", into="middle"),
    Norm("output_norm", "middle", "m"),
    Linears(("up", "gate"), "m"),
    Gate("up", "gate", "active"),
    Linears(("down",), "active", plus="middle", into="out"),
)

# Keys of config.json

_BERT_KEYS: dict[str, Any] = {
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
_XLM_ROBERTA_KEYS = _BERT_KEYS | {"pad_token_id": 1}
_LLAMA_KEYS: dict[str, Any] = {
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
    "rope_parameters": None,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}
_QWEN_KEYS = _LLAMA_KEYS | {
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
}
_ANY: dict[str, Any] = {
    "is_encoder_decoder": False,
    "quantization_config": None,
    "per_layer_config": None,
    "pruned_heads": {},  # before transformers 5
}
_ENCODER = _ANY | {"is_decoder": False, "add_cross_attention": False}
_ENCODER |= {"position_embedding_type": "absolute"}  # before transformers 5
# No attribute of the classes, but their attention looks for it.
_DECODER = _ANY | {"is_causal": True}
_WHOLE = {"use_sliding_window": False, "layer_types": None}  # no layer has a window
LONG = ("longrope", "su", "yarn")  # Phi-3's words for LongRoPE, two of them old
SCALES = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


def rope_theta(architecture: str, config: Mapping[str, Any], default: float = ROPE_THETA) -> float:
    """Base of the rotary angles; `rope_scaling` is what `rope_parameters` was before version 5.

    Raises:
        ArchitectureError: Not a number above 0.
    """
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    theta = rope.get("rope_theta", config.get("rope_theta", default))
    if type(theta) not in (int, float) or not theta > 0:
        raise ArchitectureError(
            f"config.json of this {architecture} has rope_theta {as_json(theta)}; a number above 0 "
            f"is expected, or no such key for the default {default}"
        )
    return float(theta)


def rope_scaling(architecture: str, config: Mapping[str, Any]) -> tuple[float, ...]:
    """How rotary frequencies are scaled to longer texts, see `Shape`; empty where they are not.

    Raises:
        ArchitectureError: Angles of another kind, or a number that is missing or not above 0.
    """
    key = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    rope = config.get(key) or {}
    is_flat = isinstance(rope, Mapping) and not any(isinstance(v, Mapping) for v in rope.values())
    kind = rope.get("rope_type", rope.get("type", "default")) if is_flat else rope
    if kind == "default":
        return ()
    if kind in ("linear", "llama3"):
        part = rope.get("partial_rotary_factor", config.get("partial_rotary_factor")) or 1
        scales: list[Any] = [rope.get(name) for name in SCALES[: 4 if kind == "llama3" else 1]]
        numbers = [float(one) for one in scales if type(one) in (int, float) and 0 < one < math.inf]
        if part == 1 and len(numbers) == len(scales):
            return tuple(numbers)
    raise ArchitectureError(
        f"config.json of this {architecture} has {key} of rope_type {as_json(kind)}; the types "
        f"default, linear and llama3 are computed here, of whole heads and by numbers above 0: "
        f"factor, and of llama3 also {', '.join(SCALES[1:])}"
    )


def _decoder(
    shape: Shape, _values: Mapping[str, Any], config: Mapping[str, Any], theta: float = ROPE_THETA
) -> Shape:
    """Rotary positions, and no token sees what follows it."""
    name = shape.architecture
    scaling = rope_scaling(name, config)  # first: it refuses what is not a table
    return replace(
        shape,
        rope_theta=rope_theta(name, config, theta),
        rope_scaling=scaling,
        is_decoder=True,
    )


def _smollm3(shape: Shape, values: Mapping[str, Any], config: Mapping[str, Any]) -> Shape:
    """Layers without rotary positions, by a list of 1 (with) and 0, or every fourth (NoPE)."""
    every, rotated = values["no_rope_layer_interval"], values["no_rope_layers"]
    if rotated is None and every > 0:
        rotated = [(index + 1) % every != 0 for index in range(shape.layers)]
    if rotated is None or len(rotated) < shape.layers or not set(rotated) <= {0, 1}:
        raise ArchitectureError(
            f"config.json of this smollm3 has no_rope_layers {as_json(rotated)}; 1 (rotary) or 0 "
            f"for each of its {shape.layers} layers is expected, or no_rope_layer_interval above 0"
        )
    unrotated = tuple(index for index in range(shape.layers) if not rotated[index])
    return replace(_decoder(shape, values, config, 2e6), unrotated_layers=unrotated)


def _phi3(shape: Shape, values: Mapping[str, Any], config: Mapping[str, Any]) -> Shape:
    """A part of each head turned, angles by LongRoPE, and one window for all layers.

    LongRoPE's other divisors, of texts above the original length, are not computed: transformers
    takes them for a whole batch by its longest text. The positions end at that length.
    """
    key = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    rope, window = config.get(key) or {}, config.get("sliding_window")
    rope = rope if isinstance(rope, Mapping) else {"rope_type": rope}
    kind = rope.get("rope_type", rope.get("type", "default"))
    part = rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    turned = int(shape.head_dim * part) if type(part) in (int, float) and 0 < part <= 1 else 0
    original, is_long = values["original_max_position_embeddings"], kind in LONG
    factor = rope.get("factor") or shape.positions / max(original, 1)
    magnitude = rope.get("attention_factor")
    if magnitude is None and is_long:
        magnitude = math.sqrt(1 + math.log(max(factor, 1)) / math.log(max(original, 2)))
    divisors = rope.get("short_factor") if is_long else []
    numbers = [magnitude or 1.0, *(divisors if isinstance(divisors, list) else [0])]
    if (
        (kind not in ("default", *LONG) or min(original, turned) < 2 or turned % 2)
        or any(type(one) not in (int, float) or not one > 0 for one in numbers)
        or len(numbers) != 1 + is_long * turned // 2
    ):
        raise ArchitectureError(
            f"config.json of this phi3 has {key} {as_json(rope)} for {turned} turned columns of a "
            f"head; default or longrope, an even number of them, and of longrope a short_factor "
            "above 0 for each two are expected"
        )
    if window is not None and (type(window) is not int or window < 1):
        raise ArchitectureError(
            f"config.json of this phi3 has sliding_window {as_json(window)}; a whole number above "
            "0, or null for none, is expected"
        )
    positions = min(shape.positions, original) if is_long else shape.positions
    theta = rope_theta("phi3", config)
    window = window if window and window < positions else 0
    return replace(
        shape,
        is_decoder=True,
        positions=positions,
        rope_theta=theta,
        local_rope_theta=theta,
        window=max(window - 1, 0),
        local_layers=tuple(range(shape.layers)) if window else (),
        rope_divisors=tuple(map(float, numbers[1:])),
        rope_magnitude=float(numbers[0]) if is_long else 1.0,
        rotary_dim=turned,
    )


def _theta(
    architecture: str,
    config: Mapping[str, Any],
    kind: str,
    old: str,
    default: float,
    is_scaled: bool = False,
) -> float:
    """A kind of layer's base of rotary angles, by today's key or the one before version 5."""
    rope = config.get("rope_parameters") or {}
    own = rope.get(kind) or {}
    is_known = isinstance(own, Mapping) and (is_scaled or own.get("rope_type") in (None, "default"))
    if not is_known:
        raise ArchitectureError(
            f"config.json of this {architecture} has rope_parameters {as_json(rope)}; angles that "
            f"are not scaled, for {GLOBAL} and {LOCAL}, are expected"
        )
    return rope_theta(architecture, {"rope_theta": own.get("rope_theta", config.get(old, default))})


def _local_layers(shape: Shape, kinds: Sequence[str]) -> tuple[int, ...]:
    """The layers with a window, by the kind of each."""
    if len(kinds) != shape.layers or not set(kinds) <= {LOCAL, GLOBAL}:
        raise ArchitectureError(
            f"config.json of this {shape.architecture} has layer_types {as_json(kinds)}; {GLOBAL} "
            f"or {LOCAL} for each of its {shape.layers} layers is expected"
        )
    return tuple(index for index, kind in enumerate(kinds) if kind == LOCAL)


def _gemma3(shape: Shape, values: Mapping[str, Any], config: Mapping[str, Any]) -> Shape:
    """Five layers with a window to one without, each kind with a base of angles."""
    name, every = shape.architecture, config.get("sliding_window_pattern", 6)
    window = config.get("sliding_window", 4096)
    if type(window) is not int or window < 1 or type(every) is not int or every < 1:
        raise ArchitectureError(
            f"config.json of this {name} has sliding_window {as_json(window)} and "
            f"sliding_window_pattern {as_json(every)}; whole numbers above 0 are expected"
        )
    if values["query_pre_attn_scalar"] != shape.head_dim:
        raise ArchitectureError(
            f"config.json of this {name} has query_pre_attn_scalar "
            f"{values['query_pre_attn_scalar']}; only head_dim, {shape.head_dim}, is computed here"
        )
    kinds = values["layer_types"] or [
        LOCAL if (index + 1) % every else GLOBAL for index in range(shape.layers)
    ]
    rope = config.get("rope_scaling") or (config.get("rope_parameters") or {}).get(GLOBAL)
    return replace(
        shape,
        is_decoder=True,
        window=window - 1,
        local_layers=_local_layers(shape, kinds),
        rope_scaling=rope_scaling(name, {"rope_scaling": rope}),
        rope_theta=_theta(name, config, GLOBAL, "rope_theta", 1e6, is_scaled=True),
        local_rope_theta=_theta(name, config, LOCAL, "rope_local_base_freq", ROPE_THETA),
    )


def _modernbert(shape: Shape, values: Mapping[str, Any], config: Mapping[str, Any]) -> Shape:
    """Local and global layers, two bases of angles, biases; in today's and older keys."""
    every = config.get("global_attn_every_n_layers", 3)
    kinds = values["layer_types"] or [
        LOCAL if index % every else GLOBAL for index in range(shape.layers)
    ]
    carried = {
        "attention_bias": ("q", "k", "v", "o"),
        "mlp_bias": ("up", "gate", "down"),
        "norm_bias": ("norm",),
        "classifier_bias": ("head",),
        "decoder_bias": ("decoder",),
    }
    return replace(
        shape,
        biased=tuple(name for key, names in carried.items() if values[key] for name in names),
        head_activation=values["classifier_activation"],
        pooling=values["classifier_pooling"],
        window=values["local_attention"] // 2,
        local_layers=_local_layers(shape, kinds),
        rope_theta=_theta("modernbert", config, GLOBAL, "global_rope_theta", 160000.0),
        local_rope_theta=_theta("modernbert", config, LOCAL, "local_rope_theta", ROPE_THETA),
    )


# Families

_BERT_LINEARS = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "o": "attention.output.dense",
    "up": "intermediate.dense",
    "down": "output.dense",
}


def _bert(prefix: str, defaults: Mapping[str, Any], head: Mapping[str, Any]) -> Family:
    return Family(
        prefix=prefix,
        words=f"{prefix}.embeddings.word_embeddings",
        layer=prefix + ".encoder.layer.{layer}.",
        linears=_BERT_LINEARS,
        attention_norm="attention.output.LayerNorm",
        output_norm="output.LayerNorm",
        positions=f"{prefix}.embeddings.position_embeddings",
        token_types=f"{prefix}.embeddings.token_type_embeddings",
        embedding_norm=f"{prefix}.embeddings.LayerNorm",
        block=POST_NORM,
        defaults=defaults,
        fixed=_ENCODER,
        **head,
    )


_ROBERTA = _bert(
    "roberta",
    _XLM_ROBERTA_KEYS,
    {
        "head_dense": "lm_head.dense",
        "head_norm": "lm_head.layer_norm",
        "decoder": "lm_head.decoder",
        "decoder_bias": ("lm_head.decoder.bias", "lm_head.bias"),
        "is_counted_behind_pad": True,
        "tokenizer": "XLMRobertaTokenizer",
        "head_activation": "gelu",  # the exact one, whatever the layers have
        "classifier": {
            "classifier.dense": ("hidden", "hidden"),
            "classifier.out_proj": ("labels", "hidden"),
        },
    },
)
_LLAMA = Family(
    prefix="model",
    words="model.embed_tokens",
    layer="model.layers.{layer}.",
    linears={
        "q": "self_attn.q_proj",
        "k": "self_attn.k_proj",
        "v": "self_attn.v_proj",
        "o": "self_attn.o_proj",
        "gate": "mlp.gate_proj",
        "up": "mlp.up_proj",
        "down": "mlp.down_proj",
    },
    attention_norm="input_layernorm",
    output_norm="post_attention_layernorm",
    final_norm="model.norm",
    decoder="lm_head",
    biased=(),
    is_rms=True,
    is_causal=True,
    block=CAUSAL,
    defaults=_LLAMA_KEYS,
    fixed=_DECODER | {"attention_bias": False, "mlp_bias": False},
    read=_decoder,
)


def _mpnet(shape: Shape, values: Mapping[str, Any], _config: Mapping[str, Any]) -> Shape:
    """Positions are counted behind row 1, whatever the padding's id."""
    return replace(shape, pad_id=1, positions=values["max_position_embeddings"] - 2)


_MPNET = replace(
    _ROBERTA,
    prefix="mpnet",
    words="mpnet.embeddings.word_embeddings",
    layer="mpnet.encoder.layer.{layer}.",
    linears=_BERT_LINEARS | {name: f"attention.attn.{name}" for name in "qkvo"},
    attention_norm="attention.LayerNorm",
    positions="mpnet.embeddings.position_embeddings",
    token_types="",
    relative_bias="mpnet.encoder.relative_attention_bias",
    embedding_norm="mpnet.embeddings.LayerNorm",
    defaults={key: value for key, value in _XLM_ROBERTA_KEYS.items() if key != "type_vocab_size"}
    | {"vocab_size": 30527},
    fixed=_ENCODER | {"relative_attention_num_buckets": BUCKETS},
    read=_mpnet,
    tokenizer="MPNetTokenizer",
)
_ELECTRA = _bert(
    "electra",
    _BERT_KEYS
    | {
        "embedding_size": 128,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "intermediate_size": 1024,
    },
    {
        "embedding_map": "electra.embeddings_project",
        "is_map_optional": True,
        "head_dense": "generator_predictions.dense",
        "head_norm": "generator_predictions.LayerNorm",
        "decoder": "generator_lm_head",
        "decoder_bias": ("generator_lm_head.bias",),
        "head_activation": "gelu",  # the exact one, whatever the layers have
        "classifier": _ROBERTA.classifier,
        "classifier_activation": "gelu",
        "tokenizer": "BertTokenizer",
        "headless": " (an ELECTRA discriminator is trained to spot replaced words, not to fill "
        "masks; its generator is)",
    },
)
_MODERNBERT = Family(
    prefix="model",
    words="model.embeddings.tok_embeddings",
    layer="model.layers.{layer}.",
    linears={
        **dict.fromkeys(("q", "k", "v"), "attn.Wqkv"),
        "o": "attn.Wo",
        **dict.fromkeys(("up", "gate"), "mlp.Wi"),
        "down": "mlp.Wo",
    },
    attention_norm="attn_norm",
    output_norm="mlp_norm",
    embedding_norm="model.embeddings.norm",
    final_norm="model.final_norm",
    head_dense="head.dense",
    head_norm="head.norm",
    decoder="decoder",
    decoder_bias=("decoder.bias",),
    block=ROTARY,
    defaults={
        "vocab_size": 50368,
        "hidden_size": 768,
        "intermediate_size": 1152,
        "num_hidden_layers": 22,
        "num_attention_heads": 12,
        "hidden_activation": "gelu",
        "max_position_embeddings": 8192,
        "norm_eps": 1e-5,
        "norm_bias": False,
        "pad_token_id": 50283,
        "attention_bias": False,
        "layer_types": None,
        "rope_parameters": None,
        "local_attention": 128,
        "mlp_bias": False,
        "decoder_bias": True,
        "classifier_pooling": "cls",
        "classifier_bias": False,
        "classifier_activation": "gelu",
        "tie_word_embeddings": True,
    },
    fixed=_ANY,
    read=_modernbert,
    classifier={"classifier": ("labels", "hidden")},
    is_classifier_on_head=True,
)
FAMILIES: dict[str, Family] = {
    "bert": _bert(
        "bert",
        _BERT_KEYS,
        {
            "head_dense": "cls.predictions.transform.dense",
            "head_norm": "cls.predictions.transform.LayerNorm",
            "decoder": "cls.predictions.decoder",
            "decoder_bias": ("cls.predictions.decoder.bias", "cls.predictions.bias"),
            "classifier": {
                "bert.pooler.dense": ("hidden", "hidden"),
                "classifier": ("labels", "hidden"),
            },
            "tokenizer": "BertTokenizer",
        },
    ),
    "roberta": replace(_ROBERTA, defaults=_XLM_ROBERTA_KEYS | {"vocab_size": 50265}, tokenizer=""),
    "xlm-roberta": _ROBERTA,
    "camembert": replace(_ROBERTA, tokenizer="CamembertTokenizer"),
    "electra": _ELECTRA,
    "mpnet": _MPNET,
    "albert": Family(
        prefix="albert",
        words="albert.embeddings.word_embeddings",
        layer="albert.encoder.albert_layer_groups.{layer}.albert_layers.0.",
        linears={
            "q": "attention.query",
            "k": "attention.key",
            "v": "attention.value",
            "o": "attention.dense",
            "up": "ffn",
            "down": "ffn_output",
        },
        attention_norm="attention.LayerNorm",
        output_norm="full_layer_layer_norm",
        positions="albert.embeddings.position_embeddings",
        token_types="albert.embeddings.token_type_embeddings",
        embedding_norm="albert.embeddings.LayerNorm",
        embedding_map="albert.encoder.embedding_hidden_mapping_in",
        head_dense="predictions.dense",
        head_norm="predictions.LayerNorm",
        decoder="predictions.decoder",
        decoder_bias=("predictions.decoder.bias", "predictions.bias"),
        classifier={"albert.pooler": ("hidden", "hidden"), "classifier": ("labels", "hidden")},
        block=POST_NORM,
        defaults=_BERT_KEYS
        | {
            "vocab_size": 30000,
            "embedding_size": 128,
            "hidden_size": 4096,
            "num_hidden_groups": 1,
            "num_attention_heads": 64,
            "intermediate_size": 16384,
            "hidden_act": "gelu_new",
        },
        fixed=_ENCODER | {"inner_group_num": 1},
    ),
    "distilbert": Family(
        prefix="distilbert",
        words="distilbert.embeddings.word_embeddings",
        layer="distilbert.transformer.layer.{layer}.",
        linears={
            "q": "attention.q_lin",
            "k": "attention.k_lin",
            "v": "attention.v_lin",
            "o": "attention.out_lin",
            "up": "ffn.lin1",
            "down": "ffn.lin2",
        },
        attention_norm="sa_layer_norm",
        output_norm="output_layer_norm",
        positions="distilbert.embeddings.position_embeddings",
        embedding_norm="distilbert.embeddings.LayerNorm",
        head_dense="vocab_transform",
        head_norm="vocab_layer_norm",
        decoder="vocab_projector",
        decoder_bias=("vocab_projector.bias",),
        classifier={"pre_classifier": ("hidden", "hidden"), "classifier": ("labels", "hidden")},
        classifier_activation="relu",
        tokenizer="BertTokenizer",
        block=POST_NORM,
        defaults={
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
        fixed=_ENCODER,
        aliases={
            "hidden_size": "dim",
            "num_attention_heads": "n_heads",
            "num_hidden_layers": "n_layers",
        },
    ),
    "modernbert": _MODERNBERT,
    "llama": _LLAMA,
    "qwen2": replace(
        _LLAMA,
        biased=("q", "k", "v"),
        defaults=_QWEN_KEYS,
        fixed=_DECODER | _WHOLE,
    ),
    "qwen3": replace(
        _LLAMA,
        more_norms={"q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm"},
        block=QK_NORMED,
        defaults=_QWEN_KEYS | {"head_dim": 128},
        fixed=_DECODER | _WHOLE | {"attention_bias": False},
    ),
    "gemma3_text": replace(
        _LLAMA,
        output_norm="pre_feedforward_layernorm",
        more_norms={
            "q_norm": "self_attn.q_norm",
            "k_norm": "self_attn.k_norm",
            "attended_norm": "post_attention_layernorm",
            "fed_norm": "post_feedforward_layernorm",
        },
        is_norm_from_one=True,
        is_embedding_scaled=True,
        block=SANDWICHED,
        defaults={key: value for key, value in _LLAMA_KEYS.items() if key != "hidden_act"}
        | {
            "vocab_size": 262208,
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "num_hidden_layers": 26,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "hidden_activation": "gelu_pytorch_tanh",
            "max_position_embeddings": 131072,
            "pad_token_id": 0,
            "tie_word_embeddings": True,
            "query_pre_attn_scalar": 256,
            "layer_types": None,
        },
        fixed=_DECODER
        | dict.fromkeys(("final_logit_softcapping", "attn_logit_softcapping"), None)
        | {"attention_bias": False, "use_bidirectional_attention": False},
        read=_gemma3,
    ),
    "phi3": replace(
        _LLAMA,
        linears={
            **dict.fromkeys(("q", "k", "v"), "self_attn.qkv_proj"),
            "o": "self_attn.o_proj",
            **dict.fromkeys(("gate", "up"), "mlp.gate_up_proj"),
            "down": "mlp.down_proj",
        },
        own_code="modeling_phi3.Phi3ForCausalLM",
        defaults=_LLAMA_KEYS
        | {
            "vocab_size": 32064,
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "max_position_embeddings": 4096,
            "original_max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
            "pad_token_id": 32000,
        },
        fixed=_DECODER,
        read=_phi3,
    ),
    "smollm3": replace(
        _LLAMA,
        defaults=_LLAMA_KEYS
        | {
            "vocab_size": 128256,
            "hidden_size": 2048,
            "num_hidden_layers": 36,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "max_position_embeddings": 32768,
            "no_rope_layers": None,
            "no_rope_layer_interval": 4,
            "pad_token_id": 128004,
            "tie_word_embeddings": True,
        },
        fixed=_DECODER | _WHOLE | {"attention_bias": False, "mlp_bias": False},
        read=_smollm3,
    ),
}


def family_of(architecture: str) -> Family:
    """The family of a `model_type`, ours or of another package.

    Raises:
        ArchitectureError: None known here, or one of another package that is not sound.
    """
    if architecture in FAMILIES:
        return FAMILIES[architecture]
    if architecture not in (theirs := _theirs()):
        raise ArchitectureError(
            f"architecture {architecture!r} is not known here; expected one of "
            + ", ".join(sorted({*FAMILIES, *theirs}))
        )
    return _loaded(theirs[architecture])


def is_known(architecture: object) -> bool:
    """Whether there is a row for a `model_type`; none of another package's is loaded."""
    return architecture in FAMILIES or architecture in _theirs()


@cache
def _theirs() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


@cache
def _loaded(point: EntryPoint) -> Family:
    said = f"family {point.name} of package {point.dist.name if point.dist else point.value}"
    try:
        family = point.load()
    except Exception as error:  # somebody else's code
        from smidgen.edge_client.tables import (
            plain,
        )  # not in onnxruntime-training's environment: rich

        reason = f"{type(error).__name__}: {plain(str(error))[:200]}"
        raise ArchitectureError(f"{said} cannot be loaded: {reason}") from error
    if not isinstance(family, Family):
        raise ArchitectureError(f"{said} is a {type(family).__name__}; a Family is expected")
    check_block(said, family)
    return family


def check_block(said: str, family: Family) -> None:
    """Refuse a layer that no engine could interpret.

    Args:
        said: Names the family in messages.
        family: Its row.

    Raises:
        ArchitectureError: Names the operation: one not known here, one that reads what no
            operation before it gives, or one whose module the row does not name.
    """
    kinds, known = get_args(Op), {"x"}
    for number, op in enumerate(family.block, 1):
        where = f"{said}: operation {number}, {type(op).__name__}"
        if not isinstance(op, kinds):
            names = ", ".join(kind.__name__ for kind in kinds)
            raise ArchitectureError(f"{where}, is not known; expected one of {names}")
        if unknown := [name for name in reads(op) if name not in known]:
            raise ArchitectureError(f"{where}, reads {unknown[0]!r}, which nothing before it gives")
        named = op.names if isinstance(op, Linears) else ()
        if isinstance(op, Norm):
            named = (op.module,)
        if missing := [
            name for name in named if name not in (*family.linears, *NORMS, *family.more_norms)
        ]:
            raise ArchitectureError(f"{where}, is of {missing[0]!r}, which its row does not name")
        known |= set(writes(op))
    demand("out" in known, f"{said}: no operation gives 'out', a layer's result", ArchitectureError)
    read = {name for op in family.block if isinstance(op, Linears) for name in op.names}
    if unread := sorted(set(family.linears) - read.intersection(LINEARS)):
        which = "no operation reads" if unread[0] in LINEARS else f"is none of {', '.join(LINEARS)}"
        raise ArchitectureError(f"{said}: its row names {unread[0]!r}, which {which}")


def has_bias(shape: Shape, target: str) -> bool:
    """Whether a layer's linear, or what `Family.biased` names else, carries a bias."""
    return target in (
        family_of(shape.architecture).biased if shape.biased is None else shape.biased
    )


def has_embedding_map(shape: Shape) -> bool:
    """Whether a linear stands between the word table's width and the layers'."""
    family = family_of(shape.architecture)
    is_needed = shape.embedding != shape.hidden or not family.is_map_optional
    return bool(family.embedding_map) and is_needed
