"""What all child processes of the training benchmark share: request, texts and clock.

A child gets a `Request` as one JSON argument and answers with JSON lines on stdout: `ready` when it
is loaded, a `step` after each step (or labelled batch), `done` with everything. It imports nothing
of the engine it is compared with, so that neither side pays for the other.
"""

import json
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeVar

import numpy as np

from smidgen.edge_client.metering.memory import peak_rss_bytes, reset_peak_rss
from smidgen.edge_client.metering.power import EnergyMeter, energy_counter

Work = Literal["train", "label"]
T = TypeVar("T")
FEWEST_STEPS = 3  # that count, however long they take
MASK_POSITION = 3
FIRST_WORD = 5  # ids below are specials in most vocabularies


@dataclass(frozen=True)
class Case:
    """The steps to take, as they are asked for and as each process is told.

    Attributes:
        base: Pack, folder, hub name, `embedded`, or a shape's name; for a process, folder of our
            base or of the peer's checkpoint.
        engine: Ours: `torch` or `onnx` (of the command also `auto`, torch where it is installed);
            or the name of a peer.
        batch: Texts per step, 1 or more.
        tokens: Tokens per text, without padding.
        adapter: Adapter: `lora:8`, `lora:8@q,v`, `prompt:8` or `bias`.
        memory_budget: Memory that smidgen's plan may take, such as `512M` or `1.5G` (powers of
            1024); `auto`: 60 % of what is available. With `--device cuda`: GPU memory.
        steps: Steps to measure, 1 or more; the median is shown.
        warmup: Steps before measuring, 0 or more.
        seed: Seed for texts and random weights; equal seeds give equal texts.
        patience_s: Seconds of steps that count after which no further one is begun, once there
            are three; None: all are taken.
        device: Where smidgen computes: `cpu`, or `cuda`, the first CUDA device that torch sees;
            peers always compute on the processor.
        masked: Tokens per text to predict over the whole vocabulary, as in masked language
            modelling (with a decoder the next token, at most one fewer); 0: predict a label.
        is_tagging: Predict one of nine tags for each token; needs an adapter with +head.
    """

    base: str
    engine: str = "torch"
    batch: int = 4
    tokens: int = 256
    adapter: str = "lora:8"
    memory_budget: str = "auto"
    steps: int = 4
    warmup: int = 1
    seed: int = 0
    patience_s: float | None = None
    device: str = "cpu"
    masked: int = 0
    is_tagging: bool = False


@dataclass(frozen=True, kw_only=True)
class Request(Case):
    """What a child is to do.

    Attributes:
        words: The label words.
        word_ids: Their token ids.
        vocabulary: Token ids to draw texts from.
        pad_id: What stands behind a text that is shorter than others of its step.
        lengths: Tokens of each text of each step, warm-up included; empty: `tokens`.
        rank: LoRA's, for peers.
        alpha: LoRA's, for peers.
        targets: Regular expression of the linears that carry LoRA, for peers.
        work: `train`, or `label`: the label words' log-probabilities of each batch, nothing else.
        dtype: What the recipe nf4 computes in; the other peers compute in float32.
        dtypes: What our engine may compute in; None: whatever is fast here.
        is_causal: Whether the base is a decoder.
    """

    words: tuple[str, ...]
    word_ids: tuple[int, ...]
    vocabulary: int
    rank: int
    alpha: int
    targets: str
    work: Work = "train"
    dtype: str = "bfloat16"
    dtypes: tuple[str, ...] | None = None
    is_causal: bool = False
    pad_id: int = 0
    lengths: tuple[Sequence[int], ...] = ()

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def read_request(text: str) -> Request:
    fields = json.loads(text)
    lists = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    return Request(**fields | lists)


@dataclass(frozen=True)
class Texts:
    """One step's random texts, int64, padded to the longest of them.

    Attributes:
        ids: Shape (batch, tokens).
        attention: Ones where a text is, shape (batch, tokens).
        mask_positions: Where each answer is read, shape (answers,).
        labels: What is asked for there: a label's number, or a token's id; shape (answers,).
        texts: Text that each answer is of, shape (answers,).
    """

    ids: np.ndarray
    attention: np.ndarray
    mask_positions: np.ndarray
    labels: np.ndarray
    texts: np.ndarray


def random_texts(request: Request) -> list[Texts]:
    """Texts of every step, warm-up included; equal requests give equal texts.

    With `masked`, evenly spaced tokens are asked for themselves, of a decoder for the next token;
    with `is_tagging` all are.
    """
    generator = np.random.Generator(np.random.PCG64(request.seed))
    first = min(FIRST_WORD, request.vocabulary - 1)
    whole = [(request.tokens,) * request.batch] * (request.warmup + request.steps)
    return [
        _asked(request, generator.integers(first, request.vocabulary, (len(each), max(each))), each)
        for each in request.lengths or whole
    ]


def _asked(request: Request, ids: np.ndarray, each: Sequence[int]) -> Texts:
    lengths = np.array(each)
    attention = (np.arange(ids.shape[1]) < lengths[:, None]).astype(np.int64)
    ids[attention == 0] = request.pad_id
    count = request.tokens if request.is_tagging else request.masked
    ahead = int(request.is_causal)  # a decoder is asked at its last token, behind which is a word
    places = lengths - 1 if ahead else np.full_like(lengths, MASK_POSITION)
    labels, texts = np.arange(len(ids)) % len(request.words), np.arange(len(ids))
    if count:  # texts are of equal lengths then
        asked = np.linspace(0, request.tokens - 1 - ahead, count).astype(np.int64)
        places, labels = np.tile(asked, len(ids)), ids[:, asked + ahead].ravel()
        texts = np.repeat(texts, count)
    return Texts(ids, attention, places, labels, texts)


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
        energy, start, busy_s = joules(), time.perf_counter(), time.process_time()
        loss = step(row)
        elapsed, after = time.perf_counter() - start, joules()
        counted_s += elapsed if counted >= 0 else 0.0
        tell(
            "step",
            index=index,
            is_warmup=counted < 0,
            loss=loss,
            elapsed_s=elapsed,
            processor_s=time.process_time() - busy_s,
            energy_j=None if energy is None or after is None else after - energy,
            peak_rss_bytes=peak_rss_bytes(),
        )
    steps_peak = peak_rss_bytes()
    return {
        "peak_rss_bytes": max(load_peak, steps_peak),
        "load_peak_rss_bytes": load_peak,
        "steps_peak_rss_bytes": steps_peak if is_reset else None,
    }
