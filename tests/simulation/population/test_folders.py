from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.breadth import first_fast

pytest.importorskip("torch")

from smidgen.edge_client.formats.source import DataError
from smidgen.edge_client.tasks.task import Task, read_task
from smidgen.edge_client.texts.examples import ClientData, Example, read_file, read_folder
from smidgen.profiling.canvas import PALETTE
from smidgen.simulation.datasets.dataset import likeness
from smidgen.simulation.population.clients import Client
from smidgen.simulation.population.deal import Deal, population_of, split_of, write_clients
from smidgen.simulation.population.picture import count, draw_partition, partition_figure

TASK = Task("t", ("a", "b"), ("[MASK] {text}",), {"a": "good", "b": "bad"})
NONE = np.empty(0, np.int32)
PNG = b"\x89PNG"


def write_split(out: Path, data: Path, test: Path | None, *how: Any, **more: Any) -> list[Path]:
    return split_of(data, test, *how, **more).write(out)


def write(path: Path, count: int, word: str = "text") -> Path:
    rows = [f"{word} {number},{'ab'[number % 2]}" for number in range(count)]
    path.write_text("\n".join(["text,label", *rows]))
    return path


def test_labels_are_dealt_out_evenly_and_tests_are_disjoint(tmp_path: Path) -> None:
    folders = write_split(
        tmp_path / "out", write(tmp_path / "d.csv", 60), None, TASK, 4, labels=16, seed=1
    )
    data = [read_folder(folder, TASK) for folder in folders]
    for device in data:
        assert Counter(example.label for example in device.labelled) == {"a": 2, "b": 2}
    texts = [e.text for device in data for e in (*device.labelled, *device.test)]
    assert len(texts) == len(set(texts)) == 60


def test_a_test_file_of_ones_own_is_dealt_out_instead_of_the_rest(tmp_path: Path) -> None:
    data, test = write(tmp_path / "d.csv", 60), write(tmp_path / "t.csv", 10, "other")
    folders = write_split(tmp_path / "out", data, test, TASK, 4, labels=16, seed=1)
    found = [read_folder(folder, TASK) for folder in folders]
    assert not any(client.unlabelled for client in found)
    tested = [example for client in found for example in client.test]
    assert Counter(tested) == Counter(read_file(test, TASK, labelled=True))


@pytest.mark.parametrize("is_apart", [False, True])
def test_nobody_is_tested_on_a_text_that_somebody_trains_on(tmp_path: Path, is_apart: bool) -> None:
    data = tmp_path / "d.csv"
    rows = [f"{'Text' if n > 9 else 'text'} {n % 10}.,{'ab'[n % 2]}" for n in range(60)]
    data.write_text("\n".join(["text,label", *rows]))
    test = write(tmp_path / "t.csv", 20) if is_apart else None
    split = split_of(data, test, TASK, 2, 8, seed=1, like=likeness)
    trained = {likeness(split.texts[i]) for one in split.population for i in one.labelled}
    tested = [split.tests[i] for one in split.population for i in one.test]
    assert tested and not trained & set(map(likeness, tested))
    assert len(tested) + split.left_out == (20 if is_apart else 52)


def test_a_split_without_a_text_to_test_on_is_refused(tmp_path: Path) -> None:
    data = write(tmp_path / "d.csv", 8)
    with pytest.raises(DataError, match="8 labels leave no text to test on; lower the number"):
        split_of(data, None, TASK, 2, labels=8, seed=1)


def test_equal_seeds_write_equal_files(tmp_path: Path) -> None:
    data = write(tmp_path / "d.csv", 60)
    written = []
    for name, seed in (("x", 1), ("y", 1), ("z", 2)):
        folders = write_split(tmp_path / name, data, None, TASK, 2, 8, seed)
        written.append((folders[1] / "labelled.csv").read_bytes())
    assert written[0] == written[1] != written[2]


@pytest.mark.parametrize(
    ("labels", "said"), [(8, "holds 2 texts of 'a', 4 needed"), (5, "labelled_total is 5; 1 to 4")]
)
def test_too_few_texts_are_named(tmp_path: Path, labels: int, said: str) -> None:
    with pytest.raises(DataError, match=said):
        write_split(tmp_path / "o", write(tmp_path / "d.csv", 4), None, TASK, 2, labels, seed=1)


def test_folders_read_back_as_the_same_examples(tmp_path: Path) -> None:
    hard = (' "quoted", \n two lines\r\n', "tab\there", "ሰላም", "'", "\ufeffmark", "a,b\r")
    texts = [Example(text, text_b=text, label="a", language="amh") for text in hard]
    client = Client("swa", np.array([0, 2]), np.array([1, 3, 5]), np.array([4]))
    (folder,) = write_clients(tmp_path, texts, texts, (client,), TASK)
    found = read_folder(folder, TASK)
    assert found.labelled == (texts[0], texts[2])
    assert found.test == (texts[4],)
    bare = [Example(text.text, text.text_b, None, text.language) for text in texts]
    assert found.unlabelled == (bare[1], bare[3], bare[5])


