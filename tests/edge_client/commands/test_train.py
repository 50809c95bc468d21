import json
from pathlib import Path

import pytest

from smidgen.edge_client.adapters.peft_folder import read_peft_folder
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.commands.train import _peak
from tests.edge_client.commands.alone import LABELLED, refused, train, write_data


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_data(tmp_path / "data")


def test_training_tells_its_plan_before_and_its_figures_after(
    tiny_base: Base, data: Path, tmp_path: Path
) -> None:
    done = train(tiny_base, data, tmp_path / "out", "--rounds", 2)
    assert done.exit_code == 0, done.stderr
    assert "plan: all 8 texts of a batch at once, up to 32 tokens" in done.stderr
    assert "Plan(" not in done.output and "{" not in done.output
    facts = dict(line.split("  ", 1) for line in done.stdout.splitlines())
    assert facts["trained on"].strip().startswith("3 texts, loss ")
    assert facts["accuracy"].strip().endswith("after, on 3 test texts")
    assert "measured" in facts["peak memory"] and "predicted" in facts["peak memory"]


def test_texts_of_one_label_alone_are_told(tiny_base: Base, data: Path, tmp_path: Path) -> None:
    (data / "labelled.csv").write_text("text,label\nrain,weather\nstorm,weather\n")
    done = train(tiny_base, data, tmp_path / "out")
    assert done.exit_code == 0 and "all texts to train on are labelled 'weather'" in done.stderr


def test_a_peak_above_the_prediction_is_told() -> None:
    assert _peak(147 << 20, 147 << 20) == "147 MiB measured, 147 MiB predicted"
    assert "9 % above the prediction" in _peak(147 << 20, 160 << 20)


def test_what_was_trained_has_a_card(tiny_base: Base, data: Path, tmp_path: Path) -> None:
    train(tiny_base, data, tmp_path / "out", "--rounds", 2)
    origin, _ = read_peft_folder(tmp_path / "out", tiny_base)
    card = (tmp_path / "out" / "README.md").read_text()
    assert origin.task.labels == ("security", "weather")
    assert "- rounds: 2\n- devices: 1\n- written: 2" in card and "| 2 | " in card
    assert "rain at nine" not in card and str(tmp_path) not in card


@pytest.mark.parametrize("place", ["file", "file/below", "full"])
def test_a_place_that_cannot_be_written_is_told_before_anything_is_opened(
    tiny_base: Base, data: Path, tmp_path: Path, place: str
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letters.txt").write_text("mine")
    done = train(tiny_base, data, tmp_path / place, "--base", "no-such-base")
    assert f"--out {tmp_path / place}" in refused(done) and "plan:" not in done.stderr


def test_an_adapter_is_replaced_by_the_next(tiny_base: Base, data: Path, tmp_path: Path) -> None:
    for adapter in ("lora:2", "bias"):
        train(tiny_base, data, tmp_path / "out", "--adapter", adapter)
        assert read_peft_folder(tmp_path / "out")[0].adapter == adapter


def test_texts_without_labels_are_told_before_training(
    tiny_base: Base, data: Path, tmp_path: Path
) -> None:
    (data / "labelled.csv").write_text("id,text,label\n")
    done = train(tiny_base, data, tmp_path / "out")
    assert "holds no labelled texts to train on" in refused(done) and "plan:" not in done.stderr


def test_a_budget_that_is_too_small_is_told_before_training(
    tiny_base: Base, data: Path, tmp_path: Path
) -> None:
    done = train(tiny_base, data, tmp_path / "out", "--memory-budget", "1M")
    assert "is below the smallest plan" in refused(done) and "plan:" not in done.stderr


def test_files_written_down_otherwise_train_the_same(
    tiny_base: Base, data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    usual = json.loads(train(tiny_base, data, tmp_path / "one", "--json").stdout.splitlines()[-1])
    other = LABELLED.replace("id,text,label", "nr,body,stars").replace(",", ";")
    for name in ("labelled.csv", "test.csv"):
        (data / name).write_text(other, encoding="utf-16-le")
    told = ("--text-column", "body", "--label-column", "stars", "--encoding", "utf-16-le")
    done = train(tiny_base, data, tmp_path / "two", *told, "--json")
    assert json.loads(done.stdout.splitlines()[-1])["loss"] == usual["loss"]
    assert "labelled.csv is read with a semicolon between columns" in caplog.messages[0]
