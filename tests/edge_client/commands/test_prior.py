"""`--prior`: what an adapter says of texts anyway, taken off each answer."""

import json
from pathlib import Path

import numpy as np
import pytest

import smidgen
from smidgen.edge_client.bases.base import Base
from tests.edge_client.commands.alone import client, refused, train, write_data

TEXTS = ["rain", "a door", "storm", "the lock", "wind at nine", "an alarm", "snow", "a window"]


@pytest.fixture(scope="module")
def adapter(tiny_base: Base, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prior")
    assert train(tiny_base, write_data(folder / "data"), folder / "out").exit_code == 0
    (folder / "texts.txt").write_text("\n".join(TEXTS))
    return folder / "out"


def rows(base: Base, adapter: Path, *more: object) -> np.ndarray:
    done = client("predict", base, "--adapter", adapter, *TEXTS, *more, "--json")
    assert done.exit_code == 0, done.stderr
    return np.array(json.loads(done.stdout.splitlines()[-1])["log_probabilities"])


def test_answers_are_those_without_it_less_their_mean(tiny_base: Base, adapter: Path) -> None:
    plain = rows(tiny_base, adapter)
    found = rows(tiny_base, adapter, "--prior", adapter.parent / "texts.txt")
    odds = np.exp(plain - plain.mean(axis=0))
    np.testing.assert_allclose(np.exp(found), odds / odds.sum(axis=1, keepdims=True), rtol=1e-5)
    assert len(set(found.argmax(axis=1).tolist())) == 2  # of its own mean nothing leans one way


def test_python_says_what_the_command_says(tiny_base: Base, adapter: Path) -> None:
    file = adapter.parent / "texts.txt"
    told = smidgen.predict(TEXTS, adapter, base=tiny_base.folder, engine="onnx", prior=file)
    found = np.exp(rows(tiny_base, adapter, "--prior", file))
    listed = [list(one.probabilities.values()) for one in told]
    np.testing.assert_allclose(listed, found, atol=1e-6)


def test_an_evaluation_takes_it_off_too(tiny_base: Base, adapter: Path, tmp_path: Path) -> None:
    file, labelled = adapter.parent / "texts.txt", tmp_path / "labelled.csv"
    read = [
        one.label
        for one in smidgen.predict(TEXTS, adapter, base=tiny_base.folder, engine="onnx", prior=file)
    ]
    lines = [f"{text},{label}\n" for text, label in zip(TEXTS, read, strict=True)]
    labelled.write_text("text,label\n" + "".join(lines))
    asked = ("evaluate", tiny_base, "--data", labelled, "--adapter", adapter)
    done = client(*asked, "--prior", file, "--json")
    assert json.loads(done.stdout.splitlines()[-1])["accuracy"] == 1.0
    # A file with labels serves as well: they are not read.
    same = client(*asked, "--prior", labelled, "--json")
    assert same.stdout.splitlines()[-1] == done.stdout.splitlines()[-1]


def test_too_few_texts_and_no_file_are_one_line(
    tiny_base: Base, adapter: Path, tmp_path: Path
) -> None:
    few = tmp_path / "few.txt"
    few.write_text("\n".join(TEXTS[:7]))
    asked = ("predict", tiny_base, "--adapter", adapter, "rain", "--prior")
    assert "8 texts or more are expected, of all labels; it has 7" in refused(client(*asked, few))
    assert "there is no such file" in refused(client(*asked, tmp_path / "none.txt"))
