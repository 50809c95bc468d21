"""A base's stored tensors by role (word embeddings, positions, head), for both engines.

    frozen = FrozenBase(base)
    rows = frozen.words(ids)  # (B, T, embedding), float32
    frozen.release_layer(7)  # drops its mapped pages

Everything is returned as float32 copies, except layer matrices, which come as stored.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from smidgen.edge_client.bases.architectures import BUCKETS, FURTHEST, Shape
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.bases.families import family_of, has_bias
from smidgen.edge_client.bases.quantization import Stored, dequantize
from smidgen.edge_client.errors import demand
from smidgen.edge_client.planning.allocator import trim_above
from smidgen.edge_client.planning.layer_cost import TABLE_ROWS, word_rows


def scaled_frequencies(frequencies: np.ndarray, shape: Shape, is_local: bool) -> np.ndarray:
    """Rotary frequencies as a model scales them to longer texts; as they are without a scaling.

    LongRoPE divides each by a number of its own (Ding et al. 2024, arXiv:2402.13753), linear
    scaling all by one (Chen et al. 2023, arXiv:2306.15595). Llama 3.1:
    those whose wave is longer than original / low are divided by the factor, those whose wave is
    shorter than original / high stay, and those between are mixed (Llama Team 2024,
    arXiv:2407.21783; the numbers as transformers reads them).

    Args:
        frequencies: Radians from one position to the next, float32, (D / 2,), D turned columns.
        shape: The model's.
        is_local: Whether they are of layers with a window, which are not scaled.
    """
    if shape.rope_divisors:
        return frequencies / np.array(shape.rope_divisors, np.float32)
    if not shape.rope_scaling or is_local:
        return frequencies
    if len(shape.rope_scaling) == 1:
        return frequencies / np.float32(shape.rope_scaling[0])
    factor, low, high, original = shape.rope_scaling
    turns = original * frequencies.astype(np.float64) / (2 * np.pi)  # within the original length
    kept = np.clip((turns - low) / (high - low), 0, 1)
    scaled: np.ndarray = frequencies * (kept + (1 - kept) / factor)
    return scaled.astype(np.float32)


class FrozenBase:
    """The weights of a base, mapped.

    Args:
        base: A pack, a plain folder or a GGUF file.

    Attributes:
        ceiling_bytes: Resident bytes above which freed memory is given back to the kernel between
            two layers; None: never.
    """

    def __init__(self, base: Base) -> None:
        self.shape, self.family = base.shape, family_of(base.architecture)
        self.weights = base.open_weights()
        # llama.cpp's converter has already added the 1 that some families' norms lack.
        self._less = np.float32(self.family.is_norm_from_one and not base.is_gguf)
        self.ceiling_bytes: int | None = None
        self._dense_words: np.ndarray | None = None

    @property
    def decoder(self) -> str:
        """The tensor whose rows answer for words: the word table, or the head's own."""
        is_tied = self.shape.is_tied
        return f"{self.family.words if is_tied else self.family.decoder}.weight"

    @property
    def head_activation(self) -> str:
        """The language-model head's activation; RoBERTa's is always the exact gelu."""
        shape = self.shape
        return shape.head_activation or self.family.head_activation or shape.activation

    def stored_layer(self, index: int) -> int:
        """Which stored layer a computed one uses; ALBERT's layers share theirs."""
        return index * self.shape.stored_layers // self.shape.layers

    def layer_prefix(self, stored: int) -> str:
        """What the names of a stored layer's modules begin with."""
        return self.family.layer.format(layer=stored)

    def matrix(self, module: str, rows: slice | None = None) -> Stored:
        """A module's weight as it is stored, or some of its rows."""
        stored = self.weights.stored(f"{module}.weight")
        return stored if rows is None else stored.some(rows)

    def norm_weight(self, module: str) -> np.ndarray:
        """What a normalization multiplies by."""
        return self.vector(module, "weight") + self._less

    def vector(self, module: str, part: str) -> np.ndarray:
        """A module's `weight` or `bias` of one dimension."""
        return self.weights.vector(f"{module}.{part}")

    def words(self, ids: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Rows of the word table, (B, T, embedding), into `out` if given."""
        name, size = f"{self.family.words}.weight", (*ids.shape, self.shape.embedding)
        found = np.empty(size, np.float32) if out is None else out
        words, number, counts = np.unique(ids, return_inverse=True, return_counts=True)
        number = number.reshape(-1)
        places = np.argsort(number, kind="stable")  # those of the first word, of the second, ...
        ends, rows = np.cumsum([0, *counts]), found.reshape(-1, size[-1])
        for start in range(0, len(words), TABLE_ROWS):
            table = self.weights.rows(name, words[start : start + TABLE_ROWS])
            here = places[ends[start] : ends[start + len(table)]]
            rows[here] = table[number[here] - start]
        if self.family.is_embedding_scaled:
            found *= np.float32(math.sqrt(self.shape.embedding))
        return found

    def places(
        self, tokens: int, segments: np.ndarray | None = None, prompt: int = 0
    ) -> list[np.ndarray]:
        """What is added to the words: positions (T, embedding), and segments.

        These are (1, embedding), or (B, T, embedding) where a batch has several. A base of one
        segment, or of none, has all texts in that.

        Args:
            tokens: T, of a soft prompt and of the texts.
            segments: See `Batch`, (B, T - P).
            prompt: P, tokens of a soft prompt, which stand before the first text.

        Raises:
            WrongInput: The tokenizer counts more segments than the base has.
        """
        family, found = self.family, []
        if family.positions:
            first = family.first_position(self.shape.pad_id)
            rows = np.arange(first, first + tokens)
            found.append(self.weights.rows(f"{family.positions}.weight", rows))
        table = f"{family.token_types}.weight"
        if family.token_types and table in self.weights:
            known = self.weights.shape(table)[0]
            if segments is None or known == 1:
                found.append(self.weights.rows(table, [0]))
            else:
                highest = int(segments.max())
                said = f"this base's tokenizer counts {highest + 1} segments, its weights hold"
                demand(highest < known, f"{said} {known}; pack or copy the base again")
                rows = self.weights.rows(table, np.arange(highest + 1))
                found.append(rows[np.pad(segments, ((0, 0), (prompt, 0)))])
        return found

    def score_bias(self, tokens: int) -> np.ndarray | None:
        """What is added to the scores by distance, (heads, T, T); None where nothing is.

        Distances have buckets of their own up to a quarter of these, then logarithmic ones, one
        half of all for what stands before and one for what follows (Raffel et al. 2020,
        arXiv:1910.10683).
        """
        if not self.family.relative_bias:
            return None
        table = self.weights.rows(f"{self.family.relative_bias}.weight", np.arange(BUCKETS))
        distances = np.arange(tokens) - np.arange(tokens)[:, None]  # of a key from a query
        half, exact = BUCKETS // 2, BUCKETS // 4
        far = np.log(np.maximum(np.abs(distances), 1).astype(np.float32) / np.float32(exact))
        far = far / np.float32(math.log(FURTHEST / exact)) * np.float32(half - exact)
        large = np.minimum(exact + far.astype(np.int64), half - 1)
        buckets = np.where(np.abs(distances) < exact, np.abs(distances), large)
        biases = table[buckets + half * (distances > 0)]  # (T, T, heads)
        return np.ascontiguousarray(biases.transpose(2, 0, 1))

    def label_rows(self, words: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
        """The head's row of each label word, (labels, embedding), and its bias, (labels,).

        A word of several tokens has its tokens' means, see `Tokens.label_word_ids`.
        """
        ids = [token for word in words for token in word]
        counts = np.array([len(word) for word in words], np.float32)
        starts = np.cumsum([0, *(len(word) for word in words[:-1])])
        rows = self.weights.rows(self.decoder, np.array(ids))
        bias = self.vocabulary_bias()[ids]
        return (
            np.add.reduceat(rows, starts, axis=0) / counts[:, None],
            np.add.reduceat(bias, starts) / counts,
        )

    def vocabulary_bias(self) -> np.ndarray:
        """The head's bias of every word, (vocabulary,)."""
        if not has_bias(self.shape, "decoder"):
            return np.zeros(self.shape.vocabulary, np.float32)
        name = next(name for name in self.family.decoder_bias if name in self.weights)
        return self.weights.vector(name)

    def vocabulary_rows(
        self, dense: Callable[[Stored], np.ndarray] = dequantize
    ) -> Iterator[tuple[int, np.ndarray]]:
        """The head's rows of every word, `word_rows` at a time with the first one's number.

        Each slice's pages go back before the next is read. All at once where they are kept.

        Args:
            dense: Makes float32 of what is stored; its result is read before it is called again.
        """
        if self._dense_words is not None:
            yield 0, self._dense_words
            return
        stored, step = self.weights.stored(self.decoder), word_rows(self.shape.embedding)
        for start in range(0, self.shape.vocabulary, step):
            part = slice(start, min(start + step, self.shape.vocabulary))
            yield start, dense(stored.some(part))
            self.weights.release([self.decoder])

    def keep_vocabulary(self) -> None:
        """Hold the head's rows as float32 from now on; see `vocabulary_rows`."""
        held = np.empty((self.shape.vocabulary, self.shape.embedding), np.float32)
        for start, rows in self.vocabulary_rows():
            held[start : start + len(rows)] = rows
        self._dense_words = held

    def answer_rows(self, words: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
        """The head's rows of some words, (slice, embedding), a few at a time."""
        for start in range(0, len(words), TABLE_ROWS):
            part = slice(start, start + TABLE_ROWS)
            yield part, self.weights.rows(self.decoder, words[part])

    def release_layer(self, index: int) -> None:
        """Give a layer's pages of the map back; they stay in the page cache while there is room.

        Above the ceiling the heap's free memory goes too.
        """
        prefix = self.layer_prefix(self.stored_layer(index))
        names = [f"{prefix}{module}.weight" for module in {*self.family.linears.values()}]
        self.weights.release(names)
        if self.ceiling_bytes is not None:
            trim_above(self.ceiling_bytes)

    def release_all(self) -> None:
        self.weights.release(self.weights.names)

    def close(self) -> None:
        self.weights.close()
