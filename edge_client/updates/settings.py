"""A run's settings for update steps, as its run file has them."""

from dataclasses import dataclass

from smidgen.edge_client.codecs import PLAIN, check_codec, check_setting
from smidgen.edge_client.errors import WrongInput, demand
from smidgen.edge_client.updates.registry import check_step
from smidgen.edge_client.updates.secure_sum import BITS, SecureSum
from smidgen.edge_client.wire.training import Training


@dataclass(frozen=True)
class Updates:
    """What updates, and the steps that they give, are coded as on their way.

    Attributes:
        up: From a device: `float32`, `int8`, `int4`, `topk:SHARE`, the largest numbers alone, or
            `auto`, as each device's link asks for (`updates.codec.codec_for`).
        down: To devices, the step of each round, for all alike: one of these but `auto`.
        steps: Other packages' update steps, in order, such as `sign` or `noise:0.1`; they lie
            between control variates and the codec.
        secure_aggregation: `int8`, `int4` or `int16`: the coordinator learns the sum of all updates
            alone, in fixed point of so many bits (`updates.masks`); empty: each as it is.
    """

    up: str = PLAIN
    down: str = PLAIN
    steps: tuple[str, ...] = ()
    secure_aggregation: str = ""

    def __post_init__(self) -> None:
        check_setting(self.up)
        said = f"secure_aggregation: one of {', '.join(BITS)}, or empty for none, is expected"
        demand(not self.secure_aggregation or self.secure_aggregation in BITS, said)
        said = "leave up out: secure_aggregation says how updates are coded"
        demand(not self.secure_aggregation or not self.is_coded, said)
        try:
            check_codec(self.down)
        except WrongInput as error:
            raise WrongInput(f"down: {error}") from error
        for step in self.steps:
            check_step(step)

    @property
    def is_coded(self) -> bool:
        """Whether devices keep what a codec has left out."""
        return self.up != PLAIN

    @property
    def is_plain(self) -> bool:
        """Whether everything travels as it is, both ways."""
        return self.up == self.down == PLAIN and not self.steps and not self.secured

    @property
    def secured(self) -> tuple[str, ...]:
        """The step of secure aggregation, before anything is known of a round's updates."""
        bits = self.secure_aggregation
        return (f"{SecureSum.name}:{bits}",) if bits else ()


def steps_of_run(
    training: Training,
    updates: Updates,
    of_adapter: tuple[str, ...] = (),
    privacy: tuple[str, ...] = (),
) -> tuple[str, ...]:
    """A run's update steps by name, in the order in which devices go through them.

    Args:
        training: How devices train.
        updates: What becomes of their updates.
        of_adapter: Steps that the adapter asks for (`updates.forms.steps_of`).
        privacy: The step of its differential privacy.
    """
    proximal = (f"proximal:{training.proximal!r}",) if training.proximal else ()
    scaffold = ("scaffold",) if training.scaffold else ()
    codec = (f"codec:{updates.up}",) if updates.is_coded else ()
    return (*proximal, *scaffold, *of_adapter, *privacy, *updates.steps, *codec, *updates.secured)
