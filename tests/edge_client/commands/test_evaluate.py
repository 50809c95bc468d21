import csv
import json
from pathlib import Path

import numpy as np
import pytest

from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.tables import NARROW, Table, render
from smidgen.edge_client.tasks.counts import Confusion
from smidgen.edge_client.tasks.kinds.classification import KIND
from smidgen.edge_client.tasks.scores import scores_from
from tests.command_line import Done
from tests.edge_client.commands.alone import LABELLED, PAIRS, client, refused, train, write_data


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("evaluate") / "data")


@pytest.fixture(scope="module")
def adapter(tiny_base: Base, data: Path) -> Path:
    assert train(tiny_base, data, data.parent / "out", "--adapter", "head").exit_code == 0
    return data.parent / "out"


def evaluated(base: Base, data: Path, *arguments: object) -> dict[str, object]:
    done = client("evaluate", base, "--data", data, *arguments, "--json")
    assert done.exit_code == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_figures_are_those_that_training_gave(tiny_base: Base, data: Path, tmp_path: Path) -> None:
    trained = json.loads(train(tiny_base, data, tmp_path / "out", "--json").stdout)
    found = evaluated(tiny_base, data, "--adapter", tmp_path / "out")
    assert found["accuracy"] == trained["accuracy_after"] and found["texts"] == 3
    alone = evaluated(tiny_base, data)
    assert alone["accuracy"] == trained["accuracy_before"]


def test_everything_is_in_the_json(tiny_base: Base, data: Path, adapter: Path) -> None:
    found = evaluated(tiny_base, data, "--adapter", adapter)
    assert set(found) == {
        *("data", "texts", "left_out", "accuracy", "loss", "macro", "labels", "confusion", "out"),
        "rows",
    }
    counts = np.array(found["confusion"]["counts"])  # type: ignore[index]
    assert counts.sum() == 3 and counts.trace() / 3 == pytest.approx(found["accuracy"])


def test_each_texts_answer_stays_on_the_device(
    tiny_base: Base, data: Path, adapter: Path, tmp_path: Path
) -> None:
    out = tmp_path / "rows.csv"
    found = evaluated(tiny_base, data, "--adapter", adapter, "--out", out)
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == ["1", "2", "3"]
    assert [row["label"] for row in rows] == ["weather", "security", "weather"]
    right = sum(row["label"] == row["read_as"] for row in rows)
    assert right / 3 == pytest.approx(found["accuracy"])
    losses = [-np.log(float(row[f"p({row['label']})"])) for row in rows]
    assert np.mean(losses) == pytest.approx(found["loss"], abs=1e-4)


def test_a_file_stands_for_a_folder(tiny_base: Base, data: Path, adapter: Path) -> None:
    found = evaluated(tiny_base, data / "labelled.csv", "--adapter", adapter)
    assert found["texts"] == 3 and found["data"] == str(data / "labelled.csv")


def test_texts_to_train_on_are_not_taken_for_test_texts(tiny_base: Base, tmp_path: Path) -> None:
    folder = write_data(tmp_path / "data")
    (folder / "test.csv").unlink()
    said = refused(client("evaluate", tiny_base, "--data", folder))
    assert "holds no test.*" in said and f"--data {folder / 'labelled.csv'}" in said


def scored(base: Base, folder: Path, text: str) -> Done:
    (folder / "test.csv").write_text(text)
    return client("evaluate", base, "--data", folder)


def test_rows_that_cannot_be_scored_are_left_out_and_told(tiny_base: Base, tmp_path: Path) -> None:
    folder = write_data(tmp_path / "data")
    done = scored(tiny_base, folder, f"{LABELLED}4,grandma is ill,health\n")
    assert "on 3 texts" in done.stdout and "grandma" not in done.output
    assert (
        "1 of 4 rows left out (1 label): line 5: label 'health' is not one of security, weather"
        in done.stderr
    )
    said = refused(scored(tiny_base, folder, "text,label\nx,y\n"))
    assert (
        "there is no labelled text to score on; 1 of 1 row left out (1 label): line 2: label"
        in said
    )
    assert "no labelled text" in refused(scored(tiny_base, folder, "text,label\n"))


def test_pairs_are_scored(tiny_base: Base, tmp_path: Path) -> None:
    folder = write_data(tmp_path / "data", PAIRS)
    done = scored(tiny_base, folder, "text_a,text_b,label\nrain,storm,weather\nrain,,weather\n")
    assert "on 1 texts" in done.stdout and "line 3: no text_b" in done.stderr


def table(labels: int, seed: int = 0) -> Confusion:
    generator = np.random.Generator(np.random.PCG64(seed))
    names = [f"a label of some length, number {index}" for index in range(labels)]
    return Confusion.of(names, *generator.integers(0, labels, (2, 999)).tolist())


def report(found: Confusion) -> list[Table]:
    return KIND.report(scores_from([0.5], found.total, found, ()))


@pytest.mark.parametrize("labels", [2, 6, 9, 14, 77])
def test_a_report_fits_a_terminal(labels: int) -> None:
    lines = "\n".join(map(render, report(table(labels)))).splitlines()
    assert max(map(len, lines)) <= NARROW
    assert lines[0].endswith("on 999 texts, loss 0.500")


def test_of_many_labels_the_largest_confusions_are_shown() -> None:
    many = table(77)
    said, worst = render(report(many)[1]), many.mistakes()[0]
    assert "label, read as" not in said and said.splitlines()[2].endswith(f" {worst.count}")
    assert "other pairs of labels; --json has them all" in said
    right = Confusion.of(many.labels, list(range(77)), list(range(77)))
    assert "no text was read as another label" in render(report(right)[1])
