"""Server halves of a run's update steps, with checks of those from other packages.

An error or timeout in such a step becomes a `PluginError` that names it (`called`). Its result must
have the adapter's names and shapes, and finite numbers. Norms are measured again after it, so that
a round's bounds hold whatever it does to an update.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from coordinator.rounds.extensions import PluginError, as_adapter, as_memory, called
from coordinator.rounds.learning.memory import Memory
from edge_client.updates.registry import OURS, naming
from edge_client.updates.step import Contribution, ServerContext, UpdateStep
from edge_client.wire.tensors import AdapterState

END: Any = object()  # of a cohort; a step that gives None fails as any that gives no update


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

    what = f"update step {step.name}"
    try:
        with naming(step, PluginError):
            given = called(what, lambda: iter(step.incoming(source(), context)))
            while (one := called(what, lambda: next(given, END))) is not END:
                yield replace(one, delta=as_adapter(one.delta, like, f"{what}: an update"))
    except PluginError:
        if failures:
            raise failures[0] from None
        raise


def finish(steps: Sequence[UpdateStep], mean: AdapterState, context: ServerContext) -> AdapterState:
    """The mean after all steps, last to first."""
    return _through(steps, lambda step, state: step.finish(state, context), mean, "the mean")


def settled(
    steps: Sequence[UpdateStep], adapter: AdapterState, context: ServerContext
) -> AdapterState:
    """The next adapter after all steps, last to first."""
    return _through(steps, lambda step, state: step.settled(state, context), adapter, "the adapter")


def _through(
    steps: Sequence[UpdateStep],
    half: Callable[[UpdateStep, AdapterState], AdapterState],
    state: AdapterState,
    said: str,
) -> AdapterState:
    for step in reversed(steps):
        what = f"update step {step.name}"
        if step.name in OURS:
            state = half(step, state)
            continue
        with naming(step, PluginError):
            after = called(what, partial(half, step, state))
        state = as_adapter(after, state, f"{what}: {said}")
    return state


def kept(step: UpdateStep) -> Memory:
    """What a step's server half goes on from in the next round."""
    if step.name in OURS:
        return step.state or {}
    what = f"update step {step.name}"
    with naming(step, PluginError):
        return as_memory(called(what, lambda: step.state or {}), what)


def handed_out(step: UpdateStep) -> Memory:
    """What devices of the next round get from a step beside the adapter."""
    if step.name in OURS:
        return step.handed_out()
    what = f"update step {step.name}"
    with naming(step, PluginError):
        given = called(what, step.handed_out)
    return as_memory(given, what)
