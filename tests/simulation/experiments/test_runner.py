import gzip
import json
import multiprocessing
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

pytest.importorskip("torch")
pytest.importorskip("fastapi")

from smidgen.coordinator.rounds.schedule import Learning
from smidgen.edge_client.bases.base import Base, BaseError, open_base
from smidgen.edge_client.errors import Failed, WrongInput
from smidgen.edge_client.formats.source import DataError
from smidgen.edge_client.tasks.task import Task, task_toml
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.texts.prompts.patterns import TaskError
from smidgen.edge_client.wire.tensors import sha256
from smidgen.edge_client.wire.training import Labelling, Training
from smidgen.simulation.datasets.catalogue import read_dataset
from smidgen.simulation.experiments.experiment import Experiment, ExperimentError
from smidgen.simulation.experiments.record import (
    Record,
    RecordError,
    Result,
    Row,
    kept_adapter,
    read_rows,
)
from smidgen.simulation.experiments.runner import Place, finished, run, run_all
from smidgen.simulation.experiments.scoring import Score, Tally
from smidgen.simulation.experiments.stage import stage
from smidgen.simulation.experiments.texts import judged, trained_on
from smidgen.simulation.experiments.virtual.devices import InProcess
from smidgen.simulation.population.deal import Deal
from tests.breadth import first_fast
from tests.simulation.experiments.experiments import small, texts_of

LABELS = ("business", "sports")


def place_in(
    folder: Path, train: tuple[str, ...] = LABELS, test: tuple[str, ...] = LABELS
) -> Place:
    """A folder with a small data set in two languages, laid out as MasakhaNEWS is.

    Its texts have these labels in turn.
    """
    for language, word in (("eng", "door"), ("hau", "rain")):
        texts = folder / "data" / "masakhanews" / language
        texts.mkdir(parents=True)
        (texts / "labels.txt").write_text("\n".join([*LABELS, ""]))
        for part, count, labels in (("train", 6, train), ("test", 4, test)):
            lines = [
                f"{labels[n % len(labels)]}\t{word} {part} {n}\ttext {n * n} at {word}"
                for n in range(count)
            ]
            rows = "\n".join(["category\theadline\ttext", *lines])
            (texts / f"{part}.tsv.gz").write_bytes(gzip.compress(f"{rows}\n".encode()))
    return Place(folder / "data", folder / "out")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return place_in(tmp_path)


def news(base: Base, **said: Any) -> Experiment:
    return small(base, dataset="masakhanews", cohort=0, **said)


def plain(rows: tuple[Row, ...]) -> list[Row]:
    """Rows without what a clock says."""
    return [replace(row, train_s=0.0) for row in rows]


@pytest.mark.slow
def test_a_run_gives_equal_rows_on_any_number_of_processes(
    tiny_base: Base, place: Place, tmp_path: Path
) -> None:
    asked = [news(tiny_base, seed=seed, name=f"seed {seed}") for seed in (0, 1)]
    alone = run_all(asked, place)
    both = run_all(asked, replace(place, out=tmp_path / "other"), jobs=2)
    assert [plain(result.rows) for result in alone] == [plain(result.rows) for result in both]
    assert plain(alone[0].rows) != plain(alone[1].rows)


def test_a_pattern_is_asked_in_place_of_the_sets(tiny_base: Base, place: Place) -> None:
    plain = news(tiny_base)
    asked = replace(plain, pattern="{text} ( [MASK] )")
    stages = [stage(one, place.data) for one in (plain, asked)]
    assert stages[1].dataset.task.asked() == (asked.pattern,)
    assert stages[0].dataset.task.labels == stages[1].dataset.task.labels
    assert stages[0].key != stages[1].key
    with pytest.raises(TaskError, match="exactly one"):
        stage(replace(plain, pattern="no mask {text}"), place.data)


def test_a_finished_experiment_is_not_run_again(tiny_base: Base, place: Place) -> None:
    first = run(news(tiny_base), place)
    assert run(news(tiny_base, name="by another name"), place).rows == first.rows


