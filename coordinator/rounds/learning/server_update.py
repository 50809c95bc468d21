"""Server update: a cohort's updates in, the next adapter out; the same code for every run.

The coordinator and the simulation both call it, so they end in the same bytes:

    updates -> update steps in reverse, then clipping -> mean -> server optimizer -> coded step
    -> check

Each arrow is a small protocol: `registry.Mean`, `optimizers.ServerOptimizer`. The exact mean of
LoRA's products (`exact`) is mean and step in one. With coded steps, the next adapter is what a
device decodes, and the coding error is added to the next step.

An error or timeout in such a step becomes a `PluginError` that names it (`called`). Its result must
have the adapter's names and shapes, and finite numbers. Norms are measured again after it, so that
a round's bounds hold whatever it does to an update.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from smidgen.coordinator.rounds.bounds import bounds_of, lack_of, norm_of
from smidgen.coordinator.rounds.events import StepOpened
from smidgen.coordinator.rounds.extensions import PluginError, as_adapter, as_memory, called
from smidgen.coordinator.rounds.learning.exact import (
    factors_mean,
    product_gain,
    product_mean,
    product_norm_of,
)
from smidgen.coordinator.rounds.learning.memory import Memory, part_of, with_part
from smidgen.coordinator.rounds.learning.optimizers import is_scale_free
from smidgen.coordinator.rounds.learning.registry import mean_of, optimizer_of
from smidgen.coordinator.rounds.learning.robust import TooFewError
from smidgen.coordinator.rounds.schedule import Learning
from smidgen.edge_client.codecs import PLAIN, CodecError
from smidgen.edge_client.updates.clip import Clip
from smidgen.edge_client.updates.forms import Turns
from smidgen.edge_client.updates.privacy import DeviceNoise
from smidgen.edge_client.updates.registry import OURS, made, naming, sent_shapes
from smidgen.edge_client.updates.ridge import NoSolution, Ridge
from smidgen.edge_client.updates.step import Contribution, ServerContext, UpdateStep
from smidgen.edge_client.wire.tensors import AdapterState, Update, encode_step, shapes_of
from smidgen.edge_client.wire.training import Training

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


def kept_state(step: UpdateStep) -> Memory:
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


Length: TypeAlias = Callable[[AdapterState], float]

OPTIMIZER = "optimizer"  # the part of the memory that is the server optimizer's
STEPS = "step."  # before an update step's name: the part that is its state
LEFT_OUT = "left_out"  # that is what coded steps left out


@dataclass(frozen=True)
class AdmittedUpdate:
    """A device's update as it was let in.

    Attributes:
        device_id: Whose.
        update: What it sent.
        norm: How long it is (`length_of`); None where that is not known.
        share: How much it counts: 1, or less where it is of an older version.
        counted: Update steps whose state on the device counts with this update.
    """

    device_id: str
    update: Update
    norm: float | None = None
    share: float = 1.0
    counted: Collection[str] = ()


@dataclass(frozen=True)
class Learned:
    """What a round gave.

    Attributes:
        adapter: The next one; the one before where it was not taken.
        memory: What the next round needs to know.
        lack: Why the new adapter was not taken; empty where it was.
        lost: Share of the mean's squared norm that the run's rank leaves out; None where all of it
            is kept by definition.
        step: What leads from the one before to it, a file; empty where steps are not coded.
        shared: What update steps hand out to devices of the next round, by step.
    """

    adapter: AdapterState
    memory: Memory
    lack: str = ""
    lost: float | None = None
    step: bytes = b""
    shared: Mapping[str, AdapterState] = field(default_factory=dict)


def learn(
    learning: Learning,
    opened: StepOpened,
    rounds: int,
    answers: Iterable[AdmittedUpdate],
    adapter: AdapterState,
    memory: Memory,
    norms: Sequence[float],
    is_guarded: bool = True,
    context: ServerContext | None = None,
    down: str = PLAIN,
) -> Learned:
    """The adapter after a training step.

    Args:
        learning: How the run learns.
        opened: The step, with its bounds.
        rounds: Of the run.
        answers: In the order of device ids; read once and not kept, unless the mean must.
        adapter: What the step started from.
        memory: What the rounds before gave.
        norms: Medians of the rounds before.
        is_guarded: Whether a new adapter is checked before it is taken.
        context: What the round's update steps may know; None: nothing of the run.
        down: What steps are coded as.

    Raises:
        PluginError: An extension that is not known here, or did not do its part; the step stands.
    """
    length, steps = length_of(learning, adapter), made(opened.updates)
    shapes = shapes_of(adapter)
    context = context or ServerContext(Training(), opened.round_index)
    context = replace(context, shapes=shapes, most_examples=opened.most_examples)
    for step in steps:
        step.state = part_of(memory, f"{STEPS}{step.name}")
    cohort = incoming(steps, contributions(answers, length), adapter, length, context)
    cohort = Clip(bounds_of(opened)).incoming(cohort, context)
    lost, held, kept = None, None, part_of(memory, OPTIMIZER)
    try:
        if learning.lora_mean == "factors":
            mean = mean_of(learning.mean).mean(cohort, adapter)
            mean = finish(steps, mean, context)
            optimizer = optimizer_of(learning.optimizer, learning.rates)
            after, kept = optimizer.step(adapter, mean, kept, opened.round_index, rounds)
            held = mean if is_scale_free(optimizer) else None
            # What rests stays, whatever an optimizer remembers of it.
            resting = (Turns.name, Ridge.name)
            turns = [spec for spec in opened.updates if spec.partition(":")[0] in resting]
            moving = sent_shapes(turns, shapes, opened.round_index)
            after = {name: one if name in moving else adapter[name] for name, one in after.items()}
        elif learning.lora_mean == "product":
            after, lost = product_mean(cohort, adapter)
        else:
            after = factors_mean(cohort, adapter, is_padded=learning.lora_mean == "padded")
    except (TooFewError, NoSolution) as error:
        return Learned(adapter, memory, str(error))
    learned = with_part(memory, OPTIMIZER, kept)
    for one in steps:
        learned = with_part(learned, f"{STEPS}{one.name}", kept_state(one))
    moved, body = {name: after[name].astype(np.float64) - adapter[name] for name in adapter}, b""
    reached = after
    if learning.lora_mean == "factors" and all(np.isfinite(one).all() for one in after.values()):
        after = settled(steps, reached, context)
    if down != PLAIN:
        names = set(sent_shapes(opened.updates, shapes, opened.round_index))
        names |= {name for name in after if not np.array_equal(after[name], reached[name])}
        known = part_of(memory, LEFT_OUT), opened.adapter_sha256, names
        try:
            body, after, left = encode_step(adapter, after, down, *known)
        except CodecError as error:
            return Learned(adapter, memory, f"its step cannot be coded: {error}")
        learned = with_part(learned, LEFT_OUT, left)
    what = "its step"
    if held is not None:
        moved, what = held, "the mean of its updates"
    if any(isinstance(one, DeviceNoise) for one in steps):
        norms = ()  # noise is as long as its budget asks for, whatever updates were
    lack = lack_of(after, moved, norms, opened.norm_bound, length, what) if is_guarded else ""
    if not all(np.isfinite(one).all() for one in kept.values()):
        lack = (
            f"{learning.optimizer} would remember numbers beyond float32"  # and stand still there
        )
    if lack:
        return Learned(adapter, memory, lack)
    shared = {one.name: given for one in steps if (given := handed_out(one))}
    return Learned(after, learned, lost=lost, step=body, shared=shared)


def length_of(learning: Learning, adapter: AdapterState) -> Length:
    """How long an update of a run is, as its bounds count it.

    Args:
        learning: How the run learns.
        adapter: The run's, that is answered.
    """
    if learning.lora_mean == "factors":
        return norm_of
    return partial(product_norm_of, adapter=adapter)


def gain_of(learning: Learning, adapter: AdapterState) -> float:
    """How many times as long as its numbers' change an update may well be, as `length_of` has it.

    Args:
        learning: How the run learns.
        adapter: The run's.
    """
    return 1.0 if learning.lora_mean == "factors" else product_gain(adapter)


def contributions(
    answers: Iterable[AdmittedUpdate], length: Length = norm_of
) -> Iterator[Contribution]:
    """Each answer as it came; weights and lengths are not bounded yet."""
    for answer in answers:
        update = answer.update
        norm = length(update.delta) if answer.norm is None else answer.norm
        yield Contribution(
            answer.device_id,
            update.delta,
            float(update.num_examples),
            answer.share,
            norm,
            update.steps,
            answer.counted,
        )
