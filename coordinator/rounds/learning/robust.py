"""Byzantine-robust means: trimmed mean, median, Krum, geometric median.

A few hostile devices cannot move these means far, whatever they send. They follow the norm bound,
which first shortens long updates. Every device has one vote, whatever number of examples it claims;
the order of arrival does not change a byte.

    TrimmedMean(0.2).mean(contributions, adapter)

`Cohort` holds all updates in an unnamed scratch file (in `$TMPDIR`), 4 bytes per number and update,
which disappears with the mean or the process. In memory are one block of columns with its results,
at most 32 MiB whatever the cohort, and 12 bytes per number of the adapter (the mean in float64, and
its float32). `Krum` and `GeometricMedian` add one number per pair of devices, or two per number of
the adapter.
"""

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import ClassVar

import numpy as np

from smidgen.edge_client.errors import Failed, demand
from smidgen.edge_client.updates.step import Contribution
from smidgen.edge_client.wire.tensors import AdapterState

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


LEAST_SHARE = 0.001  # of `trimmed`; less would ask for more devices than a round has
ITERATIONS = 50  # of Weiszfeld; it mostly stops after about twenty
STILL = 1e-6  # times the median distance: a step that short is the last
SMOOTH = 1e-6  # times the median distance: what is nearer counts as that far away


class TooFewError(Failed):
    """A cohort too small for what the mean promises; the round is not taken."""


def _demand_cohort(cohort: Cohort, least: int, name: str) -> None:
    demand(
        cohort.devices >= least,
        f"mean {name} needs {least} updates or more, {cohort.devices} came",
        TooFewError,
    )


