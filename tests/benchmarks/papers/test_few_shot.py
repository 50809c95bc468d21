import pytest

pytest.importorskip("torch")
pytest.importorskip("fastapi")
pytest.importorskip("matplotlib")

from smidgen.simulation.report.scenario import Cell
from tests.benchmarks.papers.asked import SETS, scenario_of

HEAD, CLOZE, WHOLE = "FedCLS (head)", "FedPrompt (cloze)", "full set, cloze"
RATES = {"lora:8": (5e-4, 1e-3, 2e-3, 5e-3), "full": (1e-5, 1e-4, 1e-3)}
PSEUDO = "skewed + pseudo-labels"


def cells_of(name: str, dataset: str, *words: str, adapter: str = "lora:8") -> tuple[Cell, ...]:
    return scenario_of(f"aug-fedprompt:{name}", *words, dataset=dataset, adapter=adapter).cells


@pytest.mark.parametrize("dataset", SETS)
@pytest.mark.parametrize("size", ["whole", "quick"])
def test_rates_are_judged_by_no_test_text_and_with_no_seed_of_a_table(
    dataset: str, size: str
) -> None:
    cells = cells_of("rates", dataset, size)
    assert {cell.experiment.judged_on for cell in cells} == {"dev"}
    assert {cell.experiment.seed for cell in cells} == {100}
    tables = (*cells_of("table2", dataset, size), *cells_of("fig4", dataset, size))
    assert {cell.experiment.judged_on for cell in tables} == {"test"}


@pytest.mark.parametrize("adapter", RATES)
def test_every_row_is_asked_at_every_rate(adapter: str) -> None:
    cells = cells_of("rates", "ag_news", "quick", adapter=adapter)
    rows = f"{HEAD}, 1 pass", f"{CLOZE}, 1 pass", WHOLE
    expected = {(row, lr) for row in rows for lr in RATES[adapter]}
    assert {(cell.row, cell.experiment.training.lr) for cell in cells} == expected


def test_rounds_of_one_pass_read_as_many_texts_as_those_of_two() -> None:
    spans = {
        cell.row: (cell.experiment.rounds, cell.experiment.training.epochs)
        for cell in cells_of("rates", "mnli")
        if cell.row != WHOLE
    }
    assert spans == {
        f"{HEAD}, 2 passes": (40, 2),
        f"{CLOZE}, 2 passes": (40, 2),
        f"{HEAD}, 1 pass": (80, 1),
        f"{CLOZE}, 1 pass": (80, 1),
    }


@pytest.mark.parametrize("dataset", SETS)
def test_the_rates_that_are_told_are_those_that_are_trained_at_and_were_asked(dataset: str) -> None:
    found = scenario_of("aug-fedprompt:table2", "listed", dataset=dataset)
    rates = {cell.name: cell.experiment.training.lr for cell in found.cells}
    cloze, head = rates[CLOZE, "uniform"], rates[HEAD, "uniform"]
    assert any(f"LoRA {cloze:g}, with a head {head:g}," in note for note in found.notes)
    tables = (*found.cells, *cells_of("fig4", dataset, "listed"))
    trained = {cell.experiment.training.lr for cell in tables if cell.experiment.rounds}
    assert trained <= set(RATES["lora:8"])


@pytest.mark.parametrize("adapter", RATES)
def test_table_2_has_pseudo_labels_or_says_why_not(adapter: str) -> None:
    chosen = scenario_of("aug-fedprompt:table2", adapter=adapter)
    has_cell = any(cell.column == PSEUDO for cell in chosen.cells)
    reasons = [note for note in chosen.notes if "no pseudo-labels here" in note]
    assert has_cell == (adapter == "lora:8") == (not reasons)
    assert all("90.2±0.5" in reason for reason in reasons)


def test_every_published_figure_stands_beside_its_own_cell() -> None:
    few_shot = cells_of("table2", "ag_news")
    assert [str(cell.published) for cell in few_shot] == [
        *("None", "66.1±12.8", "64.8±3.1", "87.0±0.8", "68.4±2.4", "90.2±0.5", "90.2±0.5")
    ]
    assert {cell.experiment.deal.gamma for cell in few_shot} == {100.0, 0.001}
    alone, even, half, skewed = (
        *("alone or pooled", "alpha 1 (IID)", "alpha 0.5", "alpha 0 (non-IID)"),
    )
    mixed = scenario_of("mfpt:nc")
    assert {cell.name: str(cell.published) for cell in mixed.cells} == {
        ("local LoRA", alone): "64.3",
        ("centralised LoRA", alone): "77.5",
        ("local full", alone): "86.8",
        ("centralised full", alone): "88.3",
        ("federated LoRA", even): "None",
        ("federated LoRA", half): "None",
        ("federated LoRA", skewed): "79.9",
        ("federated prompt", even): "83.6",
        ("federated prompt", half): "None",
        ("federated prompt", skewed): "80.7",
        ("federated full", even): "88.4",
        ("federated full", half): "None",
        ("federated full", skewed): "86.7",
    }
    for name in ("masakhanews", "xnli"):
        for cell in scenario_of(f"mfpt:{name}").cells:
            here = cell.published_by_language
            assert not here or set(here) == {*cell.experiment.languages, "Avg"}


def test_prompts_begin_as_in_the_paper() -> None:
    cells = scenario_of("mfpt:masakhanews").cells
    prompts = {cell.experiment.prompt_init for cell in cells if "prompt" in cell.row}
    assert prompts == {"Predict the category given the following news article"}
