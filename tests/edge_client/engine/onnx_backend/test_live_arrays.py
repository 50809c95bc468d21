"""Which arrays of a step are alive when, checked by somebody who knows nothing of plans.

Arrays of one name share a room, and so do registers whose values are dead. Here a name gets a room
of its own each time that it is taken, with what lay in the one before: where nothing is read after
it was overwritten, and nothing written for whoever holds the older array, a step gives the same
bytes.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import Base, open_base
from smidgen.edge_client.bases.packing import pack_model
from smidgen.edge_client.engine.onnx_backend.network import Network
from smidgen.edge_client.engine.onnx_backend.workspace import BufferPool
from smidgen.edge_client.planning.plan import Plan
from smidgen.edge_client.texts.batches import Batch
from tests.breadth import covering
from tests.families import DECODERS, FAMILIES, LAYERS, write_family

TEXTS, TOKENS = 3, 24
WHOLE = Plan("float32", TEXTS, (), LAYERS, TOKENS)
PLANS = [
    WHOLE,
    replace(WHOLE, recompute=(0, 1, 2), is_sliced=True),
    replace(WHOLE, micro_batch=2, recompute=(1,), depth=2),
    replace(WHOLE, recompute=(0, 1), is_kept_in_half=True),
    replace(WHOLE, recompute=(0, 1, 2), is_spilled=True, is_sliced=True),
    replace(WHOLE, depth=1, micro_batch=1),
]
ADAPTERS = ["lora:2", "lora:2@q,o,up,down", "bias", "prompt:3"]


class Apart(BufferPool):
    """No array lies where another one lay."""

    def take(self, name: str, shape: Sequence[int], dtype: Any = np.float32) -> np.ndarray:
        if (before := self._rooms.get(name)) is not None:
            self._rooms[name] = before.copy()
        return super().take(name, shape, dtype)


class Shared(BufferPool):
    """Two gradients that live together share a room."""

    def take(self, name: str, shape: Sequence[int], dtype: Any = np.float32) -> np.ndarray:
        return super().take("k_g" if name == "v_g" else name, shape, dtype)


class SharedApart(Shared, Apart):
    """The same, each time apart."""


@pytest.fixture(scope="module")
def bases(tiny_base: Base, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Base]:
    pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("families")
    found = {}
    for name in FAMILIES:
        write_family(name, tiny_base, folder / name)
        pack_model(str(folder / name), 4, folder / f"{name}-4")
        found[name] = open_base(str(folder / f"{name}-4"))
    return found


def gradients(base: Base, adapter: str, plan: Plan, pool: BufferPool) -> dict[str, bytes]:
    """Those of two steps on a pack of 4 bits, of all words where the base is a decoder."""
    spec, draw = parse_adapter(adapter), np.random.Generator(np.random.PCG64(0))
    state = initial_adapter(spec, base, 2, seed=0)
    state = {n: x + draw.normal(0, 0.1, x.shape).astype(np.float32) for n, x in state.items()}
    is_decoder = base.architecture in DECODERS
    network = Network(base, spec, state, None if is_decoder else [[5], [6]], 2)
    network._bench.rooms = pool
    ids, attention = draw.integers(3, 60, (TEXTS, TOKENS)), np.ones((TEXTS, TOKENS), np.int64)
    attention[1, 17:] = 0
    batch = Batch(ids, attention, np.full(TEXTS, 4), np.arange(TEXTS) % 2)
    if is_decoder:
        of = np.repeat(np.arange(TEXTS), 5)
        places = np.tile(np.arange(5, 10), TEXTS)
        batch = replace(batch, mask_positions=places, labels=ids[of, places + 1], texts=of)
    found = [network.backward(batch, plan) for _ in range(2)]
    network.close()
    return {f"{n} {name}": x.tobytes() for n, one in enumerate(found) for name, x in one[1].items()}


@pytest.mark.parametrize(("family", "plan"), covering(FAMILIES, PLANS))
def test_no_array_is_read_after_another_took_its_place(
    bases: dict[str, Base], family: str, plan: Plan
) -> None:
    adapter = ADAPTERS[(FAMILIES.index(family) + PLANS.index(plan)) % len(ADAPTERS)]
    if adapter == "bias" and family in DECODERS:  # most of which have none
        adapter = "lora:2"
    one, other = (gradients(bases[family], adapter, plan, pool) for pool in (BufferPool(), Apart()))
    assert one == other
    has_any = any(np.frombuffer(x, np.float32).any() for x in one.values())
    assert has_any or (adapter.startswith("prompt") and plan.depth < LAYERS)  # which it lies below


def test_two_that_live_together_in_one_room_are_found_out(bases: dict[str, Base]) -> None:
    one, other = (
        gradients(bases["roberta"], "lora:2", WHOLE, pool) for pool in (Shared(), SharedApart())
    )
    assert one != other
