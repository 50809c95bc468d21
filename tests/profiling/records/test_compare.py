import json
from dataclasses import replace
from pathlib import Path

import pytest

from smidgen.profiling.records.compare import Comparison, compare
from smidgen.profiling.records.record import Conditions, Figure, Plain, Record, append
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


def said(found: Comparison) -> dict[str, str]:
    return {change.figure: change.verdict for change in found.changes}


def verdicts(before: list[Record], after: list[Record], tolerance: float = 0.05) -> dict[str, str]:
    found = compare(before, after, tolerance)
    return said(found)


SLOW, FAST = (1.0, 1.01, 1.02, 1.03, 1.04), (0.5, 0.51, 0.52, 0.53, 0.54)


def test_better_worse_and_noise_are_told_apart() -> None:
    found = verdicts([record(SLOW)], [record(FAST, peak=120.0)])
    assert found == {"step_s": "better", "texts_per_s": "better", "peak_rss_bytes": "worse"}
    assert verdicts([record(SLOW)], [record((1.0, 1.03, 1.02))])["step_s"] == "noise"


def test_repetitions_that_overlap_are_noise_however_far_their_medians() -> None:
    assert verdicts([record((1.0, 1.5, 3.0))], [record((1.2, 2.0, 2.5))])["step_s"] == "noise"


def test_unlike_machines_are_compared_by_ratios_to_a_peer_of_the_same_session() -> None:
    before = [record(SLOW), record((2.0,) * 5, engine="peft")]
    after = [record(FAST, THERE), record((0.5,) * 5, THERE, engine="peft")]
    found = compare(before, after, 0.05)
    ours = {change.figure: change for change in found.changes}
    assert ours["step_s"].peer == "peft" and ours["step_s"].verdict == "worse"
    assert ours["step_s"].after == pytest.approx(0.52 / 0.5)
    assert "roberta-base, peft: another machine, and it is a peer itself" in found.refused


def test_a_peer_whose_repetitions_spread_makes_a_ratio_noise() -> None:
    after = [record(FAST, THERE), record((0.5,) * 5, THERE, engine="peft")]
    wide = [record(SLOW), record((0.9, 1.9, 2.0, 2.1, 2.2), engine="peft")]
    assert said(compare(wide, after, 0.05))["step_s"] == "noise"
    alone = [record(SLOW), record((2.0,), engine="peft")]
    (change,) = (c for c in compare(alone, after, 0.05).changes if c.figure == "step_s")
    assert change.verdict == "worse" and change.confidence is None


@pytest.mark.parametrize("change", ["killed", "batch", "session"])
def test_a_peer_did_the_same_in_the_same_session_and_ended(change: str) -> None:
    peer = record((2.0,) * 5, engine="peft")
    other = {
        "killed": replace(peer, outcome="killed by the memory cap"),
        "batch": replace(peer, subject=peer.subject | {"batch": 8}),
        "session": replace(peer, session="two"),
    }[change]
    after = [record(FAST, THERE), replace(other, conditions=THERE)]
    assert not compare([record(SLOW), other], after, 0.05).changes


def test_rounds_over_one_distance_are_held_beside_the_peers_over_the_same() -> None:
    def over(rtt_ms: float, who: str, seconds: float, where: Conditions) -> Record:
        figures = {"round_s": Figure((seconds,), "clock")}
        subject: dict[str, Plain] = {"who": who, "rtt_ms": rtt_ms, "clients": 2}
        return Record("wire", subject, figures, where, session="s", is_peer=who != "smidgen")

    def session(where: Conditions) -> list[Record]:
        whos = ("smidgen", "flwr")
        return [over(rtt, who, rtt + 1, where) for rtt in (0.0, 50.0) for who in whos]

    found = compare(session(HERE), session(THERE), 0.05)
    assert [(c.record.name, c.peer, c.after) for c in found.changes] == [
        ("smidgen, 0.0, 2", "flwr", 1),
        ("smidgen, 50.0, 2", "flwr", 1),
    ]


