import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.planning.budget import KEPT, Corrections, Key, Peak, corrected
from smidgen.edge_client.planning.plan import Plan
from tests.edge_client.engine.plans import MIB, large, options_of

KEY = Key("b" * 64, "torch", "lora:8@q,v", "float32")
PLAN = Plan("float32", 4, (0, 1), 24, 256)
OTHER = replace(PLAN, micro_batch=2)
SIZES = st.integers(1, 1 << 40)
PLANS = st.builds(
    Plan, st.just("float32"), st.integers(1, 9), st.just((0,)), st.integers(1, 3), st.just(64)
)
PEAKS = st.lists(st.builds(Peak, PLANS, SIZES, SIZES), max_size=12)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "corrections.json"


def predict(corrections: Corrections, plan: Plan, size: int, key: Key = KEY) -> int:
    return corrections.corrector(key.base_id, key.engine, key.adapter)(plan, size)


def test_a_device_that_measured_nothing_predicts_by_formula(path: Path) -> None:
    assert predict(Corrections(path), PLAN, 400 * MIB) == 400 * MIB
    assert not path.exists()


@given(PEAKS, SIZES, SIZES)
def test_a_recorded_plan_is_predicted_as_it_was_measured(
    tmp_path_factory: pytest.TempPathFactory, before: list[Peak], estimated: int, measured: int
) -> None:
    path = tmp_path_factory.mktemp("state") / "corrections.json"
    corrections = Corrections(path)
    for peak in before[:3]:
        corrections.record(KEY, peak.plan, peak.estimated_bytes, peak.measured_bytes)
    corrections.record(KEY, PLAN, estimated, measured)
    for device in (corrections, Corrections(path)):
        assert predict(device, PLAN, estimated) == measured


def test_every_real_option_is_predicted_as_measured(path: Path) -> None:
    corrections = Corrections(path)
    for option in options_of(large())[:5]:
        key, measured = replace(KEY, dtype=option.plan.dtype), option.memory.total * 11 // 10
        corrections.record(key, option.plan, option.memory.total, measured)
        assert predict(corrections, option.plan, option.memory.total) == measured


def test_other_plans_move_by_the_largest_difference(path: Path) -> None:
    corrections = Corrections(path)
    corrections.record(KEY, PLAN, 400 * MIB, 430 * MIB)
    corrections.record(KEY, OTHER, 300 * MIB, 310 * MIB)
    assert predict(corrections, replace(PLAN, micro_batch=1), 200 * MIB) == 230 * MIB
    assert predict(corrections, OTHER, 300 * MIB) == 310 * MIB


def test_one_wild_peak_moves_others_within_bounds() -> None:
    assert corrected([Peak(PLAN, MIB, 1 << 40)], OTHER, 100 * MIB) == 200 * MIB
    assert corrected([Peak(PLAN, 1 << 40, MIB)], OTHER, 100 * MIB) == 75 * MIB


@given(PEAKS, PLANS, SIZES)
def test_a_prediction_is_always_above_zero(peaks: list[Peak], plan: Plan, size: int) -> None:
    assert corrected(peaks, plan, size) >= 1


def test_a_newer_peak_takes_the_older_ones_place(path: Path) -> None:
    corrections = Corrections(path)
    for measured in (900, 500):
        corrections.record(KEY, PLAN, 400, measured)
    assert predict(corrections, PLAN, 400) == 500
    assert predict(corrections, OTHER, 1000) == 1100


@pytest.mark.parametrize("name", ["base_id", "engine", "adapter", "dtype"], ids="another {}".format)
def test_what_is_not_comparable_is_left_alone(path: Path, name: str) -> None:
    corrections = Corrections(path)
    corrections.record(KEY, PLAN, 400, 800)
    other = replace(KEY, **{name: "another"})
    assert predict(corrections, replace(PLAN, dtype=other.dtype), 400, other) == 400


def test_only_recent_peaks_are_kept(path: Path) -> None:
    corrections = Corrections(path)
    corrections.record(KEY, PLAN, 100, 200)
    for tokens in range(KEPT):
        corrections.record(KEY, replace(PLAN, tokens=tokens + 1), 100, 110)
    assert predict(Corrections(path), OTHER, 100) == 110
    assert len(json.loads(path.read_text())["peaks"][str(KEY)]) == KEPT


def with_peak(micro_batch: str, measured: str) -> bytes:
    """A file with one peak, these two numbers as written."""
    plan = f'{{"dtype":"float32","micro_batch":{micro_batch},"recompute":[],"depth":1,"tokens":1}}'
    peak = f'{{"plan":{plan},"estimated_bytes":1,"measured_bytes":{measured}}}'
    return f'{{"schema":1,"peaks":{{"k":[{peak}]}}}}'.encode()


DAMAGED = {
    "empty": b"",
    "cut": b"{",
    "a list": b"[]",
    "nothing": b"null",
    "no text": b"\xff\xfe",
    "newer": b'{"schema": 2, "peaks": {}}',
    "without peaks": b'{"schema": 1}',
    "an empty peak": b'{"schema": 1, "peaks": {"k": [{}]}}',
    "a number for peaks": b'{"schema": 1, "peaks": {"k": 7}}',
    "infinite": with_peak("Infinity", "1"),
    "no number": with_peak("NaN", "1"),
    "negative": with_peak("1", "-1"),
    "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("body", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_file_is_forgotten_with_a_warning(
    path: Path, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_bytes(body)
    with caplog.at_level(logging.WARNING):
        corrections = Corrections(path)
    assert "is damaged" in caplog.text and predict(corrections, PLAN, 400) == 400
    corrections.record(KEY, PLAN, 400, 500)
    assert predict(Corrections(path), PLAN, 400) == 500


def test_a_whole_file_is_read_without_a_word(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.write_bytes(with_peak("1", "1"))
    Corrections(path)
    assert not caplog.text


def test_a_peak_of_nothing_is_refused(path: Path) -> None:
    with pytest.raises(ValueError, match="a peak above 0 is expected, not 0 bytes"):
        Corrections(path).record(KEY, PLAN, 400, 0)
    assert not path.exists()
