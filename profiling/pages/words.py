"""How a cell's figures are said, the same in the HTML page, the Markdown and the charts."""

from collections.abc import Sequence
from statistics import median

from edge_client.tables import plain, seconds, size
from profiling.models.cell import GIB, LABELLING, PEERS, Cell

METHOD_NAMES = {
    "full": "full fine-tuning",
    "peft": "PEFT LoRA",
    "nf4": "nf4 recipe",
    "torch": "smidgen torch",
    "onnx": "smidgen onnx",
}
METHODS_TOLD = {
    "full": "every weight trained, AdamW, in float32 as users' scripts do by default; autocast is "
    "faster where the processor is fast in bfloat16",
    "peft": "PEFT LoRA on the base as Hugging Face loads it, in float32 likewise",
    "nf4": "bitsandbytes nf4 linears, PEFT LoRA, checkpointing, the head at the mask alone; in "
    "bfloat16 where the processor is fast in it",
    "torch": "our engine on PyTorch, within the budget that is named; in bfloat16 where the "
    "processor is fast in it",
    "onnx": "our engine on ONNX Runtime, without PyTorch, within the budget that is named; float32",
}
ABSENT = "not available here"
UNSTABLE = "†"  # behind a figure whose repetitions spread


def is_done(cell: Cell) -> bool:
    """Whether it trained to the end, with steps to show for it."""
    return cell.outcome == "done" and bool(cell.steps_s)


def is_trained(cell: Cell) -> bool:
    """The same, whatever came of labelling."""
    return cell.is_trained and bool(cell.steps_s)


def base_name(cell: Cell) -> str:
    """A base as people read it: of a path the last part, on one line."""
    return plain(cell.base.rstrip("/").rsplit("/", 1)[-1] or cell.base)


def method_name(cell: Cell) -> str:
    """Such as `smidgen onnx, 512M`."""
    name = METHOD_NAMES.get(cell.method, plain(cell.method))
    return f"{name}, {plain(cell.budget)}" if cell.budget else name


def short_name(cell: Cell) -> str:
    """The same where there is little room: `onnx 512M`."""
    name = {"full": "full tuning"}.get(cell.method, method_name(cell).partition(",")[0])
    name = name.removeprefix("smidgen ")
    return f"{name} {plain(cell.budget)}" if cell.budget else name


def family(cell: Cell) -> str:
    """What its mark is coloured by: `peer`, `torch` or `onnx`."""
    return "peer" if cell.method in PEERS else cell.method


def ended(cell: Cell) -> str:
    """How a cell without figures ended, in one word."""
    if is_done(cell):
        return "done"
    if "not available" in cell.outcome or "not installed" in cell.outcome:
        return "not here"
    if "killed" in cell.outcome:
        return "killed"
    return "failed" if cell.outcome.removeprefix(LABELLING).startswith("failed") else "refused"


def board_name(board_bytes: int) -> str:
    """A board's memory, such as `2 GiB`."""
    return f"{board_bytes / GIB:g} GiB"


def middle(values: Sequence[float]) -> float | None:
    """The median; None of nothing."""
    return median(values) if values else None


def step(cell: Cell) -> str:
    """Median seconds of a step, marked where they spread."""
    return f"{seconds(middle(cell.steps_s))}{f' {UNSTABLE}' if cell.is_unstable else ''}"


def rate(values: Sequence[float]) -> str:
    """Texts labelled a second."""
    value = middle(values)
    return "-" if value is None else f"{value:.{1 if value >= 10 else 2}f}"


def joules(cell: Cell) -> str:
    """Median joules of a step."""
    value = middle(cell.step_j or ())
    return "-" if value is None else f"{value:.1f} J"


def count(value: int | None) -> str:
    """A number of parameters: `355 M`, `786 k`."""
    if value is None:
        return "-"
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= unit:
            shown = value / unit
            return f"{shown:.{0 if shown >= 99.5 else 1 if shown >= 9.95 else 2}f} {name}"
    return str(value)


def spread(values: Sequence[float]) -> str:
    """Smallest to largest, of more than one."""
    if len(values) < 2:
        return ""
    return f"{seconds(min(values)).removesuffix(' s')} to {seconds(max(values))}"


def whole(cell: Cell) -> str:
    """All of a cell in a sentence, for those who hover or listen."""
    if not is_trained(cell):
        return f"{method_name(cell)}: {plain(cell.outcome)}"
    parts = [
        f"peak memory {size(cell.peak_rss_bytes)}",
        f"{step(cell)} per step ({spread(cell.steps_s) or 'one step'})",
    ]
    if cell.texts_per_s:
        parts.append(f"{rate(cell.texts_per_s)} texts labelled per second")
    if cell.label_peak_rss_bytes is not None:
        parts.append(f"peak while labelling {size(cell.label_peak_rss_bytes)}")
    if not is_done(cell):
        parts.append(plain(cell.outcome))
    return f"{method_name(cell)}: {', '.join(parts)}"
