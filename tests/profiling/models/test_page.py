import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("jinja2")

from smidgen.profiling.models import page
from smidgen.profiling.models.cell import GIB, Cell, Proof, placed
from smidgen.profiling.models.page import answer, grid, ordered, settings, title, write_pages
from tests.profiling.models.made_up import CONDITIONS, cell, cells

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
    assert ' max="0"' not in pages["models.html"] and ' value="0"' not in pages["models.html"]


def test_the_page_asks_no_other_host_for_anything(pages: dict[str, str]) -> None:
    assert not re.findall(r"https?://|@import|url\(", pages["models.html"])
    assert "default-src 'none'" in pages["models.html"]


def test_names_from_outside_are_escaped(tmp_path: Path) -> None:
    mine = replace(cell("bert-base", "onnx", "512M"), base=HOSTILE_BASE)
    refused = replace(mine, method="torch", outcome=HOSTILE, steps_s=(), budget=HOSTILE)
    machine = CONDITIONS.machine | {"processor": HOSTILE}
    hostile = replace(CONDITIONS, machine=machine, versions={HOSTILE: HOSTILE})
    paths = {path.suffix: path for path in write_pages([mine, refused], [hostile], tmp_path)}
    html, text = paths[".html"].read_text(), paths[".md"].read_text()
    assert "<script>alert" not in html + text and "<img" not in html + text
    assert text.splitlines()[2].startswith("The largest base") and "[x](y)" not in text
    assert "<script" not in html
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in table if "alert" in line}) <= 3


def test_markdown_says_a_hostile_name_in_full() -> None:
    assert "&#60;script&#62;" in page.escaped("<script>") and "|" not in page.escaped("a|b\nc")


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
    assert ordered([first, again]) == [again]


def test_bases_stand_by_their_size_and_settings_apart() -> None:
    held = replace(cell("roberta-large", "onnx", "8G"), isa="avx2")
    small = cells(("albert-base",))
    assert ordered([held, *small]) == [*small, held]
    assert [one.isa for one in settings([held, *small])] == ["", "avx2"]


def test_records_of_another_machine_are_counted_on_the_page(tmp_path: Path) -> None:
    for path in write_pages(cells(("bert-base",)), [CONDITIONS], tmp_path, left_out=3)[:2]:
        assert "3 of another machine left out" in path.read_text()


def test_threads_are_told_where_they_were_given(tmp_path: Path) -> None:
    own = cell("bert-base", "onnx", "8G")
    one, two = (replace(own, asked={"threads": count}) for count in (1, 2))
    paths = {path.suffix: path for path in write_pages([one, two], [CONDITIONS], tmp_path)}
    for name in (".html", ".md"):
        assert "all instruction sets, threads: 1" in paths[name].read_text()
    found = list(csv.DictReader(io.StringIO(paths[".csv"].read_text())))
    assert [row["threads"] for row in found] == ["1", "2"]
    assert "threads: 1" in title(one) and "threads" not in title(own)


def test_killed_and_refused_cells_say_why(pages: dict[str, str]) -> None:
    for name in ("models.md", "models.html"):
        assert "full: killed by the memory cap" in pages[name]
        assert "below the smallest plan" in pages[name]


def test_a_crash_while_labelling_keeps_what_it_trained(tmp_path: Path) -> None:
    crash = "labelling: failed with exit code 1: no luck"
    trained = replace(cell("bert-base", "onnx", "8G"), outcome=crash, texts_per_s=())
    text = write_pages([trained], [CONDITIONS], tmp_path)[1].read_text()
    assert f"onnx 8G: {crash}" in text and "| onnx 8G | float32 | 461 MiB |" in text


def test_no_cells_make_a_page_that_says_so(tmp_path: Path) -> None:
    paths = write_pages([], [], tmp_path)
    assert "Nothing has been measured to its end yet." in paths[0].read_text()