@dataclass(frozen=True)
class TrimmedMean:
    """By coordinate, the mean without the largest and the smallest values.

    Yin et al. 2018 (arXiv:1803.01498). floor(share x devices) are left out at each end, as scipy's
    `trim_mean` and flwr's FedTrimmedAvg do. With so many hostile devices or fewer, each coordinate
    stays between the honest devices' least and largest; and no device moves it further than one
    that sends the largest honest value there.

    Attributes:
        share: Left out at each end, 0.001 to below 0.5.
    """

    share: float

    def __post_init__(self) -> None:
        demand(
            LEAST_SHARE <= self.share < 0.5,
            "mean trimmed: a share from 0.001 to below 0.5, as in trimmed:0.2",
        )

    @property
    def least(self) -> int:
        """Devices of which one is left out at each end."""
        return next(n for n in count(int(1.0 / self.share)) if self.cut(n))

    def cut(self, devices: int) -> int:
        """How many are left out at each end."""
        wanted = int(self.share * devices + 1e-9)  # 0.1 x 30 is 3, whatever binary says
        return min(wanted, (devices - 1) // 2)

    def mean(self, updates: Iterable[Contribution], adapter: AdapterState) -> AdapterState:
        with gathered(updates, adapter) as cohort:
            _demand_cohort(cohort, self.least, f"trimmed:{self.share:g}")
            cut = self.cut(cohort.devices)
            values = np.empty(cohort.parameters)
            for columns, block in cohort.blocks():
                values[columns] = np.sort(block, axis=0)[cut : cohort.devices - cut].mean(axis=0)
            return cohort.state(values)


@dataclass(frozen=True)
class Median:
    """By coordinate, the middle value; of an even number the mean of the two middle ones.

    Yin et al. 2018 (arXiv:1803.01498). While fewer than half of the devices are hostile, each
    coordinate stays between the honest devices' least and largest.
    """

    least: ClassVar[int] = 3

    def mean(self, updates: Iterable[Contribution], adapter: AdapterState) -> AdapterState:
        with gathered(updates, adapter) as cohort:
            _demand_cohort(cohort, self.least, "median")
            return cohort.state(_medians(cohort))


@dataclass(frozen=True)
class Krum:
    """The mean of the updates that lie closest to others: of one it is one device's own update.

    Blanchard et al. 2017 (arXiv:1703.02757). An update's score is the sum of the squared distances
    to its devices - hostile - 2 nearest others; those with the lowest are chosen, and of scores
    that only rounding tells apart any. With as many hostile devices as said, or fewer, a chosen
    update lies among the honest ones: no further from one of them than sqrt(devices - hostile - 2)
    times what they are apart. Each pair's distance takes 8 bytes.

    Attributes:
        hostile: f, devices that may be hostile, 1 or more.
        chosen: m, updates that are averaged, without weights; of more than one it is Multi-Krum.
    """

    hostile: int
    chosen: int = 1

    def __post_init__(self) -> None:
        demand(
            self.hostile >= 1, "mean krum: 1 hostile device or more, as in krum:2 or multikrum:2:5"
        )
        demand(self.chosen >= 1, "mean multikrum: 1 chosen update or more, as in multikrum:2:5")

    @property
    def least(self) -> int:
        """2 f + 3 devices, and as many honest ones as are chosen."""
        return max(2 * self.hostile + 3, self.hostile + self.chosen)

    def mean(self, updates: Iterable[Contribution], adapter: AdapterState) -> AdapterState:
        """As `Mean` has it."""
        name = (
            f"krum:{self.hostile}"
            if self.chosen == 1
            else f"multikrum:{self.hostile}:{self.chosen}"
        )
        with gathered(updates, adapter) as cohort:
            _demand_cohort(cohort, self.least, name)
            distances = squared_distances(cohort)
            np.fill_diagonal(distances, np.inf)
            near = cohort.devices - self.hostile - 2
            scores = np.sort(distances, axis=1)[:, :near].sum(axis=1)
            rows = np.sort(np.argsort(scores, kind="stable")[: self.chosen])
            values = np.empty(cohort.parameters)
            for columns, block in cohort.blocks():
                values[columns] = block[rows].mean(axis=0)
            return cohort.state(values)


@dataclass(frozen=True)
class GeometricMedian:
    """The point whose distances to all updates have the smallest sum.

    Pillutla et al. 2022 (arXiv:1912.13445), by the smoothed Weiszfeld algorithm from the median by
    coordinate on: at most 50 steps, always the same number for the same updates. With f < n / 2
    hostile devices it stays within 2 (n - f) / (n - 2 f) times the honest updates' radius of their
    centre, and between the least and the largest of all updates in each coordinate.
    """

    least: ClassVar[int] = 3

    def mean(self, updates: Iterable[Contribution], adapter: AdapterState) -> AdapterState:
        """As `Mean` has it."""
        with gathered(updates, adapter) as cohort:
            _demand_cohort(cohort, self.least, "geometric")
            middle = _medians(cohort)
            for _ in range(ITERATIONS):
                squares = np.zeros(cohort.devices)
                for columns, block in cohort.blocks():
                    squares += np.square(block - middle[columns]).sum(axis=1)
                distances = np.sqrt(squares)
                usual = float(np.median(distances))
                if not usual:
                    break  # half of them are the same update
                weights = 1.0 / np.maximum(distances, SMOOTH * usual)
                weights /= weights.sum()
                moved = 0.0
                for columns, block in cohort.blocks():
                    # Not a matrix product: how that sums hangs on the machine's threads.
                    step = (weights[:, None] * (block - middle[columns])).sum(axis=0)
                    middle[columns] += step
                    moved += float(np.square(step).sum())
                if moved**0.5 <= STILL * usual:
                    break
            return cohort.state(middle)


def squared_distances(cohort: Cohort) -> np.ndarray:
    """`(devices, devices)`, each update's squared distance to each other; never below 0."""
    products = np.zeros((cohort.devices, cohort.devices))
    for _, block in cohort.blocks():
        products += block @ block.T
    squares = np.diag(products)
    return np.maximum(squares[:, None] + squares[None, :] - 2.0 * products, 0.0)


def _medians(cohort: Cohort) -> np.ndarray:
    values = np.empty(cohort.parameters)
    low, high = (cohort.devices - 1) // 2, cohort.devices // 2
    for columns, block in cohort.blocks():
        ordered = np.sort(block, axis=0)
        values[columns] = (ordered[low] + ordered[high]) / 2.0
    return values
