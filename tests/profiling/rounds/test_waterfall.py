import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rich")

from smidgen.edge_client.tables import render
from smidgen.edge_client.wire.reports import Cost, Phase
from smidgen.profiling.rounds.picture import coloured, step_table
from smidgen.profiling.rounds.waterfall import Step, steps_of_round
from tests.command_line import shown, smidgen

TRAIN: dict[Phase, float] = {"wait": 1.0, "download": 0.5, "load": 1.0, "train": 4.0, "upload": 0.5}
SLOW: dict[Phase, float] = TRAIN | {"wait": 60.0, "train": 8.0}


def row(device_id: str, phases_s: dict[Phase, float], **more: Any) -> dict[str, Any]:
    """One line of `rounds.jsonl`."""
    costs = {name.removeprefix("cost_"): more.pop(name) for name in list(more) if "cost_" in name}
    cost = Cost(phases_s=phases_s, peak_rss_bytes=300 << 20, peak_phase="train")
    place = {
        "run_id": "r1",
        "round_index": 1,
        "kind": "train",
        "attempt": 1,
        "device_id": device_id,
    }
    said = {"outcome": "done", "failure": None, "is_late": False, "num_examples": 3, "loss": 1.0}
    return place | said | {"pseudo_labels": 0, "cost": asdict(cost) | costs} | more


ROUND = [
    row("a", TRAIN),
    row("b", SLOW, cost_peak_rss_bytes=400 << 20, cost_peak_phase="load"),
    row("c", TRAIN | {"train": 3.0}),
    row("a", {"wait": 0.1, "evaluate": 2.0}, kind="evaluate", loss=None, accuracy=0.5),
]


def train_step(*rows: dict[str, Any]) -> Step:
    return steps_of_round(rows or ROUND, 1)[0]


def written(folder: Path, rows: list[dict[str, Any]]) -> str:
    path = folder / "rounds.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return str(path)


def test_a_round_is_its_steps_in_their_order() -> None:
    retried = [row("a", TRAIN, attempt=2), row("a", {"label": 1.0}, kind="label")]
    titles = [step.title for step in steps_of_round([*ROUND, *retried], 1)]
    assert titles == [
        "label, before round 1",
        "train, round 1",
        "train, round 1, attempt 2",
        "evaluate, round 1",
    ]


def test_the_straggler_is_who_works_longest_however_long_it_waited() -> None:
    found = train_step(row("a", SLOW), row("b", TRAIN), row("c", TRAIN | {"wait": 99.0}))
    straggler = found.straggler()
    assert straggler is not None and straggler.device_id == "a"
    assert (straggler.behind_s, straggler.phase, straggler.phase_behind_s) == (4.0, "train", 4.0)
    assert straggler.times_median == pytest.approx(10 / 6)


def test_one_device_alone_or_failed_ones_have_no_straggler() -> None:
    assert train_step(row("a", TRAIN)).straggler() is None
    assert train_step(row("a", TRAIN), row("b", SLOW, outcome="failed")).straggler() is None


def test_the_peak_names_its_device_and_phase() -> None:
    peak = train_step().peak
    assert (peak.device_id, peak.peak_phase, peak.peak_rss_bytes) == ("b", "load", 400 << 20)


def test_bars_lie_to_one_scale_from_when_work_was_given() -> None:
    table = step_table(train_step(), 80)
    bars = [line[1] for line in table.rows]
    assert [bar.index("|") for bar in bars] == [6, 6, 6]
    assert bars[0].startswith("<.....|dd") and bars[0].count("t") in range(
        2 * bars[1].count("t") + 2
    )
    assert len(bars[1]) - 7 == pytest.approx((len(bars[0]) - 7) * 6 / 10, abs=1)
    assert "straggler: b, 4.00 s after the next" in table.notes[0]


def test_work_that_took_no_time_has_an_empty_bar() -> None:
    table = step_table(train_step(row("a", {"train": 0.0})), 80)
    assert table.rows[0][1] == "      |"


def test_late_and_failed_devices_are_marked() -> None:
    found = train_step(
        row("a", SLOW, is_late=True), row("b", TRAIN, outcome="failed", failure="memory")
    )
    said = render(step_table(found, 80), 80)
    assert "  late\n" in said and "  failed: memory\n" in said
    assert "memory: the device ran out of memory" in said


def test_a_peak_of_the_process_is_not_told_as_the_works() -> None:
    said = step_table(train_step(row("a", TRAIN, cost_is_peak_of_work=False)), 80).notes
    assert any("of its process's life so far" in note for note in said)


def test_every_phase_has_its_own_colour_and_nothing_else_has() -> None:
    table = render(step_table(train_step(), 80), 80)
    lines = coloured(table).split("\n")
    shades = {span.style for line in lines for span in line.spans}
    assert len(shades) == 5  # waited, download, load, train, upload
    assert all(not line.spans for line in lines if "|" not in line.plain[8:])


def test_many_devices_are_cut_to_the_slowest(tmp_path: Path) -> None:
    rows = [row(f"d{place}", TRAIN | {"train": float(place)}) for place in range(30)]
    table = step_table(steps_of_round(rows, 1)[0], 80)
    assert len(table.rows) == 20 and table.rows[0][0] == "d29"
    assert "and 10 more devices; see --json" in table.notes


def test_a_round_fits_80_columns_and_a_pipe(tmp_path: Path) -> None:
    path = written(tmp_path, ROUND)
    screen = shown("profile", "rounds", path, "--round", "1")
    piped = smidgen("profile", "rounds", path, "--round", "1")
    assert max(map(len, screen.splitlines())) <= 80 and "evaluate, round 1" in screen
    assert piped.exit_code == 0 and "memory peak: 400.0 MiB on b, in load" in piped.stdout


def test_json_holds_every_device_and_the_straggler(tmp_path: Path) -> None:
    said = smidgen("profile", "rounds", written(tmp_path, ROUND), "--round", "1", "--json").stdout
    train, evaluate = json.loads(said)["steps"]
    assert train["straggler"]["device_id"] == "b" and evaluate["straggler"] is None
    assert [piece["work_s"] for piece in train["pieces"]] == [10.0, 6.0, 5.0]


@pytest.mark.parametrize("round_index", ["0", "-1", "9"])
def test_a_round_without_answers_is_one_line(tmp_path: Path, round_index: str) -> None:
    done = smidgen("profile", "rounds", written(tmp_path, ROUND), "--round", round_index)
    assert done.exit_code == 2 and done.stdout == "" and done.stderr.count("\n") == 1
    assert "the file has round 1" in done.stderr


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("ending", "begins"), [("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF")]
)
def test_a_waterfall_is_drawn_in_the_format_of_its_name(
    tmp_path: Path, ending: str, begins: bytes
) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / f"w.{ending}"
    path = written(tmp_path, [*ROUND, row("d", SLOW, is_late=True)])
    done = smidgen("profile", "rounds", path, "--round", "1", "--out", str(out))
    assert done.exit_code == 0, done.stderr
    assert out.read_bytes().startswith(begins)
