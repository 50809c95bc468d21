"""A card that is not there: a device `card` whose tensors compute on the processor.

Every operation sees which of its tensors lie on the card, so one that mixes the two memories fails
here as it would on CUDA; and the card's bytes are counted. So the torch engine's path for a device
other than the processor is run where there is none, bitsandbytes' call included (its operator is
then computed by its processor kernel). What this does not show: CUDA's own kernels and allocator.

It uses an experimental hook of torch for backends in Python, which is registered for the whole
process; tests run this module as a process of its own:

    python -m tests.edge_client.engine.torch_backend.stand_in_card FOLDER ADAPTER BATCH TOKENS
"""

import json
import os
import sys
import weakref
from collections import Counter
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.spec import AdapterSpec, parse_adapter
from smidgen.edge_client.bases.base import Base, open_base
from smidgen.edge_client.engine.torch_backend.backend import TorchBackend
from smidgen.edge_client.engine.torch_backend.network import Network
from smidgen.edge_client.planning.cuda_memory import estimate
from smidgen.edge_client.planning.plan import Plan, Workload
from smidgen.edge_client.planning.torch_memory import parts
from smidgen.edge_client.texts.batches import Batch
from smidgen.edge_client.wire.training import Training

NAME = "card"
CROSSING = {"aten::_to_copy", "aten::copy_"}  # from one memory to the other
INDEXING = {"aten::index", "aten::index_put", "aten::_index_put_impl_"}  # takes indices from both
WORDS = [[1010], [1020], [1030], [1040]]


class Held:
    """Bytes of the card in use, by storage."""

    def __init__(self) -> None:
        self.now = self.peak = 0
        self._users: Counter[int] = Counter()

    def add(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        place, size = storage.data_ptr(), storage.nbytes()
        if not self._users[place]:
            self.now += size
            self.peak = max(self.peak, self.now)
        self._users[place] += 1
        weakref.finalize(tensor, self._drop, place, size)

    def _drop(self, place: int, size: int) -> None:
        self._users[place] -= 1
        if not self._users[place]:
            self.now -= size


HELD = Held()


class Card(torch.Tensor):
    """A tensor on the card; `numbers` computes for it."""

    numbers: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> "Card":
        made: Card = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device(NAME, 0),
        )
        made.numbers = inner
        HELD.add(inner)
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return compute(func, args, kwargs or {})


