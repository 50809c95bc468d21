"""What every child process of the training benchmark does alike: its request, texts and clock.

A child gets a `Request` as one JSON argument and answers with JSON lines on stdout: `ready` when it
is loaded, a `step` after each step (or batch that was labelled), `done` with everything. It imports
nothing of the engine it is compared with, so that neither side pays for the other.
"""

import json
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeVar

import numpy as np

from edge_client.metering.memory import peak_rss_bytes, reset_peak_rss
from edge_client.metering.power import EnergyMeter, energy_counter

Work = Literal["train", "label"]
T = TypeVar("T")
FEWEST_STEPS = 3  # that count, however long they take
MASK_POSITION = 3
FIRST_WORD = 5  # ids below are specials in most vocabularies


@dataclass(frozen=True)
class Request:
    """What a child is to do.

    Attributes:
        engine: `torch`, or the name of a peer.
        base: Folder of our base, or of the peer's checkpoint.
        batch: Texts in a step.
        tokens: Tokens of each text, none of them padding.
        adapter: Such as `lora:8@q,v`.
        memory_budget: Such as `512M`, or `auto`.
        warmup: Steps before the ones that count.
        steps: Steps that count.
        seed: Seed of texts and weights.
        words: The label words.
        word_ids: Their token ids.
        vocabulary: Token ids to draw texts from.
        rank: LoRA's, for peers.
        alpha: LoRA's, for peers.
        targets: Regular expression of the linears that carry LoRA, for peers.
        work: `train`, or `label`: the label words' log-probabilities of each batch, nothing else.
        dtype: What the recipe nf4 computes in; the other peers compute in float32.
        dtypes: What our engine may compute in; None: whatever is fast here.
        patience_s: Seconds of steps that count after which no further one is begun, once there
            are three; None: all are taken.
        device: What our engine computes on, `cpu` or `cuda`.
        masked: Tokens of each text at which all words are asked for; 0: it is asked for a label.
        is_tagging: Whether each token of a text is asked for a tag.
    """

    engine: str
    base: str
    batch: int
    tokens: int
    adapter: str
    memory_budget: str
    warmup: int
    steps: int
    seed: int
    words: tuple[str, ...]
    word_ids: tuple[int, ...]
    vocabulary: int
    rank: int
    alpha: int
    targets: str
    work: Work = "train"
    dtype: str = "bfloat16"
    dtypes: tuple[str, ...] | None = None
    patience_s: float | None = None
    device: str = "cpu"
    masked: int = 0
    is_tagging: bool = False

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def read_request(text: str) -> Request:
    fields = json.loads(text)
    lists = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    return Request(**fields | lists)


@dataclass(frozen=True)
class Texts:
    """One step's random texts of full length; shapes (batch, tokens) and (batch,), int64."""

    ids: np.ndarray
    attention: np.ndarray
    mask_positions: np.ndarray
    labels: np.ndarray


def random_texts(request: Request) -> list[Texts]:
    """Texts of every step, warm-up included; equal requests give equal texts."""
    generator = np.random.Generator(np.random.PCG64(request.seed))
    shape = (request.batch, request.tokens)
    positions = np.full(request.batch, MASK_POSITION, np.int64)
    labels = np.arange(request.batch, dtype=np.int64) % len(request.words)
    first = min(FIRST_WORD, request.vocabulary - 1)
    return [
        Texts(
            generator.integers(first, request.vocabulary, shape),
            np.ones(shape, np.int64),
            positions,
            labels,
        )
        for _ in range(request.warmup + request.steps)
    ]


def tell(event: str, **fields: Any) -> None:
    print(json.dumps({"event": event} | fields), flush=True)


def run_steps(
    request: Request,
    texts: Sequence[T],
    step: Callable[[T], float],
) -> dict[str, Any]:
    """Take the steps, tell the parent of each, and return the peaks for the last line.

    A peak is counted twice: over the process's life, and from the first step on.

    Args:
        request: How many steps, and for how long.
        texts: What each step is given, warm-up included.
        step: Takes one and returns its loss.
    """
    meter = energy_counter()
    with meter or nullcontext():
        return _run_steps(request, texts, step, meter)


def _run_steps(
    request: Request, texts: Sequence[T], step: Callable[[T], float], meter: EnergyMeter | None
) -> dict[str, Any]:
    def joules() -> float | None:
        return meter.joules_since_start if meter else None

    load_peak = peak_rss_bytes()
    is_reset = reset_peak_rss()
    tell("ready", load_peak_rss_bytes=load_peak)
    counted_s = 0.0
    for index, row in enumerate(texts):
        counted = index - request.warmup
        is_late = request.patience_s is not None and counted_s >= request.patience_s
        if is_late and counted >= FEWEST_STEPS:
            break
        energy, start = joules(), time.perf_counter()
        loss = step(row)
        elapsed, after = time.perf_counter() - start, joules()
        counted_s += elapsed if counted >= 0 else 0.0
        tell(
            "step",
            index=index,
            is_warmup=counted < 0,
            loss=loss,
            elapsed_s=elapsed,
            energy_j=None if energy is None or after is None else after - energy,
            peak_rss_bytes=peak_rss_bytes(),
        )
    steps_peak = peak_rss_bytes()
    return {
        "peak_rss_bytes": max(load_peak, steps_peak),
        "load_peak_rss_bytes": load_peak,
        "steps_peak_rss_bytes": steps_peak if is_reset else None,
    }
