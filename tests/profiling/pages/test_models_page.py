import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("jinja2")

from edge_client.tables import size
from profiling.estimates.rates import Rates
from profiling.models.boards import placed
from profiling.models.cell import GIB, Cell, Proof
from profiling.models.report import title
from profiling.pages import markdown
from profiling.pages.answers import answer, bases, grid, latest, settings
from profiling.pages.charts import label_chart, memory_chart, round_steps, step_chart
from profiling.pages.elsewhere import elsewhere, work_of
from profiling.pages.models_page import write_pages
from profiling.pages.sheets import all_cells, beside_the_paper
from tests.profiling.pages.made_up import CONDITIONS, RATES, cell, cells

HOSTILE = '<script>alert("x")</script>|`*'
HOSTILE_BASE = "<img src=x onerror=alert(1)>|`*[x](y)"  # without a slash, so that it stays whole


@pytest.fixture
def pages(tmp_path: Path) -> dict[str, str]:
    paths = write_pages(cells(), [CONDITIONS], tmp_path / "out")
    return {path.name: path.read_text() for path in paths}


def test_four_files_hold_the_table(pages: dict[str, str]) -> None:
    assert set(pages) == {"models.html", "models.md", "models.csv", "models.json"}
    found = json.loads(pages["models.json"])
    assert len(found["measured"]) == len(cells())
    rows = list(csv.DictReader(io.StringIO(pages["models.csv"])))
    assert len(rows) == len(cells()) and rows[0]["base"] == "albert-base"
    assert float(rows[0]["steps_s_median"]) > 0


def test_what_is_not_available_is_never_zero(pages: dict[str, str]) -> None:
    refused = [row for row in csv.DictReader(io.StringIO(pages["models.csv"])) if not row["dtype"]]
    assert refused and {row["peak_rss_bytes"] for row in refused} == {""}
    assert "Energy per step: not available here" in pages["models.html"]


def test_the_page_asks_no_other_host_for_anything(pages: dict[str, str]) -> None:
    assert not re.findall(r"https?://|@import|url\(", pages["models.html"])
    assert "default-src 'none'" in pages["models.html"]


def test_names_from_outside_are_escaped(tmp_path: Path) -> None:
    mine = replace(cell("bert-base", "onnx", "512M"), base=HOSTILE_BASE)
    refused = replace(mine, method="torch", outcome=HOSTILE, steps_s=(), budget=HOSTILE)
    hostile = replace(CONDITIONS, machine={"processor": HOSTILE}, versions={HOSTILE: HOSTILE})
    paths = {path.suffix: path for path in write_pages([mine, refused], [hostile], tmp_path)}
    html, text = paths[".html"].read_text(), paths[".md"].read_text()
    assert "<script>alert" not in html + text and "<img" not in html + text
    assert text.splitlines()[2].startswith("The largest base") and "[x](y)" not in text
    assert html.count("<script>") == 1  # the page's own
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in table if "alert" in line}) <= 3


def test_markdown_says_a_hostile_name_in_full() -> None:
    assert "&#60;script&#62;" in markdown.escaped("<script>") and "|" not in markdown.escaped("a|b")


def test_prose_of_the_markdown_is_at_most_100_columns_wide(pages: dict[str, str]) -> None:
    lines = pages["models.md"].splitlines()
    assert [line for line in lines if len(line) > 100 and not line.startswith("|")] == []


def test_the_fastest_that_is_proved_to_fit_is_named() -> None:
    slow = replace(cell("bert-base", "onnx", "256M"), steps_s=(9.0,))
    fast = replace(cell("bert-base", "torch", "8G"), steps_s=(1.0,), board_bytes=2 * GIB)
    proved = replace(fast, proofs=(Proof(2 * GIB, True, "done", GIB),))
    assert answer([slow, proved], "bert-base", GIB).cell == slow
    assert answer([slow, proved], "bert-base", 2 * GIB).cell == proved


