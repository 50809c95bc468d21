"""MADE-UP cells for tests: plausible, measured by nobody. No figure of them may stand in docs."""

from collections.abc import Sequence

from smidgen.profiling.models.cell import BOARDS, BUDGETS, GIB, Cell, Proof
from smidgen.profiling.records.record import Conditions

MIB = 1 << 20
BASES = {  # parameters, LoRA's parameters, GFLOP of a step
    "albert-base": (11_700_000, 294_912, 0.9),
    "distilbert": (66_400_000, 147_456, 0.5),
    "bert-base": (109_500_000, 294_912, 1.0),
    "roberta-base": (124_600_000, 294_912, 1.05),
    "xlm-roberta-base": (278_000_000, 294_912, 1.1),
    "bert-large": (334_900_000, 786_432, 3.4),
    "roberta-large": (355_300_000, 786_432, 3.5),
}
SECONDS = {"full": 4.9, "peft": 3.1, "nf4": 2.1, "torch": 1.4, "onnx": 1.3}
CONDITIONS = Conditions(
    machine={
        "machine": "x86_64",
        "processor": "MADE-UP processor",
        "instruction_sets": ["avx2", "fma"],
        "cores": 2,
        "memory_bytes": 24 * GIB,
        "kernel": "6.1",
    },
    versions={"python": "3.11.7", "numpy": "2.4", "torch": "2.13.0", "bitsandbytes": None},
    load_1m=0.1,
)


def proofs(peak_bytes: int) -> tuple[int | None, tuple[Proof, ...]]:
    """The smallest board that holds a peak, and the two runs that prove it."""
    fitting = [board for board in BOARDS if board >= peak_bytes]
    if not fitting:
        return None, (Proof(BOARDS[0], False, "killed by the memory cap", BOARDS[0]),)
    board = min(fitting)
    found = [Proof(board, True, "done", round(peak_bytes * 1.02), "cgroup v1")]
    smaller = [other for other in BOARDS if other < board]
    if smaller:
        found.append(Proof(max(smaller), False, "killed by the memory cap", max(smaller)))
    return board, tuple(found)


def cell(base: str, method: str, budget: str = "") -> Cell:
    """One cell, as if it had been measured."""
    parameters, lora, work = BASES[base]
    trained = parameters if method == "full" else lora
    peaks = {"full": 17 * parameters, "peft": 8 * parameters, "nf4": 3 * parameters}
    least = 150 * MIB + round(0.25 * parameters)
    if method in peaks:
        peak = 600 * MIB + peaks[method]
    else:
        limit = {"8G": 8 * GIB, "2G": 2 * GIB, "512M": 512 * MIB, "256M": 256 * MIB}[budget]
        runtime = 200 * MIB if method == "torch" else 60 * MIB
        if least + runtime > limit * 1.35:
            said = f"--memory-budget {budget} is below the smallest plan for this model"
            return Cell(base, method, budget, outcome=f"{said} (312M); raise it")
        peak = min(round(limit * 0.93), runtime + round(2.4 * parameters) + 150 * MIB)
    squeeze = 1.9 if budget == "256M" else 1.4 if budget == "512M" else 1.0
    step = SECONDS[method] * work * squeeze
    plan = {
        "dtype": "float32",
        "micro_batch": 4,
        "recompute": [],
        "depth": {"distilbert": 6}.get(base, 24 if "large" in base else 12),
        "tokens": 256,
        "is_kept_in_half": False,
    }
    is_loose = (base, method) == ("bert-large", "peft")
    steps = tuple(step * factor for factor in (0.97, 1.0, 1.04, 1.4 if is_loose else 1.05))
    board, runs = proofs(peak)
    return Cell(
        base,
        method,
        budget,
        adapter="all weights" if method == "full" else "lora:8@q,v",
        dtype="bfloat16" if method == "nf4" else "float32",
        parameters=parameters,
        trained_parameters=trained,
        round_bytes=4 * trained,
        peak_rss_bytes=peak,
        peak_anon_bytes=round(peak * 0.88),
        steps_s=steps,
        texts_per_s=tuple(12 / step * factor for factor in (0.98, 1.0, 1.01)),
        label_peak_rss_bytes=round(peak * 0.55) + 40 * MIB,
        board_bytes=board,
        proofs=runs,
        is_unstable=is_loose,
        plan=plan if method in ("torch", "onnx") else None,
    )


def cells(names: Sequence[str] = tuple(BASES)) -> list[Cell]:
    """The whole table, with all that may happen to a cell in it."""
    found = []
    for base in names:
        found += [cell(base, method) for method in ("full", "peft", "nf4")]
        for method in ("torch", "onnx"):
            found += [cell(base, method, budget) for budget in BUDGETS]
    if "roberta-large" in names:
        killed = "killed by the memory cap"
        found = [
            Cell(one.base, "full", adapter="all weights", outcome=killed)
            if (one.base, one.method) == ("roberta-large", "full")
            else one
            for one in found
        ]
    return found
