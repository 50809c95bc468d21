"""`UpdateStep`: one transformation of updates, its device half and server half together.

A run has a list of steps (`registry.steps_of_run`). A device applies them in order after training,
a coordinator in reverse when it aggregates a cohort:

    device   received -> correct, added to each gradient -> delta -> outgoing -> sent
    server   check, counts for each update as it comes; then incoming -> mean -> finish

Steps are created for each training and each aggregation; what they need the next time is in
`state`, tensors by name (float32 on a device), saved in one place on either side
(`client.folder.run_files.StepStates`, the run's memory blob). Other packages add steps by entry
points, see docs/extending.md.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, TypeAlias

import numpy as np

from smidgen.edge_client.codecs import Shapes
from smidgen.edge_client.wire.tensors import AdapterState, Update, decode_adapter
from smidgen.edge_client.wire.training import Training

State: TypeAlias = dict[str, np.ndarray]


class GradientRule(Protocol):
    """How a step's gradient is made of its texts', where it is not their mean."""

    def gradients(
        self, texts: int, of_text: Callable[[int], tuple[float, AdapterState]], at: AdapterState
    ) -> tuple[float, AdapterState]:
        """Mean loss and the step's gradient, float32.

        Args:
            texts: Of the batch.
            of_text: Loss and gradient of one, by its place; the arrays may be used again.
            at: The adapter that they are taken at.
        """


@dataclass(frozen=True)
class Correction:
    """What becomes of each gradient of one round's training.

    Law: with `proximal` 0 and no shift every optimizer step is bitwise what it is without.

    Attributes:
        received: The weights that training starts from; read, never written.
        proximal: mu: mu * (w - received) is added to the gradient.
        shift: Added to the gradient as it is; empty: nothing.
        frozen: Tensors that are not trained in this round.
        rule: How the gradient is made of the texts', before anything is added; None: their mean.
    """

    received: AdapterState
    proximal: float = 0.0
    shift: AdapterState = field(default_factory=dict)
    frozen: frozenset[str] = frozenset()
    rule: GradientRule | None = None

    @property
    def is_nothing(self) -> bool:
        return not (self.proximal or self.shift or self.frozen or self.rule)


@dataclass(frozen=True)
class DeviceContext:
    """What the device half of a step may know of one training.

    Attributes:
        training: How the device trains.
        round_index: 1-based server step.
        bytes_per_s: What the device's link carries upwards; None: nobody has measured it.
        optimizer_steps: That the training took; 0 before it.
        secret: Of the device, that no coordinator knows; empty where it has none.
        run_id: The run.
    """

    training: Training
    round_index: int
    bytes_per_s: float | None = None
    optimizer_steps: int = 0
    secret: bytes = field(default=b"", repr=False)
    run_id: str = ""


@dataclass(frozen=True)
class ServerContext:
    """What the server half of a step may know of one round.

    Attributes:
        training: How its devices train.
        round_index: 1-based server step; 0 where a single update is checked.
        population: Devices that could have been asked; 0: not known.
        is_labelling: Whether the run has pseudo-labels, so that texts may weigh less than one each.
        holders: Devices whose state of a step counts, by the step's name.
        shapes: Of the run's adapter.
        key: That no device knows, to draw noise by; empty where nothing is aggregated.
        most_examples: Largest weight of a device in a mean; 0: whatever it says.
    """

    training: Training
    round_index: int = 0
    population: int = 0
    is_labelling: bool = False
    holders: Mapping[str, Collection[str]] = field(default_factory=dict)
    shapes: Shapes = field(default_factory=dict)
    key: bytes = b""
    most_examples: int = 0


@dataclass(frozen=True)
class Contribution:
    """One device's part in a mean.

    Attributes:
        device_id: Whose; errors name it, and cohorts are sorted by it.
        delta: What training changed, float32.
        weight: Above 0.
        share: What the delta is multiplied by: 1, or less where it is longer than the bound, or of
            an older version. An extension gets it multiplied, and 1.
        norm: The delta's length as the run's bounds count it.
        optimizer_steps: That the update says it took; 0: it does not say.
        counted: Names of the steps whose state on the device counts with this update.
    """

    device_id: str
    delta: AdapterState
    weight: float
    share: float = 1.0
    norm: float = 0.0
    optimizer_steps: int = 0
    counted: Collection[str] = ()


class UpdateStep:
    """A step that does nothing; a real one overrides the halves that it has.

    Args of a subclass are the texts behind its name: `codec:int4` is made as `Codec("int4")`.

    Attributes:
        name: As runs name it.
        keeps: Whether a device keeps a state of it from one training to the next.
        is_secret: Whether its device half needs a secret of the device.
        state: What it goes on from, and what it leaves; None on a device that has lost it. A
            device's is of the last training whose update counted for this step (`counts`).
        shared: On the device: what the server half hands out.
        multiplier: Noise multiplier of the differential privacy that it gives; 0: it gives none.
        held_bytes: What it holds on the device while it trains, by each trained number.
    """

    name: ClassVar[str] = ""
    keeps: ClassVar[bool] = False
    held_bytes: ClassVar[int] = 0
    is_secret: ClassVar[bool] = False

    def __init__(self) -> None:
        self.state: State | None = {}
        self.shared: State = {}
        self.multiplier = 0.0

    # ---- device ----

    def take(self, body: bytes) -> None:
        """What the server half hands out, a file; empty: nothing.

        Raises:
            WireError: It cannot be read.
        """
        self.shared = decode_adapter(body) if body else {}

    def correct(self, correction: Correction, context: DeviceContext) -> Correction:
        """What is added to each gradient, with this step's part."""
        return correction

    def outgoing(self, update: Update, context: DeviceContext) -> Update:
        """The update as the next step gets it, and the coordinator in the end.

        Raises:
            Failed: It cannot be made, such as of NaN.
        """
        return update

    def sent(self, update: Update, context: DeviceContext) -> None:
        """Take note of what all steps together have made of the update: the coordinator's view."""

    # ---- both ----

    def shapes(self, shapes: Shapes, round_index: int) -> Shapes:
        """The tensors that an update has after this step, of those that it had before."""
        return shapes

    # ---- server ----

    def check(self, update: Update, context: ServerContext) -> None:
        """Refuse what no honest device sends.

        Raises:
            WrongInput: Says what is wrong with it.
        """

    def counts(self, update: Update, norm: float, share: float, context: ServerContext) -> bool:
        """Whether the state that this device made beside its update is to be gone on from.

        Args:
            update: As it came.
            norm: Its length as the run's bounds count it.
            share: What clipping multiplies it by.
            context: Of the round.
        """
        return True

    def incoming(
        self, cohort: Iterable[Contribution], context: ServerContext
    ) -> Iterator[Contribution]:
        """The cohort as the mean gets it; each is read once, in order of device ids."""
        yield from cohort

    def finish(self, mean: AdapterState, context: ServerContext) -> AdapterState:
        """The cohort's mean as the server optimizer gets it; float32, equal names and shapes."""
        return mean

    def settled(self, adapter: AdapterState, context: ServerContext) -> AdapterState:
        """The next adapter as the next round starts from it, of the server optimizer's.

        Law: the adapted model is the same.
        """
        return adapter

    def handed_out(self) -> State:
        """What devices of the next round get beside the adapter; empty: nothing."""
        return {}
