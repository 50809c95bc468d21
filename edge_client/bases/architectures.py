"""Building blocks of a model family: sizes, tensor names, and a layer as a list of operations.

Every name is Hugging Face's own module name, the same in checkpoints, packs, PEFT and the engines.
A layer is a tuple of operations on named arrays (registers): each engine interprets it forward and
backward, and `planning.layer_cost` walks it for bytes and operations.

    (Norm("attention_norm", "x", "h"), Linears(("q", "k", "v"), "h"), Rotary(("q", "k")), ...)
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any

from smidgen.edge_client.errors import WrongInput


class ArchitectureError(WrongInput):
    """A model of a family that is not known here, or a family whose row is not sound."""


# A layer's operations. `x` is what a layer gets, `out` what it gives; both are (B, T, hidden).


@dataclass(frozen=True)
class Norm:
    """Normalize `of` into `into`.

    Attributes:
        module: `attention_norm` or `output_norm` of `Family`, or a name of its `more_norms`.
        is_below: Whether it is that of the layer below, so that layers are cut before it. Lets a
            recomputation leave out the last product: the sum it makes is what the layer above has.
        is_in_lowest: Whether the lowest layer has it; where not, `into` is `of` itself there.
        is_by_head: Whether each head's columns are normalized by themselves, (head_dim,).
        plus: Added to the result (residual).
    """

    module: str
    of: str
    into: str
    is_below: bool = False
    is_in_lowest: bool = True
    is_by_head: bool = False
    plus: str = ""

    @property
    def is_kept(self) -> bool:
        """Whether the result is kept as a linear's is, and not made where it is read."""
        return self.is_by_head or bool(self.plus)


@dataclass(frozen=True)
class Linears:
    """Linears of one array, each into the register of its own name.

    Attributes:
        names: Short names, as in `Family.linears`.
        of: What they read.
        plus: Added to the result (residual); of a single linear.
        into: The result's register; of a single linear.
    """

    names: tuple[str, ...]
    of: str
    plus: str = ""
    into: str = ""

    @property
    def results(self) -> tuple[str, ...]:
        return (self.into,) if self.into else self.names


@dataclass(frozen=True)
class Answers:
    """The rows where the result is read, which the top layer alone goes on with from here.

    What a layer's keys and values need comes before, all else behind.
    """

    of: str
    into: str


@dataclass(frozen=True)
class Rotary:
    """Turn queries and keys by their positions, in place (Su et al. 2021, arXiv:2104.09864)."""

    of: tuple[str, ...]


@dataclass(frozen=True)
class Attend:
    """softmax(q k.T / sqrt(head_dim) + mask) v, into `context`.

    The mask is the shape's: `Shape.is_decoder`, and `Shape.window_of` where it is local.
    """


@dataclass(frozen=True)
class Activate:
    """The shape's activation of each element."""

    of: str
    into: str


@dataclass(frozen=True)
class Gate:
    """The activation of `of`, times `by`."""

    of: str
    by: str
    into: str


@dataclass(frozen=True)
class FeedForward:
    """Linears, what is active of them, and the linear of that: some columns inside at a time.

    In no family's block; `in_parts` makes it.

    Attributes:
        inner: The linears whose results lie inside.
        active: What is made of these.
        last: The linear of that.
    """

    inner: Linears
    active: Activate | Gate
    last: Linears

    @property
    def of(self) -> str:
        return self.inner.of

    @property
    def plus(self) -> str:
        return self.last.plus

    @property
    def into(self) -> str:
        return self.last.results[0]


Op = Norm | Linears | Answers | Rotary | Attend | Activate | Gate | FeedForward
Block = tuple[Op, ...]


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
        biased: What carries a bias where a configuration decides it; None: `Family.biased`.
        head_activation: The language-model head's, where a configuration decides it, or "".
        pooling: What transformers' classifier of texts reads: `cls`, the first token, or `mean`.
        window: Tokens that a local layer sees on either side of each.
        local_layers: Numbers of the layers whose attention is local.
        local_rope_theta: Base of the rotary angles in local layers.
        rope_scaling: Of rotary frequencies, but for those of local layers: a factor that divides
            all (linear), or Llama 3's factor, low_freq_factor, high_freq_factor and
            original_max_position_embeddings; empty: they are not scaled.
        rope_divisors: What each rotary frequency is divided by (LongRoPE); empty: by 1.
        rope_magnitude: What turned queries and keys are multiplied by.
        rotary_dim: Columns of each head that are turned, from the first; 0: all.
        unrotated_layers: Numbers of the layers without rotary positions (NoPE).
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
    biased: tuple[str, ...] | None = None
    head_activation: str = ""
    pooling: str = "cls"
    window: int = 0
    local_layers: tuple[int, ...] = ()
    local_rope_theta: float = 0.0
    rope_scaling: tuple[float, ...] = ()
    rope_divisors: tuple[float, ...] = ()
    rope_magnitude: float = 1.0
    rotary_dim: int = 0
    unrotated_layers: tuple[int, ...] = ()

    @property
    def turned(self) -> int:
        """Columns of each head that rotary positions turn."""
        return self.rotary_dim or self.head_dim

    def window_of(self, layer: int) -> int | None:
        """Tokens that a layer sees on either side of each; None: all."""
        return self.window if layer in self.local_layers else None

    def is_turned(self, layer: int) -> bool:
        """Whether a layer has rotary positions."""
        return bool(self.rope_theta) and layer not in self.unrotated_layers

    @property
    def turned_kinds(self) -> tuple[bool, ...]:
        """Which angles there are, by whether they are of local layers."""
        has_global = bool(self.rope_theta) and len(self.local_layers) < self.layers
        return (*([False] if has_global else []), *([True] if self.local_layers else []))


