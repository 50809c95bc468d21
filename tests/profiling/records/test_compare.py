import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiling.records.compare import compare, confidence_apart
from profiling.records.file import append
from profiling.records.record import Conditions, Figure, Plain, Record
from tests.command_line import smidgen

HERE = Conditions({"processor": "A", "instruction_sets": ["avx2"]}, {"numpy": "2.1"}, "base")
THERE = replace(HERE, machine={"processor": "B", "instruction_sets": ["avx512f"]})


def record(
    seconds: tuple[float, ...],
    conditions: Conditions = HERE,
    engine: str = "onnx",
    peak: float = 100.0,
    session: str = "one",
) -> Record:
    figures = {
        "step_s": Figure(seconds, "clock"),
        "peak_rss_bytes": Figure((peak,), "VmHWM"),
        "texts_per_s": Figure(tuple(1 / one for one in seconds), "clock", "higher"),
    }
    subject: dict[str, Plain] = {"base": "roberta-base", "engine": engine}
    return Record("train", subject, figures, conditions, session=session, is_peer=engine == "peft")


def verdicts(before: list[Record], after: list[Record], tolerance: float = 0.05) -> dict[str, str]:
    found = compare(before, after, tolerance)
    return {change.figure: change.verdict for change in found.changes}


SLOW, FAST = (1.0, 1.01, 1.02), (0.5, 0.51, 0.52)


def test_better_worse_and_noise_are_told_apart() -> None:
    found = verdicts([record(SLOW)], [record(FAST, peak=120.0)])
    assert found == {"step_s": "better", "texts_per_s": "better", "peak_rss_bytes": "worse"}
    assert verdicts([record(SLOW)], [record((1.0, 1.03, 1.02))])["step_s"] == "noise"


def test_repetitions_that_overlap_are_noise_however_far_their_medians() -> None:
    assert verdicts([record((1.0, 1.5, 3.0))], [record((1.2, 2.0, 2.5))])["step_s"] == "noise"


def test_unlike_machines_are_compared_by_ratios_to_a_peer_of_the_same_session() -> None:
    before = [record(SLOW), record((2.0, 2.0, 2.0), engine="peft")]
    after = [record(FAST, THERE), record((0.5, 0.5, 0.5), THERE, engine="peft")]
    found = compare(before, after, 0.05)
    ours = {c.figure: c for c in found.changes if not c.record.is_peer}
    assert ours["step_s"].peer == "peft" and ours["step_s"].verdict == "worse"
    assert ours["step_s"].after == pytest.approx(0.51 / 0.5)


def test_unlike_machines_without_a_peer_are_refused_with_the_reason() -> None:
    found = compare([record(SLOW)], [record(FAST, THERE)], 0.05)
    assert not found.changes
    assert found.refused == (
        "roberta-base, onnx: another machine, and no peer was measured beside both",
    )


@pytest.mark.parametrize("name", ["base_id", "seed", "isa", "plan"])
def test_what_must_agree_is_named_and_may_be_waived(name: str) -> None:
    other = {"base_id": "x", "seed": 9, "isa": "avx2", "plan": {"dtype": "float32"}}
    changed = replace(HERE, **{name: other[name]})  # type: ignore[arg-type]
    found = compare([record(SLOW)], [record(FAST, changed)], 0.05)
    assert found.refused == (f"roberta-base, onnx: another {name}",)
    assert compare([record(SLOW)], [record(FAST, changed)], 0.05, [name]).changes


def test_load_may_differ() -> None:
    assert verdicts([record(SLOW)], [record(FAST, replace(HERE, load_1m=3.0))])


numbers = st.lists(st.floats(0.1, 10), min_size=2, max_size=8)


@given(numbers, numbers)
def test_swapping_the_sets_changes_no_confidence(a: list[float], b: list[float]) -> None:
    found = confidence_apart(a, b)
    assert found is not None and 0.5 <= found <= 1
    assert found == pytest.approx(confidence_apart(b, a) or 0, abs=0.03)


def test_three_beside_three_just_reach_it() -> None:
    assert confidence_apart([1, 2, 3], [4, 5, 6]) == pytest.approx(0.95)
    assert confidence_apart([1, 2, 3], [2.5, 5, 6]) == pytest.approx(0.90)
    assert confidence_apart([1], [4, 5, 6]) is None


def test_the_command_ends_with_1_where_something_is_worse(tmp_path: Path) -> None:
    a, b = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    append(a, [record(FAST)])
    append(b, [record(SLOW)])
    done = smidgen("profile", "compare", str(a), str(b))
    assert done.exit_code == 1 and "+98.0 %" in done.stdout and "worse" in done.stdout
    done = smidgen("profile", "compare", str(b), str(a), "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout.splitlines()[-1])["is_worse"] is False


def test_files_that_cannot_be_compared_are_refused_in_one_line(tmp_path: Path) -> None:
    a, b = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    append(a, [record(FAST)])
    append(b, [record(SLOW, THERE)])
    done = smidgen("profile", "compare", str(a), str(b))
    assert (
        done.exit_code == 2
        and "cannot be compared: roberta-base, onnx: another machine" in done.stderr
    )
    b.write_text("{}\n")
    done = smidgen("profile", "compare", str(a), str(b))
    assert done.exit_code == 2 and "line 1: not a record of smidgen profile" in done.stderr
