from pathlib import Path
from statistics import mean

import pytest

from benchmarks.papers.grid import read_file
from benchmarks.papers.published import Paper, Printed, read_table
from benchmarks.papers.tables.traffic import (
    BASE,
    FULL,
    PARAMETERS,
    PROMPT,
    base_parameters,
    traffic_rows,
)
from smidgen.edge_client.bases.random_models import hub_config
from smidgen.simulation.datasets.catalogue import NAMES

ROOT = Path(__file__).parents[3]
PAPER = Paper("A paper", "somewhere")
AUG, MFPT, P2EFT, SILOS = (
    read_file(name)[1] for name in ("aug-fedprompt", "mfpt", "fedp2eft", "healthcare")
)
FEW_SHOT, PET = AUG.tables["few_shot"], AUG.tables["in_one_place"]
SETS = {
    name: block["vars"]
    for name, block in read_file("aug-fedprompt")[0]["common"]["when"].items()
    if "set" in block["vars"]
}
TABLES = [table for paper in (AUG, MFPT, P2EFT, SILOS) for table in paper.tables.values()]


def test_a_cell_knows_where_it_stands_and_of_what_it_is() -> None:
    figure = FEW_SHOT["Uniform FedCLS"]["AGNEWS"]
    assert (figure.value, figure.spread, figure.unit) == (66.1, 12.8, "%")
    assert (figure.table, figure.row, figure.column) == ("table 2", "Uniform FedCLS", "AGNEWS")
    assert figure.runs == 3 and "RoBERTa-large" in figure.setting
    assert figure.to_json()["paper"] == "AUG-FedPrompt"


@pytest.mark.parametrize("table", TABLES, ids=lambda table: f"{table.paper.name} {table.name}")
def test_every_figure_has_a_unit_and_a_setting(table: Printed) -> None:
    assert table.figures
    for figure in table.figures:
        assert figure.unit and figure.setting and figure.row and figure.column


def test_a_cell_that_is_not_known_is_left_out_and_shown_as_empty() -> None:
    table = read_table(PAPER, "table 1", "base", " | a | b\nrow | - | ~1,024.5±0.1")
    assert "a" not in table["row"] and str(table["row"]["b"]) == "~1,024.5±0.1"
    assert len(table.figures) == 1 and table.shown().rows == [["row", "-", "~1,024.5±0.1"]]


def test_a_papers_table_stands_as_it_is_printed() -> None:
    table = FEW_SHOT.shown()
    assert table.title == "published: AUG-FedPrompt, table 2"
    assert table.rows[0] == ["Uniform FedCLS", "66.1±12.8", "60.1±0.4", "57.6±1.9", "54.0±0.1"]
    assert table.notes == [FEW_SHOT.source]


def test_what_has_to_be_known_of_cells_is_told_once_behind_their_names() -> None:
    def remarks(table: Printed) -> list[str]:
        return list(table.shown().notes[1:])

    (of_a_row,) = remarks(SILOS.tables["entities"])
    assert of_a_row.startswith("NCBI-disease: one number")
    (of_two_cells,) = remarks(AUG.tables["system_cost"])
    assert of_two_cells.startswith("Memory (GB), BERT-large, RoBERTa-large: printed `OOM`")


def test_the_tables_speak_of_the_data_sets_we_read() -> None:
    assert set(SETS) <= set(NAMES)
    assert tuple(one["set"] for one in SETS.values()) == FEW_SHOT.columns


@pytest.mark.parametrize(
    "table", [MFPT.tables[name] for name in ("news", "xnli", "masakhanews")], ids=lambda t: t.name
)
def test_the_papers_means_are_those_of_its_languages(table: Printed) -> None:
    for cells in table.known.values():
        *languages, average = (figure.value for figure in cells.values())
        assert mean(languages) == pytest.approx(average, abs=0.051)


def test_the_prompts_figure_is_the_one_of_languages_kept_apart() -> None:
    average = {row: cells["Avg"].value for row, cells in MFPT.tables["news"].known.items()}
    assert average["PE_FL (IID) (Ours)"] == 83.6
    assert average["PE_FL (Prompt Tuning) (Non-IID) (Ours)"] == 80.7
    assert average["PE_FL (LoRA) (Non-IID) (Ours)"] == 79.9


def test_the_gain_of_the_abstract_is_that_of_table_2() -> None:
    federated, alone = (
        MFPT.tables["xnli"][row]["Avg"] for row in ("PE_FL (Ours)", "PE_Monolingual")
    )
    assert round(federated.value - alone.value, 1) == MFPT.figures["gain"].value


def test_the_papers_full_count_is_the_prompts_model_in_all() -> None:
    printed = MFPT.tables["traffic"][FULL][PARAMETERS]
    prompt = MFPT.tables["traffic"][PROMPT][PARAMETERS]
    assert printed.value == base_parameters(hub_config(BASE)) + prompt.value
    ours = next(row for row in traffic_rows() if row.printed == FULL)
    assert ours.published[PARAMETERS] == printed and ours.parameters == 278_051_338


def test_skew_hurts_and_pseudo_labels_repair_it_in_every_data_set() -> None:
    for column in FEW_SHOT.columns:
        rows = {row: cells[column].value for row, cells in FEW_SHOT.known.items()}
        assert rows["Skewed FedCLS"] < rows["Uniform FedCLS"] < rows["Uniform FedPrompt"]
        skewed = rows["Skewed FedPrompt"]
        assert skewed < min(rows["Uniform FedPrompt"], rows["Skewed w/ augment"])


def test_cloze_is_ahead_in_one_place_and_less_with_every_label() -> None:
    assert {one["pet"] for one in SETS.values()} == set(PET.columns)
    for column in ("AG's", "Yahoo"):
        cells = [
            [PET[f"{labels} {kind}"][column].value for labels in (10, 50, 100)]
            for kind in ("PET", "supervised")
        ]
        gaps = [cloze - head for cloze, head in zip(*cells, strict=True)]
        assert gaps == sorted(gaps, reverse=True) and gaps[-1] > 0


def test_the_largest_gain_of_ranks_is_the_one_the_summary_names() -> None:
    rows = P2EFT.tables["seen"].known
    gains = {row: found["FedP²EFT"].value - found["LoRA"].value for row, found in rows.items()}
    assert round(max(gains.values()), 1) == 18.6 == round(gains["tir"], 1)


def test_every_silo_gains_by_all_languages_as_the_caption_says() -> None:
    for row, cells in SILOS.tables["perplexity"].known.items():
        silos = {name: figure.value for name, figure in cells.items()}
        assert min(silos.values()) < silos[row] < silos["Base"]


def test_english_alone_is_not_helped_by_personalising() -> None:
    federated, *others = (
        {name: figure.value for name, figure in cells.items()}
        for cells in SILOS.tables["personalised"].known.values()
    )
    helped = {name for name in federated if max(one[name] for one in others) > federated[name]}
    assert set(federated) - helped == {"English"}


def test_the_page_on_few_labels_leans_on_the_papers_own_gap() -> None:
    cloze, head = (FEW_SHOT[row]["AGNEWS"].value for row in ("Uniform FedPrompt", "Uniform FedCLS"))
    page = (ROOT / "docs" / "results" / "few-shot.md").read_text(encoding="utf-8")
    assert f"{cloze - head:.1f} points" in page and "notebook" not in page
