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
    assert found == {(row, lr) for row in (HEAD, CLOZE, WHOLE) for lr in chosen}


@pytest.mark.parametrize("dataset", LABELS)
def test_rates_that_the_tables_have_are_among_those_that_were_asked(dataset: str) -> None:
    tables = (
        *table2(BASE, dataset, "lora:8", LISTED[dataset]).cells,
        *fig4(BASE, dataset, "lora:8", LISTED[dataset]).cells,
    )
    trained = {cell.experiment.training.lr for cell in tables if cell.experiment.rounds}
    assert trained <= set(RATES)