def test_a_run_cut_anywhere_ends_as_if_it_had_not_been(
    tiny_base: Base, place: Place, tmp_path: Path
) -> None:
    class Cut(Exception):
        """Ends the process's work as a power cut would."""

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


def worsened(base: Base, folder: Path, **said: Any) -> tuple[Result, Place]:
    """Rounds that keep their best adapter, which is not the last: they learn the wrong label.

    What an untrained adapter answers most is right by one of both ways to choose it.
    """
    training = Training(epochs=2, batch=2, lr=0.05, tokens=32)
    for right, wrong in (LABELS, LABELS[::-1]):
        place = place_in(folder / right, train=(wrong,), test=(right,))
        result = run(news(base, rounds=3, training=training, keep="best", **said), place)
        if result.rows[-1].kept != 3:
            return result, place
    pytest.fail("the last adapter was the best of both")


@pytest.mark.slow
def test_an_experiment_that_keeps_its_best_adapter_is_judged_by_that_and_hands_it_on(
    tiny_base: Base, tmp_path: Path
) -> None:
    result, place = worsened(tiny_base, tmp_path)
    scores = [row.score.total.right for row in result.rows if row.score]
    best = max(range(4), key=lambda index: (scores[index], index))
    assert result.rows[-1].kept == best < 3
    assert result.final().total.right == max(scores)
    [folder] = place.out.iterdir()
    assert sha256(kept_adapter(folder, result.rows[-1])) == result.rows[best].adapter_sha256
    assert run(replace(result.experiment, keep="last"), place).final().total.right == scores[-1]


@pytest.mark.slow
def test_an_adapter_that_a_share_of_the_texts_chose_is_judged_by_all_in_the_end(
    tiny_base: Base, tmp_path: Path
) -> None:
    result, place = worsened(tiny_base, tmp_path, evaluate_share=0.5)
    last = result.rows[-1]
    chosen = next(row.score for row in result.rows if row.round_index == last.kept)
    assert last.kept is not None and last.kept < 3 and chosen is not None
    assert result.final().total.asked == 8 > chosen.total.asked
    whole = run(replace(result.experiment, evaluate_share=1.0), place).rows[last.kept].score
    assert whole is not None and result.final().total == whole.total


def test_an_arm_that_keeps_no_adapter_counts_by_its_last_one(tiny_base: Base) -> None:
    def row(arm: str, index: int, right: int, kept: int | None) -> Row:
        score = Score(Tally(right, 4), 1.0, {}, {})
        return Row(
            arm=arm,
            round_index=index,
            clients=1,
            num_examples=4,
            loss=1.0,
            adapter_sha256="",
            evaluated=index,
            score=score,
            kept=kept,
        )

    rows = (row("a", 0, 3, 0), row("a", 1, 1, 0), row("b", 0, 4, None), row("b", 1, 2, None))
    found = Result(news(tiny_base, paradigm="local", keep="best"), rows).final()
    assert found.total == Tally(3 + 2, 8)


@pytest.mark.parametrize(
    ("said", "left_out"),
    [
        ({"training": Training(adjusted=True)}, "leave out adjusted"),
        ({"learning": Learning(selection="coverage")}, "leave out selection = coverage"),
        ({"labelling": Labelling()}, "leave out labelling"),
        ({"deal": Deal(clients=2, labelled=4)}, "leave out deal.labelled"),
    ],
)
def test_what_goes_by_labels_of_texts_is_refused_where_they_have_none(
    tiny_base: Base, tmp_path: Path, said: dict[str, Any], left_out: str
) -> None:
    for part in ("train", "test"):
        (tmp_path / f"{part}.txt").write_text("".join(f"{part} {n}\n" for n in range(6)))
    (tmp_path / "task.toml").write_text(task_toml(Task("notes", kind="mlm")))
    asked = small(tiny_base, dataset=f"folder:{tmp_path}", **said)
    with pytest.raises(ExperimentError, match=f"kind mlm has no labels of texts: {left_out}"):
        run(asked, place_in(tmp_path))


def silos(base: Base, **said: Any) -> Experiment:
    """One silo per language."""
    deal = replace(small(base).deal, by="language", clients=0)
    return news(base, deal=deal, **said)


