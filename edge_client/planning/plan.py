"""Workload, budget and plan: what is to be trained, in how much memory, and how a step computes."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from smidgen.edge_client.adapters.spec import AdapterError, AdapterSpec, check_top
from smidgen.edge_client.bases.architectures import Answers, Shape
from smidgen.edge_client.bases.families import family_of
from smidgen.edge_client.bases.tokenizer import LEFT_BYTES, TOKENIZERS, TokenizerBytes
from smidgen.edge_client.errors import WrongInput

AUTO = "auto"
AUTO_PERCENT = 60  # of what is available now
MIB = 1 << 20


class BudgetError(WrongInput):
    """A text that is not a memory size, or a budget that no plan fits."""


def parse_budget(text: str) -> int | None:
    """The bytes that `--memory-budget` allows, or None for `auto`.

    Raises:
        BudgetError: Neither a size nor `auto`.
    """
    return None if text == AUTO else parse_size("--memory-budget", text, AUTO)


def parse_cache_size(text: str) -> int:
    """The bytes that `--cache-size` allows; 0 for `0`.

    Raises:
        BudgetError: Neither a size nor `0`.
    """
    return 0 if text == "0" else parse_size("--cache-size", text, "0 for none")


def parse_size(option: str, text: str, other: str = "") -> int:
    """Bytes of `512M`, `2G` or `1.5G` (1024-based), at least 1 MiB.

    Args:
        option: The option that was typed, for the message.
        text: What was typed.
        other: What else the option takes, for the message; empty: nothing.

    Raises:
        BudgetError: Not a size; the message says what was expected.
    """
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)([MmGg])", text)
    size = int(float(match[1]) * MIB * (1024 if match[2] in "Gg" else 1)) if match else 0
    if size < MIB:
        expected = f"512M, 1.5G or {other}" if other else "512M or 1.5G"
        raise BudgetError(f"{option} {text!r} is not a size; expected such as {expected}")
    return size


def auto_budget(available_bytes: int) -> int:
    """What `auto` stands for: 60 % of what is available now."""
    return available_bytes * AUTO_PERCENT // 100


def size_text(size_bytes: int, rounding: Callable[[float], int] = math.ceil) -> str:
    """Bytes as `parse_size` reads them; rounded up, so that a budget of this text is enough."""
    return f"{rounding(size_bytes / MIB)}M"


LET_GO_BYTES = 16 << 20  # of a tokenizer, from which on reading it anew is worth the second


@dataclass(frozen=True)
class Plan:
    """How a training step is computed.

    Attributes:
        dtype: `float32`, `bfloat16` or `float16`: what is computed in.
        micro_batch: Rows computed at once; a batch is split into such parts, whose gradients add
            up to the batch's.
        recompute: Computed layers, from 0, whose activations are recomputed in backward instead
            of kept.
        depth: Top layers whose adapters are trained; the layers below run without a graph. (Of a
            bias adapter the normalization right below them is trained too.)
        tokens: Longest input, without a soft prompt's tokens.
        is_kept_in_half: Whether layers' inputs wait for backward in float16 though computed in
            float32 (of the onnx engine, which computes in nothing else).
        is_streamed: Whether stored weights are copied to the card at each use instead of staying
            there (of CUDA devices).
        is_sliced: Whether large matrices are made dense a slice at a time (of the onnx engine).
        is_spilled: Whether layers' inputs wait for backward in a file, and the optimizer's moments
            for their tensor's turn (of the onnx engine).
    """

    dtype: str
    micro_batch: int
    recompute: tuple[int, ...]
    depth: int
    tokens: int
    is_kept_in_half: bool = False
    is_streamed: bool = False
    is_sliced: bool = False
    is_spilled: bool = False

    @property
    def is_put_aside(self) -> bool:
        """Whether layers' inputs wait elsewhere than where they were made."""
        return self.is_kept_in_half or self.is_spilled


def give_same_bytes(plan: Plan, other: Plan) -> bool:
    """Whether training by either ends in the same bytes, with either engine.

    What is recomputed or read of a file gives what was kept; so plans may differ in that, unless
    layers' inputs wait in float16. Other parts of a plan round otherwise.
    """
    if plan.is_kept_in_half:
        return plan == other
    return replace(plan, recompute=other.recompute, is_spilled=other.is_spilled) == other


