"""The server halves of a run's update steps; those of other packages are looked at as extensions.

What such a step raises becomes a `PluginError` that names it; what it gives has the adapter's names
and shapes, and numbers that devices can compute with. Lengths are measured anew behind it, so that
the bounds of a round hold whatever it does to an update.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from coordinator.rounds.extensions import PluginError, as_adapter, as_memory
from coordinator.rounds.learning.memory import Memory
from edge_client.updates.registry import OURS, naming
from edge_client.updates.step import Contribution, ServerContext, UpdateStep
from edge_client.wire.tensors import AdapterState


def incoming(
    steps: Sequence[UpdateStep],
    cohort: Iterable[Contribution],
    adapter: AdapterState,
    length: Callable[[AdapterState], float],
    context: ServerContext,
) -> Iterable[Contribution]:
    """The cohort after all steps, last to first; read once, as it comes.

    Args:
        steps: In the order of the run.
        cohort: As devices sent it.
        adapter: What an update has the names and shapes of in the end.
        length: How long an update is.
        context: Of the round.
    """
    shapes = [context.shapes]
    for step in steps:
        shapes.append(step.shapes(shapes[-1], context.round_index))
    for step, before in zip(reversed(steps), shapes[-2::-1], strict=True):
        if step.name in OURS:
            cohort = step.incoming(cohort, context)
        else:
            cohort = _checked(step, cohort, {name: adapter[name] for name in before}, context)
            cohort = (replace(one, norm=length(one.delta)) for one in cohort)
    return cohort


def _checked(
    step: UpdateStep, cohort: Iterable[Contribution], like: AdapterState, context: ServerContext
) -> Iterator[Contribution]:
    failures: list[Exception] = []

    def source() -> Iterator[Contribution]:
        try:
            yield from cohort
        except Exception as error:  # not the step's own
            failures.append(error)
            raise

    try:
        with naming(step, PluginError):
            for one in step.incoming(source(), context):
                what = f"update step {step.name}: an update"
                yield replace(one, delta=as_adapter(one.delta, like, what))
    except PluginError:
        if failures:
            raise failures[0] from None
        raise


def finish(steps: Sequence[UpdateStep], mean: AdapterState, context: ServerContext) -> AdapterState:
    """The mean after all steps, last to first."""
    for step in reversed(steps):
        with naming(step, PluginError):
            after = step.finish(mean, context)
        what = f"update step {step.name}: the mean"
        mean = after if step.name in OURS else as_adapter(after, mean, what)
    return mean


def kept(step: UpdateStep) -> Memory:
    """What a step's server half goes on from in the next round."""
    if step.name in OURS:
        return step.state or {}
    return as_memory(step.state or {}, f"update step {step.name}")


def handed_out(step: UpdateStep) -> Memory:
    """What devices of the next round get from a step beside the adapter."""
    with naming(step, PluginError):
        given = step.handed_out()
    return given if step.name in OURS else as_memory(given, f"update step {step.name}")