BUCKETS, FURTHEST = 32, 128  # of distances, and the distance from which all share the last
LINEARS = ("q", "k", "v", "o", "gate", "up", "down")  # of a layer, by their short names
Read = Callable[[Shape, Mapping[str, Any], Mapping[str, Any]], Shape]


@dataclass(frozen=True)
class Family:
    """Where a family keeps its parts, and what a layer does with them.

    `{layer}` stands for a stored layer's number.

    Attributes:
        prefix: Module of the base model inside the language model, such as `roberta`.
        words: The word table's module.
        layer: Prefix of a layer, with its final dot.
        linears: Short name -> module inside a layer. Names of one module are its rows in this
            order, as of a fused `Wqkv`; under grouped-query attention in unequal parts.
        attention_norm: Normalization beside attention, inside a layer.
        output_norm: Normalization beside the feed-forward, inside a layer.
        more_norms: A layer's other normalizations, name -> module inside a layer.
        block: A layer's operations.
        defaults: Every key of config.json that is read, with its default in transformers' class.
        fixed: Keys of config.json with the one value that is computed here.
        aliases: Other names of keys (`attribute_map` in transformers), which win over these.
        read: Completes a `Shape` by the values read and the configuration as it is.
        positions: Table of positions, or "".
        token_types: Table of segment types, or "".
        relative_bias: Table of what is added to the scores by distance, a row for each of
            `BUCKETS`, a column for each head, shared by all layers (MPNet, after T5), or "".
        embedding_norm: Normalization of the embeddings, or "".
        embedding_map: Linear from the word table's width to `hidden` (ALBERT), or "".
        is_map_optional: Whether it is there only where both widths differ (ELECTRA).
        final_norm: Normalization after the last layer, where layers begin with theirs, or "".
        head_dense: Linear of the language-model head, or "".
        head_norm: Normalization of the language-model head, or "".
        decoder: Linear of the head onto the vocabulary.
        decoder_bias: Tensors that may hold the decoder's bias; the first that a file has counts,
            as in transformers, and a pack has the last.
        biased: What carries a bias: short names of the layers' linears, `norm` (all
            normalizations), `head` (its dense linear), `decoder`.
        is_causal: Whether its bases are causal language models; none of them has a classifier.
        is_rms: Whether normalizations are by the root mean square.
        is_norm_from_one: Whether their weights are stored minus one, except in a GGUF file.
        is_embedding_scaled: Whether words are multiplied by the root of their width.
        is_counted_behind_pad: Whether positions start behind the padding id's row (RoBERTa).
        head_activation: The language-model head's, or "" for the one of the layers.
        classifier: Linears of a sequence classifier, name -> (rows, columns) by name.
        classifier_activation: Between those two.
        is_classifier_on_head: Whether a classifier reads what the language-model head's linear and
            norm make, which are not trained.
        headless: What a checkpoint without its language-model head is, said behind that it is one.
        own_code: The class that its first checkpoints bring code for, which transformers has as its
            own since; `auto_map` may name it.
        tokenizer: The class of its tokenizers, where `tokenizer_config.json` names none.
    """

    prefix: str
    words: str
    layer: str
    linears: Mapping[str, str]
    attention_norm: str
    output_norm: str
    block: Block
    defaults: Mapping[str, Any]
    fixed: Mapping[str, Any]
    aliases: Mapping[str, str] = field(default_factory=dict)
    read: Read = lambda shape, _values, _config: shape
    positions: str = ""
    token_types: str = ""
    relative_bias: str = ""
    embedding_norm: str = ""
    embedding_map: str = ""
    is_map_optional: bool = False
    final_norm: str = ""
    head_dense: str = ""
    head_norm: str = ""
    decoder: str = ""
    decoder_bias: tuple[str, ...] = ()
    more_norms: Mapping[str, str] = field(default_factory=dict)
    biased: tuple[str, ...] = (*LINEARS, "norm", "head", "decoder")
    is_causal: bool = False
    is_rms: bool = False
    is_norm_from_one: bool = False
    is_embedding_scaled: bool = False
    is_counted_behind_pad: bool = False
    head_activation: str = ""
    classifier: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    classifier_activation: str = "tanh"
    is_classifier_on_head: bool = False
    headless: str = ""
    own_code: str = ""
    tokenizer: str = ""

    def linear(self, layer: int, target: str) -> str:
        """Full module name of a linear of a stored layer."""
        return self.layer.format(layer=layer) + self.linears[target]

    def fused(self, target: str) -> tuple[str, ...]:
        """The short names whose rows lie in one module with a linear's, itself included."""
        module = self.linears[target]
        return tuple(name for name, other in self.linears.items() if other == module)

    def block_of(self, layer: int, is_short: bool) -> Block:
        """The operations of a computed layer; where one is not done, its input is read instead.

        Args:
            layer: Its number.
            is_short: Whether the answers' rows alone go on after keys and values.
        """
        block: Block = ()
        absent: dict[str, str] = {}  # a register that is not written -> the one read instead
        for op in (_renamed(op, absent) for op in self.block):
            is_absent = isinstance(op, Norm) and layer == 0 and not op.is_in_lowest
            if is_absent or (isinstance(op, Answers) and not is_short):
                absent |= {writes(op)[0]: reads(op)[0]}
            else:
                block = (*block, op)
        return block

    def norms(self, layer: int) -> dict[str, str]:
        """The normalizations that a stored layer has, by name: full module names."""
        ops = [op for op in self.block if isinstance(op, Norm)]
        kept = {op.module for op in ops if layer or op.is_below or op.is_in_lowest}
        modules = {"attention_norm": self.attention_norm, "output_norm": self.output_norm}
        modules |= self.more_norms
        prefix = self.layer.format(layer=layer)
        return {name: prefix + module for name, module in modules.items() if name in kept}

    def is_by_head(self, norm: str) -> bool:
        """Whether a layer's normalization is of each head's columns, by its name."""
        return any(
            isinstance(op, Norm) and op.module == norm and op.is_by_head for op in self.block
        )

    def has(self, kind: type[Op]) -> bool:
        return any(isinstance(op, kind) for op in self.block)

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