def test_a_peak_alone_proves_nothing() -> None:
    quick = replace(cell("bert-base", "torch", "8G"), steps_s=(1.0,), proofs=())
    sure = replace(cell("bert-base", "onnx", "8G"), steps_s=(2.0,))
    assert answer([quick, sure], "bert-base", 8 * GIB).cell == sure
    assert answer([quick], "bert-base", 8 * GIB).why == "unproved"
    unlimited = replace(sure, proofs=(Proof(GIB, True, "done, without a limit", None),))
    assert answer([unlimited], "bert-base", 8 * GIB).why == "unproved"


def test_without_a_hard_group_nothing_is_said_not_to_fit(tmp_path: Path) -> None:
    bare = [placed(replace(one, proofs=()), None) for one in cells() if one.is_done]
    assert {one.why for row in grid(bare) for one in row} == {"unproved"}
    paths = {path.suffix: path for path in write_pages(bare, [CONDITIONS], tmp_path)}
    for name in (".html", ".md"):
        text = paths[name].read_text()
        assert "not proved" in text and "does not fit" not in text


def test_a_base_that_fits_nothing_and_one_not_measured_are_told_apart() -> None:
    too_large = Proof(8 * GIB, False, "killed by the memory cap", 8 * GIB)
    large = replace(cell("bert-large", "full"), board_bytes=None, proofs=(too_large,))
    killed = Cell("bert-base", "full", outcome="killed by the memory cap")
    assert answer([large], "bert-large", GIB).why == "none"
    assert answer([killed], "bert-base", GIB).why == "unmeasured"


def test_of_a_cell_measured_twice_the_last_counts() -> None:
    first = cell("bert-base", "onnx", "8G")
    again = replace(first, steps_s=(5.0, 5.0))
    assert latest([first, again]) == [again]


def test_bases_stand_by_their_size_and_settings_apart() -> None:
    held = replace(cell("roberta-large", "onnx", "8G"), isa="avx2")
    assert bases([held, *cells(("albert-base",))]) == ["albert-base", "roberta-large"]
    assert [one.isa for one in settings([held, *cells(("albert-base",))])] == ["", "avx2"]


def test_boards_that_are_not_here_have_columns_of_their_own() -> None:
    sheet = elsewhere(cells(), RATES)
    assert sheet is not None
    assert [kind for kind, _ in sheet.kinds] == ["", "measured here", "estimated, seconds per step"]
    assert sum(width for _, width in sheet.kinds) == len(sheet.columns)
    assert {row[0].text for row in sheet.rows} == set(bases(cells()))


def test_a_step_above_the_roof_is_left_out_and_told() -> None:
    slow = Rates(RATES.flops_per_s / 1000, RATES.bytes_per_s)
    sheet = elsewhere(cells(("bert-base",)), slow)
    assert sheet is not None and not sheet.rows
    assert "Left out: bert-base." in sheet.notes[-1]


def test_records_of_another_machine_are_counted_on_the_page(tmp_path: Path) -> None:
    for path in write_pages(cells(("bert-base",)), [CONDITIONS], tmp_path, left_out=3)[:2]:
        assert "3 of another machine left out" in path.read_text()


def test_nothing_is_estimated_without_a_plan_in_float32() -> None:
    assert elsewhere([cell("bert-base", "nf4"), cell("bert-base", "peft")], RATES) is None
    assert work_of(replace(cell("bert-base", "onnx", "8G"), base="no-such-folder")) is None


def test_published_and_measured_figures_have_columns_of_their_own() -> None:
    sheet = beside_the_paper(cells())
    assert sheet is not None
    assert [kind for kind, _ in sheet.kinds] == ["", "measured here", "published, TX2 8 GB"]
    assert sum(width for _, width in sheet.kinds) == len(sheet.columns)
    large = next(row for row in sheet.rows if row[0].text == "roberta-large")
    assert [entry.text for entry in large[-2:]] == ["OOM (10.4)", "~8.1"]


