"""Flower's strategies as means and server optimizers of a run: `mean = "flwr:FedMedian"`.

A strategy gets the models that a cohort's updates lead to, as from Flower's own clients, and its
result is the run's. Settings follow its name: `"flwr:Krum:num_malicious_nodes=2"`,
`optimizer = "flwr:FedAdam:eta=0.1"`. The state of FedAvgM and the adaptive strategies goes through
the run's journal, so a coordinator that is killed continues with it. Flower comes from
`pip install flwr`.
"""

import ast
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from smidgen.coordinator.rounds.learning.memory import Memory
from smidgen.edge_client.errors import WrongInput, demand
from smidgen.edge_client.updates.step import Contribution
from smidgen.edge_client.wire.tensors import AdapterState

WEIGHT = "num-examples"
MEANS = ("FedAvg", "FedMedian", "FedTrimmedAvg", "Krum", "MultiKrum", "Bulyan")
OPTIMIZERS = ("FedAvgM", "FedAdagrad", "FedAdam", "FedYogi")
REMEMBERED = ("momentum_vector", "m_t", "v_t")  # by FedAvgM, which keeps a list; by the adaptive


@dataclass(frozen=True)
class _Reply:
    """As much of a message as strategies look at; Flower makes whole ones in its own runs alone."""

    content: Any

    def has_error(self) -> bool:
        return False


class FlowerMean:
    """The cohort's delta by a strategy that remembers nothing; tried once when it is made.

    Raises:
        WrongInput: See `_maker` and `_trying`.
    """

    def __init__(self, name: str, *settings: str) -> None:
        self._made = _maker(MEANS, name, settings)
        small = [Contribution(f"{n:02d}", {"a": np.full(2, n, np.float32)}, 1.0) for n in range(23)]
        with _trying(name, settings):
            self.mean(small, {"a": np.zeros(2, np.float32)})

    def mean(self, updates: Iterable[Contribution], adapter: AdapterState) -> AdapterState:
        sent = [(_model(adapter, one.delta), one.weight) for one in updates]
        after = _aggregated(self._made(), 1, sent)
        return {name: after[name] - adapter[name] for name in adapter}


class FlowerOptimizer:
    """The server's step by a strategy that remembers earlier rounds; tried once when it is made.

    Raises:
        WrongInput: See `_maker` and `_trying`.
    """

    def __init__(self, name: str, *settings: str) -> None:
        self._made = _maker(OPTIMIZERS, name, settings)
        self.is_scale_free = name != "FedAvgM"
        small = {"a": np.ones(2, np.float32)}
        with _trying(name, settings):
            self.step(small, small, {}, 1, 1)

    def step(
        self,
        adapter: AdapterState,
        mean: AdapterState,
        memory: Memory,
        round_index: int,
        rounds: int,
    ) -> tuple[AdapterState, Memory]:
        """As `ServerOptimizer` has it."""
        chosen = self._made()
        _recall(chosen, adapter, memory)
        after = _aggregated(chosen, round_index, [(_model(adapter, mean), 1.0)])
        changed = {name: after[name].astype(np.float32) for name in adapter}
        return changed, _remembered(chosen, list(adapter))


def _maker(known: Sequence[str], name: str, settings: Sequence[str]) -> Callable[[], Any]:
    """What makes a strategy of Flower's by its name, with what stands behind it.

    Raises:
        WrongInput: Flower is not installed, or it is none of `known`.
    """
    demand(name in known, f"flwr:{name}: one of {', '.join(known)} is expected")
    try:
        from flwr.serverapp import strategy
    except ImportError as error:
        raise WrongInput("a strategy of Flower's wants flwr: pip install flwr") from error
    logging.getLogger("flwr").setLevel(logging.ERROR)  # it tells each aggregate in colours
    kind = getattr(strategy, name)
    return lambda: kind(**dict(map(_setting, settings)))


@contextmanager
def _trying(name: str, settings: Sequence[str]) -> Iterator[None]:
    """Aggregate something small, to see whether the settings will do.

    Raises:
        WrongInput: They will not.
    """
    try:
        yield
    except Exception as error:
        said = " ".join(("with", *settings)) if settings else ""
        raise WrongInput(f"Flower's {name} {said}: {error or type(error).__name__}") from error


def _setting(text: str) -> tuple[str, Any]:
    name, is_, value = text.partition("=")
    demand(bool(is_), f"{text!r}: a setting of a strategy is NAME=VALUE")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def _model(adapter: AdapterState, delta: Mapping[str, np.ndarray]) -> AdapterState:
    return {name: adapter[name].astype(np.float64) + delta[name] for name in adapter}


def _aggregated(
    chosen: Any, round_index: int, models: list[tuple[AdapterState, float]]
) -> AdapterState:
    from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict

    def reply(model: AdapterState, weight: float) -> _Reply:
        arrays = ArrayRecord({name: Array(tensor) for name, tensor in model.items()})
        metrics = MetricRecord({WEIGHT: weight})
        return _Reply(RecordDict({"arrays": arrays, "metrics": metrics}))

    arrays, _ = chosen.aggregate_train(round_index, [reply(*one) for one in models])
    return {name: array.numpy() for name, array in arrays.items()}


def _recall(chosen: Any, adapter: AdapterState, memory: Memory) -> None:
    """Put a fresh strategy where the last round left it."""
    from flwr.app import Array, ArrayRecord

    if hasattr(chosen, "momentum_vector"):
        chosen.current_arrays = ArrayRecord({name: Array(one) for name, one in adapter.items()})
    elif hasattr(chosen, "current_arrays"):
        chosen.current_arrays = {name: one.astype(np.float64) for name, one in adapter.items()}
    for what in REMEMBERED:
        known = {
            name: memory[f"{what}.{name}"].astype(np.float64)
            for name in adapter
            if f"{what}.{name}" in memory
        }
        if known:
            setattr(chosen, what, list(known.values()) if what == "momentum_vector" else known)


def _remembered(chosen: Any, names: list[str]) -> Memory:
    kept: Memory = {}
    for what in REMEMBERED:
        held = getattr(chosen, what, None)
        if held is not None:
            pairs = held.items() if isinstance(held, dict) else zip(names, held, strict=True)
            kept |= {f"{what}.{name}": np.asarray(one, np.float32) for name, one in pairs}
    return kept
