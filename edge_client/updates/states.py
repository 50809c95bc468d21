"""Device halves of a work's update steps around one training, with the states they continue from.

steps = steps_of(work, inputs)
correction = steps.correction(engine.adapter(), context)
update = steps.outgoing(Update(...), context)
steps.states()  # for the next training; `client.folder.run_files.StepStates` saves them
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import msgspec

from smidgen.edge_client.files import from_json
from smidgen.edge_client.updates.registry import made, naming
from smidgen.edge_client.updates.settings import Updates, steps_of_run
from smidgen.edge_client.updates.step import Correction, DeviceContext, State, UpdateStep
from smidgen.edge_client.wire.messages import WireError, Work, encode_brief
from smidgen.edge_client.wire.tensors import (
    AdapterState,
    Update,
    decode_adapter,
    encode_adapter,
    header_of,
)
from smidgen.edge_client.wire.training import Training

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StepInputs:
    """What a device's steps start from in one training.

    Attributes:
        states: The device's own by step, a safetensors file; empty: none yet, None: it is lost.
        shared: What the server halves hand out by step, likewise; empty: zeros.
        bytes_per_s: What the device's link carries upwards; None: nobody has measured it.
        secret: See `DeviceContext`.
    """

    states: Mapping[str, bytes | None] = field(default_factory=dict)
    shared: Mapping[str, bytes] = field(default_factory=dict)
    bytes_per_s: float | None = None
    secret: bytes = field(default=b"", repr=False)


class DeviceSteps:
    """See the module; made anew for each training.

    Args:
        specs: The steps' names with their arguments, in order.
        bound: What their states belong to, by name, in their files' metadata.
        inputs: What they start from; None: nothing is kept and nothing is handed out.

    Raises:
        WrongInput: A step that is not known here.
    """

    def __init__(
        self,
        specs: Iterable[str],
        bound: Mapping[str, str] = MappingProxyType({}),
        inputs: StepInputs | None = None,
    ) -> None:
        self._bound, inputs = dict(bound), inputs or StepInputs()
        self._steps = made(specs)
        for step in self._steps:
            step.state = self._own(step, inputs.states.get(step.name, b""))
            step.take(inputs.shared.get(step.name, b""))

    def correction(self, received: AdapterState, context: DeviceContext) -> Correction | None:
        """What is added to each gradient; None: nothing."""
        found = Correction(received)
        for step in self._steps:
            with naming(step):
                found = step.correct(found, context)
        return None if found.is_nothing else found

    def outgoing(self, update: Update, context: DeviceContext) -> Update:
        for step in self._steps:
            with naming(step):
                update = step.outgoing(update, context)
        for step in self._steps:
            with naming(step):
                step.sent(update, context)
        return update

    def states(self) -> dict[str, bytes]:
        """What the steps that keep anything go on from if this update counts, encoded."""
        header = encode_brief(self._bound).decode()
        return {
            step.name: encode_adapter(step.state, header)
            for step in self._steps
            if step.keeps and step.state is not None
        }

    def _own(self, step: UpdateStep, body: bytes | None) -> State | None:
        """A step's state on this device; one that is of something else is lost, in one line."""
        if not body:
            return None if body is None else {}
        try:
            state, bound = decode_adapter(body), from_json(header_of(body), dict[str, str])
            if bound == self._bound:
                return state
            said = "is of adapter " + " in run ".join(bound.values())
        except (WireError, msgspec.MsgspecError) as error:
            said = f"cannot be read: {error}"
        log.warning(
            "update step %s: its state %s, not of adapter %s; it is dropped",
            step.name,
            said,
            " in run ".join(self._bound.values()),
        )
        return None


def is_private(work: Work) -> bool:
    """Whether a device adds the noise to what it learns, so that nothing without it leaves it."""
    steps = made(order.step for order in work.updates)
    return any(one.multiplier and one.is_secret for one in steps)


def multiplier_of(specs: Iterable[str]) -> float:
    """The noise multiplier of differential privacy that steps add; 0: none does."""
    return max((one.multiplier for one in made(specs)), default=0.0)


def held_bytes(specs: Iterable[str]) -> int:
    """What steps hold on a device while it trains, by each trained number."""
    return sum(one.held_bytes for one in made(specs))


def steps_of(work: Work, inputs: StepInputs | None) -> DeviceSteps:
    """The steps of a piece of work.

    Args:
        work: Training.
        inputs: What they start from.
    """
    bound = {"adapter_spec": work.adapter_spec, "run_id": work.run_id}
    return DeviceSteps((order.step for order in work.updates), bound, inputs)


def local_correction(
    received: AdapterState,
    training: Training,
    of_adapter: tuple[str, ...] = (),
    round_index: int = 0,
) -> Correction | None:
    """What is added to each gradient of training that belongs to no run; None: nothing.

    Args:
        received: What training starts from.
        training: How it trains.
        of_adapter: Steps of the adapter's form (`updates.forms.steps_of`).
        round_index: 1-based, of training in several rounds.
    """
    return DeviceSteps(steps_of_run(training, Updates(), of_adapter)).correction(
        received, DeviceContext(training, round_index)
    )
