"""The families of models: their sizes, and where each part lies in a checkpoint.

Every name is Hugging Face's own module name, so a checkpoint, a pack, PEFT and the engines speak
of the same tensors. A family is data; what computes is in the engines.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from edge_client.errors import WrongInput


class ArchitectureError(WrongInput):
    """A model of a family that is not known here."""


@dataclass(frozen=True)
class Shape:
    """The sizes of a model.

    Attributes:
        architecture: Hugging Face's `model_type`.
        layers: Layers computed, one after the other.
        stored_layers: Layers with weights of their own (1 for ALBERT, which repeats it).
        hidden: Width of a token's state.
        heads: Attention heads.
        kv_heads: Heads of keys and values; `heads` but in grouped-query attention.
        head_dim: Width of a head.
        intermediate: Width inside the feed-forward.
        vocabulary: Rows of the word table.
        embedding: Width of the word table (ALBERT's is narrower than `hidden`).
        positions: Longest input in tokens.
        activation: `gelu` (exact), `gelu_new` (tanh), `relu` or `silu`.
        norm_eps: Epsilon of the normalizations.
        pad_id: Id of the padding token.
        rope_theta: Base of the rotary angles; 0 without them.
        is_decoder: Whether tokens see only what precedes them (causal language model).
        is_tied: Whether the head's rows are the word table's.
        segments: Rows of the table of segment types; 0 without one.
    """

    architecture: str
    layers: int
    stored_layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    embedding: int
    positions: int
    activation: str
    norm_eps: float
    pad_id: int
    rope_theta: float = 0.0
    is_decoder: bool = False
    is_tied: bool = True
    segments: int = 2


@dataclass(frozen=True)
class Family:
    """Where a family keeps its parts; `{layer}` stands for a stored layer's number.

    Attributes:
        prefix: Module of the base model inside the language model, such as `roberta`.
        words: The word table's module.
        layer: Prefix of a layer, with its final dot.
        linears: Short name -> module inside a layer. `gate` only where the feed-forward is gated.
        attention_norm: Normalization beside attention, inside a layer.
        output_norm: Normalization beside the feed-forward, inside a layer.
        positions: Table of positions, or "".
        token_types: Table of segment types, or "".
        embedding_norm: Normalization of the embeddings, or "".
        embedding_map: Linear from the word table's width to `hidden` (ALBERT), or "".
        is_map_optional: Whether it is there only where both widths differ (ELECTRA).
        final_norm: Normalization after the last layer (decoders), or "".
        head_dense: Linear of the language-model head, or "".
        head_norm: Normalization of the language-model head, or "".
        decoder: Linear of the head onto the vocabulary.
        decoder_bias: Tensors that may hold the decoder's bias; the first that a file has counts,
            as in transformers, and a pack has the last.
        biased: Short names of the layers' linears that carry a bias.
        is_counted_behind_pad: Whether positions start behind the padding id's row (RoBERTa).
        head_activation: The language-model head's, or "" for the one of the layers.
        classifier: Linears of a sequence classifier, name -> (rows, columns) by name.
        classifier_activation: Between those two.
        headless: What a checkpoint without its language-model head is, said behind that it is one.
    """

    prefix: str
    words: str
    layer: str
    linears: Mapping[str, str]
    attention_norm: str
    output_norm: str
    positions: str = ""
    token_types: str = ""
    embedding_norm: str = ""
    embedding_map: str = ""
    is_map_optional: bool = False
    final_norm: str = ""
    head_dense: str = ""
    head_norm: str = ""
    decoder: str = ""
    decoder_bias: tuple[str, ...] = ()
    biased: tuple[str, ...] = ("q", "k", "v", "o", "up", "down")
    is_counted_behind_pad: bool = False
    head_activation: str = ""
    classifier: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    classifier_activation: str = "tanh"
    headless: str = ""

    def linear(self, layer: int, target: str) -> str:
        """Full module name of a linear of a stored layer."""
        return self.layer.format(layer=layer) + self.linears[target]

    def first_position(self, pad_id: int) -> int:
        """The row of the positions' table that the first token gets."""
        return pad_id + 1 if self.is_counted_behind_pad else 0

    def full_name(self, name: str) -> str:
        """A tensor's name of today, for one of an old checkpoint or of the bare base model.

        Old checkpoints call a normalization's tensors gamma and beta; one saved from the base
        model alone lacks the prefix.
        """
        modules = (self.words, self.layer, self.embedding_map, self.final_norm, *self.classifier)
        inside = {m.split(".")[1] for m in modules if m.startswith(f"{self.prefix}.")}
        is_bare = name.partition(".")[0] in inside
        return modern_name(f"{self.prefix}.{name}" if is_bare else name)

    @property
    def head(self) -> str:
        """The module that is the whole language-model head, or "" where there is none.

        DistilBERT's and ELECTRA's lie in pieces beside the encoder; a decoder's is one linear.
        """
        module = self.head_dense.rpartition(".")[0].partition(".")[0]
        return module if self.decoder.startswith(f"{module}.") else ""


_BERT_LINEARS = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "o": "attention.output.dense",
    "up": "intermediate.dense",
    "down": "output.dense",
}


def _bert(prefix: str, head: Mapping[str, Any]) -> Family:
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
        **head,
    )


_ROBERTA = _bert(
    "roberta",
    {
        "head_dense": "lm_head.dense",
        "head_norm": "lm_head.layer_norm",
        "decoder": "lm_head.decoder",
        "decoder_bias": ("lm_head.decoder.bias", "lm_head.bias"),
        "is_counted_behind_pad": True,
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
)
_ELECTRA = _bert(
    "electra",
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
        "headless": " (an ELECTRA discriminator is trained to spot replaced words, not to fill "
        "masks; its generator is)",
    },
)
FAMILIES: dict[str, Family] = {
    "bert": _bert(
        "bert",
        {
            "head_dense": "cls.predictions.transform.dense",
            "head_norm": "cls.predictions.transform.LayerNorm",
            "decoder": "cls.predictions.decoder",
            "decoder_bias": ("cls.predictions.decoder.bias", "cls.predictions.bias"),
            "classifier": {
                "bert.pooler.dense": ("hidden", "hidden"),
                "classifier": ("labels", "hidden"),
            },
        },
    ),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "electra": _ELECTRA,
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
    ),
    "llama": _LLAMA,
    "qwen2": replace(_LLAMA, biased=("q", "k", "v")),
}


def modern_name(name: str) -> str:
    """Today's name of a normalization's tensors, which old checkpoints call gamma and beta."""
    for old, new in ((".gamma", ".weight"), (".beta", ".bias")):
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name


def family_of(architecture: str) -> Family:
    """The family of a `model_type`.

    Raises:
        ArchitectureError: None known here.
    """
    if architecture not in FAMILIES:
        raise ArchitectureError(
            f"architecture {architecture!r} is not known here; expected one of "
            + ", ".join(sorted(FAMILIES))
        )
    return FAMILIES[architecture]


def has_bias(shape: Shape, target: str) -> bool:
    """Whether a layer's linear carries a bias (Qwen2: only queries, keys and values do)."""
    return target in FAMILIES[shape.architecture].biased


def has_embedding_map(shape: Shape) -> bool:
    """Whether a linear stands between the word table's width and the layers'."""
    family = FAMILIES[shape.architecture]
    is_needed = shape.embedding != shape.hidden or not family.is_map_optional
    return bool(family.embedding_map) and is_needed