def test_local_clients_train_for_themselves_and_answer_for_their_own(
    tiny_base: Base, place: Place
) -> None:
    result = run(silos(tiny_base, paradigm="local", evaluate_every=0), place)
    scores = {row.arm: row.score for row in result.rows if row.round_index == 2 and row.score}
    assert [list(score.by_language) for score in scores.values()] == [["eng"], ["hau"]]
    right = sum(score.total.right for score in scores.values())
    assert result.accuracy == right / 8 and result.final().total.asked == 8
    assert result.total("bytes_up") == 0


@pytest.mark.slow
def test_of_local_clients_only_those_asked_train_by_the_task_of_all(
    tiny_base: Base, place: Place
) -> None:
    every = run(silos(tiny_base, paradigm="local"), place)
    asked = silos(tiny_base, paradigm="local", alone=("hau",))
    one = run(asked, place)
    assert {row.arm for row in one.rows} == {"hau"}
    assert plain(one.rows) == plain(tuple(row for row in every.rows if row.arm == "hau"))
    with pytest.raises(ExperimentError, match="alone: 'swa' is none of the clients that"):
        run(replace(asked, alone=("swa",)), place)
    with pytest.raises(ExperimentError, match="alone: paradigm is federated; local expected"):
        replace(asked, paradigm="federated")


@pytest.mark.few(1)
@pytest.mark.parametrize("adapter", ["lora:2", "full+head"])
def test_local_clients_all_start_from_the_same(tiny_base: Base, place: Place, adapter: str) -> None:
    result = run(silos(tiny_base, paradigm="local", rounds=1, adapter=adapter), place)
    starts = {row.adapter_sha256 for row in result.rows if row.round_index == 0}
    ends = {row.adapter_sha256 for row in result.rows if row.round_index == 1}
    assert len(starts) == 1 and len(ends) == 2


def test_a_local_client_without_labels_keeps_the_first_adapter(
    tiny_base: Base, place: Place
) -> None:
    deal = Deal(clients=3, labelled=2, labelled_clients=1)
    result = run(news(tiny_base, paradigm="local", deal=deal), place)
    assert {row.arm: row.round_index for row in result.rows}["client-0003"] == 0
    assert result.final().total.asked == 8


def test_one_experiment_is_one_processes(tiny_base: Base, place: Place) -> None:
    result = run(news(tiny_base, rounds=0), place)
    [folder] = place.out.iterdir()
    with (
        Record(folder, result.experiment),
        pytest.raises(RecordError, match="another process runs the experiment"),
    ):
        run(news(tiny_base, rounds=0), place)
    assert run(news(tiny_base, rounds=0), place).rows == result.rows


def test_equal_experiments_are_run_once(tiny_base: Base, place: Place) -> None:
    asked = [news(tiny_base, name=name) for name in ("one", "two")]
    one, two = run_all(asked, place, jobs=2)
    assert one.rows == two.rows and len(one.rows) == 3
    assert (one.experiment.name, two.experiment.name) == ("one", "two")


def test_what_cannot_be_run_is_said_before_anything_is(tiny_base: Base, place: Place) -> None:
    asked = [news(tiny_base), replace(news(tiny_base), base="nowhere/at/all")]
    with pytest.raises(BaseError, match="no base at nowhere"):
        run_all(asked, place)
    assert not place.out.exists()


@pytest.mark.slow
def test_a_failing_experiment_ends_the_others(
    tiny_base: Base, place: Place, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(tiny_base.folder, tmp_path / "broken"))
    weights = load_file(folder / "model.safetensors")
    weights["cls.predictions.bias"][:] = np.nan  # no loss is a number, on any processor
    save_file(weights, folder / "model.safetensors")
    endless = news(tiny_base, rounds=10_000, evaluate_every=0)
    broken = news(open_base(str(folder)))
    with pytest.raises(Failed, match="could train"):
        run_all([endless, broken], place, jobs=2)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("jobs", first_fast([1, 2]))
