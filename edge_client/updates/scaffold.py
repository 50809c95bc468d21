"""SCAFFOLD: control variates against client drift, at no extra upload.

Karimireddy et al. 2020 (arXiv:1910.06378), option II. A device's c_i is the mean gradient of its
last training, the population's c is the mean of all c_i; c - c_i is added to each gradient, so that
a device with few labels steps as the population would. A device keeps its c_i and uploads only its
delta: the coordinator knows c, the number of steps and lr, and from these the change of c_i. It
sends c beside the adapter.

Law: c is the sum of all devices' c_i divided by their number, where a device without one counts
as 0. An update that was clipped moves the adapter but not c, because the change computed from it
would differ from the c_i that its device keeps.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from smidgen.edge_client.errors import demand
from smidgen.edge_client.updates.clip import LARGEST
from smidgen.edge_client.updates.step import (
    Contribution,
    Correction,
    DeviceContext,
    ServerContext,
    State,
    UpdateStep,
)
from smidgen.edge_client.wire.tensors import AdapterState, Update, check_same_parameters, shapes_of

SUM, NOW = "sum.", "now."  # in the server's state: all c_i added up in float64; c itself


class Scaffold(UpdateStep):
    """See the module. A device that has lost its c_i trains without, and says no steps."""

    name, keeps = "scaffold", True

    def correct(self, correction: Correction, context: DeviceContext) -> Correction:
        """With c - c_i, float32, in the shift.

        Raises:
            WireError: They are of another adapter.
        """
        if self.state is None:
            return correction
        c, own = self.shared, self.state
        shift = {name: _part(c, name) - _part(own, name) for name in {**c, **own}}
        if shift:
            check_same_parameters(shift, shapes_of(correction.received))
        return replace(correction, shift=shift)

    def outgoing(self, update: Update, context: DeviceContext) -> Update:
        """With the number of optimizer steps, where this device has a c_i that counts."""
        return update if self.state is None else replace(update, steps=context.optimizer_steps)

    def sent(self, update: Update, context: DeviceContext) -> None:
        if self.state is None or not update.steps:
            self.state = None
            return
        change = change_of(self.shared, update.delta, update.steps, context.training.lr)
        own = self.state
        self.state = own | {
            name: (_part(own, name) + one).astype(np.float32) for name, one in change.items()
        }

    def check(self, update: Update, context: ServerContext) -> None:
        """Refuse a number of steps that the examples do not take; 0 says and changes nothing.

        Pseudo-labelled texts weigh less than one each, so there may be more of them than the
        weight. Where a round draws its texts, how many it draws follows from the examples.
        """
        training, steps = context.training, update.steps
        texts = training.samples_of(update.num_examples)
        least = training.epochs * -(-texts // training.batch)
        is_more = context.is_labelling and steps > least and not steps % training.epochs
        demand(
            not steps or steps == least or is_more,
            f"the update says {steps} steps; {update.num_examples} examples in batches of "
            f"{training.batch} take {least}{' or more' if context.is_labelling else ''} in "
            f"{training.epochs} epochs",
        )

    def counts(self, update: Update, norm: float, share: float, context: ServerContext) -> bool:
        """Whether it said its steps, was not scaled down, and gives a c_i to compute with."""
        is_fit = norm <= LARGEST * update.steps * context.training.lr
        return update.steps > 0 and is_fit and share == 1.0

    def incoming(
        self, cohort: Iterable[Contribution], context: ServerContext
    ) -> Iterator[Contribution]:
        """The same cohort; what counts is added up as it streams by, and c follows at its end.

        c is over the devices that could be asked, or all that hold a c_i where these are more.
        """
        before = self.state or {}
        sums, now = _named(before, SUM), _named(before, NOW)
        holders = set(context.holders.get(self.name, ()))
        for one in cohort:
            if self.name in one.counted:
                for name, change in change_of(
                    now, one.delta, one.optimizer_steps, context.training.lr
                ).items():
                    sums[name] = sums.get(name, 0.0) + change
                holders.add(one.device_id)
            yield one
        devices = max(context.population, len(holders), 1)
        self.state = {f"{SUM}{name}": total for name, total in sums.items()}
        for name, total in sums.items():
            self.state[f"{NOW}{name}"] = (total / devices).astype(np.float32)

    def handed_out(self) -> State:
        """c; empty while it is zero."""
        return _named(self.state or {}, NOW)


def change_of(
    c: Mapping[str, np.ndarray], delta: AdapterState, steps: int, lr: float
) -> dict[str, np.ndarray]:
    """What a training adds to its device's control variate: -c - delta / (steps * lr), float64.

    Law: where c - c_i was added to each of the steps' gradients, c_i plus this is their mean.
    A tensor whose delta is zero all over was not trained; its part of c_i stays.

    Args:
        c: The population's control variate in that training; empty: zeros.
        delta: Trained minus received weights, as the coordinator has them.
        steps: Optimizer steps that made it, 1 or more.
        lr: Their learning rate.
    """
    return {
        name: -_part(c, name) - tensor.astype(np.float64) / (steps * lr)
        if tensor.any()
        else np.zeros(tensor.shape)
        for name, tensor in delta.items()
    }


def _part(state: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    return state.get(name, np.float32(0.0))  # type: ignore[arg-type]  # broadcasts


def _named(state: State, kind: str) -> State:
    return {key.removeprefix(kind): one for key, one in state.items() if key.startswith(kind)}
