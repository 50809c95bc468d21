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
from simulation.papers.few_shot import scenarios as aug_fedprompt
from simulation.papers.few_shot.setting import Size, size_of
from simulation.papers.index.entry import Entry, Given, Printed
from simulation.papers.multilingual import scenarios as mfpt
from simulation.papers.multilingual.setting import MEAN, PROMPT
from simulation.papers.multilingual.tables import distance_table, parse_mixture, traffic_table
from simulation.papers.multilingual.typology import TypologyError
from simulation.papers.published.aug_fedprompt import LABELS
from simulation.papers.published.figure import Figure, Paper, Setting
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
from tests.command_line import smidgen
from tests.simulation.experiments.test_runner import news, place, place_in  # noqa: F401 - a fixture

SEEDS = (0, 1)
EIGHTY_ONE = Figure(81.0, "%", Paper("a paper", ""), "table 3", "FL", "Avg", Setting("XLM-R", 3))


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
    play(scenario_of(tiny_base), Order(SEEDS, place, 1, tmp_path / "told", True))
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


@pytest.mark.parametrize("quick", [False, True])
def test_every_scenario_of_the_papers_can_be_put_together(quick: bool) -> None:
    for dataset in LABELS:
        for name in aug_fedprompt.NAMES:
            chosen = aug_fedprompt.scenario(name, "embedded", dataset, "lora:8", size_of(quick))
            assert len({cell.experiment for cell in chosen.cells}) == len(chosen.cells) > 1
    for name in mfpt.NAMES:
        chosen = mfpt.scenario(name, "embedded", quick)
        assert len({cell.experiment for cell in chosen.cells}) == len(chosen.cells) > 1


def test_every_published_figure_stands_beside_its_own_cell() -> None:
    few_shot = aug_fedprompt.table2("embedded", "ag_news", "lora:8", Size())
    printed = {(cell.row, cell.column): cell.published for cell in few_shot.cells}
    assert [str(figure) for figure in printed.values()] == [
        *("None", "66.1±12.8", "64.8±3.1", "87.0±0.8", "68.4±2.4", "90.2±0.5", "90.2±0.5")
    ]
    mixed = mfpt.news_classification("embedded", quick=False)
    assert {(cell.row, cell.column): str(cell.published) for cell in mixed.cells} == {
        ("local LoRA", mfpt.UNMIXED): "64.3",
        ("centralised LoRA", mfpt.UNMIXED): "77.5",
        ("local full", mfpt.UNMIXED): "86.8",
        ("centralised full", mfpt.UNMIXED): "88.3",
        ("federated LoRA", mfpt.IID): "None",
        ("federated LoRA", mfpt.HALF): "None",
        ("federated LoRA", mfpt.APART): "79.9",
        ("federated prompt", mfpt.IID): "83.6",
        ("federated prompt", mfpt.HALF): "None",
        ("federated prompt", mfpt.APART): "80.7",
        ("federated full", mfpt.IID): "88.4",
        ("federated full", mfpt.HALF): "None",
        ("federated full", mfpt.APART): "86.7",
    }
    for chosen in (mfpt.masakhanews("embedded", False), mfpt.xnli("embedded", False)):
        for cell in chosen.cells:
            here = cell.published_by_language
            assert not here or set(here) == {*cell.experiment.languages, MEAN}


def test_labels_are_even_and_prompts_begin_as_in_the_papers() -> None:
    cells = aug_fedprompt.table2("embedded", "ag_news", "lora:8", Size()).cells
    assert {cell.experiment.deal.gamma for cell in cells} == {100.0, 0.001}
    texts = {
        cell.experiment.prompt_init
        for cell in mfpt.masakhanews("embedded", False).cells
        if cell.experiment.adapter == PROMPT
    }
    assert texts == {"Predict the category given the following news article"}


@pytest.mark.parametrize("adapter", ["lora:8", "full"])
def test_table_2_has_pseudo_labels_or_says_why_not(adapter: str) -> None:
    chosen = aug_fedprompt.scenario("table2", "embedded", "ag_news", adapter, Size())
    has_cell = any(cell.column == aug_fedprompt.AUGMENTED for cell in chosen.cells)
    reasons = [note for note in chosen.notes if "no pseudo-labels here" in note]
    assert has_cell == (adapter == "lora:8") == (not reasons)
    assert all("90.2±0.5" in reason for reason in reasons)


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
    monkeypatch.setattr(papers, "PRINTED", (Printed("A paper", "Table 1", (entry,)),))
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
