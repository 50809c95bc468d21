from pathlib import Path
from statistics import mean

import pytest

from edge_client.bases.random_models import hub_config
from simulation.datasets.catalogue import NAMES
from simulation.papers.multilingual.traffic import BASE, base_parameters, traffic_rows
from simulation.papers.published import aug_fedprompt, fedp2eft, healthcare, mfpt, pet
from simulation.papers.published.figure import Figure, Paper, Setting, Table, read_table, shown

ROOT = Path(__file__).parents[4]
PAPER = Paper("A paper", "somewhere")
TABLES = [
    *(aug_fedprompt.FEW_SHOT, aug_fedprompt.SYSTEM_COST),
    *(mfpt.NEWS, mfpt.XNLI, mfpt.MASAKHANEWS, mfpt.TRAFFIC),
    *(fedp2eft.SEEN, fedp2eft.UNSEEN, fedp2eft.WITH_FEDDPA),
    *(healthcare.PERPLEXITY, healthcare.ENTITIES, healthcare.DOWNSTREAM),
    *(healthcare.PERSONALISED, pet.IN_ONE_PLACE),
]


def cell(table: Table, row: str, column: str) -> Figure:
    figure = table.at(row, column)
    assert figure is not None
    return figure


def test_a_cell_knows_where_it_stands_and_of_what_it_is() -> None:
    figure = cell(aug_fedprompt.FEW_SHOT, "Uniform FedCLS", "AGNEWS")
    assert (figure.value, figure.spread, figure.unit) == (66.1, 12.8, "%")
    assert (figure.table, figure.row, figure.column) == ("table 2", "Uniform FedCLS", "AGNEWS")
    assert figure.setting.runs == 3 and "RoBERTa-large" in figure.setting.what
    assert figure.to_json()["paper"] == "AUG-FedPrompt"


@pytest.mark.parametrize("table", TABLES, ids=lambda table: f"{table.paper.name} {table.name}")
def test_every_figure_has_a_unit_and_a_setting(table: Table) -> None:
    assert table.figures
    for figure in table.figures:
        assert figure.unit and figure.setting.what and figure.row and figure.column


def test_a_cell_that_is_not_known_is_none_and_shown_as_that() -> None:
    table = read_table(PAPER, "table 1", Setting("base"), " | a | b\nrow | - | ~1,024.5±0.1")
    assert table.at("row", "a") is None and shown(None) == "not known"
    assert shown(table.at("row", "b")) == "~1,024.5±0.1" and len(table.figures) == 1


def test_the_tables_speak_of_the_data_sets_we_read() -> None:
    assert set(aug_fedprompt.LABELS) == set(aug_fedprompt.COLUMN) <= set(NAMES)
    assert tuple(aug_fedprompt.COLUMN.values()) == aug_fedprompt.FEW_SHOT.columns


@pytest.mark.parametrize("table", [mfpt.NEWS, mfpt.XNLI, mfpt.MASAKHANEWS], ids=lambda t: t.name)
def test_the_papers_means_are_those_of_its_languages(table: Table) -> None:
    for row in table.rows:
        *languages, average = (figure.value for figure in table.by_column(row).values())
        assert mean(languages) == pytest.approx(average, abs=0.051)


def test_the_prompts_figure_is_the_one_of_languages_kept_apart() -> None:
    average = {row: cell(mfpt.NEWS, row, "Avg").value for row in mfpt.NEWS.rows}
    assert average["PE_FL (IID) (Ours)"] == 83.6
    assert average["PE_FL (Prompt Tuning) (Non-IID) (Ours)"] == 80.7
    assert average["PE_FL (LoRA) (Non-IID) (Ours)"] == 79.9


def test_the_gain_of_the_abstract_is_that_of_table_2() -> None:
    federated, alone = (cell(mfpt.XNLI, row, "Avg") for row in ("PE_FL (Ours)", "PE_Monolingual"))
    assert round(federated.value - alone.value, 1) == mfpt.GAIN.value


def test_the_papers_full_count_is_the_prompts_model_in_all() -> None:
    printed = cell(mfpt.TRAFFIC, mfpt.FULL, mfpt.PARAMETERS)
    prompt = cell(mfpt.TRAFFIC, mfpt.PROMPT, mfpt.PARAMETERS)
    assert printed.value == base_parameters(hub_config(BASE)) + prompt.value
    ours = next(row for row in traffic_rows() if row.printed == mfpt.FULL)
    assert ours.published_parameters == printed and ours.parameters == 278_051_338


def test_skew_hurts_and_pseudo_labels_repair_it_in_every_data_set() -> None:
    for column in aug_fedprompt.COLUMN.values():
        rows = {
            row: cell(aug_fedprompt.FEW_SHOT, row, column).value
            for row in aug_fedprompt.FEW_SHOT.rows
        }
        assert rows["Skewed FedCLS"] < rows["Uniform FedCLS"] < rows["Uniform FedPrompt"]
        skewed = rows["Skewed FedPrompt"]
        assert skewed < min(rows["Uniform FedPrompt"], rows["Skewed w/ augment"])


def test_cloze_is_ahead_in_one_place_and_less_with_every_label() -> None:
    assert set(pet.COLUMN) == set(aug_fedprompt.COLUMN)
    for column in ("AG's", "Yahoo"):
        cells = [
            [cell(pet.IN_ONE_PLACE, f"{labels} {kind}", column).value for labels in (10, 50, 100)]
            for kind in ("PET", "supervised")
        ]
        gaps = [cloze - head for cloze, head in zip(*cells, strict=True)]
        assert gaps == sorted(gaps, reverse=True) and gaps[-1] > 0


def test_the_largest_gain_of_ranks_is_the_one_the_summary_names() -> None:
    rows = {row: fedp2eft.SEEN.by_column(row) for row in fedp2eft.SEEN.rows}
    gains = {row: found["FedP²EFT"].value - found["LoRA"].value for row, found in rows.items()}
    assert round(max(gains.values()), 1) == 18.6 == round(gains["tir"], 1)


def test_every_silo_gains_by_all_languages_as_the_caption_says() -> None:
    for row in healthcare.PERPLEXITY.rows:
        silos = {
            name: figure.value for name, figure in healthcare.PERPLEXITY.by_column(row).items()
        }
        assert min(silos.values()) < silos[row] < silos["Base"]


def test_english_alone_is_not_helped_by_personalising() -> None:
    federated, *others = (
        {name: figure.value for name, figure in healthcare.PERSONALISED.by_column(row).items()}
        for row in healthcare.PERSONALISED.rows
    )
    helped = {name for name in federated if max(one[name] for one in others) > federated[name]}
    assert set(federated) - helped == {"English"}


def test_the_page_on_few_labels_leans_on_the_papers_own_gap() -> None:
    cloze, head = (
        cell(aug_fedprompt.FEW_SHOT, row, "AGNEWS").value
        for row in ("Uniform FedPrompt", "Uniform FedCLS")
    )
    page = (ROOT / "docs" / "results" / "few-shot.md").read_text(encoding="utf-8")
    assert f"{cloze - head:.1f} points" in page and "notebook" not in page
