"""Generation with a causal language model: a token at a time, with a cache of keys and values.

    network.keep_dense(room_bytes)
    for token in generated(network, ids, Sampling(temperature=0.7, top_p=0.9), 64, stops={2}):
        ...

Nothing is drawn with temperature 0: the likeliest token is taken, of equally likely ones the first.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from smidgen.edge_client.adapters.spec import AdapterSpec
from smidgen.edge_client.bases.architectures import Shape
from smidgen.edge_client.errors import Failed, demand
from smidgen.edge_client.planning.layer_cost import (
    WINDOW_QUERIES,
    linear_sizes,
    register_widths,
    word_rows,
)

HOTTEST = 10.0
GRAPHS_BYTES = 16 << 20


class Network(Protocol):
    """A causal language model that answers by its own head; see `onnx_backend.network.Network`."""

    spec: AdapterSpec
    shape: Shape

    def extend(self, ids: np.ndarray, cache: "KeyValueCache") -> np.ndarray: ...

    def answer(self, top: np.ndarray) -> np.ndarray: ...

    def keep_dense(self, room_bytes: int) -> float: ...


class KeyValueCache:
    """Keys and values of the tokens of one text that were read so far, layer by layer.

    Args:
        shape: The base's.
        tokens: Room for so many; memory is taken when it is first written.
    """

    def __init__(self, shape: Shape, tokens: int) -> None:
        width = shape.kv_heads * shape.head_dim
        self._held = np.zeros((shape.layers, 2, 1, tokens, width), np.float32)
        self.tokens = 0

    def extended(
        self, layer: int, keys: np.ndarray, values: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """A layer's keys and values of all tokens, the new ones' included; each (1, S, width)."""
        end = self.tokens + keys.shape[1]
        for held, new in zip(self._held[layer], (keys, values), strict=True):
            held[:, self.tokens : end] = new
        keys, values = self._held[layer, :, :, :end]
        return keys, values


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen.

    Attributes:
        temperature: Logits are divided by it; 0: the likeliest token is taken.
        top_p: Only the likeliest tokens that together have this probability are drawn from
            (Holtzman et al. 2020, arXiv:1904.09751).
        seed: Random seed; equal seeds draw equal tokens.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        warm = f"--temperature {self.temperature:g}: 0 to {HOTTEST:g} is expected"
        demand(0.0 <= self.temperature <= HOTTEST, warm)
        demand(0.0 < self.top_p <= 1.0, f"--top-p {self.top_p:g}: above 0, to 1, is expected")


def chosen(logits: np.ndarray, sampling: Sampling, draws: np.random.Generator) -> int:
    """The next token's id, of logits (vocabulary,).

    Raises:
        Failed: They are not finite.
    """
    if not np.isfinite(logits).all():
        raise Failed("the logits are not finite: training has diverged; take another adapter")
    if sampling.temperature == 0:
        return int(logits.argmax())
    below = logits.astype(np.float64) - logits.max()
    with np.errstate(over="ignore"):  # by a temperature of next to nothing
        shares = np.exp(below / sampling.temperature)
    order = np.argsort(-shares, kind="stable")
    totals = np.cumsum(shares[order])
    # The token that reaches the share is one of them.
    count = int(np.searchsorted(totals, sampling.top_p * totals[-1])) + 1
    place = np.searchsorted(totals[:count], draws.random() * totals[:count][-1], side="right")
    return int(order[min(int(place), count - 1)])


def generated(
    network: Network,
    ids: Sequence[int],
    sampling: Sampling,
    most: int,
    stops: Collection[int] = (),
) -> Iterator[int]:
    """Token ids behind those given, until one of `stops`, which is not given, or `most` of them.

    Law: greedily those that transformers' `generate` gives with the same weights in float32.

    Args:
        network: What computes.
        ids: What is gone on with; one at least.
        sampling: How each is chosen.
        most: Of new tokens.
        stops: Ids that end it.
    """
    draws = np.random.default_rng(sampling.seed)
    room = network.spec.prompt_tokens + len(ids) + most
    cache, new = KeyValueCache(network.shape, room), np.array(ids)
    for _ in range(most):
        for start in range(0, len(new), WINDOW_QUERIES):
            top = network.extend(new[start : start + WINDOW_QUERIES], cache)
        token = chosen(network.answer(top)[0], sampling, draws)
        if token in stops:
            return
        yield token
        new = np.array([token])


def room_needed(shape: Shape, tokens: int, prompt: int = 0) -> int:
    """Bytes that a text of so many tokens takes at most, where no weight is held dense.

    Keys and values, one matrix, a part of the words, the registers of the tokens that are read
    together, and what the runtime makes of graphs (measured).

    Args:
        shape: The base's.
        tokens: Of the text and of what is written.
        prompt: Of a soft prompt before them, which is read with the first.
    """
    rows, widths = min(tokens, WINDOW_QUERIES) + prompt, register_widths(shape)
    tokens += prompt
    cached = 2 * shape.layers * tokens * shape.kv_heads * shape.head_dim
    matrix = max(a * b for a, b in linear_sizes(shape).values())
    words = 2 * word_rows(shape.embedding) * shape.embedding + 2 * shape.vocabulary
    read = rows * (sum(widths.values()) + 2 * shape.heads * tokens)
    return GRAPHS_BYTES + 4 * (cached + matrix + words + read)
