from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("fastapi")

from benchmarks.papers.grid import read_file
from smidgen.edge_client.tasks.ready_tasks import NEWS
from smidgen.simulation.experiments.experiment import Experiment
from smidgen.simulation.experiments.personalization import parts
from smidgen.simulation.report.scenario import Scenario
from tests.benchmarks.papers.asked import asked
from tests.command_line import benchmarks

NAMES = ("masakhanews", "unseen", "budgets", "xnli")
BASE, SHARED, PLAIN, OURS, HEAD = "base alone", "shared alone", "LoRA", "FedP²EFT", "own head"
METHODS = tuple(read_file("fedp2eft")[0]["common"]["vars"]["methods"])
NETS = (OURS, "FedP²EFT, ranks alone", "FedL2P")


def scenario(name: str, *words: str, methods: Sequence[str] = (), lr: float = 5e-3) -> Scenario:
    only = {"row": [PLAIN, *methods]} if methods else {}
    return asked(f"fedp2eft:{name}", *words, only=only, lr=lr).scenario


@pytest.mark.parametrize("name", [name for name in NAMES if name != "xnli"])
def test_all_rows_have_a_personal_phase_of_the_same_length_and_the_generator_s_its_rounds(
    name: str,
) -> None:
    found = scenario(name)
    assert {cell.row for cell in found.cells} <= {BASE, *METHODS}
    for cell in found.cells:
        if cell.row == BASE:
            assert cell.experiment.personal is None and cell.experiment.rounds == 0
            continue
        personal = cell.experiment.personal
        assert personal is not None and personal.epochs == 8 and personal.lr == 5e-3
        assert (cell.experiment.rounds > 0) == (cell.row in NETS)
        assert len(cell.experiment.languages) == 14


def test_the_paper_s_figures_stand_beside_ours_and_a_row_may_be_picked() -> None:
    found = scenario("masakhanews", "quick", methods=["BT-LoRA"])
    assert [cell.row for cell in found.cells] == [BASE, PLAIN, "BT-LoRA"]
    assert found.cells[1].published_by_language["tir"].value == 44.9


def test_a_learning_rate_is_every_method_s_and_not_that_of_learning_lambdas() -> None:
    told = {cell.row: cell for cell in scenario("masakhanews", lr=1e-4).cells}
    for row in METHODS:
        personal = told[row].experiment.personal
        assert personal is not None and personal.lr == 1e-4 and personal.search_lr == 1e-4
    before = scenario("masakhanews", methods=[OURS]).cells[-1].experiment
    assert told[OURS].experiment.training == before.training  # one generator for all rates


def test_all_that_is_own_on_xnli_lies_above_one_shared_adapter() -> None:
    shared, *rest = scenario("xnli").cells
    assert shared.row == SHARED and shared.experiment.personal is None
    printed = {cell.row: cell.published_by_language for cell in rest}
    assert printed["FedL2P"]["ur"].value == 44.8 and not printed[HEAD]
    for cell in rest:
        before = parts(cell.experiment)
        assert [part.rounds for part in before.beneath] == [0, 2, 4, 6, 8]
        assert key(before.beneath[-1]) == key(shared.experiment)
        assert len(before.given) == (cell.row in NETS)


def key(asked: Experiment) -> str:
    return asked.key("base", "texts", NEWS, "onnx")


def test_budgets_share_one_generator() -> None:
    cells = [cell for cell in scenario("budgets").cells if cell.row == OURS]
    assert [cell.experiment.personal.rank_budget for cell in cells if cell.experiment.personal] == [
        1,
        2,
        4,
        8,
        16,
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("budget",), "PAPER:TABLE 'fedp2eft:budget' is not one of"),
        (("unseen", "row=LoRa"), "row 'LoRa' is not one of LoRA, FedL2P"),
        (("unseen", "rank=17"), "17"),
        (("unseen", "lr=0"), "lr: above 0"),
    ],
)
def test_what_is_not_known_is_refused(options: tuple[str, ...], said: str, tmp_path: Path) -> None:
    table, *more = options
    done = benchmarks("paper", f"fedp2eft:{table}", *more, "--out", str(tmp_path))
    assert done.exit_code == 2 and said in done.stderr
