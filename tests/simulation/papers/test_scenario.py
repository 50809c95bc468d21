import json
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("fastapi")
pytest.importorskip("matplotlib")

from edge_client.bases.base import Base
from edge_client.tables import render
from simulation.commands import papers
from simulation.experiments.result import mean_and_spread
from simulation.experiments.runner import Place, run_all
from simulation.papers.index.entry import Entry, Given, Printed
from simulation.papers.published import Figure
from simulation.papers.report import Order, Piece, play
from simulation.papers.scenario import (
    Cell,
    Measured,
    Scenario,
    accuracy_table,
    cost_table,
    language_table,
    markdown,
    measured,
    summary,
)
from simulation.papers.tables.languages import TypologyError, distance_table, parse_mixture
from simulation.papers.tables.traffic import traffic_table
from tests.command_line import smidgen
from tests.simulation.experiments.test_runner import news, place, place_in  # noqa: F401 - a fixture

SEEDS = (0, 1)
EIGHTY_ONE = Figure(81.0, "%", "a paper", "table 3", "FL", "Avg", "XLM-R", 3)


def scenario_of(base: Base) -> Scenario:
    """Trained together, for themselves, and not at all, on silos of a language."""
    silos = news(base, deal=replace(news(base).deal, by="language", clients=0), rounds=1)
    cells = (
        Cell("federated", "both", silos, EIGHTY_ONE, published_by_language={"eng": EIGHTY_ONE}),
        Cell("local", "both", replace(silos, paradigm="local")),
        Cell("zero-shot", "both", replace(silos, rounds=0)),
    )
    return Scenario("small", "a title with [brackets]", cells, ("a note",), "a paper")


@pytest.fixture(scope="module")
def found(tiny_base: Base, tmp_path_factory: pytest.TempPathFactory) -> list[Measured]:
    """The small scenario's results."""
    chosen, there = scenario_of(tiny_base), place_in(tmp_path_factory.mktemp("found"))
    return measured(chosen, SEEDS, run_all(chosen.experiments(SEEDS), there))


def test_tables_give_means_spreads_and_the_papers_figures(
    tiny_base: Base, found: list[Measured]
) -> None:
    text = render(accuracy_table(scenario_of(tiny_base), found))
    mean, spread = found[0].accuracy()
    assert f"{100 * mean:.1f} ± {100 * spread:.1f} [81.0]" in text
    assert "a title with [brackets] [published]" in " ".join(text.split())
    page = markdown(scenario_of(tiny_base), found)
    assert "|  | both |\n| --- | ---: |\n| federated | " in page and "- a note" in page
    languages = language_table(found)
    assert languages is not None and render(languages).count("[81.0]") == 2
    assert "federated, both" in render(cost_table(found))


def test_seeds_share_a_cell_and_not_a_result(found: list[Measured]) -> None:
    assert [len(item.results) for item in found] == [2, 2, 2]
    assert [result.experiment.seed for result in found[0].results] == [7, 8]
    assert [index for index, _, _ in found[0].curve()] == [0, 1]
    assert found[2].total("bytes_up") == 0 < found[0].total("bytes_up")


def test_each_seeds_accuracy_is_of_what_their_mean_is_of(
    tiny_base: Base, found: list[Measured]
) -> None:
    whole = found[0]
    means = Measured(replace(whole.cell, of_languages=True), whole.results)
    for item, kind in ((whole, "accuracy"), (means, "mean_of_languages")):
        expected = [getattr(result, kind) for result in item.results]
        assert item.by_seed() == expected
        assert item.accuracy() == mean_and_spread(expected)
        (cell,) = summary(scenario_of(tiny_base), SEEDS, [item])["cells"]
        assert cell["accuracy_by_seed"] == [round(one, 4) for one in expected]


