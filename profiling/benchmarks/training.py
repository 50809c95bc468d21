"""Train a few steps in a fresh process, and say what they took: our engine's, and its peers'.

Ours runs under the cap, if one is given, with the page cache dropped before. Peers run after it,
one after the other, without a cap: they need more than it grants. All get the same texts, label
words, adapter and threads, and hold the same weights, so the first losses of
the LoRA peers agree with ours.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edge_client.adapters.spec import (
    LORA_ALPHA,
    AdapterError,
    AdapterSpec,
    adapted_layers,
    parse_adapter,
    target_pattern,
)
from edge_client.engine import opening
from edge_client.planning.sizes import AUTO, BudgetError, parse_budget
from edge_client.wire.messages import Training
from profiling.benchmarks.training_run import TrainingRun, spread
from profiling.instruments.bases import (
    OFFLINE,
    BenchmarkError,
    demand_between,
    find_base,
    find_checkpoint,
    label_words,
)
from profiling.instruments.child import Child, Line, run_child, silent
from profiling.instruments.machine import gemm_flops_per_s, library_files, this_machine, versions
from profiling.instruments.memory_cap import drop_page_cache
from profiling.instruments.sampler import INTERVAL_S
from profiling.instruments.stepping import MASK_POSITION, Request
from profiling.peers import ort as ort_training
from profiling.peers.ort import ORT_TRAINING

TORCH_FLOAT32 = "torch-float32"  # our own torch engine, computing as onnx does
# Peer -> the kind of checkpoint it is loaded from; our own reads the base itself.
PEERS = {
    "full": "float32",
    "peft": "float32",
    "peft-checkpointing": "float32",
    "nf4": "nf4",
    TORCH_FLOAT32: "",
    ORT_TRAINING: "artifacts",
}
ENGINES = (AUTO, *opening.ENGINES)


@dataclass(frozen=True)
class Settings:
    """What is asked for.

    Attributes:
        base: Name of a base, or of a shape with `is_random`.
        is_random: Whether the weights are random.
        bits: Bits of the base's weights; None for its own.
        engine: Ours.
        batch: Texts in a step.
        tokens: Tokens of a text.
        adapter: Such as `lora:8`.
        memory_budget: Such as `512M`, or `auto`.
        cap_bytes: Hard cap around our process, or None.
        steps: Steps that count.
        warmup: Steps before them.
        threads: Threads of every process; None for what its libraries take.
        seed: Seed of texts and random weights.

    Raises:
        BenchmarkError: A value is out of range.
    """

    base: str
    is_random: bool = False
    bits: int | None = None
    engine: str = "torch"
    batch: int = 4
    tokens: int = 256
    adapter: str = "lora:8"
    memory_budget: str = AUTO
    cap_bytes: int | None = None
    steps: int = 4
    warmup: int = 1
    threads: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        try:
            parse_adapter(self.adapter)
            parse_budget(self.memory_budget)
        except (AdapterError, BudgetError) as error:
            raise BenchmarkError(str(error)) from error
        try:
            Training(batch=self.batch, tokens=self.tokens)
        except ValueError as error:
            raise BenchmarkError(f"--{error}") from error
        if self.engine not in ENGINES:
            raise BenchmarkError(f"--engine {self.engine} is not known; {' or '.join(ENGINES)}")
        demand_between(
            {
                "steps": (1, self.steps, 1_000_000),
                "warmup": (0, self.warmup, 1_000_000),
                "threads": (1, 1 if self.threads is None else self.threads, 1024),
                "seed": (0, self.seed, 2**63 - 1),
            }
        )

    @property
    def spec(self) -> AdapterSpec:
        return parse_adapter(self.adapter)


class Benchmark:
    """A base with its texts, on which our engine and peers are run one by one.

    Args:
        settings: What is asked for.

    Raises:
        BenchmarkError: No such base, or one that does not take such texts.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.base = find_base(settings.base, settings.is_random, settings.bits, settings.seed)
        self._words = label_words(self.base)
        longest = self.base.shape.positions - settings.spec.prompt_tokens
        if not MASK_POSITION < settings.tokens <= longest:
            raise BenchmarkError(
                f"--tokens {settings.tokens}: base {settings.base} takes {MASK_POSITION + 1} to "
                f"{longest} with this adapter"
            )

    def ours(self, listen: Callable[[Line], None] = silent) -> TrainingRun:
        """Our engine, under the cap if there is one.

        Raises:
            BenchmarkError: It refuses the base, the adapter or the budget.
        """
        cap_bytes = self.settings.cap_bytes
        dropped = drop_page_cache([self.base.weights, *library_files()]) if cap_bytes else None
        request = self._request(self.settings.engine, self.base.folder)
        command = [sys.executable, "-m", "profiling.benchmarks.training_child", request.to_json()]
        return self._run(request, command, dropped, listen)

    def prepare(self, name: str) -> None:
        """Make a peer's checkpoint, if it is not there, before anything is measured.

        Raises:
            BenchmarkError: Its libraries are missing, or it cannot be made.
        """
        self._checkpoint(name)

    def peer(self, name: str, listen: Callable[[Line], None] = silent) -> TrainingRun:
        """A peer, with warm caches and without a cap.

        Raises:
            BenchmarkError: Its libraries are missing, or its checkpoint cannot be made.
        """
        request = self._request(name, self._checkpoint(name))
        asked = request.to_json()
        module = (
            "profiling.benchmarks.training_child"
            if name == TORCH_FLOAT32
            else "profiling.peers.torch_peers"
        )
        command = [sys.executable, "-m", module, asked]
        if name == ORT_TRAINING:
            command = ort_training.command("profiling.peers.ort_child", asked)
        return self._run(request, command, None, listen)

    def _checkpoint(self, name: str) -> Path:
        if name == TORCH_FLOAT32:
            return self.base.folder
        if name != ORT_TRAINING:
            return find_checkpoint(self.base, PEERS[name])
        words = list(self._words.values())
        return ort_training.find_artifacts(self.base, self.settings.spec, words)

    def _request(self, engine: str, folder: Path) -> Request:
        settings, spec = self.settings, self.settings.spec
        layers = adapted_layers(spec, self.base.shape.layers)
        return Request(
            engine=engine,
            base=str(folder.resolve()),
            batch=settings.batch,
            tokens=settings.tokens,
            adapter=settings.adapter,
            memory_budget=AUTO if engine == TORCH_FLOAT32 else settings.memory_budget,
            warmup=settings.warmup,
            steps=settings.steps,
            seed=settings.seed,
            words=tuple(self._words),
            word_ids=tuple(self._words.values()),
            vocabulary=self.base.shape.vocabulary,
            rank=spec.rank,
            alpha=LORA_ALPHA,
            targets=target_pattern(spec, self.base.architecture, layers),
        )

    def _run(
        self,
        request: Request,
        command: Sequence[str],
        dropped: str | None,
        listen: Callable[[Line], None],
    ) -> TrainingRun:
        machine, is_ours = asdict(this_machine()), request.engine not in PEERS
        gemm = gemm_flops_per_s(self.settings.threads)
        cap_bytes = self.settings.cap_bytes if is_ours else None
        mapped = self.base.weights.stat().st_size
        child = run_child(command, cap_bytes, mapped, self._environment(), listen)
        if child.refusal is not None:
            raise BenchmarkError(child.refusal)
        done, settings = child.done, self.settings
        steps = [line for line in child.lines if line["event"] == "step"]
        seconds = [line["elapsed_s"] for line in steps if not line["is_warmup"]]
        cap = asdict(child.cap) | {"asked_bytes": cap_bytes, "page_cache": dropped}
        return TrainingRun(
            engine=request.engine,
            base=settings.base,
            bits=self.base.bits,
            batch=request.batch,
            tokens=request.tokens,
            adapter="all weights" if request.engine == "full" else str(settings.spec),
            outcome=child.outcome,
            plan=done.get("plan"),
            stepped_down_from=done.get("stepped_down_from"),
            predicted_peak_bytes=done.get("predicted_peak_bytes"),
            **_peaks(child),
            sample_interval_s=INTERVAL_S,
            cgroup_limit_bytes=child.cap.limit_bytes,
            cgroup_peak_bytes=child.cap.peak_bytes,
            cap=cap,
            step_s=spread(seconds),
            steps_s=seconds,
            losses=[line["loss"] for line in steps],
            warmup=request.warmup,
            untrained=done.get("untrained", []),
            trained_tensors=done.get("trained_tensors"),
            predicted_parts=done.get("predicted_parts"),
            step_flops=done.get("step_flops"),
            gemm_flops_per_s=gemm,
            budget_bytes=done.get("budget_bytes"),
            threads=settings.threads,
            seed=settings.seed,
            base_id=self.base.base_id,
            machine=machine,
            versions=done.get("versions", versions()),
        )

    def _environment(self) -> Mapping[str, str]:
        threads = self.settings.threads
        counts = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
        return OFFLINE | counts


def peers_here() -> tuple[list[str], list[str]]:
    """The peers that can run here, and a note on what was left out."""
    reason = ort_training.missing()
    names = [name for name in PEERS if name != ORT_TRAINING or reason is None]
    return names, [f"peer {ORT_TRAINING} is left out: {reason}"] if reason else []


def _peaks(child: Child) -> dict[str, Any]:
    """What the child read of itself and what was seen from outside, whichever is higher."""
    loading, stepping, done = child.loading, child.stepping, child.done
    names = ("peak_rss_bytes", "load_peak_rss_bytes")
    told: list[int] = [line[name] for line in child.lines for name in names if name in line]
    steps_rss: int | None = done.get("steps_peak_rss_bytes")
    return {
        "peak_rss_bytes": max([*told, loading.peak_rss_bytes, stepping.peak_rss_bytes]),
        "peak_anon_bytes": max(loading.peak_anon_bytes, stepping.peak_anon_bytes),
        "steps_peak_rss_bytes": steps_rss and max(steps_rss, stepping.peak_rss_bytes),
        "steps_peak_anon_bytes": stepping.peak_anon_bytes,
    }
