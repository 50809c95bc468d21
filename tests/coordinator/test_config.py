from pathlib import Path

import pytest

from coordinator.config import ConfigError, read_run_config
from edge_client.adapters import AdapterError
from edge_client.tasks import TaskError

TASK = 'labels = ["mail", "power"]\npatterns = ["{text} [MASK]"]\n'


def written(folder: Path, text: str) -> Path:
    (folder / "task.toml").write_text('name = "hub"\n' + TASK)
    (folder / "run.toml").write_text(text)
    return folder / "run.toml"


def test_a_task_lies_beside_the_run_file(tmp_path: Path) -> None:
    config = read_run_config(written(tmp_path, 'task = "task.toml"\nrounds = 3\n'), {})
    assert config.rounds == 3 and config.name == "hub" and config.task.labels == ("mail", "power")


def test_a_task_may_be_a_table_of_the_run_file(tmp_path: Path) -> None:
    config = read_run_config(written(tmp_path, f'name = "x"\n[task]\n{TASK}'), {})
    assert config.name == "x" and config.task.verbalizer == {"mail": "mail", "power": "power"}


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, 'task = "task.toml"\nrounds = 3\n[training]\nlr = 0.1\nbatch = 2\n')
    config = read_run_config(path, {"rounds": 5, "lr": 0.2, "name": None})
    assert (config.rounds, config.training.lr, config.training.batch) == (5, 0.2, 2)


def test_flags_alone_are_a_run(tmp_path: Path) -> None:
    written(tmp_path, "")
    config = read_run_config(None, {"task": str(tmp_path / "task.toml")})
    assert config.base == "embedded" and config.min_clients == 2


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("round = 3", "run.toml: unknown key 'round'"),
        ('rounds = "3"', r"Expected `int`, got `str` - at `\$.rounds`"),
        ("rounds = 0", "rounds: 1 to 1000000"),
        ("fraction = 1.5", "fraction: above 0"),
        ("fraction = nan", "fraction: above 0"),
        ("min_updates = 3", "cohort of 2"),
        ("deadline_s = 0", "deadline_s"),
        ('name = "a\\nb"', "name: 1 to 64"),
        ("training = 3", r"\[training\]: a table is expected"),
        ("training = {lrr = 1}", r"\[training\]: unknown key 'lrr'"),
        ("training = {lr = 0}", "lr: above 0"),
        ("rounds = ", "is no TOML"),
    ],
)
def test_a_wrong_run_file_is_named(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_run_config(written(tmp_path, f'{line}\ntask = "task.toml"\n'), {})


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no task; add"):
        read_run_config(written(tmp_path, ""), {})
    with pytest.raises(ConfigError, match="no run file at"):
        read_run_config(tmp_path / "none.toml", {})
    with pytest.raises(TaskError, match="no task file at"):
        read_run_config(written(tmp_path, 'task = "none.toml"'), {})
    with pytest.raises(AdapterError, match="'lora' is not one of"):
        read_run_config(written(tmp_path, 'adapter = "lora"\ntask = "task.toml"'), {})
