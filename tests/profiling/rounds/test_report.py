import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rich")

from smidgen.profiling.rounds.costs import cost_by_round, rounds_table
from tests.command_line import shown, smidgen
from tests.profiling.rounds.test_costs import figure

RUN = [
    figure(0, "evaluate", "a", accuracy=0.5, bytes_down=24_800),
    *(figure(1, "train", name, outcome="failed", error="x") for name in ("b", "c", "d")),
    figure(
        1,
        "train",
        "a",
        bytes_up=24_800,
        bytes_down=130,
        phases_s={"train": 12.3},
        peak_rss_bytes=379 << 20,
    ),
    figure(1, "label", "a", pseudo_labels=7, phases_s={"label": 3.0}),
]


def written(folder: Path, figures: list[dict[str, Any]]) -> str:
    path = folder / "rounds.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in figures))
    return str(path)


def test_label_columns_are_there_where_devices_labelled() -> None:
    costs = cost_by_round([figure(0, "evaluate", "a", accuracy=0.5)])
    labelled = cost_by_round([figure(1, "label", "a", pseudo_labels=7)])
    assert len(rounds_table(costs).rows) == 1
    assert [len(rounds_table(found).columns) for found in (costs, labelled)] == [10, 12]


def test_a_failed_task_is_not_counted_as_a_device(tmp_path: Path) -> None:
    said = smidgen("profile", "rounds", written(tmp_path, RUN)).stdout
    head = said.splitlines()[1].split()
    row = re.search(r"^ +1 .*$", said, re.M)
    assert row is not None and head[4:6] == ["trained", "failed"]
    assert row[0].split()[4:6] == ["1", "3"] and "12.3 s" in row[0]
    assert "24.2 KiB" in row[0] and "379.0 MiB" in row[0]


def test_rounds_are_whole_on_80_columns_and_in_a_pipe(tmp_path: Path) -> None:
    path = written(tmp_path, RUN)
    screen, piped = shown("profile", "rounds", path), smidgen("profile", "rounds", path).stdout
    assert max(map(len, screen.splitlines())) <= 80 and "…" not in screen + piped
    assert "50.0 %" in screen and "peak, labelling are left out to fit; see --json" in screen
    assert "3.00 s" in piped and "kB" not in piped and " MB" not in piped


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("x.txt", "a name that ends in .png or .svg or .pdf or .jsonl is expected"),
        ("none/x.png", "there is no folder"),
        ("", "a name that ends in .png"),
    ],
)
def test_a_picture_that_cannot_be_drawn_is_one_line(tmp_path: Path, name: str, said: str) -> None:
    path = written(tmp_path, RUN)
    done = smidgen("profile", "rounds", path, "--out", str(tmp_path / name))
    assert done.exit_code == 2 and said in done.stderr and done.stdout == ""
    assert done.stderr.count("\n") == 1


def test_a_picture_comes_in_the_format_of_its_name(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = smidgen("profile", "rounds", written(tmp_path, RUN), "--out", str(tmp_path / "x.svg"))
    assert done.exit_code == 0 and "<svg" in (tmp_path / "x.svg").read_text()


FOUND = {"there": [3], "found": [3], "strict": [2], "typed": 2, "partial_halves": 5}


def test_heads_say_what_a_run_goes_by() -> None:
    tagged = rounds_table(cost_by_round([figure(0, "evaluate", "a", accuracy=0.9, entities=FOUND)]))
    assert [column.name for column in tagged.columns][1:3] == ["F1", "median"]
    assert tagged.rows[0][1] == "66.7 %" and "F1 of entities" in tagged.notes[0]
    masked = figure(0, "evaluate", "a", accuracy=0.5, loss=2.0, task="mlm")
    table = rounds_table(cost_by_round([masked]))
    assert [column.name for column in table.columns][1:4] == ["accuracy", "median", "perplexity"]
    assert table.rows[0][1:4] == ["50.0 %", "50.0 %", "7.39"]
