import json
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("fastapi")
pytest.importorskip("matplotlib")

from benchmarks.commands import papers
from benchmarks.papers.index.entry import Entry, Given, Printed
from benchmarks.papers.tables.languages import TypologyError, distance_table, parse_mixture
from benchmarks.papers.tables.traffic import traffic_table
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.tables import render
from smidgen.simulation.report.report import Piece
from smidgen.simulation.report.scenario import Measured, Scenario
from tests.command_line import benchmarks
from tests.simulation.experiments.test_runner import place_in
from tests.simulation.report.test_scenario import found, scenario_of

__all__ = ["found"]  # a fixture


def test_traffic_recounts_the_papers_parameters() -> None:
    table, rows = traffic_table()
    text = " ".join(render(table).split())
    assert "1,202,708 1,202,708" in text and "1,491,476 1,491,476" in text
    assert "278,051,338 278,655,764" in text
    assert {row["parameters"] for row in rows} >= {604_426, 893_194}
    assert rows[0]["published"][0]["value"] == 278_655_764


def test_languages_are_sorted_by_distance(found: list[Measured]) -> None:
    table, rows = distance_table(found[:2], {"en": 1.0})
    assert [row["language"] for row in rows] == ["eng", "hau"]
    assert rows[0]["distance"] == 0.0 < rows[1]["distance"]
    assert "gain" in render(table)


def test_a_mixture_is_read_or_refused() -> None:
    assert parse_mixture("en=0.75, fr=0.25") == {"en": 0.75, "fr": 0.25}
    with pytest.raises(TypologyError, match=r"en=0\.6,fr=0\.4 is expected"):
        parse_mixture("en")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("paper aug-fedprompt:table9", "PAPER:TABLE 'aug-fedprompt:table9' is not one of aug-fed"),
        ("paper aug-fedprompt:fig2 dataset=imdb", "dataset 'imdb' is not one of ag_news"),
        ("paper aug-fedprompt:fig2 dataset", "'dataset': NAME=VALUE is expected, NAME one of: dat"),
        ("paper fedp2eft:unseen rank=x", "rank=x: a number such as 2 is expected"),
        ("paper mfpt:distance pretraining=en", "en=0.6,fr=0.4 is expected"),
        ("paper mfpt:masakhanews --data none", "no folder masakhanews in none"),
        ("paper aug-fedprompt:table2 --base nowhere/at/all --data none", "no folder ag_news in no"),
        ("paper aug-fedprompt:table2 adapter=lora:0", "adapter 'lora:0"),
        ("papers --more-base a/x --base b/x", "bases a/x and b/x share the name 'x'"),
        ("paper aug-fedprompt:fig5 --base my/embedded", "bases embedded and my/embedded share the"),
        ("paper aug-fedprompt:cloze-gap beside=a/x beside=b/x", "bases a/x and b/x share the name"),
        ("paper aug-fedprompt:cloze-gap factor=x", "factor 'x' is not one of none, rate"),
        ("papers --only nothing", "--only 'nothing': a name, or its part before a slash"),
        ("papers --index x.jsonl", "--index x.jsonl: a name that ends in .md is expected"),
        ("papers --index .", "--index .: a name that ends in .md is expected"),
    ],
)
def test_bad_input_is_one_line(line: str, message: str) -> None:
    done = benchmarks(*line.split())
    assert done.exit_code == 2 and message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 or "rounds" in done.stderr


def test_an_index_is_shown_without_running_and_nothing_at_all_is_a_failure(tmp_path: Path) -> None:
    page = tmp_path / "papers.md"
    asked = ("papers", "--only", "mfpt/lengths", "--data", str(tmp_path / "none"))
    where = (*asked, "--out", str(tmp_path / "out"), "--index", str(page))
    shown, failed = benchmarks(*where, "--show"), benchmarks(*where)
    assert shown.exit_code == 0 and "no folder masakhanews" in shown.stdout
    assert "| prompt, 1 token | not run |" in page.read_text(encoding="utf-8")
    assert failed.exit_code == 1 and "nothing could be run" in failed.stderr


def test_older_results_do_not_hide_that_nothing_was_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_base: Base
) -> None:
    fits = scenario_of(tiny_base).cells[2]
    too_large = replace(fits, row="top", experiment=replace(fits.experiment, adapter="bias/top9"))
    cells = [fits]

    def make(_: Given) -> Piece:
        return Piece(Scenario("small", "a title", tuple(cells), ()))

    entry = Entry("paper/small", make)
    monkeypatch.setattr(papers, "printed", lambda: (Printed("A paper", "Table 1", (entry,)),))
    there = place_in(tmp_path)
    whole = tmp_path / "out" / "index.md"
    asked = ["papers", "--seeds", "1", "--data", str(there.data), "--json"]
    asked += ["--out", str(whole.parent)]
    first, again = benchmarks(*asked), benchmarks(*asked)
    assert first.exit_code == again.exit_code == 0 and "1 of 1 cells" in whole.read_text()
    cells.append(too_large)
    failed = benchmarks(*asked, "--only", "paper")
    assert failed.exit_code == 1 and "the index above says why" in failed.stderr
    (told,) = json.loads(failed.stdout.splitlines()[-1])["entries"]
    assert (told["whole"], told["cells"]) == (1, 2) and "top9" in told["trouble"]
    assert "1 of 1 cells" in whole.read_text() and "1 of 2 cells" in failed.stderr
