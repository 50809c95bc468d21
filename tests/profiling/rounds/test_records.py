import json
from pathlib import Path

from smidgen.profiling.records.record import Conditions, Figure, Record, read_records, to_line
from tests.command_line import smidgen
from tests.profiling.rounds.test_costs import figure


def test_a_runs_rounds_become_records_that_can_be_compared(tmp_path: Path) -> None:
    rows = [
        figure(
            1,
            "train",
            name,
            phases_s={"train": seconds, "wait": 9.0},
            peak_rss_bytes=100,
            bytes_up=10,
        )
        for name, seconds in (("a", 1.0), ("b", 3.0))
    ]
    rows.append(figure(1, "train", "c", outcome="failed"))
    (tmp_path / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "records.jsonl"
    assert smidgen("profile", "rounds", str(tmp_path / "rounds.jsonl"), "--out", str(out))
    (found,) = read_records(out).records
    assert found.subject == {"round": 1, "work": "train"}
    assert found.figures["train_s"].values == (1.0, 3.0)
    assert found.figures["up_bytes"].instrument == "TCP_INFO"
    assert "wait_s" not in found.figures
    assert found.conditions.machine == {"run_id": "r1", "devices": ["a", "b"]}
    done = smidgen("profile", "compare", str(out), str(out))
    assert done.exit_code == 0 and "noise" in done.stdout


def test_two_runs_are_compared_when_they_are_said_to_be_alike(tmp_path: Path) -> None:
    for run_id in ("r1", "r2"):
        row = figure(1, "train", "a", run_id=run_id, phases_s={"train": 1.0})
        (tmp_path / "rounds").write_text(json.dumps(row) + "\n")
        out = str(tmp_path / f"{run_id}.jsonl")
        assert smidgen("profile", "rounds", str(tmp_path / "rounds"), "--out", out).exit_code == 0
    both = [str(tmp_path / "r1.jsonl"), str(tmp_path / "r2.jsonl")]
    done = smidgen("profile", "compare", *both)
    assert done.exit_code == 2 and "another machine" in done.stderr
    assert smidgen("profile", "compare", *both, "--across", "machine").exit_code == 0


def test_what_holds_no_records_of_rounds_is_not_replaced(tmp_path: Path) -> None:
    figures, out = tmp_path / "figures.jsonl", tmp_path / "records.jsonl"
    figures.write_text(json.dumps(figure(1, "train", "a")) + "\n")
    soak = Record("soak", {}, {"round_s": Figure((1.0,), "clock")}, Conditions({}, {}))
    (tmp_path / "soak.jsonl").write_text(to_line(soak) + "\n")
    (tmp_path / "notes.jsonl").write_text("mine\n")
    for name in ("figures", "soak", "notes"):
        other = tmp_path / f"{name}.jsonl"
        held = other.read_bytes()
        done = smidgen("profile", "rounds", str(figures), "--out", str(other))
        assert done.exit_code == 2 and "name another file" in done.stderr, done.stderr
        assert done.stderr.count("\n") == 1 and other.read_bytes() == held
    for _ in range(2):  # its own are replaced
        assert smidgen("profile", "rounds", str(figures), "--out", str(out)).exit_code == 0
        assert len(read_records(out).records) == 1


def test_one_round_is_no_record(tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").write_text(json.dumps(figure(1, "train", "a")) + "\n")
    out = str(tmp_path / "x.jsonl")
    done = smidgen("profile", "rounds", str(tmp_path / "r.jsonl"), "--round", "1", "--out", out)
    assert done.exit_code == 2 and ".png" in done.stderr
