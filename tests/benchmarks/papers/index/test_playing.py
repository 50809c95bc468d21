import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("fastapi")
pytest.importorskip("matplotlib")

from benchmarks.papers.index.entry import (
    Entry,
    EntryState,
    Given,
    Printed,
    chosen,
    looked,
    play_all,
    printed,
)
from benchmarks.papers.index.page import page
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.errors import WrongInput
from smidgen.simulation.experiments.runner import run_all
from smidgen.simulation.report.report import Order, Piece
from smidgen.simulation.report.scenario import Cell, Scenario
from tests.command_line import benchmarks
from tests.conftest import shared
from tests.simulation.experiments.test_runner import news, place_in
from tests.simulation.report.test_scenario import EIGHTY_ONE

SMALL, ABSENT = "paper/table1/small", "paper/table1/absent"


def scenario_of(base: Base, dataset: str) -> Scenario:
    """Trained by an adapter that fits and by one that does not."""
    silos = news(base, deal=replace(news(base).deal, by="language", clients=0), rounds=1)
    silos = replace(silos, dataset=dataset)
    cells = (
        Cell("federated", "both", silos, EIGHTY_ONE),
        Cell("top 9 layers", "both", replace(silos, adapter="lora:2/top9")),
    )
    return Scenario("small", "a title", cells, ("a note",), "a paper, table 1")


@pytest.fixture
def given(tiny_base: Base, tmp_path: Path) -> Given:
    order = Order(range(2), place_in(tmp_path), 1, tmp_path / "told", True)
    return Given(str(tiny_base.folder), "", (), {}, False, order)


def printed_by(base: Base) -> tuple[Printed, ...]:
    sets = {SMALL: "masakhanews", ABSENT: "ag_news"}
    entries = tuple(
        Entry(name, lambda given, dataset=dataset: Piece(scenario_of(base, dataset)))  # type: ignore[misc]
        for name, dataset in sets.items()
    )
    return (Printed("A paper", "Table 1", entries, page="few-shot.md"),)


def played(every: Sequence[Printed], given: Given) -> list[EntryState]:
    states = looked(chosen(every, ()), given)
    play_all(states, given, lambda *said: None, lambda state: None)
    return states


def test_before_anything_was_run_each_row_says_what_fills_it(tiny_base: Base, given: Given) -> None:
    every = printed_by(tiny_base)
    text = page(every, looked(chosen(every, ()), given), given)
    assert f"| small | federated | not run [81.0] | `--only {SMALL}` |" in text
    assert f"no folder ag_news in DATA; put the data set there; then `--only {ABSENT}`" in text
    assert "    python -m benchmarks papers --only paper/table1 --seeds 2 --base BASE" in text
    assert not given.order.place.out.exists() and str(given.order.out.parent) not in text


def test_what_cannot_be_run_is_told_and_the_rest_goes_on(tiny_base: Base, given: Given) -> None:
    every = printed_by(tiny_base)
    small, absent = states = played(every, given)
    fits, too_large = small.cells
    assert fits.is_whole and not too_large.is_whole and "top9" in too_large.trouble
    assert not any(slot.found for slot in absent.cells) and all(
        "ag_news" in slot.trouble for slot in absent.cells
    )
    text = page(every, states, given)
    assert fits.found is not None
    mean, spread = fits.found.accuracy()
    assert f"| {100 * mean:.1f} ± {100 * spread:.1f} [81.0] |" in text and "top9" in text
    assert [one.is_whole for one in looked(chosen(every, ()), given)[0].cells] == [True, False]


def test_a_whole_entry_leaves_its_files_and_no_gap(tiny_base: Base, given: Given) -> None:
    scenario = scenario_of(tiny_base, "masakhanews")
    fitting = replace(scenario, cells=scenario.cells[:1])
    every = (Printed("A paper", "Table 1", (Entry(SMALL, lambda given: Piece(fitting)),)),)
    (state,) = states = played(every, given)
    assert state.is_whole and not state.left
    text = page(every, states, given)
    assert "missing" not in text and "not run [" not in text and "- a note" in text
    files = {path.name for path in (given.order.out / SMALL).iterdir()}
    assert {"summary.json", "table.md"} <= files


def test_seeds_that_are_there_are_told_while_others_are_not(tiny_base: Base, given: Given) -> None:
    (cell, *_) = scenario_of(tiny_base, "masakhanews").cells
    run_all([cell.experiment], given.order.place)
    every = printed_by(tiny_base)
    (small, _) = states = looked(chosen(every, ()), given)
    assert any(slot.found for slot in small.cells) and not small.is_whole and len(small.left) == 3
    assert "(1 of 2 seeds) [81.0]" in page(every, states, given)


def test_published_figures_stay_where_an_entry_cannot_be_put_together(given: Given) -> None:
    chosen_ones = chosen(printed(), ["healthcare"])
    astray = replace(given, multilingual="/nonexist")
    states = looked(chosen_ones, astray)
    assert all(state.piece is None for state in states)
    text = page(printed(), states, astray)
    assert "| perplexity |" not in text and "no base at nonexist" in text
    assert "| It | 5.63 | 5.80 | 6.32 |" in text and "| Italian | 412,437 | 26,192 |" in text
    assert "| BC5CDR | 0.8913 |" in text and "| Federated | 0.6976 |" in text
    assert "- published: figure 3, best interpolation, German: 0.9 share of the pers" in text
    assert "- published: figure 2, FL, after about 10 % of the samples: " in text


def test_the_command_of_distances_says_what_the_base_has_read(given: Given) -> None:
    chosen_ones = chosen(printed(), ["mfpt/distance", "mfpt/nc"])
    read = replace(given, multilingual="embedded", mixture={"en": 0.6, "fr": 25850.0})
    text = page(printed(), looked(chosen_ones, read), read)
    assert (
        "mfpt/distance --seeds 2 --multilingual-base MULTILINGUAL --pretraining en=0.6,fr=" in text
    )
    assert text.count("--pretraining") == 1 and "fr=25850 --data DATA" in text


@pytest.mark.slow
@pytest.mark.parametrize("name", ["aug-fedprompt/fig5/yahoo_answers", "mfpt/data-efficiency"])
def test_a_quick_entry_runs_from_end_to_end_and_is_not_run_again(name: str, tmp_path: Path) -> None:
    data = shared("data", "masakhanews").parent
    asked = ("papers", "--quick", "--json", "--only", name, "--data", str(data))
    where = ("--out", str(tmp_path), "--index", str(tmp_path / "index.md"))
    first, again = (benchmarks(*asked, *where) for _ in range(2))
    told, same = (json.loads(done.stdout.splitlines()[-1]) for done in (first, again))
    assert first.exit_code == 0 and told["entries"] == same["entries"] and same["seconds"] < 60
    (entry,) = told["entries"]
    assert entry["whole"] == entry["cells"] > 1 and not entry["trouble"]
    assert "| missing |" not in (tmp_path / "index.md").read_text(encoding="utf-8")


def test_entries_are_named_once_and_chosen_by_what_their_names_begin_with() -> None:
    every = [entry.name for entry in chosen(printed(), ())]
    assert len(set(every)) == len(every)
    sets = [entry.name for entry in chosen(printed(), ["aug-fedprompt/table2", "mfpt/xnli"])]
    assert sets == [name for name in every if "/table2/" in name or name == "mfpt/xnli"]
    with pytest.raises(WrongInput, match="--only 'aug-fedprompt/table': a name, or its part"):
        chosen(printed(), ["aug-fedprompt/table"])