def test_every_folder_holds_the_task(tmp_path: Path) -> None:
    texts = [Example("x", label="a")]
    (folder,) = write_clients(tmp_path, texts, [], (Client("c", np.array([0]), NONE, NONE),), TASK)
    assert read_task(folder / "task.toml") == TASK


def test_a_part_without_texts_is_no_file(tmp_path: Path) -> None:
    client = Client("c", NONE, np.array([0]), NONE)
    (folder,) = write_clients(tmp_path, [Example("x", label="a")], [], (client,), None)
    assert [path.name for path in folder.iterdir()] == ["unlabelled.csv"]
    assert read_folder(folder, TASK) == ClientData((), (Example("x"),), ())


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/tmp", "a\0"])
def test_a_name_that_would_leave_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    clients = Client("fine", NONE, NONE, NONE), Client(name, NONE, NONE, NONE)
    with pytest.raises(DataError, match="cannot name a folder"):
        write_clients(tmp_path / "out", [], [], clients, None)
    assert not (tmp_path / "out").exists()


def test_texts_are_counted_by_client_and_kind() -> None:
    client = Client("c", np.array([0, 3]), np.array([1, 2]), NONE)
    table = count((client,), ["b", "a", "a", "b"])
    assert table.kinds == ("a", "b")
    assert table.labelled.tolist() == [[0, 2]] and table.unlabelled.tolist() == [[2, 0]]


@pytest.mark.parametrize("clients", first_fast([2, 60]))
def test_a_picture_is_drawn_for_few_and_for_many_clients(tmp_path: Path, clients: int) -> None:
    texts = [Example("x", label="abc"[i % 3], language=("eng", "hau")[i % 2]) for i in range(400)]
    population = population_of(Deal(clients=clients, labelled=30, alpha=1.0), texts, [], seed=0)
    fields = {
        "label": [text.label or "" for text in texts],
        "language": [text.language for text in texts],
    }
    idle = Client("holds nothing", NONE, NONE, NONE)
    draw_partition((*population, idle), fields, tmp_path / "p.png", "a title")
    drawn = (tmp_path / "p.png").read_bytes()
    assert drawn.startswith(PNG)
    assert 5_000 < len(drawn) < 200_000


@pytest.mark.slow
def test_labels_have_the_colours_of_all_pictures_and_no_legend_lies_over_bars() -> None:
    agg = pytest.importorskip("matplotlib.backends.backend_agg")
    texts = [Example("x", label="abc"[i % 3]) for i in range(400)]
    population = population_of(Deal(clients=60, labelled=300), texts, [], seed=0)
    figure = partition_figure(population, {"label": [text.label or "" for text in texts]}, "title")
    agg.FigureCanvasAgg(figure).draw()
    bars = figure.axes[0]
    shades = [rgba(group.patches[0].get_facecolor()) for group in bars.containers]
    assert shades == list(PALETTE[:3])
    legend = bars.get_legend().get_window_extent()
    assert not any(legend.overlaps(axis.get_window_extent()) for axis in figure.axes)


def rgba(colour: tuple[float, ...]) -> str:
    return "#" + "".join(f"{round(255 * part):02x}" for part in colour[:3])


def test_test_texts_are_capped_in_all_and_stay_spread(tmp_path: Path) -> None:
    data = write(tmp_path / "d.csv", 40)
    every = write_split(tmp_path / "every", data, None, TASK, 3, 8, seed=1)
    few = write_split(tmp_path / "few", data, None, TASK, 3, 8, seed=1, most_tests=10)
    tests = [[read_folder(folder, TASK).test for folder in folders] for folders in (every, few)]
    assert [len(texts) for texts in tests[1]] == [4, 3, 3]
    assert all(set(mine) <= set(all_of) for all_of, mine in zip(*tests, strict=True))


def test_tagged_texts_read_back_as_they_were_dealt(tmp_path: Path) -> None:
    words, tags = ("Aspirin", "in # Oslo"), ("B-Drug", "O")
    texts = [Example(" ".join(words), language="en", words=words, tags=tags)] * 3
    client = Client("one", np.array([0]), np.array([1]), np.array([2]))
    task = Task("drugs", ("Drug",), kind="tagging")
    (folder,) = write_clients(tmp_path, texts, texts, (client,), task)
    bare = Example(texts[1].text, language="en")
    assert read_task(folder / "task.toml") == task
    assert read_folder(folder, task) == ClientData((texts[0],), (bare,), (texts[2],))


def test_only_labels_are_dealt_out_evenly(tmp_path: Path) -> None:
    task = Task("drugs", ("Drug",), kind="tagging")
    with pytest.raises(DataError, match="of kind tagging cannot be dealt out by labels"):
        write_split(tmp_path / "out", tmp_path / "d.conll", None, task, 4, labels=16, seed=1)
