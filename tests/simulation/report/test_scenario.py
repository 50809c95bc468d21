import json
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("fastapi")
pytest.importorskip("matplotlib")

from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.tables import render
from smidgen.simulation.experiments.record import mean_and_spread
from smidgen.simulation.experiments.runner import Place, run_all
from smidgen.simulation.report.report import Order, Piece, play
from smidgen.simulation.report.scenario import (
    Cell,
    Figure,
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


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("run none.toml", "no experiment at none.toml"),
        ("zero-compute", "`zero-compute` is a benchmark and not part of the package"),
        ("mfpt nothing", "`mfpt` is a benchmark and not part of the package; in a clone of"),
        ("pretrain --steps 1", "`python -m benchmarks --help` lists them"),
    ],
)
def test_bad_input_is_one_line(line: str, message: str) -> None:
    done = smidgen("simulate", *line.split())
    assert done.exit_code == 2 and message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