def reads_mean(spec: AdapterSpec, shape: Shape, *, is_of_words: bool) -> bool:
    """Whether a head reads the mean of a text's tokens, as transformers' classifier of the base.

    Args:
        spec: The adapter.
        shape: The base's.
        is_of_words: Whether the head reads each word.
    """
    return spec.head and not is_of_words and shape.pooling == "mean"


@dataclass(frozen=True)
class Workload:
    """What is to be trained, by whatever plan.

    Attributes:
        shape: Sizes of the base.
        bits: Bits of a stored weight: 4, 8, 16 or 32.
        spec: The adapter.
        batch: Texts in one optimizer step.
        tokens: Longest input asked for.
        num_labels: Rows of a classification head: labels, or tags of a word.
        engine: What computes it, `torch` or `onnx`.
        device: On what: `cpu`, `cuda`, or `unified`, a CUDA device that shares the processor's
            memory.
        moments: Numbers that the optimizer keeps of each trained one, see `Training.moments`.
        shifts: Numbers that are added to each one's gradient: SCAFFOLD's c - c_i.
        held_bytes: What update steps hold by each trained number, see `updates.step`.
        masked: Tokens of a text, of the longest, at each of which all words are asked for; 0: one
            answer is, of few labels.
        is_of_words: Whether each word of a text is asked, by a classification head that reads it.
        tokenizer: The base's, one of `bases.tokenizer.TOKENIZERS`.
        keeps_vocabulary: Whether a large one stays; else it is let go before a step.

    Raises:
        AdapterError: A soft prompt that leaves no room for a text, or top layers that are not
            there.
    """

    shape: Shape
    bits: int
    spec: AdapterSpec
    batch: int
    tokens: int
    num_labels: int = 2
    engine: str = "torch"
    device: str = "cpu"
    moments: int = 2
    shifts: int = 0
    held_bytes: int = 0
    masked: int = 0
    is_of_words: bool = False
    tokenizer: str = "WordLevel"
    keeps_vocabulary: bool = False

    def __post_init__(self) -> None:
        if self.spec.prompt_tokens >= self.shape.positions:
            raise AdapterError(
                f"adapter {self.spec} leaves no room for a text: the base reads "
                f"{self.shape.positions} tokens; use a shorter prompt"
            )
        check_top(self.spec, self.shape)

    @property
    def computer(self) -> str:
        """The engine and, if it is not the processor, the device: peaks of one are alike."""
        return self.engine if self.device == "cpu" else f"{self.engine} {self.device}"

    @property
    def what(self) -> str:
        """What is trained, by name: peaks of one are alike."""
        what = f"{self.spec} held:{self.held_bytes}" if self.held_bytes else str(self.spec)
        if self.is_of_words:
            return f"{what} tagging"
        return f"{what} masked:{self.masked}" if self.masked else what

    @property
    def tokenizer_bytes(self) -> TokenizerBytes:
        """What its tokenizer takes in a step, and while it is read."""
        whole = self._whole_tokenizer
        left = LEFT_BYTES[self.tokenizer.endswith("GGUF")]
        return whole._replace(held=left) if self.is_vocabulary_let_go else whole

    @property
    def is_vocabulary_let_go(self) -> bool:
        """Whether the tokenizer is closed before a step, and read anew where it is needed next."""
        return not self.keeps_vocabulary and self._whole_tokenizer.held >= LET_GO_BYTES

    @property
    def _whole_tokenizer(self) -> TokenizerBytes:
        held, loading = TOKENIZERS[self.tokenizer]
        return TokenizerBytes(held * self.shape.vocabulary, loading * self.shape.vocabulary)

    @property
    def is_top_short(self) -> bool:
        """Whether the top layer goes on with one row per text after keys and values."""
        return family_of(self.shape.architecture).has(Answers) and not self.has_many_answers

    @property
    def has_many_answers(self) -> bool:
        """Whether the head reads many places of a text, so that the top layer is of all tokens."""
        return bool(self.masked) or self.is_of_words or self.is_of_mean

    @property
    def is_of_mean(self) -> bool:
        """Whether the head reads the mean of a text's tokens."""
        return reads_mean(self.spec, self.shape, is_of_words=self.is_of_words)

    @property
    def longest(self) -> int:
        """Longest input that a plan is made for; a soft prompt takes its places first."""
        return min(self.tokens, self.shape.positions - self.spec.prompt_tokens)
