"""Training benchmarks, grids and exactness as tables for people."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from profiling.benchmarks.exactness import PlanError
from profiling.benchmarks.grid import Case
from profiling.benchmarks.training_run import TrainingRun


def mebibytes(size: int | None) -> str:
    """Bytes for people, in the unit of budgets."""
    return "-" if size is None else f"{size / (1 << 20):.0f}"


def plan_text(plan: Mapping[str, Any] | None, batch: int) -> str:
    """A plan in a few words."""
    if plan is None:
        return "-"
    return (
        f"{plan['dtype']}, {plan['micro_batch']} of {batch} rows, top {plan['depth']} layers, "
        f"{len(plan['recompute'])} recomputed"
    )


def train_table(runs: Sequence[TrainingRun]) -> Table:
    """One row per process, ours first."""
    ours = runs[0]
    table = Table(
        title=f"{ours.base}, {ours.bits} bits, {ours.batch} x {ours.tokens} tokens, {ours.adapter}",
        caption="MiB; measured, but for `predicted`; seconds: median (min to max)",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for name in ("who", "predicted", "RSS", "anon", "cgroup", "step s"):
        table.add_column(name, justify="left" if name == "who" else "right", no_wrap=True)
    for run in runs:
        group = f"{mebibytes(run.cgroup_peak_bytes)} of {mebibytes(run.cgroup_limit_bytes)}"
        table.add_row(
            run.engine,
            mebibytes(run.predicted_peak_bytes),
            mebibytes(run.peak_rss_bytes),
            mebibytes(run.peak_anon_bytes),
            group if run.cgroup_limit_bytes else "-",
            _seconds(run),
        )
    return table


def _seconds(run: TrainingRun) -> str:
    if not run.is_done or not run.step_s:
        return run.outcome[:24]
    return "{median:.2f} ({min:.2f}-{max:.2f})".format(**run.step_s)


def ratio_notes(ours: str, found: Mapping[str, Mapping[str, float | None]]) -> list[str]:
    """How we stand beside each peer, one line each.

    Args:
        ours: Our engine's name.
        found: Ratios of ours to each peer.
    """
    names = {"step_s": "step time", "peak_rss": "peak RSS", "peak_anon": "peak anonymous"}
    return [
        f"{ours} : {peer} = "
        + ", ".join(f"{_times(ratio[name])} {text}" for name, text in names.items())
        for peer, ratio in found.items()
    ]


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f} x"


def train_notes(runs: Sequence[TrainingRun]) -> list[str]:
    """What a reader of the table must know, one line each."""
    ours = runs[0]
    notes = [f"plan: {plan_text(ours.plan, ours.batch)}"]
    if ours.stepped_down_from:
        before = plan_text(ours.stepped_down_from, ours.batch)
        notes.append(f"it began with {before}, and stepped down")
    if ours.prediction_error is not None:
        notes.append(f"predicted peak: {100 * ours.prediction_error:+.1f} % of the measured one")
    if ours.gemm_share is not None and ours.gemm_flops_per_s is not None:
        rate = f"{ours.gemm_flops_per_s / 1e9:.0f} GFLOP/s"
        notes.append(
            f"rate: {100 * ours.gemm_share:.0f} % of the {rate} of a plain float32 product"
        )
    if ours.cap["asked_bytes"]:
        notes.append(f"cap: {ours.cap['note']}")
        notes.append(f"before it: {ours.cap['page_cache']}")
    notes += [f"{run.engine}: {run.outcome}" for run in runs if not run.is_done]
    notes += [
        f"{run.engine}: no gradient reached {', '.join(run.untrained[:3])}"
        + (f" and {len(run.untrained) - 3} more" if len(run.untrained) > 3 else "")
        for run in runs
        if run.untrained
    ]
    losses = [f"{run.engine} {run.losses[0]:.4f}" for run in runs if run.losses]
    if losses:
        notes.append(f"first loss: {', '.join(losses)}")
    loads = ", ".join(f"{run.machine['load_1m']:.1f}" for run in runs)
    order = f"{' -> '.join(run.engine for run in runs)}, each in a fresh process"
    notes.append(f"order: {order}; load average before each: {loads}")
    notes.append(
        f"anonymous memory is sampled every {1000 * ours.sample_interval_s:.0f} ms from outside; "
        "RSS is the kernel's own peak (VmHWM)"
    )
    return notes


def grid_table(cases: Sequence[Case]) -> Table:
    """Predicted against measured, one row per case."""
    table = Table(title="predicted and measured peak RSS (MiB)", box=SIMPLE_HEAD)
    for name in ("base", "bits", "batch", "predicted", "measured", "error", "step s", "plan"):
        left = name in ("base", "plan")
        table.add_column(name, justify="left" if left else "right", no_wrap=name != "plan")
    for case in cases:
        base, bits, batch = (case.settings[name] for name in ("base", "bits", "batch"))
        table.add_row(
            str(base),
            str(bits),
            str(batch),
            mebibytes(case.predicted_peak_bytes),
            mebibytes(case.peak_rss_bytes),
            case.outcome[:24] if case.error is None else f"{100 * case.error:+.1f} %",
            "-" if case.step_s is None else f"{case.step_s:.2f}",
            plan_text(case.plan, batch),
        )
    return table


def exactness_table(errors: Sequence[PlanError]) -> Table:
    """One row per plan."""
    table = Table(
        title="gradients beside plain PyTorch + PEFT (relative errors)",
        caption="rows at once, layers recomputed, depth; ours in float32, the reference in float64",
        box=SIMPLE_HEAD,
    )
    for name in ("rows", "again", "depth", "loss", "worst", "missing", "exact", "worst tensor"):
        left = name == "worst tensor"
        table.add_column(
            name, justify="left" if left else "right", no_wrap=not left, overflow="fold"
        )
    for error in errors:
        table.add_row(
            str(error.plan["micro_batch"]),
            str(len(error.plan["recompute"])),
            str(error.plan["depth"]),
            f"{error.loss_error:.1e}",
            f"{error.worst_error:.1e}",
            str(len(error.zero_tensors)),
            "yes" if error.is_exact else "no",
            error.worst_tensor.removeprefix("base_model.model."),
        )
    return table