def _renamed(op: Op, names: Mapping[str, str]) -> Op:
    registers = {f.name: getattr(op, f.name) for f in fields(op) if f.name in ("of", "by", "plus")}
    changed: dict[str, Any] = {key: names[r] for key, r in registers.items() if r in names}
    return replace(op, **changed)


def modern_name(name: str) -> str:
    """Today's name of a normalization's tensors, which old checkpoints call gamma and beta."""
    for old, new in ((".gamma", ".weight"), (".beta", ".bias")):
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name


def as_json(value: object) -> str:
    """A value of a configuration as JSON, on one line; of a long one its type."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 40 else f"(a {type(value).__name__})"


def reads(op: Op) -> tuple[str, ...]:
    """The registers that an operation reads."""
    match op:
        case Attend():
            return ("q", "k", "v")
        case Rotary():
            return op.of
        case Gate():
            return (op.of, op.by)
        case Linears(plus=plus) | Norm(plus=plus) | FeedForward(plus=plus) if plus:
            return (op.of, plus)
        case _:
            return (op.of,)


def writes(op: Op) -> tuple[str, ...]:
    """The registers that an operation writes."""
    match op:
        case Attend():
            return ("context",)
        case Rotary():
            return ()
        case Linears():
            return op.results
        case _:
            return (op.into,)


@cache
def late_registers(block: Block) -> frozenset[str]:
    """The registers that hold the answers' rows alone, in a block with `Answers`."""
    late: set[str] = set()
    for op in block:
        if isinstance(op, Answers) or late & set(reads(op)):
            late |= set(writes(op))
    return frozenset(late)


@cache
def in_parts(block: Block) -> Block:
    """A block whose feed-forward is one operation; as it is where its inside is read elsewhere."""
    for number, (inner, active, last) in enumerate(zip(block, block[1:], block[2:], strict=False)):
        if not (isinstance(inner, Linears) and isinstance(last, Linears)):
            continue
        others = {name for op in block[number + 3 :] for name in reads(op)}
        is_inside = not others & {*writes(inner), *writes(active)}
        if isinstance(active, Activate | Gate) and is_inside:
            return (*block[:number], FeedForward(inner, active, last), *block[number + 3 :])
    return block


@cache
def dying_registers(block: Block) -> tuple[tuple[str, ...], ...]:
    """For each operation the registers that nothing behind it reads."""
    behind, found = {"out"}, []
    for op in reversed(block):
        found.append(tuple(name for name in reads(op) if name not in behind))
        behind |= set(reads(op))
    return tuple(reversed(found))


@cache
def rooms_of(block: Block) -> dict[str, str]:
    """Where normalized registers lie, by name: where one lay that nothing reads any more.

    Only with a feed-forward in parts, whose input's gradient does not take its value's place.
    """
    found: dict[str, str] = {}
    free: list[str] = []
    if any(isinstance(op, FeedForward) for op in block):
        for op, dead in zip(block, dying_registers(block), strict=True):
            if isinstance(op, Norm) and not op.is_kept:
                found[op.into] = free.pop() if free else op.into
            free += [found[name] for name in dead if name in found]
    return found
