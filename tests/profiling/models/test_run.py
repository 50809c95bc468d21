import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from smidgen.edge_client.bases.base import Base
from smidgen.profiling.instruments.environment import conditions
from smidgen.profiling.models.cell import GIB, Cell, Proof, can_prove, from_record, to_record
from smidgen.profiling.models.measure import Asked, measure
from smidgen.profiling.models.run import (
    FILE,
    of_one_machine,
    read_kept,
    run,
    session_for,
    to_do,
)
from smidgen.profiling.records.record import RecordError, append
from tests.command_line import smidgen

ASKED = Asked(steps=2, warmup=0, threads=1)
PROVED = (Proof(GIB, True, "done", 1),)
SHORT = ("--tokens", "16", "--steps", "2", "--warmup", "0", "--threads", "1")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def cell(tiny_base: Base) -> Cell:
    return Cell(str(tiny_base.folder), "onnx", "512M", tokens=16)


def keep(path: Path, *cells: Cell) -> None:
    """Cells as a run of this machine would have kept them."""
    for one in cells:
        proved = replace(one, proofs=one.proofs or PROVED) if one.is_done else one
        append(path, [to_record(proved, conditions(read_base_id(one)), "a")])


def read_base_id(cell: Cell) -> str:
    from smidgen.edge_client.bases.base import open_base

    return open_base(cell.base).base_id


def row_of(base: Base) -> tuple[str, ...]:
    return ("--base", str(base.folder), "--only", str(base.folder))


def test_a_refused_budget_is_a_result(cell: Cell) -> None:
    refused = measure(replace(cell, budget="20M"), ASKED)
    assert refused.outcome.startswith("does not fit: needs ") and refused.is_final
    assert refused.needed_bytes is not None and refused.needed_bytes > 20 << 20


def test_onnx_cannot_be_held_to_an_instruction_set(cell: Cell) -> None:
    found = measure(replace(cell, isa="avx2"), ASKED)
    assert found.outcome == "not available here: ONNX Runtime has no switch that holds it to avx2"


def test_texts_that_a_base_cannot_read_are_a_result(cell: Cell) -> None:
    found = measure(replace(cell, tokens=500), ASKED)
    assert "--tokens 500" in found.outcome and not found.is_done


def test_what_was_measured_with_these_settings_is_not_measured_again(
    cell: Cell, tmp_path: Path
) -> None:
    path = tmp_path / FILE
    keep(path, replace(cell, asked=asdict(ASKED), peak_rss_bytes=7))
    assert [found[-1].peak_rss_bytes for found in run([cell], ASKED, path)] == [7]
    assert to_do([cell], ASKED, path) == [0] and to_do([cell], ASKED, path, times=2) == [1]
    others = [replace(cell, budget="1G"), replace(cell, isa="avx2")]
    assert to_do(others, ASKED, path) == [1, 1]
    assert to_do([cell], replace(ASKED, steps=3), path) == [1]


@pytest.mark.slow
@pytest.mark.skipif(not can_prove(), reason="no memory cgroup here (that needs root)")
def test_what_was_measured_where_no_board_could_be_tried_is_proved_here_alone(
    cell: Cell, tmp_path: Path
) -> None:
    path = tmp_path / FILE
    done = replace(cell, asked=asdict(ASKED), peak_rss_bytes=7, steps_s=(1.0, 2.0))
    append(path, [to_record(done, conditions(read_base_id(cell)), "a")])
    assert to_do([cell], ASKED, path) == [1]
    ((found,),) = run([cell], ASKED, path)
    assert found.is_proved and (found.peak_rss_bytes, found.steps_s) == (7, (1.0, 2.0))
    assert to_do([cell], ASKED, path) == [0]
    assert from_record(read_kept(path).records[-1]) == found


def test_cells_with_other_threads_are_kept_beside_each_other(cell: Cell, tmp_path: Path) -> None:
    path, others = tmp_path / FILE, Asked(steps=2, warmup=0)
    keep(path, *(replace(cell, asked=asdict(asked)) for asked in (ASKED, others)))
    assert to_do([cell], ASKED, path) == to_do([cell], others, path) == [0]


def test_the_last_session_goes_on_where_machine_and_versions_agree(cell: Cell) -> None:
    here = conditions()
    kept = [to_record(cell, here, "a")]
    assert session_for(kept, conditions(seed=1)) == "a"
    assert session_for(kept, replace(here, versions={"numpy": "0"})) != "a"
    assert session_for(kept, replace(here, machine={"cores": 512})) != "a"
    assert session_for([], here) != ""


