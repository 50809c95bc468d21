"""An exported adapter has a task of its own: what one that is named beside it may be."""

from pathlib import Path

import pytest

from smidgen.edge_client.bases.base import Base
from tests.edge_client.commands.alone import TASK, client, refused, train, write_data

COMMANDS = ("predict", "evaluate")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("export") / "data")


@pytest.fixture(scope="module")
def adapter(tiny_base: Base, data: Path) -> Path:
    assert train(tiny_base, data, data.parent / "out").exit_code == 0
    return data.parent / "out"


def words(command: str, data: Path) -> tuple[object, ...]:
    return ("rain at nine",) if command == "predict" else ("--data", data)


@pytest.mark.few(1)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_named_task_has_the_labels_of_the_export(
    tiny_base: Base, data: Path, adapter: Path, tmp_path: Path, command: str
) -> None:
    asked = (*words(command, data), "--adapter", adapter, "--json")
    usual = client(command, tiny_base, *asked)
    task = tmp_path / "task.toml"
    task.write_text('labels = ["weather", "security"]\npatterns = ["[MASK] : {text}"]')
    done = client(command, tiny_base, *asked, "--task", task)
    assert (done.exit_code, done.stdout) == (0, usual.stdout), done.stderr
    task.write_text(TASK.replace("security", "sports"))
    said = refused(client(command, tiny_base, *asked, "--task", task))
    assert f"--adapter {adapter} has a label that the other does not: 'security'" in said
    said = refused(client(command, tiny_base, *asked, "--task", tmp_path / "absent.toml"))
    assert f"no task file at {tmp_path / 'absent.toml'}" in said


def test_a_task_beside_the_texts_is_not_asked_for_where_the_adapter_has_its_own(
    tiny_base: Base, data: Path, adapter: Path, tmp_path: Path
) -> None:
    other = write_data(tmp_path / "other", "labels = 1")
    figures = [
        client("evaluate", tiny_base, "--data", folder / "test.csv", "--adapter", adapter)
        for folder in (data, other)
    ]
    assert figures[0].stdout == figures[1].stdout and figures[1].exit_code == 0