class Present(TorchDispatchMode):
    """While it is entered the card is there."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return compute(func, args, kwargs or {})


def compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """One operation, on whichever of the two its tensors lie."""
    name, asked = func._schema.name, kwargs.get("device")
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    cards = [tensor for tensor in tensors if isinstance(tensor, Card)]
    others = [t.shape for t in tensors if not isinstance(t, Card) and t.dim()]
    if cards and others and name not in CROSSING | INDEXING:
        raise RuntimeError(f"{name}: expected all tensors to be on the same device, not {others}")
    if name == "aten::copy_" and len(cards) == 2 and is_same(*cards):
        return args[0]  # a view that was written to; wrapped tensors hide that from torch
    found = func(*tree_map(inside, args), **tree_map(inside, kwargs))
    is_here = bool(cards) if asked is None else torch.device(asked).type == NAME
    if not is_here:
        return found
    known = {id(card.numbers): card for card in cards}

    def outside(value: Any) -> Any:
        is_tensor = isinstance(value, torch.Tensor)
        return known.get(id(value)) or Card(value) if is_tensor else value

    return tree_map(lambda v: known[id(v)] if id(v) in known else outside(v), found)


def inside(value: Any) -> Any:
    if isinstance(value, Card):
        return value.numbers
    return torch.device("cpu") if isinstance(value, torch.device) else value


def is_same(first: Card, second: Card) -> bool:
    return first.numbers.data_ptr() == second.numbers.data_ptr()


# What the tests ask


def random_batch(base: Base, texts: int, tokens: int) -> Batch:
    """Random ids; every row but the first is padded a little."""
    generator = np.random.Generator(np.random.PCG64(3))
    ids = generator.integers(5, base.shape.vocabulary, (texts, tokens))
    attention = np.ones_like(ids)
    for row in range(1, texts):
        attention[row, tokens - min(row, tokens // 2) :] = 0
    ids[attention == 0] = base.shape.pad_id
    where = np.full(texts, 3, np.int64)
    return Batch(ids, attention, where, np.arange(texts, dtype=np.int64) % len(WORDS))


def every_plan(base: Base, texts: int, tokens: int) -> list[Plan]:
    """Kept, recomputed and split, with weights that stay and that are streamed."""
    layers = base.shape.layers
    every = tuple(range(layers))
    ways = [(texts, ()), (texts, every), (max(1, texts // 2), every[: layers // 2])]
    return [
        Plan("float32", rows, again, layers, tokens, is_streamed=is_streamed)
        for rows, again in ways
        for is_streamed in (False, True)
    ]


def opened(base: Base, spec: AdapterSpec, device: str) -> TorchBackend:
    state = initial_adapter(spec, base, len(WORDS), seed=3)
    network = Network(base, spec, state, WORDS, device)
    return TorchBackend(network, Training(lr=0.01))


def work(base: Base, spec: AdapterSpec, batch: Batch, plan: Plan, device: str) -> Any:
    """What a backend gives: two steps' losses, the adapter, log-probabilities, mean states."""
    backend = opened(base, spec, device)
    losses = [backend.step(batch, plan) for _ in range(2)]
    rows, answers = backend.read(batch, plan, None, False)
    found = losses, backend.adapter(), rows, answers, backend.means(batch, 1, plan)
    backend.rest()
    backend.close()
    return found


def is_equal(ours: Any, theirs: Any) -> bool:
    mine, other = tree_leaves(ours), tree_leaves(theirs)
    return all(np.array_equal(a, b) for a, b in zip(mine, other, strict=True))


def peak_bytes(base: Base, spec: AdapterSpec, batch: Batch, plan: Plan) -> int:
    """The card's peak over opening and two steps, measured by counting live storages."""
    HELD.peak = HELD.now
    backend = opened(base, spec, NAME)
    for _ in range(2):
        backend.step(batch, plan)
    backend.close()
    return HELD.peak


def compared(folder: str, adapter: str, texts: int, tokens: int) -> list[dict[str, Any]]:
    """Each plan on the card: whether it gives the processor's numbers, and its bytes."""
    base, spec = open_base(folder), parse_adapter(adapter)
    batch, rows = random_batch(base, texts, tokens), []
    plans = every_plan(base, texts, tokens)
    wanted = [work(base, spec, batch, plan, "cpu") for plan in plans]
    asked = Workload(base.shape, base.bits, spec, texts, tokens, len(WORDS), device="cuda")
    with Present():
        for plan, expected in zip(plans, wanted, strict=True):
            is_like_the_processor = is_equal(work(base, spec, batch, plan, NAME), expected)
            measured = peak_bytes(base, spec, batch, plan)
            told = dict(parts(estimate(asked, plan, 0)))
            row = {"is_equal": is_like_the_processor, "measured": measured, "parts": told}
            rows.append(row | {"left": HELD.now, "is_streamed": plan.is_streamed})
    return rows


def is_mixing_refused() -> bool:
    """Whether the stand-in itself fails where a card would."""
    with Present():
        try:
            torch.ones(2, 2).to(NAME) @ torch.ones(2, 2)
        except RuntimeError:
            return True
    return False


if __name__ == "__main__":
    _setup_privateuseone_for_python_backend(NAME)  # before anything goes backward
    if len(sys.argv) == 1:
        print(json.dumps(is_mixing_refused()))
    else:
        folder, adapter, texts, tokens = sys.argv[1:]
        print(json.dumps(compared(folder, adapter, int(texts), int(tokens))))
    # Torch's thread of such a backend, torn down at the end of Python, aborts now and then.
    sys.stdout.flush()
    os._exit(0)
