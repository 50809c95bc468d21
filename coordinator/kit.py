"""Property tests for your own mean, server optimizer or selection policy; ours pass the same.

    from smidgen.coordinator.kit import check_mean

    def test_signs_is_a_mean():
        check_mean(Signs)

It needs hypothesis (`pip install hypothesis`); a law that does not hold ends in an AssertionError,
or in the `PluginError` that would pause a run.
"""

from collections.abc import Callable

import numpy as np
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DataObject, SearchStrategy

from smidgen.coordinator.rounds.extensions import (
    CheckedMean,
    CheckedOptimizer,
    CheckedSelection,
    counted,
)
from smidgen.coordinator.rounds.learning.memory import Memory, decode_memory, encode_memory
from smidgen.coordinator.rounds.learning.optimizers import ServerOptimizer
from smidgen.coordinator.rounds.learning.registry import Mean
from smidgen.coordinator.rounds.scheduling.participation import Heard
from smidgen.coordinator.rounds.selection import Asking, Selection
from smidgen.edge_client.updates.step import Contribution
from smidgen.edge_client.wire.reports import Confidences
from smidgen.edge_client.wire.reports import counted as counted_texts
from smidgen.edge_client.wire.tensors import AdapterState

SHAPES = {"layer.lora_A": (2, 3), "layer.lora_B": (4, 2), "bias": (3,)}
MOST_DEVICES = 12
SHARES = (1.0, 1.0, 0.5, 0.01)
ROUNDING = 1e-3  # of the largest number sent: what the order of a sum may change at most


def check_mean(
    make: Callable[[], Mean],
    least: int = 1,
    is_between: bool = False,
    bears: Callable[[int], int] = lambda devices: 0,
    examples: int = 50,
) -> None:
    """Hold a mean to its laws.

    It gives the adapter's names and shapes, and numbers that can be computed with; it reads the
    updates once, and the order in which they come changes nothing but rounding; equal updates in
    one order give equal bytes, whatever it averaged before. Updates that are longer than a round's
    bound come shortened, as in a run.

    Args:
        make: Makes it, such as its class.
        least: Devices that it needs.
        is_between: Whether each coordinate stays between the least and the largest that was sent.
        bears: Of so many devices, how many hostile ones it bears: with those each coordinate stays
            between what the honest ones sent. For nobody by default.
        examples: Cohorts that are tried.
    """

    @_tried(examples)
    @given(st.data())
    def laws(data: DataObject) -> None:
        adapter = _state(data.draw(_seeds()), 1.0)
        devices = data.draw(st.integers(least, max(MOST_DEVICES, least)))
        hostile = data.draw(st.integers(0, bears(devices)))
        size = data.draw(st.sampled_from((1.0, 1e3, 1e9)))
        seeds = [data.draw(_seeds()) for _ in range(devices)]
        sent = [_state(seed, size if n < hostile else 1.0) for n, seed in enumerate(seeds)]
        cohort = [
            Contribution(
                f"device-{n:02d}",
                one,
                float(data.draw(st.integers(1, 1000))),
                data.draw(st.sampled_from(SHARES)),
            )
            for n, one in enumerate(sent)
        ]
        sent = [counted(one) for one in cohort]
        mean = CheckedMean(make(), "the mean")
        found = mean.mean(iter(cohort), adapter)
        for other in (mean, CheckedMean(make(), "the mean")):
            _assert_equal(found, other.mean(iter(cohort), adapter), "equal updates")
        shuffled = mean.mean(iter(data.draw(st.permutations(cohort))), adapter)
        for name in adapter:
            largest = max(float(np.abs(one[name]).max()) for one in sent)
            is_same = np.abs(found[name] - shuffled[name]).max() <= ROUNDING * largest
            assert bool(is_same), f"{name} depends on the order in which updates come"
        honest = sent[hostile:] if bears(devices) else sent
        for name in adapter if is_between or bears(devices) else ():
            values = np.stack([one[name] for one in honest])
            is_inside = (values.min(0) <= found[name]) & (found[name] <= values.max(0))
            assert bool(is_inside.all()), f"{name} left the range of what was sent"

    laws()