def test_pages_are_of_the_machine_that_was_measured_last(tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    here = conditions()
    board = replace(here, machine=here.machine | {"processor": "a board's"})
    names = ("other", "one", "two")
    places = (board, here, here)
    records = [
        to_record(Cell(name, "peft", steps_s=(1.0,)), where, "a")
        for name, where in zip(names, places, strict=True)
    ]
    append(tmp_path / FILE, records)
    assert of_one_machine(records) == tuple(records[1:])
    result = smidgen("profile", "models", "--page-only", "--out", str(tmp_path))
    assert result.exit_code == 0 and "1 of another machine left out" in result.stderr
    found = json.loads((tmp_path / "models.json").read_text())
    assert [one["base"] for one in found["measured"]] == ["one", "two"]


def test_what_failed_is_measured_again(cell: Cell, tmp_path: Path) -> None:
    keep(tmp_path / FILE, replace(cell, asked=asdict(ASKED), outcome="failed with exit code 1: x"))
    assert to_do([cell], ASKED, tmp_path / FILE) == [1]


@pytest.mark.fault
def test_a_half_written_line_is_told_and_the_rest_is_kept(cell: Cell, tmp_path: Path) -> None:
    path = tmp_path / FILE
    keep(path, replace(cell, asked=asdict(ASKED)))
    with path.open("a") as file:
        file.write('{"kind": "mod')
    kept = read_kept(path)
    assert len(kept.records) == 1 and "line 2 is cut short and left out" in kept.note


def test_a_file_of_something_else_is_named(cell: Cell, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"round_index": 1}\n')
    with pytest.raises(RecordError, match="line 1: not a record"):
        list(run([cell], ASKED, tmp_path / FILE))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--only", "gpt-17"], "--only gpt-17 is not a row; one of albert-base"),
        (["--base", "/no/such/base"], "no base at /no/such/base"),
        (["--method", "sgd"], "--method sgd is not one of full, peft, nf4, torch, onnx"),
        (["--budget", "much"], "--budget 'much' is not a size"),
        (["--isa", "mmx"], "--isa mmx is not one of sse4, avx2, avx512"),
        (["--sample", "0"], "--sample 0: 1 to 110 cells"),
        (["--steps", "0"], "--steps 0 is less than 1"),
        (["--tokens", "100000"], "--tokens"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments: list[str], expected: str) -> None:
    result = smidgen("profile", "models", *arguments)
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.strip().splitlines()
    assert expected in line


@pytest.mark.slow
def test_the_whole_command_on_one_tiny_base(tiny_base: Base, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    words = [*row_of(tiny_base), *SHORT, "--method", "torch", "--method", "onnx", "--budget", "1G"]
    words += ["--out", str(tmp_path / "out"), "--json"]
    first = smidgen("profile", "models", *words)
    assert first.exit_code == 0, first.output
    cells = json.loads(first.stdout.splitlines()[-1])["cells"]
    assert [(cell["method"], cell["outcome"]) for cell in cells] == [
        ("torch", "done"),
        ("onnx", "done"),
    ]
    for cell in cells:
        assert 0 < cell["peak_anon_bytes"] < cell["peak_rss_bytes"]
        assert len(cell["steps_s"]) == 2 and min(cell["texts_per_s"]) > 0
        assert cell["label_peak_rss_bytes"] > 0 and cell["step_j"] is None
        assert cell["round_bytes"] == 4 * cell["trained_parameters"] > 0
        if not cell["proofs"]:
            pytest.skip("no memory cgroup here: nothing is proved")
        assert cell["board_bytes"] == GIB and cell["proofs"][0]["is_done"]
    written = (tmp_path / "out" / FILE).read_bytes()
    again = smidgen("profile", "models", *words)
    assert json.loads(again.stdout.splitlines()[-1])["cells"] == cells
    assert (tmp_path / "out" / FILE).read_bytes() == written


@pytest.mark.slow
@pytest.mark.parametrize("method", ["full", "peft", "nf4"])
def test_others_train_label_and_are_proved(tiny_base: Base, method: str) -> None:
    for library in ("transformers", "peft", "bitsandbytes"):
        pytest.importorskip(library)
    wanted = Cell(str(tiny_base.folder), method, tokens=16)
    found = measure(wanted, ASKED)
    assert found.outcome == "done" and len(found.texts_per_s) > 0
    assert found.dtype in ("float32", "bfloat16") and found.trained_parameters
    assert found.label_peak_rss_bytes and found.peak_rss_bytes


@pytest.mark.slow
def test_held_to_avx2_we_and_the_recipe_compute_in_float32(tiny_base: Base) -> None:
    pytest.importorskip("bitsandbytes")
    for method, budget in (("torch", "1G"), ("nf4", "")):
        found = measure(Cell(str(tiny_base.folder), method, budget, "avx2", tokens=16), ASKED)
        if "this processor" in found.outcome:
            pytest.skip(found.outcome)
        assert (found.outcome, found.dtype) == ("done", "float32")


@pytest.mark.slow
def test_cells_measured_twice_stand_side_by_side(tiny_base: Base, tmp_path: Path) -> None:
    words = [*row_of(tiny_base), *SHORT, "--method", "onnx", "--sample", "2", "--seed", "1"]
    result = smidgen("profile", "models", *words, "--again", "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert "measured twice" in result.stdout and len(read_kept(tmp_path / FILE).records) == 4


@pytest.mark.slow
@pytest.mark.fault
def test_a_killed_table_loses_the_cell_it_was_at(tiny_base: Base, tmp_path: Path) -> None:
    words = [*row_of(tiny_base), *SHORT, "--method", "onnx", "--out", str(tmp_path)]
    command = [sys.executable, "-m", "smidgen", "profile", "models", *words]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        end = time.monotonic() + 120
        while time.monotonic() < end and not read_kept(tmp_path / FILE).records:
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGKILL)
    before = (tmp_path / FILE).read_bytes()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert (tmp_path / FILE).read_bytes().startswith(before)
    assert len(read_kept(tmp_path / FILE).records) == 4 and "onnx 256M" in done.stdout
