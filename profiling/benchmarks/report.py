"""Rounds, training benchmarks and grids as tables for people; rounds as a chart too."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from profiling.benchmarks.exactness import PlanError
from profiling.benchmarks.grid import Case
from profiling.benchmarks.training_run import TrainingRun
from profiling.rounds import PHASES, RoundCost

COLOURS = {
    "wait": "#c9ced6",
    "download": "#7fb3d5",
    "load": "#b39ddb",
    "label": "#8d9f4f",
    "train": "#2e7d6b",
    "evaluate": "#e0b04c",
    "upload": "#d1603d",
}


def percent(share: float | None) -> str:
    """A share for people."""
    return "-" if share is None else f"{100 * share:.1f} %"


def rounds_table(costs: Sequence[RoundCost]) -> Table:
    """One row a round; two columns more where devices labelled."""
    table = Table(title="what each round gave and cost (medians over clients, measured)")
    names = ("round", "accuracy", "loss", "clients", "train s", "kB up", "kB down", "peak MB")
    is_labelled = any(cost.labellers for cost in costs)
    for name in (*names, *(("labels", "label s") if is_labelled else ())):
        table.add_column(name, justify="right", no_wrap=True)
    for cost in costs:
        labels = (f"{cost.pseudo_labels}", f"{cost.phases_s.get('label', 0.0):.2f}")
        table.add_row(
            "zero-shot" if cost.round_index == 0 else str(cost.round_index),
            percent(cost.accuracy),
            "-" if cost.loss is None else f"{cost.loss:.3f}",
            f"{cost.clients}" + (f" ({cost.failed} failed)" if cost.failed else ""),
            f"{cost.phases_s.get('train', 0.0):.2f}" if cost.clients else "-",
            f"{cost.bytes_up / 1000:.1f}",
            f"{cost.bytes_down / 1000:.1f}",
            f"{cost.peak_rss_bytes / 1e6:.0f}",
            *((labels if cost.labellers else ("-", "-")) if is_labelled else ()),
        )
    return table


def draw_rounds(
    costs: Sequence[RoundCost], path: Path, title: str, levels: Sequence[tuple[str, float]] = ()
) -> None:
    """Draw accuracy, seconds by phase and traffic by round as a PNG.

    Args:
        costs: One per round.
        path: The PNG to write.
        title: Above the chart.
        levels: Named accuracies to compare with, drawn as dashed lines.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(13, 3.8), dpi=110)
    scored = [cost for cost in costs if cost.accuracy is not None]
    left.plot(
        [cost.round_index for cost in scored],
        [100 * (cost.accuracy or 0.0) for cost in scored],
        color=COLOURS["train"],
        marker="o",
        label="all devices, one adapter",
    )
    for name, level in levels:
        left.axhline(100 * level, color=COLOURS["upload"], linestyle="--", linewidth=1)
        left.annotate(name, (0, 100 * level), xytext=(2, 3), textcoords="offset points", fontsize=8)
    left.set(xlabel="round", ylabel="accuracy on the devices' test texts, %", ylim=(0, 100))
    left.legend(loc="lower right", fontsize=8)
    trained = [cost for cost in costs if cost.clients]
    indices = [cost.round_index for cost in trained]
    floor = [0.0] * len(trained)
    for phase in PHASES:
        seconds = [cost.phases_s.get(phase, 0.0) for cost in trained]
        if any(seconds):
            middle.bar(indices, seconds, bottom=floor, color=COLOURS[phase], label=phase)
            floor = [below + more for below, more in zip(floor, seconds, strict=True)]
    middle.set(xlabel="round", ylabel="seconds a client (median)")
    if trained:
        middle.legend(fontsize=8)
    for offset, name, counts in (
        (-0.2, "up", [cost.bytes_up for cost in trained]),
        (0.2, "down", [cost.bytes_down for cost in trained]),
    ):
        places = [index + offset for index in indices]
        colour = COLOURS["upload" if name == "up" else "download"]
        right.bar(places, [count / 1000 for count in counts], 0.4, color=colour, label=name)
    right.set(xlabel="round", ylabel="kB a client, bodies and headers (median)")
    right.legend(fontsize=8)
    peak = max((cost.peak_rss_bytes for cost in costs), default=0)
    figure.suptitle(f"{title}; a client's peak RSS {peak / 1e6:.0f} MB", fontsize=11)
    for axis in (left, middle, right):
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def mebibytes(size: int | None) -> str:
    """Bytes for people, in the unit of budgets."""
    return "-" if size is None else f"{size / (1 << 20):.0f}"


def plan_text(plan: Mapping[str, Any] | None, batch: int) -> str:
    """A plan in a few words."""
    if plan is None:
        return "-"
    return (
        f"{plan['dtype']}, {plan['micro_batch']} of {batch} rows, top {plan['depth']} layers, "
        f"{len(plan['recompute'])} made again"
    )


def train_table(runs: Sequence[TrainingRun]) -> Table:
    """One row a process, ours first."""
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
    """Predicted against measured, one row a case."""
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
    """One row a plan."""
    table = Table(
        title="gradients beside plain PyTorch + PEFT (relative errors)",
        caption="rows at once, layers made again, depth; ours in float32, the reference in float64",
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