def test_cells_of_two_settings_are_told_apart_and_one_stands_for_a_base(tmp_path: Path) -> None:
    large = cell("roberta-base", "onnx", "512M")
    small = replace(large, batch=1, tokens=32, peak_rss_bytes=9 << 20, steps_s=(0.25, 0.25))
    pages = write_pages([large, cell("bert-base", "onnx", "8G"), small], [CONDITIONS], tmp_path)
    text = next(path for path in pages if path.suffix == ".md").read_text()
    beside = text[text.index("Beside the published table") :].split("\n## ", 1)[0]
    assert f"| {size(9 << 20)} |" not in beside and f"| {size(large.peak_rss_bytes)} |" in beside
    heads = [column.name for column in all_cells([large, small]).columns]
    assert {"texts in a step", "tokens"} <= set(heads)
    assert "tokens" not in [column.name for column in all_cells([large]).columns]


def test_threads_are_told_where_they_were_given(tmp_path: Path) -> None:
    own = cell("bert-base", "onnx", "8G")
    one, two = (replace(own, asked={"threads": count}) for count in (1, 2))
    paths = {path.suffix: path for path in write_pages([one, two], [CONDITIONS], tmp_path)}
    for name in (".html", ".md"):
        assert "all instruction sets, threads: 1" in paths[name].read_text()
    found = list(csv.DictReader(io.StringIO(paths[".csv"].read_text())))
    assert [row["threads"] for row in found] == ["1", "2"]
    assert "threads: 1" in title(one) and "threads" not in title(own)


def test_a_crash_is_charted_as_failed_and_keeps_what_it_trained() -> None:
    own = cell("bert-base", "onnx", "8G")
    crash = "failed with exit code 1: no luck"
    gone = Cell("bert-base", "torch", "8G", outcome=crash)
    trained = replace(own, outcome=f"labelling: {crash}", texts_per_s=())
    rows = [chart([trained, gone]).rows for chart in (step_chart, label_chart)]
    rows.append(memory_chart([trained, gone], [trained, gone]).rows)
    assert [row[1].value for row in rows] == ["failed"] * 3
    assert [row[0].mark is not None for row in rows] == [True, False, True]
    assert rows[1][0].value == "failed" and crash in rows[0][0].told


def test_killed_and_refused_cells_say_why() -> None:
    texts = [" ".join(entry.text for entry in row) for row in all_cells(cells()).rows]
    assert any("killed by the memory cap" in text for text in texts)
    assert any("below the smallest plan" in text for text in texts)


def test_a_bar_that_would_hide_the_others_is_cut() -> None:
    own = [cell("bert-base", method) for method in ("full", "peft", "nf4")]
    own[2] = replace(own[2], steps_s=(300.0, 310.0))
    marks = [row.mark for row in step_chart(own).rows]
    assert [mark is not None and mark.is_cut for mark in marks] == [False, False, True]


def test_one_slow_repetition_does_not_squeeze_the_axis() -> None:
    own = [cell("bert-base", method) for method in ("full", "peft")]
    own[1] = replace(own[1], steps_s=(3.0, 3.1, 80.0))
    chart = step_chart(own)
    assert len(chart.ticks) > 2 and chart.ticks[1].x - chart.ticks[0].x > 20
    mark = chart.rows[1].mark
    assert mark is not None and mark.is_over and not mark.is_cut


def test_a_chart_of_nothing_is_a_chart() -> None:
    refused = [Cell("bert-base", "onnx", "256M", outcome="too small")]
    assert step_chart(refused).rows[0].mark is None
    assert memory_chart(refused, refused).rows[0].value == "refused"


@pytest.mark.parametrize("reach", [0.004, 0.9, 1.0, 7.3, 99.0, 12345.0])
def test_an_axis_has_few_round_numbers(reach: float) -> None:
    steps = round_steps(reach)
    assert steps[0] == 0 and 3 <= len(steps) <= 6 and steps[-1] <= reach * 1.0001


def test_no_cells_make_a_page_that_says_so(tmp_path: Path) -> None:
    paths = write_pages([], [], tmp_path)
    assert "Nothing has been measured to its end yet." in paths[0].read_text()
