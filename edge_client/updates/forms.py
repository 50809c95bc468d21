"""Forms of LoRA whose mean is exact: its two factors take turns, or a core takes B's place.

The mean of LoRA's factors is not the mean of their products B A. It is where one factor is trained
at a time (`Turns`); then everything linear in an update is exact: FedAvg,
SCAFFOLD, codecs with error feedback. Only what is trained is sent; the engine and PEFT's folder
see plain LoRA. An adapter's name selects one: `lora:8+ffa`.

    form = Core(shapes_of(lora))
    form.expand(trained)                  # LoRA's A and B
    form.pull(gradients)                  # of the trained numbers, by the chain rule

What rests is the same on every device, so the mean of B A is exact in each round, and half of
LoRA's numbers or less are sent. A begins: it starts at zero beside a drawn B, so that the first
mean of A spans what B^T G has, G being the gradient of the whole weights. That mean's orthogonal
rows are the A that later rounds keep; a drawn A leaves most of G out, as LoRA-SB says of its fixed
factors (Ponkshe et al. 2024, arXiv:2411.19557).

    ffa, core    A in round 1, from then on B or the core      (FFA-LoRA, arXiv:2403.12313; Fed-SB)
    rolora       A in odd rounds, B in even ones               (RoLoRA, arXiv:2409.02346)
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from smidgen.edge_client.codecs import Shapes
from smidgen.edge_client.updates.step import (
    Contribution,
    Correction,
    DeviceContext,
    ServerContext,
    UpdateStep,
)
from smidgen.edge_client.wire.tensors import AdapterState, Update, derive_seed, shapes_of

LORA_A, LORA_B, CORE = ".lora_A.weight", ".lora_B.weight", ".lora_core.weight"
FORMS = ("ffa", "rolora", "core")  # as they stand in an adapter's name
RIDGE = "ridge"  # likewise
# Steps of rounds in which no tensor moves, and what people call these.
MEASURED = {f"{RIDGE}:moments": "ridge regression", f"{RIDGE}:prior": "calibration"}
OF_MOMENTS, OF_PRIOR = MEASURED


def is_lora(name: str) -> bool:
    """Whether LoRA's own numbers are trained; also where no form is named."""
    return name != "core"


def steps_of(adapter: str) -> tuple[str, ...]:
    """The update steps that a run of an adapter goes through because of its name.

    Args:
        adapter: Its name; of one that is outside the grammar too, such as `full`.
    """
    parts = adapter.split("+")
    turns = tuple(f"turns:{form}" for form in FORMS if form in parts)
    return (*turns, RIDGE) if RIDGE in parts else turns


def measured_in(updates: Iterable[str]) -> str:
    """The step by which updates are measurements, not changes of tensors; empty: there is none."""
    return next((step for step in updates if step in MEASURED), "")


def first_of(form: str, lora: AdapterState) -> AdapterState:
    """The trained numbers at the start: A is zero, B drawn; the adapted model is the base itself.

    Args:
        form: One of `FORMS`.
        lora: LoRA's tensors as they start without a form, and others, which stay.
    """
    start = dict(lora)
    for name, tensor in lora.items():
        if name.endswith(LORA_A):
            start[name] = np.zeros_like(tensor)
        elif name.endswith(LORA_B):
            start[name] = drawn_rows(name, tensor.shape[::-1]).T.copy()
    return start if is_lora(form) else Core(shapes_of(start)).first(start)


def is_left(tensor: str) -> bool:
    """Whether a tensor stands to the left of A: LoRA's B or a core."""
    return tensor.endswith((LORA_B, CORE))


def left_of(a: str, adapter: Collection[str]) -> str:
    """The name of what stands to the left of an A."""
    core = a.removesuffix(LORA_A) + CORE
    return core if core in adapter else a.removesuffix(LORA_A) + LORA_B


def drawn_rows(tensor: str, shape: tuple[int, ...]) -> np.ndarray:
    """Orthogonal rows of length 1/sqrt(3), that of a row of PEFT's A; columns where fewer.

    Drawn by the tensor's name alone: equal on every machine, but for the last bits.
    """
    generator = np.random.Generator(np.random.PCG64(derive_seed(0, "fixed factor", tensor)))
    u, _, v = np.linalg.svd(generator.uniform(-1.0, 1.0, shape), full_matrices=False)
    rows: np.ndarray = (u @ v / np.sqrt(3.0)).astype(np.float32)
    return rows


