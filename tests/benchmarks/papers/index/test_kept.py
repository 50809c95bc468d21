"""Results beside the index: the same figures as from the rounds they were made of."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from zipfile import ZipFile

import hypothesis.strategies as st
import pytest
from hypothesis import given as tried

pytest.importorskip("torch")
pytest.importorskip("fastapi")
pytest.importorskip("matplotlib")

from benchmarks.papers.index.entry import (
    Entry,
    EntryState,
    Given,
    Slot,
    chosen,
    looked,
    play_all,
)
from benchmarks.papers.index.kept import NOTHING, condensed, read_kept, write_kept
from benchmarks.papers.index.page import card_notes, page
from smidgen.edge_client.bases.base import Base
from smidgen.simulation.experiments.experiment import Experiment
from smidgen.simulation.experiments.record import RecordError, Result, Row
from smidgen.simulation.experiments.runner import Place, run_all
from smidgen.simulation.experiments.scoring import Score, Tally
from smidgen.simulation.experiments.stage import stage
from smidgen.simulation.report.report import Piece
from smidgen.simulation.report.scenario import Cell, Scenario
from tests.benchmarks.papers.index.test_playing import given, played, printed_by
from tests.simulation.experiments.experiments import small
from tests.simulation.experiments.test_runner import place_in

__all__ = ["given"]  # a fixture
BYTES = st.integers(0, 1000)


@st.composite
def arms(draw: st.DrawFn) -> list[Row]:
    """Rows of some arms, as rounds give them: the first and the last are judged."""
    rows = []
    for arm in draw(st.sampled_from([[""], ["a", "b"]])):
        last = draw(st.integers(0, 6))
        for index in range(last + 1):
            is_judged = index in (0, last) or draw(st.booleans())
            right = draw(st.integers(0, 9))
            tally = Tally(right, 9)
            score = Score(tally, 0.5, {"en": tally}, {"c": tally}) if is_judged else None
            trouble = draw(st.sampled_from(["", "", "", "gone back"]))
            clients, texts, down, up, forwards = (draw(BYTES) for _ in range(5))
            row = Row(
                arm=arm,
                round_index=index,
                clients=clients,
                num_examples=texts,
                bytes_down=down,
                bytes_up=up,
                layer_forwards=forwards,
                adapter_sha256="",
                evaluated=0,
                score=score,
            )
            rows.append(replace(row, trouble=trouble))
    return rows


@tried(arms())
def test_fewer_rows_have_the_same_figures(rows: Sequence[Row]) -> None:
    few = condensed(rows)
    before = Result(Experiment("e", "d"), tuple(rows))
    after = Result(Experiment("e", "d"), few)
    assert after.curve() == before.curve() and after.final() == before.final()
    names = ("clients", "num_examples", "bytes_up", "bytes_down", "layer_forwards")
    assert [after.total(name) for name in names] == [before.total(name) for name in names]
    assert [row.trouble for row in few if row.trouble] == [
        row.trouble for row in rows if row.trouble
    ]
    assert condensed(few) == few and len(few) <= len(rows)


def test_a_file_is_read_as_it_was_written_and_a_damaged_line_is_named(
    tiny_base: Base, given: Given, tmp_path: Path
) -> None:
    printed = printed_by(tiny_base)
    small, _ = played(printed, given)
    (fits, _) = small.cells
    pairs = [(on, one) for on, one in zip(fits.stages, fits.results, strict=True) if one]
    kept, path = NOTHING.with_results(pairs, given.order.place), tmp_path / "index.zip"
    write_kept(path, kept, "# The index")
    assert read_kept(path) == kept and len(kept.rows) == 2
    with ZipFile(path) as file:
        lines, text = file.read("results.jsonl").decode(), file.read("page.md").decode()
    assert text == "# The index"
    with ZipFile(path, "w") as file:
        file.writestr("results.jsonl", lines.replace('"rows"', '"rose"', 1))
    with pytest.raises(RecordError, match="line 1: not an experiment's results"):
        read_kept(path)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(RecordError, match=r"index\.zip: not an index's results; move it away"):
        read_kept(path)
    assert read_kept(tmp_path / "absent.zip") == NOTHING


def test_what_was_run_elsewhere_is_shown_and_not_run_again(
    tiny_base: Base, given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = printed_by(tiny_base)
    there = played(printed, given)
    (fits, _) = there[0].cells
    pairs = [(on, one) for on, one in zip(fits.stages, fits.results, strict=True) if one]
    kept = NOTHING.with_results(pairs, given.order.place)
    empty = replace(given.order, place=replace(given.order.place, out=tmp_path / "elsewhere"))
    other = replace(given, order=empty, kept=kept)
    states = looked(chosen(printed, ()), other)
    assert states[0].cells[0].is_whole
    assert _row(page(printed, states, other)) == _row(page(printed, there, given))
    ran: list[Experiment] = []

    def noted(asked: Sequence[Experiment], place: Place, *more: object) -> list[Result]:
        ran.extend(asked)
        return run_all(asked, place)

    monkeypatch.setattr("benchmarks.papers.index.entry.run_all", noted)
    ended: list[EntryState] = []
    play_all(states, other, lambda *said: None, ended.append)
    assert all(one.adapter == "lora:2/top9" for one in ran)
    assert _row(page(printed, ended, other)) == _row(page(printed, there, given))


def _row(text: str) -> str:
    return next(line for line in text.splitlines() if line.startswith("| small | federated"))


def test_the_index_says_which_card_computed_how_much(tiny_base: Base, tmp_path: Path) -> None:
    place = place_in(tmp_path)
    asked = small(tiny_base, dataset="masakhanews", adapter="lora:2+head")
    on = stage(asked, place.data)
    (result,) = run_all([asked], place)
    (first, *rest) = result.rows
    there = replace(result, rows=(replace(first, card="A card"), *rest))
    kept = NOTHING.with_results([(on, there)], place)
    write_kept(tmp_path / "index.zip", kept)
    assert read_kept(tmp_path / "index.zip").rows[on.key][0].card == "A card"
    cells = tuple(
        Slot(Cell(row, "column", asked), (on,), (one,))
        for row, one in (("a", there), ("b", result), ("c", None))
    )
    entry = Entry("paper/one", lambda given: Piece(Scenario("s", "a title", (), ())))
    (note,) = card_notes(EntryState(entry, None, cells))
    assert note == "computed on A card (`--device cuda`), wholly or in part: 1 of 2 experiments"
