"""The planner: lists every way to compute a step, with memory and time, and picks one that fits.

Pure: facts come in as values, no file is read and no torch imported. Plans are compared by
nominal seconds, never by measured ones, so equal devices choose equal plans.

    found = options(work, facts.runtime_bytes, facts.nominal)
    option = choose(found, budget_bytes)
    smaller = next_smaller(found, option)  # when an allocation failed
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from smidgen.edge_client.adapters.spec import frozen_layers
from smidgen.edge_client.planning import cuda_memory, onnx_memory, torch_memory
from smidgen.edge_client.planning.cuda_memory import CPU, seconds
from smidgen.edge_client.planning.layer_cost import is_large, linear_sizes
from smidgen.edge_client.planning.plan import AUTO_PERCENT, BudgetError, Plan, Workload, size_text
from smidgen.edge_client.planning.step_cost import Rates
from smidgen.edge_client.planning.torch_memory import MemoryEstimate
from smidgen.edge_client.tables import size

FAST_ENOUGH_S = 0.25  # a step below this is not worth 16-bit arithmetic
CLEARLY_SMALLER = 0.2  # of what the current plan keeps and holds in passing


@dataclass(frozen=True)
class Option:
    """A plan for some work, with what it is estimated to take.

    Attributes:
        work: What is trained.
        plan: How.
        memory: Where the bytes go, by formula alone.
        predicted_peak_bytes: The formula's total, corrected by what this device has measured.
        nominal_step_s: Seconds of a step at nominal rates; what plans are compared by.
    """

    work: Workload
    plan: Plan
    memory: MemoryEstimate
    predicted_peak_bytes: int
    nominal_step_s: float

    @property
    def ceiling_bytes(self) -> int:
        """What may stay held before freed memory is given back, for a peak as predicted.

        Resident bytes of the process between two layers; reserved bytes of a card between steps.
        """
        memory = self.memory
        return memory.ceiling if self.work.device == CPU else memory.total - memory.runtime


Correct = Callable[[Plan, int], int]


def as_estimated(plan: Plan, estimated_bytes: int) -> int:
    """The correction of a device that has measured nothing yet."""
    return estimated_bytes


def estimate(work: Workload, plan: Plan, runtime_bytes: int) -> MemoryEstimate:
    """Estimate a plan's peak by the formulas of the work's engine and device.

    Args:
        work: What is trained.
        plan: How.
        runtime_bytes: Resident bytes of the process before the base is opened.
    """
    if work.device != CPU:
        return cuda_memory.estimate(work, plan, runtime_bytes)
    formulas = {"torch": torch_memory.estimate, "onnx": onnx_memory.estimate}
    return formulas[work.engine](work, plan, runtime_bytes)


def options(
    work: Workload, runtime_bytes: int, nominal: Rates, correct: Correct = as_estimated
) -> list[Option]:
    """Every plan for a piece of work, the preferred one first.

    Each is there twice where the tokenizer is large: with it, and with it let go before a step.

    Args:
        work: What is trained.
        runtime_bytes: Resident bytes of the process before the base is opened.
        nominal: Rates of this kind of device; its dtypes are the ones offered.
        correct: Estimated peak of a plan -> predicted peak, see
            `smidgen.edge_client.planning.budget`.
    """
    found = []
    ways = [replace(work, keeps_vocabulary=True), work] if work.is_vocabulary_let_go else [work]
    for plan in plans(work, tuple(nominal.flops_per_s)):
        step_s = seconds(work, plan, nominal)
        for way in ways:
            memory = estimate(way, plan, runtime_bytes)
            predicted = correct(plan, memory.total)
            found.append(Option(way, plan, memory, predicted, step_s))
    return sorted(found, key=preference)


def plans(work: Workload, dtypes: Sequence[str]) -> Iterator[Plan]:
    """Every plan: dtype x micro-batch x recomputed layers x depth, without repetitions.

    The onnx engine computes in float32 alone, may keep layers' inputs in half of that or in a file,
    and may make large matrices dense a slice at a time. A card may keep the weights or have them
    streamed.
    """
    is_onnx = work.engine == "onnx"
    is_sliced = is_onnx and work.bits < 32 and any(map(is_large, linear_sizes(work.shape).values()))
    for dtype in ("float32",) if is_onnx else dtypes:
        for micro_batch in halvings(work.batch):
            for depth in depths(work):
                for recompute in recomputations(work, depth):
                    plan = Plan(dtype, micro_batch, recompute, depth, work.longest)
                    ways = [plan]
                    if is_onnx and work.spec.is_in_layers:
                        ways.append(replace(plan, is_kept_in_half=True))
                        ways.append(replace(plan, is_spilled=True))
                    if work.device != CPU:
                        ways.append(replace(plan, is_streamed=True))
                    yield from ways
                    if is_sliced:
                        yield from (replace(way, is_sliced=True) for way in ways)


def halvings(batch: int) -> list[int]:
    """A batch, its half rounded up, and so on down to 1."""
    found = [batch]
    while found[-1] > 1:
        found.append(-(-found[-1] // 2))
    return found


def depths(work: Workload) -> list[int]:
    """How many top layers may be trained: all that carry an adapter, 3/4, 1/2, 1/4, one.

    Only for adapters that sit in the layers and where each layer has its own: a soft prompt lies
    below all layers, and ALBERT's repeated layer has one adapter, whose gradient would be cut.
    """
    layers, spec = work.shape.layers, work.spec
    in_each = bool(spec.rank or spec.bias) and not spec.prompt_tokens
    if not in_each or work.shape.stored_layers < layers:
        return [layers]
    deepest = layers - frozen_layers(spec, layers)
    found = [deepest, *(deepest * quarters // 4 for quarters in (3, 2, 1)), 1]
    return sorted({max(1, depth) for depth in found}, reverse=True)


def recomputations(work: Workload, depth: int) -> list[tuple[int, ...]]:
    """None, a quarter, a half, three quarters, all of the trained layers, the lowest first.

    The lowest, because what a layer keeps is held from its forward to its backward, and theirs
    lie furthest apart.
    """
    if not work.spec.is_in_layers:
        return [()]
    lowest = work.shape.layers - depth
    counts = dict.fromkeys(math.ceil(depth * quarters / 4) for quarters in range(5))
    return [tuple(range(lowest, lowest + count)) for count in counts]


def preference(option: Option) -> tuple[object, ...]:
    """The order in which plans are preferred; the smallest comes first.

    1. More trained layers before fewer: a shallow adapter is another adapter.
    2. Whole matrices before slices, whose products cost a step 1.1 to 1.4 times its seconds, and
       either before a file, which wears a card out.
    3. A float32 step below a quarter of a second before anything else: there is little to win,
       and results stay the same from one processor to the next.
    4. The faster by nominal rates; then the one that keeps layers' inputs whole; then the one whose
       tokenizer stays; then the smaller.
    """
    plan = option.plan
    is_exact = plan.dtype == "float32" and option.nominal_step_s < FAST_ENOUGH_S
    return (
        -plan.depth,
        plan.is_spilled,
        plan.is_sliced,
        not is_exact,
        option.nominal_step_s,
        plan.is_kept_in_half,
        plan.is_streamed,
        option.work.is_vocabulary_let_go,
        option.memory.total,
        plan.dtype,
        -plan.micro_batch,
        plan.recompute,
    )


def choose(options: Sequence[Option], budget_bytes: int, is_auto: bool = False) -> Option:
    """The preferred plan that fits.

    More memory never gives a plan that comes later in the order of `preference`: never fewer
    trained layers, of as many never a file or slices where it gave neither, and of these never a
    slower step, but for float32 below 0.25 s.

    Args:
        options: All that there are.
        budget_bytes: What may be taken.
        is_auto: Whether that was found here, not said by anybody; refusals say so.

    Raises:
        BudgetError: None fits; the message names the smallest plan's size.
    """
    fitting = [option for option in options if option.predicted_peak_bytes <= budget_bytes]
    if fitting:
        return min(fitting, key=preference)
    smallest = min(options, key=_size)
    said = size_text(budget_bytes, math.floor)
    said = f"auto ({said}, {AUTO_PERCENT} % of what is free here)" if is_auto else said
    raise BudgetError(
        f"--memory-budget {said} is below the smallest plan for "
        f"this model ({size_text(smallest.predicted_peak_bytes)}); {_remedy(smallest.work)}"
    )


def _size(option: Option) -> tuple[object, ...]:
    return (option.predicted_peak_bytes, *preference(option))


def _remedy(work: Workload) -> str:
    if work.device != CPU:
        return "raise it, lower --tokens or use --device cpu"
    if work.engine == "torch":
        return "raise it or use --engine onnx, which takes less"
    return "raise it, lower --tokens or pack the base with fewer --bits"


def next_smaller(options: Sequence[Option], current: Option) -> Option | None:
    """The preferred plan that is clearly smaller than the current one.

    Clearly: by a fifth of what the current plan keeps and holds in passing, which is all that a
    plan can change. Where none is, the smallest of the deepest that are smaller at all. Every
    answer's predicted peak is below `current`'s, so stepping down ends.

    Returns:
        None when `current` is the smallest.
    """
    peak = current.predicted_peak_bytes
    step = CLEARLY_SMALLER * (current.memory.kept + current.memory.transient)
    smaller = [option for option in options if option.predicted_peak_bytes < peak]
    clearly = [option for option in smaller if option.predicted_peak_bytes <= peak - step]
    deepest = max((option.plan.depth for option in smaller), default=0)
    if any(option.plan.depth == deepest for option in clearly):
        return min(clearly, key=preference)
    return min((row for row in smaller if row.plan.depth == deepest), key=_size, default=None)


def undominated(options: Sequence[Option]) -> list[Option]:
    """Options that no other beats in both seconds and bytes at the same depth, in order."""
    found: list[Option] = []
    for option in sorted(options, key=preference):
        rivals = [other for other in found if other.plan.depth == option.plan.depth]
        if all(option.predicted_peak_bytes < other.predicted_peak_bytes for other in rivals):
            found.append(option)
    return found


# In words, for people who read a log


def plan_in_words(option: Option) -> str:
    """One line: how a step is computed, and the most memory that it is estimated to take."""
    plan, work = option.plan, option.work
    at_once = f"all {work.batch} texts of a batch at once"
    if plan.micro_batch < work.batch:
        at_once = f"{plan.micro_batch} of a batch's {work.batch} texts at once"
    kept = ", layers' inputs kept in float16" if plan.is_kept_in_half else ""
    kept += ", layers' inputs and moments put aside in a file" if plan.is_spilled else ""
    return (
        f"{at_once}, up to {plan.tokens} tokens each, in {plan.dtype}{kept}; "
        f"{_layers(option)}; {_weights(option)}"
        f"predicted peak {size(option.predicted_peak_bytes)} (estimated)"
    )


def _weights(option: Option) -> str:
    """Where a card's weights are; the processor's are mapped, and said where they are in slices."""
    if option.work.device == CPU:
        return "large matrices in slices; " if option.plan.is_sliced else ""
    is_streamed = option.plan.is_streamed
    return "weights copied to the card at each use; " if is_streamed else "weights on the card; "


def _layers(option: Option) -> str:
    plan, layers = option.plan, option.work.shape.layers
    if not option.work.spec.is_in_layers:
        return "nothing is trained in the layers"
    trained = f"the top {plan.depth} of {layers}" if plan.depth < layers else f"all {layers}"
    recomputed = (
        f"{len(plan.recompute)} of them recomputed" if plan.recompute else "none recomputed"
    )
    return f"trained through {trained} layers, {recomputed} in backward"
