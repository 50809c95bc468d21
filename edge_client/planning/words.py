"""A plan in words, for people who read a log."""

from edge_client.planning.cuda.accelerator import CPU
from edge_client.planning.planner import Option
from edge_client.tables import size


def plan_in_words(option: Option) -> str:
    """One line: how a step is computed, and the most memory that it is estimated to take."""
    plan, work = option.plan, option.work
    at_once = f"all {work.batch} texts of a batch at once"
    if plan.micro_batch < work.batch:
        at_once = f"{plan.micro_batch} of a batch's {work.batch} texts at once"
    kept = ", layers' inputs kept in float16" if plan.is_kept_in_half else ""
    return (
        f"{at_once}, up to {plan.tokens} tokens each, in {plan.dtype}{kept}; "
        f"{_layers(option)}; {_weights(option)}"
        f"predicted peak {size(option.predicted_peak_bytes)} (estimated)"
    )


def _weights(option: Option) -> str:
    """Where a card's weights are; the processor's are mapped."""
    if option.work.device == CPU:
        return ""
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
