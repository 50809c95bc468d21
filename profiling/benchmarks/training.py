"""Training benchmark: our engine and its peers train or label in fresh processes, measured.

Ours runs under the memory cap, if one is given, after dropping the page cache. Peers run after it,
one after the other, without a cap: they need more than it grants. All get the same texts, label
words, adapter, threads and weights, so the first losses of the LoRA peers agree with ours.
"""

import hashlib
import json
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from smidgen.edge_client.adapters.spec import (
    LORA_ALPHA,
    AdapterError,
    AdapterSpec,
    adapted_layers,
    parse_adapter,
    target_pattern,
)
from smidgen.edge_client.bases.tokenizer import open_tokens
from smidgen.edge_client.engine import opening
from smidgen.edge_client.engine.opening import check_device
from smidgen.edge_client.engine.trainer import epoch_batches
from smidgen.edge_client.errors import demand, installing
from smidgen.edge_client.formats.source import Dialect
from smidgen.edge_client.planning.plan import AUTO, BudgetError, parse_budget
from smidgen.edge_client.planning.resources import fast_dtypes, flags_here
from smidgen.edge_client.tasks.encoder import Encoder
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.examples import read_file
from smidgen.edge_client.texts.parts import ANY
from smidgen.edge_client.wire.training import Training
from smidgen.profiling.benchmarks.training_run import TrainingRun, spread
from smidgen.profiling.instruments.child import Child, Line, run_child, silent
from smidgen.profiling.instruments.environment import (
    OFFLINE,
    BenchmarkError,
    check_isa,
    demand_between,
    find_base,
    find_checkpoint,
    gemm_flops_per_s,
    held_to,
    label_words,
    library_files,
    this_machine,
    versions,
)
from smidgen.profiling.instruments.memory_cap import drop_page_cache
from smidgen.profiling.instruments.sampler import INTERVAL_S
from smidgen.profiling.instruments.stepping import MASK_POSITION, Case, Request, Work
from smidgen.profiling.peers import ort as ort_training
from smidgen.profiling.peers.ort import ORT_TRAINING

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
NO_WORDS = "it asks for labels alone"  # onnxruntime-training
NEEDS = {
    "full": ("torch", "transformers"),
    "peft": ("torch", "transformers", "peft"),
    "peft-checkpointing": ("torch", "transformers", "peft"),
    "nf4": ("torch", "transformers", "peft", "bitsandbytes"),
    TORCH_FLOAT32: ("torch",),
}
ENGINES = (AUTO, *opening.ENGINES)


class Refused(BenchmarkError):
    """Our engine will not start.

    Attributes:
        needed_bytes: Predicted peak of the smallest plan, where the budget is too small; else None.
    """

    def __init__(self, message: str, needed_bytes: int | None = None) -> None:
        super().__init__(message)
        self.needed_bytes = needed_bytes


@dataclass(frozen=True)
class Settings(Case):
    """What is asked for.

    Attributes:
        is_random: Use random weights; `--base` is then a shape such as roberta-large.
        bits: Bits of the base's weights: 4, 8 or 16. Default: as it is, or 4 with random weights.
        cap_bytes: Hard memory limit for smidgen's process, or None.
        threads: Threads per process, 1 or more. Default: one per core.
        isa: What torch is held to, such as `avx2`; empty for all that the processor has.
        texts: A file of texts: steps take random texts as long as those, of similar length
            together, as training does; --tokens is the most of one. Default: all of --tokens.

    Raises:
        BenchmarkError: A value is out of range.
    """

    is_random: bool = False
    bits: int | None = None
    cap_bytes: int | None = None
    threads: int | None = None
    isa: str = ""
    texts: str = ""

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
        check_isa(self.isa)
        if self.isa and self.engine == "onnx":
            raise BenchmarkError(f"--isa {self.isa}: ONNX Runtime has no such switch; torch has")
        check_device(self.device, self.engine)
        demand_between(
            {
                "steps": (1, self.steps, 1_000_000),
                "warmup": (0, self.warmup, 1_000_000),
                "threads": (1, 1 if self.threads is None else self.threads, 1024),
                "seed": (0, self.seed, 2**63 - 1),
                "masked": (0, self.masked, self.tokens),
            }
        )
        is_right = not (self.texts and (self.masked or self.is_tagging))
        demand(is_right, "--texts and --masked or --tagging: one of them alone", BenchmarkError)
        is_right = not (self.masked and self.spec.head)
        demand(is_right, "--masked asks for words; leave +head of --adapter out", BenchmarkError)
        is_right = not self.is_tagging or (self.spec.head and not self.masked)
        demand(
            is_right,
            "--tagging asks for tags: leave --masked out, and give an --adapter with a head, such "
            "as lora:8+head",
            BenchmarkError,
        )

    def kept(self, texts: str = "") -> dict[str, Any]:
        """As records have them: of --texts, where there are any, what tells them apart."""
        told = asdict(self)
        del told["texts"]
        return told | ({"texts": texts} if texts else {})

    @property
    def spec(self) -> AdapterSpec:
        return parse_adapter(self.adapter)

    @property
    def trained(self) -> str:
        if self.is_tagging:
            return f"{self.spec} tagging"
        return f"{self.spec} masked:{self.masked}" if self.masked else str(self.spec)


