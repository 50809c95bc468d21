import pytest

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

from simulation.papers.few_shot.rates import RATES, RATES_OF_ALL, SEED, rates
from simulation.papers.few_shot.scenarios import fig4, scenario, table2
from simulation.papers.few_shot.setting import CLOZE, HEAD, LISTED, QUICK, WHOLE, Size
from simulation.papers.published.aug_fedprompt import LABELS

BASE = "models/minilm"


@pytest.mark.parametrize("dataset", LABELS)
@pytest.mark.parametrize("size", [Size(), QUICK], ids=["whole", "quick"])
def test_rates_are_judged_by_no_test_text_and_with_no_seed_of_a_table(
    dataset: str, size: Size
) -> None:
    cells = rates(BASE, dataset, "lora:8", size).cells
    assert {cell.experiment.judged_on for cell in cells} == {"dev"}
    assert {cell.experiment.seed for cell in cells} == {SEED}
    tables = (
        *table2(BASE, dataset, "lora:8", size).cells,
        *fig4(BASE, dataset, "lora:8", size).cells,
    )
    assert {cell.experiment.judged_on for cell in tables} == {"test"}


@pytest.mark.parametrize(("adapter", "chosen"), [("lora:8", RATES), ("full", RATES_OF_ALL)])
def test_every_row_is_asked_at_every_rate(adapter: str, chosen: tuple[float, ...]) -> None:
    found = {
        (cell.row, cell.experiment.training.lr)
        for cell in scenario("rates", BASE, "ag_news", adapter, QUICK).cells
    }
    rows = f"{HEAD}, 1 pass", f"{CLOZE}, 1 pass", WHOLE
    assert found == {(row, lr) for row in rows for lr in chosen}


def test_rounds_of_one_pass_read_as_many_texts_as_those_of_two() -> None:
    cells = rates(BASE, "mnli", "lora:8", Size(rounds=7, epochs=2)).cells
    spans = {
        cell.row: (cell.experiment.rounds, cell.experiment.training.epochs)
        for cell in cells
        if cell.row != WHOLE
    }
    assert spans == {
        f"{HEAD}, 2 passes": (7, 2),
        f"{CLOZE}, 2 passes": (7, 2),
        f"{HEAD}, 1 pass": (14, 1),
        f"{CLOZE}, 1 pass": (14, 1),
    }


@pytest.mark.parametrize("dataset", LABELS)
def test_the_rates_that_are_told_are_those_that_are_trained_at(dataset: str) -> None:
    found = table2(BASE, dataset, "lora:8", LISTED[dataset])
    cloze, head = (
        next(cell.experiment.training.lr for cell in found.cells if (cell.row, cell.column) == at)
        for at in ((CLOZE, "uniform"), (HEAD, "uniform"))
    )
    assert any(f"LoRA {cloze:g}, with a head {head:g}," in note for note in found.notes)


@pytest.mark.parametrize("dataset", LABELS)
def test_rates_that_the_tables_have_are_among_those_that_were_asked(dataset: str) -> None:
    tables = (
        *table2(BASE, dataset, "lora:8", LISTED[dataset]).cells,
        *fig4(BASE, dataset, "lora:8", LISTED[dataset]).cells,
    )
    trained = {cell.experiment.training.lr for cell in tables if cell.experiment.rounds}
    assert trained <= set(RATES)
