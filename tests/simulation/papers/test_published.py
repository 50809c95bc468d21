import re
from dataclasses import astuple

import pytest

from simulation.datasets.catalogue import NAMES
from simulation.papers import published
from simulation.papers.published import AUG_FEDPROMPT, AUTHORS_RUNS, MFPT, MFPT_TRAFFIC, shown


def test_the_tables_speak_of_the_data_sets_we_read() -> None:
    assert {*AUG_FEDPROMPT, *AUTHORS_RUNS} <= set(NAMES)
    assert set(MFPT) - {"nc"} <= set(NAMES)


def test_accuracies_are_per_cent() -> None:
    figures = [f for row in AUG_FEDPROMPT.values() for f in astuple(row)[1:]]
    figures += [f for table in (AUTHORS_RUNS, MFPT) for row in table.values() for f in astuple(row)]
    assert all(figure is None or 10 < figure < 100 for figure in figures)


def test_skew_hurts_and_pseudo_labels_help_in_every_published_row() -> None:
    for row in AUG_FEDPROMPT.values():
        assert row.cloze_uniform and row.cloze_skewed and row.augmented_skewed
        assert row.cloze_skewed < min(row.cloze_uniform, row.augmented_skewed)


def test_what_was_read_nowhere_is_absent_and_said_to_be() -> None:
    assert AUG_FEDPROMPT["ag_news"].head_uniform is None
    assert shown(None) == "not known"
    assert (shown(68.4), shown(MFPT_TRAFFIC["full"].run_mb)) == ("68.4", "110,592")


@pytest.mark.parametrize("name", [name for name in vars(published) if name.endswith("_SOURCE")])
def test_every_source_names_a_paper_or_a_repository(name: str) -> None:
    assert re.search(r"arXiv:\d{4}\.\d{5}|UbiquitousLearning/FeS", getattr(published, name))