def test_wrong_input_is_wrong_input_in_any_process(
    tiny_base: Base, place: Place, jobs: int
) -> None:
    asked = [news(tiny_base, rounds=0, seed=seed) for seed in (0, 1)]
    run(asked[0], place)
    [folder] = place.out.iterdir()
    with (
        Record(folder, asked[0]),
        pytest.raises(WrongInput, match="another process runs the experiment"),
    ):
        run_all(asked, place, jobs)


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
    with (
        Record(folder, result.experiment) as record,
        pytest.raises(RecordError, match="missing or altered; delete"),
    ):
        record.standing("")


def test_a_damaged_row_is_named(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("nonsense\n")
    with pytest.raises(RecordError, match="line 1: not an experiment's row"):
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


def test_one_language_may_have_fewer_texts_and_others_are_kept_aside(
    tiny_base: Base, place: Place
) -> None:
    texts = read_dataset("masakhanews", place.data)
    said = news(tiny_base, languages=("eng", "hau"), train_texts=4, patience=1)
    whole, _ = trained_on(texts, said)
    less, aside = trained_on(texts, replace(said, fewer=(("hau", 1),), dev_texts=1))
    assert Counter(one.language for one in less.train) == {"eng": 4, "hau": 1}
    assert set(less.train) < set(whole.train)
    assert Counter(one.language for one in aside) == {"eng": 1, "hau": 1}
    assert not set(aside) & set(less.train)
    rest, alone = trained_on(texts, replace(said, train_texts=0, dev_texts=2))
    assert sorted(map(str, (*rest.train, *alone))) == sorted(map(str, texts.train))
    for most, kept, why in (
        (6, 1, "has 0 training texts of eng to keep aside; set dev_texts or train_texts to fewer"),
        (4, 3, "has 2 training texts of eng to keep aside"),
        (0, 7, "has 6 training texts of eng to keep aside"),
        (0, 6, "has no text of eng left to train on; set dev_texts to fewer"),
    ):
        with pytest.raises(DataError, match=f"dev_texts = {kept}: masakhanews {why}"):
            trained_on(texts, replace(said, train_texts=most, dev_texts=kept))


def test_a_pattern_that_asks_a_second_text_where_there_is_none_is_refused(
    tiny_base: Base, place: Place
) -> None:
    said = news(tiny_base, pattern="[MASK] {text_b}")
    with pytest.raises(ExperimentError, match="masakhanews has one text in each row; ask by "):
        stage(said, place.data)
    assert stage(replace(said, pattern="[MASK] {text_a}"), place.data).dataset.task.patterns


def test_early_stopping_goes_by_texts_kept_aside_and_is_the_end(
    tiny_base: Base, place: Place
) -> None:
    silos = Deal(by="language", clients=0)
    training = replace(news(tiny_base).training, lr=1e-12)  # which changes no answer
    said = news(tiny_base, paradigm="local", deal=silos, training=training, train_texts=4)
    said = replace(said, rounds=9, patience=2, keep="best", dev_texts=2)
    on = stage(said, place.data)
    devices = InProcess(on)
    found = devices.check(devices.start().adapter, "hau")
    devices.close()
    assert found is not None and found.total.asked == 2 and set(found.by_client) == {"hau"}
    assert finished(on, place) is None
    result = run(said, place)
    assert [row.round_index for row in result.rows if row.arm == "eng"] == [0, 1, 2]
    assert finished(on, place) == run(said, place) == result


def test_pairs_kept_aside_share_no_first_text_with_those_trained_on() -> None:
    pairs = [Example(f"premise {n // 3}", f"hypothesis {n}", "yes", "en") for n in range(30)]
    words = {"yes": "yes", "no": "no"}
    task = Task("pairs", ("yes", "no"), ("{text_a} ? [MASK] , {text_b}",), words)
    texts = replace(texts_of(task), train=tuple(pairs))
    aside = judged(texts, "dev", per_language=5)
    assert not {e.text for e in aside.test} & {e.text for e in aside.train}
    with pytest.raises(DataError, match="leaves no training text of en"):
        judged(texts, "dev", per_language=30)
    both = replace(texts, train=(*pairs, Example("a", "b", "no", "fr")))
    with pytest.raises(DataError, match="name one of its languages"):
        judged(both, "dev", per_language=5)