def test_what_no_longer_comes_to_its_end_is_worse() -> None:
    killed = replace(
        record(SLOW), outcome="killed by the memory cap", conditions=replace(HERE, plan={"a": 1})
    )
    assert verdicts([record(SLOW)], [killed]) == {"outcome": "worse"}
    assert verdicts([killed], [record(SLOW)]) == {"outcome": "better"}
    assert not verdicts([killed], [killed])
    elsewhere = compare([record(SLOW)], [replace(killed, conditions=THERE)], 0.05)
    assert not elsewhere.changes and "another machine" in elsewhere.refused[0]


def test_what_is_in_one_file_alone_is_told() -> None:
    found = compare([record(SLOW)], [record(SLOW, engine="torch")], 0.05)
    assert found.refused == (
        "only in BEFORE: roberta-base, onnx (differs in engine)",
        "only in AFTER: roberta-base, torch (differs in engine)",
    )


def test_peers_and_estimates_have_no_say() -> None:
    found = compare([record(FAST, engine="peft")], [record(SLOW, engine="peft")], 0.05)
    assert said(found)["step_s"] == "peer" and not found.is_worse
    few, many = (
        replace(record(SLOW), figures={"peak": Figure((b,), "formula", source="estimated")})
        for b in (1.0, 2.0)
    )
    assert verdicts([few], [many]) == {"peak": "estimated"}


def test_figures_that_cannot_be_compared_are_told() -> None:
    def of(**figures: Figure) -> list[Record]:
        return [replace(record(SLOW), figures=figures)]

    one, none = Figure((1.0,), "clock"), Figure((0.0,), "clock")
    found = compare(of(b=one, c=one, e=none), of(c=Figure((1.0,), "x"), e=none), 0)
    assert found.refused == (
        "roberta-base, onnx, c: measured by clock, then measured by x",
        "roberta-base, onnx, b: only in BEFORE",
    )
    assert said(found) == {"e": "noise"}


@pytest.mark.parametrize(
    ("before", "after", "level", "verdict", "change"),
    [
        (0.0, 5.0, 0.0, "worse", None),  # errors, say
        (5.0, 0.0, 0.0, "better", -1.0),
        (-100.0, 5000.0, 0.0, "worse", 51.0),  # growth, which may be below 0
        (-100.0, -200.0, 0.0, "better", -1.0),
        (-100.0, 5000.0, 5120.0, "noise", 51.0),
        (190.0, 210.0, 512.0, "noise", 20 / 190),
        (190.0, 9000.0, 5120.0, "worse", 8810 / 190),
        (0.0, 100.0, 512.0, "noise", None),
    ],
)
def test_what_grows_from_nothing_or_below_is_worse_by_its_difference(
    before: float, after: float, level: float, verdict: str, change: float | None
) -> None:
    then, now = (
        replace(record(SLOW), figures={"growth_bytes": Figure((value,), "looks", level=level)})
        for value in (before, after)
    )
    (found,) = compare([then], [now], 0.05).changes
    assert found.verdict == verdict
    assert found.change == (None if change is None else pytest.approx(change))


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


def test_the_command_ends_with_1_where_something_is_worse(tmp_path: Path) -> None:
    a, b = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    append(a, [record(FAST)])
    append(b, [record(SLOW)])
    done = smidgen("profile", "compare", str(a), str(b))
    assert done.exit_code == 1 and "+96.2 %" in done.stdout and "worse" in done.stdout
    done = smidgen("profile", "compare", str(b), str(a), "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout.splitlines()[-1])["is_worse"] is False


def test_the_command_ends_with_1_where_something_is_killed(tmp_path: Path) -> None:
    a, b = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    append(a, [record(FAST), record(FAST, engine="torch")])
    append(b, [replace(record(FAST), outcome="killed by the memory cap")])
    done = smidgen("profile", "compare", str(a), str(b))
    assert done.exit_code == 1 and "killed by the memory cap" in done.stdout
    said = "not compared: only in BEFORE: roberta-base, torch (differs in engine)"
    assert said in done.stderr + done.stdout


def test_the_command_warns_where_a_machine_was_busy(tmp_path: Path) -> None:
    a, b = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    append(a, [record(FAST)])
    append(b, [record(FAST, replace(HERE, load_1m=3.0))])
    assert "warning" not in smidgen("profile", "compare", str(a), str(a)).stdout
    assert "3.0 processes per core" in smidgen("profile", "compare", str(a), str(b)).stdout


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