def check_optimizer(make: Callable[[], ServerOptimizer], examples: int = 50) -> None:
    """Hold a server optimizer to its laws.

    It gives the adapter's names and shapes, and numbers that can be computed with. Everything that
    it remembers goes through its arguments and survives as bytes: one that is made anew for each
    round, as after `kill -9`, ends in the same bytes. It begins with an empty memory.

    Args:
        make: Makes it, such as its class.
        examples: Runs that are tried.
    """

    @_tried(examples)
    @given(st.data())
    def laws(data: DataObject) -> None:
        first = _state(data.draw(_seeds()), 1.0)
        rounds = data.draw(st.integers(1, 4))
        means = [_state(data.draw(_seeds()), 0.1) for _ in range(rounds)]
        kept = CheckedOptimizer(make(), "the optimizer")
        one, other = first, first
        memory: Memory = {}
        killed: Memory = {}
        for number, mean in enumerate(means, 1):
            one, memory = kept.step(one, mean, memory, number, rounds)
            anew = CheckedOptimizer(make(), "the optimizer")
            other, killed = anew.step(
                other, mean, decode_memory(encode_memory(killed)), number, rounds
            )
        _assert_equal(one, other, "an optimizer that is made anew for each round")

    laws()


def check_selection(make: Callable[[], Selection], examples: int = 50) -> None:
    """Hold a policy of selection to its laws.

    It chooses among the candidates, which come sorted, at most as many as may be asked, each once;
    somebody where anybody is there, whatever is known of them and whatever they claim. Equal
    arguments give an equal choice, whatever it chose before.

    Args:
        make: Makes it, such as its class.
        examples: Steps that are tried.
    """

    @_tried(examples)
    @given(st.data())
    def laws(data: DataObject) -> None:
        there = data.draw(st.lists(st.text("abcdef", min_size=1), min_size=1, unique=True))
        known = [name for name in there if data.draw(st.booleans())] + ["gone"]
        asking = Asking(
            tuple(there),
            data.draw(st.integers(1, len(there) + 2)),
            str(data.draw(_seeds())),
            data.draw(st.integers(1, 9)),
            data.draw(st.integers(1, 3)),
            {name: data.draw(st.integers(0, 50)) for name in there if data.draw(st.booleans())},
            {name: data.draw(_confidences()) for name in known},
            data.draw(st.sampled_from(((), (0.5, 0.9)))),
            {name: data.draw(_heard()) for name in known},
            {name: data.draw(st.integers(0, 2**53)) for name in known},
            {name: data.draw(_tags()) for name in known},
        )
        policy = CheckedSelection(make(), "the selection")
        chosen = policy.choose(asking)
        assert chosen[0], "nobody was chosen, though somebody is there"
        assert policy.choose(asking) == chosen, "it chose others the second time"
        anew = CheckedSelection(make(), "the selection")
        assert anew.choose(asking) == chosen, "one that is made anew chose others"

    laws()


def _tried(examples: int) -> settings:
    """What fails is told as it was found: a smaller seed is no clearer."""
    phases = (Phase.explicit, Phase.generate)
    return settings(max_examples=examples, deadline=None, database=None, phases=phases)


def _seeds() -> SearchStrategy[int]:
    return st.integers(0, 2**32 - 1)


def _heard() -> SearchStrategy[Heard]:
    """Of devices that trained, were slow, failed, or claim what cannot be."""
    took_s = st.one_of(st.none(), st.floats(0.0, 1e6))
    loss = st.one_of(st.none(), st.floats(0.0, 10.0), st.floats(-3e38, 3e38))
    return st.builds(
        Heard, st.integers(0, 9), st.integers(0, 2**53), took_s, loss, tries=st.integers(0, 3)
    )


def _confidences() -> SearchStrategy[Confidences]:
    sure = st.lists(st.floats(0.0, 1.0), min_size=4, max_size=4)
    return sure.map(lambda of: counted_texts(4, [0, 1, 0, 1], of, 2))


def _tags() -> SearchStrategy[dict[str, str]]:
    return st.dictionaries(st.sampled_from(("site", "language")), st.text("xyz"))


def _state(seed: int, size: float) -> AdapterState:
    draw = np.random.Generator(np.random.PCG64(seed))
    return {
        name: (size * draw.normal(size=shape)).astype(np.float32) for name, shape in SHAPES.items()
    }


def _assert_equal(one: AdapterState, other: AdapterState, said: str) -> None:
    assert all(one[name].tobytes() == other[name].tobytes() for name in one), f"{said}: other bytes"
