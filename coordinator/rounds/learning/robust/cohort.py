"""A cohort's updates side by side, for means that need all of them at each number of the adapter.

They lie in a scratch file without a name (in `$TMPDIR`), 4 bytes for each number of each update; it
is gone when the mean is there, or the process is. What is held in memory is a block of columns at
a time, with what is computed of it at most 32 MiB whatever the cohort, and 12 bytes for each number
of the adapter: the mean in float64, and as what goes on.
"""

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np

from edge_client.updates.step import Contribution
from edge_client.wire.tensors import AdapterState

BLOCK_BYTES = (
    6 << 20
)  # of float64; up to five arrays of its size are held while it is computed with


class Cohort:
    """Updates as rows, in the order of device ids, whatever the order they came in.

    Args:
        rows: `(devices, parameters)`, float32; the updates as they came.
        order: Which row is whose turn.
        adapter: Says the names and shapes.
    """

    def __init__(self, rows: np.ndarray, order: list[int], adapter: AdapterState) -> None:
        self._rows, self._order, self._adapter = rows, order, adapter

    @property
    def devices(self) -> int:
        return len(self._order)

    @property
    def parameters(self) -> int:
        return int(self._rows.shape[1])

    def blocks(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Columns, one part after the other: which, and `(devices, columns)` in float64."""
        width = max(1, BLOCK_BYTES // (8 * self.devices))
        for start in range(0, self.parameters, width):
            columns = slice(start, min(start + width, self.parameters))
            block = np.asarray(self._rows[:, columns], np.float64)
            yield columns, block[self._order] + 0.0  # no -0.0, which sorts as it likes

    def state(self, values: np.ndarray) -> AdapterState:
        """A row of numbers as the adapter's tensors, float32."""
        found, start = {}, 0
        for name in sorted(self._adapter):
            shape, size = self._adapter[name].shape, self._adapter[name].size
            found[name] = values[start : start + size].astype(np.float32).reshape(shape)
            start += size
        return {name: found[name] for name in self._adapter}


@contextmanager
def gathered(updates: Iterable[Contribution], adapter: AdapterState) -> Iterator[Cohort]:
    """All updates, each shortened by its share; each is read once.

    Raises:
        ValueError: No update came, or one has other names or shapes than the adapter.
    """
    ids: list[str] = []
    with tempfile.TemporaryFile(prefix="smidgen-mean-") as file:
        for one in updates:
            _check(one, adapter)
            for name in sorted(adapter):
                tensor = one.delta[name]
                if one.share != 1.0:
                    tensor = np.float64(one.share) * tensor.astype(np.float64)
                file.write(np.ascontiguousarray(tensor, np.float32).tobytes())
            ids.append(one.device_id)
        if not ids:
            raise ValueError("no update to average; a cohort of one or more is expected")
        file.flush()
        order = sorted(range(len(ids)), key=lambda row: ids[row])
        shape = (len(ids), sum(tensor.size for tensor in adapter.values()))
        rows: np.ndarray = np.zeros((len(ids), 0), np.float32)  # which no file can be mapped as
        if shape[1]:
            rows = np.memmap(file, np.float32, "r", shape=shape)
        yield Cohort(rows, order, adapter)


def _check(one: Contribution, adapter: AdapterState) -> None:
    for name in sorted(set(adapter) ^ set(one.delta)):
        raise ValueError(f"tensor {name!r} is not in both adapter and update")
    for name, tensor in one.delta.items():
        if tensor.shape != adapter[name].shape:
            raise ValueError(f"tensor {name!r}: shapes {tensor.shape} and {adapter[name].shape}")
