from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("fastapi")

from dataclasses import replace

from benchmarks.papers.tables.languages import COMMON, Ends, alpha_table, ends_of
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.personal.interpolation import ALPHAS
from smidgen.simulation.experiments.personal_settings import Personal
from smidgen.simulation.experiments.runner import run_all
from smidgen.simulation.report.plots import alphas_figure, draw, shares_of
from smidgen.simulation.report.scenario import measured
from tests.benchmarks.papers.asked import scenario_of
from tests.simulation.experiments.experiments import small
from tests.simulation.experiments.test_runner import place_in


def test_every_language_has_both_ends_and_chooses_between_them(
    tiny_base: Base, tmp_path: Path
) -> None:
    plan = scenario_of("comparisons:interpolate", "quick", base=str(tiny_base.folder))
    early, half, cell = plan.cells
    begun = [one.experiment.personal for one in (early, half, cell)]
    assert [one.start for one in begun if one] == [0, 1, None]
    few = small(
        tiny_base,
        dataset="masakhanews",
        cohort=0,
        deal=cell.experiment.deal,
        rounds=1,
        evaluate_every=0,
        personal=Personal("interpolated", lr=0.02, epochs=2, batch=2),
    )
    cut = replace(plan, cells=(replace(cell, experiment=few),))
    seeds = (0, 1)
    results = run_all(cut.experiments(seeds), place_in(tmp_path))
    for result in results:
        for row in result.rows:
            assert row.between is not None and len(row.between.right) == len(ALPHAS) == 21
            ends = ends_of(row)
            assert ends.best >= max(ends.shared, ends.own, ends.chosen)
            assert row.score is not None and ends.chosen == row.score.total.share
    cells = measured(cut, seeds, results)
    table, told = alpha_table(cells)
    assert [row[1] for row in table.rows] == ["eng", "hau", "mean", COMMON]
    [found] = told["begun"].values()
    leads = [one["chosen_minus_better_end"][0] for one in found["languages"]]
    assert leads[2] == pytest.approx(sum(leads[:2]) / 2)
    assert set(found["curves"]) == {"eng", "hau"} and len(found["languages"][0]["alphas"]) == 2
    assert {path.name for path in draw(cells, tmp_path / "told", "title")} == {
        *("alphas.png", "languages.png")
    }
    [panel] = alphas_figure(cells, "title").axes
    *pale, bold = [line.get_ydata() for line in panel.lines]
    shares = shares_of(cells[0])
    assert len(pale) == len(shares) == 2 and shares["eng"].shape == (2, len(ALPHAS))
    assert bold == pytest.approx(sum(pale) / 2)
    assert bold[0] == pytest.approx(100 * sum(ends_of(row).shared for row in results[0].rows) / 2)


def test_a_mean_s_lead_is_the_mean_of_the_languages_leads() -> None:
    other_ends = [Ends(0.5, 0.7, 0.68, 0.7, 1.0), Ends(0.7, 0.5, 0.68, 0.7, 0.0)]
    assert [one.lead for one in other_ends] == pytest.approx([-0.02, -0.02])