def test_a_played_scenario_leaves_figures_and_pictures(
    tiny_base: Base,
    place: Place,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    play(Piece(scenario_of(tiny_base)), Order(SEEDS, place, 1, tmp_path / "told", True))
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["cells"][0]["published_percent"] == 81.0 and told["seeds"] == [0, 1]
    assert told["bases"][0]["base_id"] == tiny_base.base_id
    assert told["datasets"][0]["name"] == "masakhanews" and "numpy" in told["versions"]
    assert told["date"].endswith("+00:00") and told["seconds"] > 0 and told["machine"]["cores"]
    assert told["cells"][0]["accuracy_spread"] is not None
    assert all(0.0 <= share <= 1.0 for share in told["cells"][0]["balanced_by_seed"])
    assert told["cells"][0]["settings"]["adapter"] == news(tiny_base).adapter
    for path in told["cells"][0]["rows_files"]:
        assert Path(path).is_file() and path.endswith("rows.jsonl")
    files = {path.name for path in (tmp_path / "told" / "small").iterdir()}
    pictures = {"accuracy.png", "languages.png"}  # clients are the languages
    assert files == {"summary.json", "table.md", *pictures}


def test_mean_and_spread() -> None:
    mean, spread = mean_and_spread([2.0, 4.0])
    assert mean == 3.0 and spread == pytest.approx(2.0**0.5)
    assert mean_and_spread([5.0]) == (5.0, 0.0)


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
        ("aug-fedprompt table9", "SCENARIO 'table9' is not one of table2, fig2, fig4"),
        ("aug-fedprompt fig2 --dataset imdb", "--dataset 'imdb' is not one of ag_news"),
        ("mfpt nothing", "SCENARIO 'nothing' is not one of masakhanews"),
        ("mfpt distance --pretraining en", "en=0.6,fr=0.4 is expected"),
        ("mfpt masakhanews --data none", "no folder masakhanews in none"),
        ("aug-fedprompt table2 --base nowhere/at/all --data none", "no folder ag_news in none"),
        ("aug-fedprompt table2 --adapter lora:0", "adapter 'lora:0"),
        ("papers --more-base a/x --base b/x", "bases a/x and b/x share the name 'x'"),
        ("aug-fedprompt fig5 --base my/embedded", "bases embedded and my/embedded share the name"),
        ("cloze-gap --beside a/x --beside b/x", "bases a/x and b/x share the name 'x'"),
        ("papers --only nothing", "--only 'nothing': a name, or its part before a slash"),
        ("papers --index x.jsonl", "--index x.jsonl: a name that ends in .md is expected"),
        ("papers --index .", "--index .: a name that ends in .md is expected"),
        ("run none.toml", "no experiment at none.toml"),
        ("zero-compute --peer fedml", "--peer fedml is not known here; flwr"),
    ],
)
def test_bad_input_is_one_line(line: str, message: str) -> None:
    done = smidgen("simulate", *line.split())
    assert done.exit_code == 2 and message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 or "rounds" in done.stderr


def test_an_index_is_shown_without_running_and_nothing_at_all_is_a_failure(tmp_path: Path) -> None:
    page = tmp_path / "papers.md"
    asked = ("simulate", "papers", "--only", "mfpt/lengths", "--data", str(tmp_path / "none"))
    where = (*asked, "--out", str(tmp_path / "out"), "--index", str(page))
    shown, failed = smidgen(*where, "--show"), smidgen(*where)
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
    asked = ["simulate", "papers", "--seeds", "1", "--data", str(there.data), "--json"]
    asked += ["--out", str(whole.parent)]
    first, again = smidgen(*asked), smidgen(*asked)
    assert first.exit_code == again.exit_code == 0 and "1 of 1 cells" in whole.read_text()
    cells.append(too_large)
    failed = smidgen(*asked, "--only", "paper")
    assert failed.exit_code == 1 and "the index above says why" in failed.stderr
    (told,) = json.loads(failed.stdout.splitlines()[-1])["entries"]
    assert (told["whole"], told["cells"]) == (1, 2) and "top9" in told["trouble"]
    assert "1 of 1 cells" in whole.read_text() and "1 of 2 cells" in failed.stderr