class Core:
    """LoRA-SB's r x r core R beside a drawn B: LoRA's B is B R.

    Fed-SB (Singhal et al. 2025, arXiv:2502.15436) trains R between factors that LoRA-SB finds by a
    singular value decomposition of the full weights' first gradient. A device here never has that
    gradient: A is trained in round 1 instead. B has orthogonal columns of length outputs / rank, at
    which an AdamW step on R's r^2 numbers lowers the loss as much, to first order, as one on the
    outputs x r numbers of LoRA's B would.

    Args:
        shapes: Of LoRA's tensors, and of a head's beside them, which are trained as they are.

    Law: `expand` is linear in the trained numbers, and `pull` is its transpose.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._b = dict[str, np.ndarray]()
        for name in (name for name in shapes if name.endswith(LORA_B)):
            rows, rank = shapes[name]
            b = drawn_rows(name, (rank, rows)).T * np.float32(np.sqrt(3.0) * rows / rank)
            self._b[name.removesuffix(LORA_B)] = b

    def first(self, lora: AdapterState) -> AdapterState:
        """The numbers at the start; B R is the B that LoRA's other forms start from."""
        cores = {
            f"{module}{CORE}": np.eye(b.shape[1], dtype=np.float32)
            * np.float32(b.shape[1] / len(b) / np.sqrt(3.0))
            for module, b in self._b.items()
        }
        return cores | {name: one for name, one in lora.items() if not name.endswith(LORA_B)}

    def expand(self, trained: AdapterState) -> AdapterState:
        """LoRA's tensors, float32."""
        found = {name: one for name, one in trained.items() if not name.endswith(CORE)}
        return found | {f"{m}{LORA_B}": b @ trained[m + CORE] for m, b in self._b.items()}

    def pull(self, gradients: AdapterState) -> AdapterState:
        """dL/dR = B^T dL/d(B R)."""
        found = {name: one for name, one in gradients.items() if not name.endswith(LORA_B)}
        return found | {f"{m}{CORE}": b.T @ gradients[m + LORA_B] for m, b in self._b.items()}


class Turns(UpdateStep):
    """One of two factors rests in each round, and is not sent.

    Args:
        form: The adapter's, of `updates.forms.FORMS`.
    """

    name = "turns"

    def __init__(self, form: str) -> None:
        super().__init__()
        self._form = form

    def _rests(self, tensor: str, round_index: int) -> bool:
        is_a_s = round_index == 1 or (self._form == "rolora" and round_index % 2 == 1)
        return is_left(tensor) if is_a_s else tensor.endswith(LORA_A)

    def correct(self, correction: Correction, context: DeviceContext) -> Correction:
        resting = {one for one in correction.received if self._rests(one, context.round_index)}
        return replace(correction, frozen=correction.frozen | resting)

    def outgoing(self, update: Update, context: DeviceContext) -> Update:
        sent = self.shapes(shapes_of(update.delta), context.round_index)
        return replace(update, delta={name: update.delta[name] for name in sent})

    def shapes(self, shapes: Shapes, round_index: int) -> Shapes:
        return {name: one for name, one in shapes.items() if not self._rests(name, round_index)}

    def incoming(
        self, cohort: Iterable[Contribution], context: ServerContext
    ) -> Iterator[Contribution]:
        """With zeros for what rests."""
        resting = {
            name: np.zeros(shape, np.float32)
            for name, shape in context.shapes.items()
            if self._rests(name, context.round_index)
        }
        for one in cohort:
            yield replace(one, delta=one.delta | resting)

    def settled(self, adapter: AdapterState, context: ServerContext) -> AdapterState:
        """After round 1 A = L Q (polar decomposition) is written as Q, and L goes to its left.

        The rows of Q are as long as those of a drawn A. An A that nothing has moved and that gets
        no other turn is drawn, and what stands to its left is zero then: the adapted model is the
        same in both cases.
        """
        after = dict(adapter)
        for name in (name for name in adapter if name.endswith(LORA_A)):
            left, a = left_of(name, adapter), adapter[name].astype(np.float64)
            if not a.any() and self._form != "rolora":
                after[name] = drawn_rows(name, a.shape)
                after[left] = np.zeros_like(adapter[left])
            elif a.any() and context.round_index == 1:
                u, s, v = np.linalg.svd(a, full_matrices=False)
                after[name] = (u @ v / np.sqrt(3.0)).astype(np.float32)
                moved = adapter[left] @ (u * s) @ u.T * np.sqrt(3.0)
                after[left] = moved.astype(np.float32)
        return after
