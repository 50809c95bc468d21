"""Forms of LoRA whose mean is exact: its two factors take turns, or a core takes B's place.

The mean of LoRA's factors is not the mean of their products B A. It is where one factor is trained
at a time (`edge_client.updates.turns`); then everything linear in an update is exact: FedAvg,
SCAFFOLD, codecs with error feedback. Only what is trained is sent; the engine and PEFT's folder
see plain LoRA. An adapter's name selects one: `lora:8+ffa`.

    form = Core(shapes_of(lora))
    form.expand(trained)                  # LoRA's A and B
    form.pull(gradients)                  # of the trained numbers, by the chain rule
"""

from collections.abc import Collection, Mapping

import numpy as np

from edge_client.wire.seeds import derive_seed
from edge_client.wire.tensors import AdapterState, shapes_of

LORA_A, LORA_B, CORE = ".lora_A.weight", ".lora_B.weight", ".lora_core.weight"
FORMS = ("ffa", "rolora", "core")  # as they stand in an adapter's name


def is_lora(name: str) -> bool:
    """Whether LoRA's own numbers are trained; also where no form is named."""
    return name != "core"


def steps_of(adapter: str) -> tuple[str, ...]:
    """The update steps that a run of an adapter goes through because of its form.

    Args:
        adapter: Its name; of one that is outside the grammar too, such as `full`.
    """
    return tuple(f"turns:{form}" for form in FORMS if form in adapter.split("+"))


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