class Benchmark:
    """A base with its texts, on which our engine and peers are run one by one.

    Args:
        settings: What is asked for.
        like: A benchmark of the same base, opened already; None: none is.

    Attributes:
        notes: How long the texts of `--texts` are, and how many are cut.

    Raises:
        BenchmarkError: No such base, or one that does not take such texts.
    """

    def __init__(self, settings: Settings, like: "Benchmark | None" = None) -> None:
        self.settings = settings
        if like is None:
            self.base = find_base(settings.base, settings.is_random, settings.bits, settings.seed)
            self._words = label_words(self.base)
        else:
            self.base, self._words = like.base, like._words
        longest = self.base.shape.positions - settings.spec.prompt_tokens
        is_causal = self.base.shape.is_decoder
        if settings.masked and settings.masked + is_causal > settings.tokens:
            raise BenchmarkError(
                f"--masked {settings.masked}: a decoder is asked for the next of "
                f"{settings.tokens} tokens, at {settings.tokens - 1} of them at most"
            )
        if not MASK_POSITION < settings.tokens <= longest:
            raise BenchmarkError(
                f"--tokens {settings.tokens}: base {settings.base} takes {MASK_POSITION + 1} to "
                f"{longest} with this adapter"
            )

        self._lengths: tuple[Sequence[int], ...] = ()
        self._texts = ""  # what is kept of them: a file's name, and which it was
        self.notes: tuple[str, ...] = ()
        if settings.texts:
            path = Path(settings.texts)
            demand(not path.is_dir(), f"--texts {path}: a file is expected", BenchmarkError)
            self._lengths = self._drawn(path)
            said = json.dumps(self._lengths).encode()
            self._texts = f"{path.name} {hashlib.sha256(said).hexdigest()[:8]}"

    def _drawn(self, path: Path) -> tuple[Sequence[int], ...]:
        """Tokens of each text of each step, of similar length as in training.

        As the benchmark's own task asks: with specials and a mask, the shortest that there is.
        """
        asked, words = self.settings, tuple(self._words)
        task = Task("benchmark", words, ("{text} [MASK]",), dict(zip(words, words, strict=True)))
        encoder = Encoder(open_tokens(self.base), task, cloze=True, limit=asked.tokens)
        texts = read_file(path, ANY, labelled=False, dialect=Dialect(option=""))
        prompts = encoder.prompts(texts)
        found = [max(len(prompt.ids), MASK_POSITION + 1) for prompt in prompts]
        told = f"{path}: {np.median(found or [0]):g} tokens at the median"
        cut = f"{sum(length >= asked.tokens for length in found)} of {len(found)} texts"
        self.notes = (f"{told}; {cut} reach --tokens, and are cut there if they are longer",)
        steps, generator = asked.warmup + asked.steps, np.random.default_rng(asked.seed)
        few = f"{path} has {len(found)} texts; --steps and --warmup take {steps} x {asked.batch}"
        demand(len(found) >= steps * asked.batch, few, BenchmarkError)
        batches = epoch_batches(found, asked.batch, generator)
        whole = [batch for batch in batches if len(batch) == asked.batch]
        return tuple([found[row] for row in batch] for batch in whole[:steps])

    def ours(self, listen: Callable[[Line], None] = silent) -> TrainingRun:
        """Our engine, under the cap if there is one.

        Raises:
            BenchmarkError: It refuses the base, the adapter or the budget.
        """
        cap_bytes = self.settings.cap_bytes
        dropped = self.drop_caches(self.settings.engine) if cap_bytes else None
        return self._run(self.settings.engine, dropped, listen)

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
        return self._run(name, None, listen)

    def launch(
        self,
        name: str,
        work: Work = "train",
        cap_bytes: int | None = None,
        listen: Callable[[Line], None] = silent,
        within_s: float | None = None,
    ) -> Child:
        """One process of our engine or of a peer, run to its end.

        Args:
            name: Our engine's, or a peer's.
            work: What it does.
            cap_bytes: Hard cap around it, or None.
            listen: Called with each of its lines.
            within_s: Seconds after which it is ended; None for no limit.

        Raises:
            Refused: Our engine refuses the base, the adapter or the budget.
            BenchmarkError: A peer's libraries are missing, or its checkpoint cannot be made.
        """
        request = self._request(name, self._folder(name), work)
        mapped = self.base.weights.stat().st_size
        command = self._command(name, request.to_json())
        child = run_child(command, cap_bytes, mapped, self._environment(), listen, within_s)
        if (refusal := child.refusal) is not None:
            raise Refused(refusal["message"], refusal.get("needed_bytes"))
        return child

    def drop_caches(self, name: str) -> str:
        """Empty the page cache of what an engine or a peer reads; says what was done."""
        folder = self._folder(name)
        files = [folder] if folder.is_file() else sorted(folder.glob("*.safetensors"))
        return drop_page_cache([*files, *library_files()])

    def _folder(self, name: str) -> Path:
        return self._checkpoint(name) if name in PEERS else self.base.folder

    def _command(self, name: str, asked: str) -> Sequence[str]:
        if name == ORT_TRAINING:
            return ort_training.command("smidgen.profiling.peers.ort_child", asked)
        is_ours = name not in PEERS or name == TORCH_FLOAT32
        module = "benchmarks.training_child" if is_ours else "peers.torch_peers"
        return [sys.executable, "-m", f"smidgen.profiling.{module}", asked]

    def _checkpoint(self, name: str) -> Path:
        if name == TORCH_FLOAT32:
            return self.base.folder
        if name != ORT_TRAINING:
            return find_checkpoint(self.base, PEERS[name])
        words = list(self._words.values())
        return ort_training.find_artifacts(self.base, self.settings.spec, words)

    def _request(self, engine: str, folder: Path, work: Work) -> Request:
        settings, spec = self.settings, self.settings.spec
        layers = adapted_layers(spec, self.base.shape.layers)
        case: dict[str, Any] = {item.name: getattr(settings, item.name) for item in fields(Case)}
        case |= {"engine": engine, "base": str(folder.resolve())}
        if engine == TORCH_FLOAT32:
            case["memory_budget"] = AUTO
        return Request(
            **case,
            words=tuple(self._words),
            word_ids=tuple(self._words.values()),
            vocabulary=self.base.shape.vocabulary,
            rank=spec.rank,
            alpha=LORA_ALPHA,
            targets=target_pattern(spec, self.base.architecture, layers),
            work=work,
            dtype=nf4_dtype(settings.isa),
            dtypes=("float32",) if settings.isa else None,
            is_causal=self.base.shape.is_decoder,
            pad_id=open_tokens(self.base).pad_id,
            lengths=self._lengths,
        )

    def _run(self, name: str, dropped: str | None, listen: Callable[[Line], None]) -> TrainingRun:
        machine, is_ours = asdict(this_machine()), name not in PEERS
        gemm = gemm_flops_per_s(self.settings.threads)
        cap_bytes = self.settings.cap_bytes if is_ours else None
        child = self.launch(name, "train", cap_bytes, listen)
        done, settings = child.done, self.settings
        steps = [line for line in child.lines if line["event"] == "step"]
        counted = [line for line in steps if not line["is_warmup"]]
        seconds = [line["elapsed_s"] for line in counted]
        cap = asdict(child.cap) | {"asked_bytes": cap_bytes, "page_cache": dropped}
        return TrainingRun(
            engine=name,
            base=settings.base,
            bits=self.base.bits,
            batch=settings.batch,
            tokens=settings.tokens,
            adapter="all weights" if name == "full" else settings.trained,
            outcome=child.outcome,
            plan=done.get("plan"),
            stepped_down_from=done.get("stepped_down_from"),
            predicted_peak_bytes=done.get("predicted_peak_bytes"),
            **peaks(child),
            sample_interval_s=INTERVAL_S,
            cgroup_limit_bytes=child.cap.limit_bytes,
            cgroup_peak_bytes=child.cap.peak_bytes,
            cap=cap,
            step_s=spread(seconds),
            steps_s=seconds,
            steps_processor_s=[line["processor_s"] for line in counted],
            losses=[line["loss"] for line in steps],
            warmup=settings.warmup,
            untrained=done.get("untrained", []),
            trained_tensors=done.get("trained_tensors"),
            predicted_parts=done.get("predicted_parts"),
            step_flops=None if self._lengths else done.get("step_flops"),
            gemm_flops_per_s=gemm,
            budget_bytes=done.get("budget_bytes"),
            threads=settings.threads,
            seed=settings.seed,
            base_id=self.base.base_id,
            machine=machine,
            versions=done.get("versions", versions()),
            device=settings.device,
            device_peak=done.get("device_peak"),
            settings=settings.kept(self._texts),
        )

    def _environment(self) -> Mapping[str, str]:
        threads = self.settings.threads
        counts = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
        return OFFLINE | counts | held_to(self.settings.isa)


def nf4_dtype(isa: str = "") -> str:
    fast = () if isa else fast_dtypes(platform.machine(), flags_here())
    return "bfloat16" if "bfloat16" in fast else "float32"


def peers_here(*, asks_for_words: bool = False) -> tuple[list[str], list[str]]:
    """The peers that can run here, and a note on what was left out."""
    reasons = {name: lack(name) for name in PEERS}
    reasons[ORT_TRAINING] = NO_WORDS if asks_for_words else ort_training.missing() or ""
    names = [name for name, reason in reasons.items() if not reason]
    return names, [f"peer {name} is left out: {why}" for name, why in reasons.items() if why]


def lack(name: str) -> str:
    """Why a peer's libraries cannot be imported here; empty if they can."""
    absent = [library for library in NEEDS.get(name, ()) if find_spec(library) is None]
    return f"it needs {', '.join(absent)}; {installing('peers')}" if absent else ""


def peaks(child: Child) -> dict[str, Any]:
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
