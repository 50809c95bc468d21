from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.metering.work import LEAST_BYTES, Link
from smidgen.edge_client.updates.codec import EXACT, SOON_S, codec_for
from smidgen.edge_client.updates.settings import Updates
from smidgen.simulation.experiments.experiment import Experiment, ExperimentError
from tests.coordinator.rounds.test_machine import CONFIG

ORDER = [name for name, _ in EXACT]
SIZES, RATES = st.integers(1, 10**10), st.floats(1e-3, 1e12)


@given(SIZES, SIZES, RATES, RATES)
def test_a_slower_link_or_a_larger_adapter_never_gets_a_more_exact_codec(
    size: int, other: int, rate: float, another: float
) -> None:
    smallest = ORDER.index(codec_for(min(size, other), max(rate, another)))
    assert ORDER.index(codec_for(max(size, other), min(rate, another))) >= smallest


@given(SIZES, RATES)
def test_what_auto_takes_is_sent_in_time_unless_nothing_is(size: int, rate: float) -> None:
    share = dict(EXACT)[codec_for(size, rate)]
    assert size * share <= SOON_S * rate or share == EXACT[-1][1]


def test_a_link_that_nobody_has_measured_gets_int8() -> None:
    assert codec_for(1, None) == codec_for(10**9, None) == "int8"


@given(st.lists(st.tuples(st.integers(LEAST_BYTES, 10**9), st.floats(1e-3, 1e6)), min_size=1))
def test_a_links_rate_lies_between_the_slowest_and_the_fastest(
    tmp_path_factory: pytest.TempPathFactory, sent: list[tuple[int, float]]
) -> None:
    link = Link(tmp_path_factory.mktemp("link") / "link.json")
    for size, seconds in sent[:5]:
        link.sent(size, seconds)
    rates = [size / seconds for size, seconds in sent[:5]]
    rate = link.rate()
    assert rate is not None and min(rates) * 0.999 <= rate <= max(rates) * 1.001


def test_a_damaged_file_is_a_link_that_nobody_has_measured(tmp_path: Path) -> None:
    link = Link(tmp_path / "link.json")
    link.sent(LEAST_BYTES - 1, 1.0)  # says nothing of a rate
    assert link.rate() is None
    for body in (b"", b"[]", b"{}", b'{"bytes_per_s": 0}'):
        (tmp_path / "link.json").write_bytes(body)
        assert link.rate() is None
    link.sent(2048, 2.0)
    assert Link(tmp_path / "link.json").rate() == 1024.0


def test_a_simulation_has_no_link_to_measure() -> None:
    assert replace(CONFIG, updates=Updates("auto")).updates.is_coded
    with pytest.raises(ExperimentError, match="up: a codec by name; no link is measured here"):
        Experiment("x", "ag_news", updates=Updates("auto"))
