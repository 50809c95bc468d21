from simulation.papers.published import aug_fedprompt, healthcare
from simulation.papers.published.as_printed import printed_table
from simulation.papers.published.figure import Table


def test_a_papers_table_stands_as_it_is_printed() -> None:
    table = printed_table(aug_fedprompt.FEW_SHOT)
    assert table.title == "published: AUG-FedPrompt, table 2"
    assert table.rows[0] == ["Uniform FedCLS", "66.1±12.8", "60.1±0.4", "57.6±1.9", "54.0±0.1"]
    assert table.notes == [aug_fedprompt.FEW_SHOT.source]


def test_an_empty_cell_is_not_told_as_unknown() -> None:
    entities = printed_table(healthcare.ENTITIES)
    assert entities.rows[1][:4] == ["NCBI-disease", "0.9287", "-", "-"]


def test_what_has_to_be_known_of_cells_is_told_once_behind_their_names() -> None:
    def remarks(table: Table) -> list[str]:
        return list(printed_table(table).notes[1:])

    (of_a_row,) = remarks(healthcare.ENTITIES)
    assert of_a_row.startswith("NCBI-disease: one number")
    (of_two_cells,) = remarks(aug_fedprompt.SYSTEM_COST)
    assert of_two_cells.startswith("Memory (GB), BERT-large, RoBERTa-large: printed `OOM`")
