import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("fastapi")

from edge_client.base import Base
from simulation.datasets import read_dataset
from simulation.experiment import Experiment
from simulation.record import Record, RecordError, Row, read_rows
from simulation.runner import Place, run, run_all
from simulation.stage import judged
from tests.simulation.experiments import small


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A folder with a small data set in two languages, laid out as MasakhaNEWS is."""
    for language, word in (("eng", "door"), ("hau", "rain")):
        folder = tmp_path / "data" / "masakhanews" / language
        folder.mkdir(parents=True)
        (folder / "labels.txt").write_text("business\nsports\n")
        for part, count in (("train", 6), ("test", 4)):
            lines = [
                f"{('business', 'sports')[n % 2]}\t{word} {part} {n}\ttext {n * n} at {word}"
                for n in range(count)
            ]
            rows = "\n".join(["category\theadline\ttext", *lines])
            (folder / f"{part}.tsv.gz").write_bytes(gzip.compress(f"{rows}\n".encode()))
    return Place(tmp_path / "data", tmp_path / "out")


def news(base: Base, **said: Any) -> Experiment:
    return small(base, dataset="masakhanews", cohort=0, **said)


def plain(rows: tuple[Row, ...]) -> list[Row]:
    """Rows without what a clock says."""
    return [replace(row, train_s=0.0) for row in rows]


def test_a_run_gives_equal_rows_on_any_number_of_processes(
    tiny_base: Base, place: Place, tmp_path: Path
) -> None:
    asked = [news(tiny_base, seed=seed, name=f"seed {seed}") for seed in (0, 1)]
    alone = run_all(asked, place)
    both = run_all(asked, replace(place, out=tmp_path / "other"), jobs=2)
    assert [plain(result.rows) for result in alone] == [plain(result.rows) for result in both]
    assert plain(alone[0].rows) != plain(alone[1].rows)


def test_a_finished_experiment_is_not_run_again(tiny_base: Base, place: Place) -> None:
    first = run(news(tiny_base), place)
    assert run(news(tiny_base, name="by another name"), place).rows == first.rows


def test_a_run_cut_anywhere_ends_as_if_it_had_not_been(
    tiny_base: Base, place: Place, tmp_path: Path
) -> None:
    class Cut(Exception):
        """As a power cut would."""

    through = run(news(tiny_base, rounds=3), place)
    cut = replace(place, out=tmp_path / "cut")

    def stop(closed: Any) -> None:
        raise Cut

    for _ in range(3):
        with pytest.raises(Cut):
            run(news(tiny_base, rounds=3), cut, stop)
    [folder] = cut.out.iterdir()
    with (folder / "rows.jsonl").open("a") as file:
        file.write('{"arm": "", "round')
    assert plain(run(news(tiny_base, rounds=3), cut).rows) == plain(through.rows)
    assert len(list(folder.glob("*.safetensors"))) == 1


def test_local_clients_train_for_themselves_and_answer_for_their_own(
    tiny_base: Base, place: Place
) -> None:
    deal = replace(small(tiny_base).deal, by="language", clients=0)
    result = run(news(tiny_base, paradigm="local", deal=deal, evaluate_every=0), place)
    assert set(result.by_language()) == {"eng", "hau"}
    scores = {row.arm: row.score for row in result.rows if row.round_index == 2 and row.score}
    assert [list(score.by_language) for score in scores.values()] == [["eng"], ["hau"]]
    own = [score.accuracy for score in scores.values()]
    assert result.accuracy == pytest.approx(sum(own) / 2) == sum(result.by_language().values()) / 2


def test_centralised_training_is_one_client_with_all_texts(tiny_base: Base, place: Place) -> None:
    result = run(news(tiny_base, paradigm="centralised"), place)
    assert [row.clients for row in result.rows] == [0, 1, 1]
    assert result.rows[-1].num_examples == 12


def test_costs_are_counted(tiny_base: Base, place: Place) -> None:
    last = run(news(tiny_base), place).rows[-1]
    assert last.clients == 3 and last.num_examples == 12
    assert last.layer_forwards == 3 * 2 * 2 * 12  # passes, layers, epochs, texts
    assert last.bytes_up > last.bytes_down > 3 * 500


def test_an_altered_adapter_is_refused(tiny_base: Base, place: Place) -> None:
    result = run(news(tiny_base, rounds=1), place)
    [folder] = place.out.iterdir()
    [adapter] = folder.glob("*.safetensors")
    adapter.write_bytes(adapter.read_bytes()[:-1] + b"!")
    record = Record(folder, result.experiment)
    with pytest.raises(RecordError, match="missing or altered; delete"):
        record.standing("")


def test_a_damaged_row_is_named(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("nonsense\n")
    with pytest.raises(RecordError, match="line 1: no row of an experiment"):
        read_rows(tmp_path)


def test_what_was_run_is_written_beside_it(tiny_base: Base, place: Place) -> None:
    run(news(tiny_base, rounds=0), place)
    [folder] = place.out.iterdir()
    assert json.loads((folder / "experiment.json").read_text())["dataset"] == "masakhanews"


def test_texts_kept_aside_are_not_trained_on(place: Place) -> None:
    texts = read_dataset("masakhanews", place.data)
    aside = judged(texts, "dev", per_language=2)
    assert len(aside.test) == 4 and not set(aside.test) & set(aside.train)
    assert set(aside.test) | set(aside.train) == set(texts.train)
    few = judged(texts, "test", per_language=3)
    assert len(few.test) == 6 and few.train == texts.train
    assert judged(texts, "test", 3) == few
