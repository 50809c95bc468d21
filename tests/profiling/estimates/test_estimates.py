import json
from pathlib import Path

import pytest

from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.layout import checked_shape
from smidgen.edge_client.bases.random_models import hub_config
from smidgen.edge_client.planning.plan import Plan, Workload
from smidgen.edge_client.planning.step_cost import step_flops
from smidgen.profiling.estimates import (
    BOARDS,
    LEAST_BYTES,
    MOST_BYTES,
    REACHED,
    Board,
    MeasuredRates,
    StepWork,
    array_bytes,
    estimate,
    largest_cache,
    memory_rate,
    reached,
    roof_s,
    step_work,
)
from tests.command_line import smidgen

STEP = StepWork(flops=1e12, moved_bytes=1e9)
TX2 = BOARDS["tx2"]


def test_peaks_are_what_the_data_sheets_say() -> None:
    assert TX2.peak_flops_per_s == 64e9
    assert TX2.peak_bytes_per_s == pytest.approx(59.7e9, rel=1e-3)
    assert BOARDS["nano"].peak_bytes_per_s == pytest.approx(25.6e9, rel=1e-3)
    assert BOARDS["orin-nano"].peak_bytes_per_s == pytest.approx(68.3e9, rel=1e-2)


@pytest.mark.parametrize("board", BOARDS.values(), ids=list(BOARDS))
def test_every_board_names_its_sources(board: Board) -> None:
    assert len(board.sources) > 1 and all(board.sources)


def test_a_step_that_reaches_half_the_roof_takes_twice_as_long() -> None:
    whole, half = estimate(STEP, TX2, 1.0), estimate(STEP, TX2, 0.5)
    assert half.step_s == 2 * whole.step_s
    assert whole.step_s == pytest.approx(1e12 / (REACHED * 64e9))
    assert estimate(STEP, TX2, None).is_bound and not whole.is_bound


def test_the_roof_is_made_of_what_takes_longer() -> None:
    assert estimate(STEP, TX2, 1.0).limit == "products"
    assert estimate(StepWork(1e9, 1e12), TX2, 1.0).limit == "memory"
    assert roof_s(StepWork(1e9, 1e12), MeasuredRates(1e9, 1e9)) == 1000


def test_a_machine_estimates_its_own_step_as_it_measured_it() -> None:
    here = MeasuredRates(REACHED * TX2.peak_flops_per_s, REACHED * TX2.peak_bytes_per_s)
    assert estimate(STEP, TX2, reached(STEP, 77.0, here)).step_s == pytest.approx(77.0)


def test_a_step_above_the_roof_is_told_from_one_on_it() -> None:
    assert reached(STEP, 500.0, MeasuredRates(1e9, 1e9)) == 2.0


def test_every_input_says_how_we_came_by_it() -> None:
    kinds = {one.name: one.kind for one in estimate(STEP, TX2, 0.7).inputs}
    assert kinds["of these peaks"] == "assumed" and kinds["peak of products"] == "computed"
    assert kinds["share of the roof"] == "measured"


def test_only_what_was_looked_up_is_called_published() -> None:
    kinds = {
        name: {one.name: one.kind for one in estimate(STEP, board, None).inputs}
        for name, board in BOARDS.items()
    }
    assert kinds["tx2"]["cores and clock"] == kinds["tx2"]["memory's bus"] == "commonly cited"
    assert kinds["xavier-nx"]["cores and clock"] == "published"
    assert kinds["xavier-nx"]["operations per cycle"] == "assumed"
    assert kinds["orin-nano"]["memory's bus"] == "published"


def test_weights_of_fewer_bits_move_fewer_bytes() -> None:
    shape = checked_shape(hub_config("bert-base"))
    plan = Plan("float32", 4, (), shape.layers, 256)
    work = [Workload(shape, bits, parse_adapter("lora:8"), 4, 256) for bits in (4, 8)]
    four, eight = (step_work(one, plan) for one in work)
    assert four.flops == eight.flops == step_flops(work[0], plan)
    assert four.moved_bytes < eight.moved_bytes


def test_the_arrays_are_larger_than_caches_and_not_too_large() -> None:
    assert array_bytes(0) == LEAST_BYTES and array_bytes(1 << 40) == MOST_BYTES
    assert largest_cache(Path("/no/such")) == 0
    assert memory_rate(repeats=1, cores=1, bytes_=1 << 20) > 1e6


def test_the_command_prints_inputs_formula_and_that_it_is_estimated() -> None:
    done = smidgen("profile", "estimate", "--base", "roberta-base", "--board", "tx2")
    assert done.exit_code == 0, done.stderr
    for word in ("ESTIMATED", "formula:", "commonly cited", "assumed", "source:", "64.0 G/s"):
        assert word in done.stdout


def test_the_command_as_json() -> None:
    done = smidgen("profile", "estimate", "--base", "embedded", "--board", "nano", "--json")
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["source"] == "estimated" and found["is_lower_bound"] and found["step_s"] > 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--base", "<script>", "--board", "tx2"), "<script>"),
        (("--base", "embedded", "--board", "pi"), "one of nano"),
        (("--base", "embedded", "--board", "tx2", "--step-s", "-1"), "seconds above 0"),
        (("--base", "embedded", "--board", "tx2", "--memory-budget", "2M"), "budget"),
        (("--base", "embedded", "--board", "tx2", "--bits", "5"), "4, 8 and 16"),
        (("--base", "roberta-large", "--board", "tx2", "--tokens", "8192"), "takes 512"),
    ],
)
def test_wrong_input_is_one_line(words: tuple[str, ...], told: str) -> None:
    done = smidgen("profile", "estimate", *words)
    assert done.exit_code == 2 and told in done.stderr and done.stderr.count("\n") == 1
