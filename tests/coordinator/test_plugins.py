"""Extensions made known: from a folder, from an installed package, and never from a request."""

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from smidgen.coordinator import plugins
from smidgen.coordinator.api.create import create_run
from smidgen.coordinator.api.ready import Serving, ready
from smidgen.coordinator.config import ConfigError, read_run_config
from smidgen.coordinator.rounds.extensions import apart
from smidgen.coordinator.rounds.learning.registry import mean_of
from smidgen.coordinator.rounds.schedule import Learning
from smidgen.coordinator.storage.database import StorePlace
from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.updates.step import Contribution
from tests.command_line import smidgen

MEAN = """
import numpy as np
class First:
    def __init__(self, step="1"):
        self.step = float(step)
    def mean(self, updates, adapter):
        return next(iter(updates)).delta
MEANS = {"first": First}
"""


@pytest.fixture(autouse=True)
def nothing_known() -> Iterator[None]:
    with apart():
        yield


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "ideas"
    path.mkdir(mode=0o755)
    (path / "first.py").write_text(MEAN)
    return path


def test_a_folder_s_classes_are_known_by_their_names(folder: Path) -> None:
    assert plugins.know_folder(folder) == plugins.know_folder(folder) == ["first"]
    update = Contribution("a", {"w": np.ones(2, np.float32)}, 1.0)
    found = mean_of("first").mean([update], {"w": np.zeros(2, np.float32)})
    assert found["w"].tolist() == [1.0, 1.0]
    Learning(mean="first").check_known()


def test_an_installed_package_s_entry_points_are_known(tmp_path: Path) -> None:
    site = tmp_path / "site"
    (site / "ideas-1.dist-info").mkdir(parents=True)
    (site / "ideas.py").write_text(MEAN)
    (site / "ideas-1.dist-info" / "METADATA").write_text("Name: ideas\nVersion: 1\n")
    points = "[smidgen.means]\nfirst = ideas:First\n"
    (site / "ideas-1.dist-info" / "entry_points.txt").write_text(points)
    code = (
        "from smidgen.coordinator.plugins import check_known\n"
        "from smidgen.coordinator.rounds.schedule import Learning\n"
        "from smidgen.coordinator.rounds.learning.registry import mean_of\n"
        "check_known(Learning(mean='first')); print(type(mean_of('first')).__name__)\n"
    )
    run = f"import sys; sys.path.insert(0, {str(site)!r})\n{code}"
    done = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "CheckedMean"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raise OSError('no such idea')", "cannot be imported: OSError: no such idea"),
        ("raise SystemExit(0)", "cannot be imported: SystemExit: 0"),
        ("MEANS = ['first']", "MEANS: classes by name are expected"),
        ("MEANS = {'median': dict}", "names a mean 'median', which is built in"),
        ("OPTIMIZERS = {'My Own': dict}", "letters, digits, - and _ are expected"),
        ("nothing = 1", "no .py file names one of MEANS, OPTIMIZERS, SELECTIONS"),
    ],
)
def test_a_file_that_is_no_plugin_is_one_line(folder: Path, text: str, said: str) -> None:
    (folder / "first.py").write_text(text)
    with pytest.raises(WrongInput) as raised:
        plugins.know_folder(folder)
    assert said in str(raised.value) and "\n" not in str(raised.value)


def test_two_files_with_one_name_are_refused(folder: Path) -> None:
    (folder / "second.py").write_text(MEAN)
    with pytest.raises(WrongInput, match=r"second.py names a mean 'first', and so does .*first.py"):
        plugins.know_folder(folder)


def test_a_file_that_everybody_may_write_is_refused(folder: Path) -> None:
    (folder / "first.py").chmod(0o666)
    with pytest.raises(WrongInput, match=r"everybody may write .*first.py; chmod o-w it"):
        plugins.know_folder(folder)


def test_no_folder_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(WrongInput, match=r"--plugins .*nowhere is not a folder"):
        plugins.know_folder(tmp_path / "nowhere")


def test_a_run_file_cannot_name_what_is_not_known(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('task = "agnews"\n[learning]\nmean = "first:1"\n')
    with pytest.raises(ConfigError, match=r"mean: 'first' is not known; known are fedavg"):
        read_run_config(file, {"task": "agnews"})
    plugins.know_folder(folder)
    assert read_run_config(file, {"task": "agnews"}).learning.mean == "first:1"
    for wrong, said in (("zwei", "ValueError: could not convert"), ("1:2", "TypeError: ")):
        file.write_text(f'task = "agnews"\n[learning]\nmean = "first:{wrong}"\n')
        with pytest.raises(ConfigError, match=f"cannot be made: {said}") as refused:
            read_run_config(file, {"task": "agnews"})
        assert "first.py" in str(refused.value) and "\n" not in str(refused.value)


def test_tests_beside_plugins_are_not_imported(folder: Path) -> None:
    for name in ("test_first.py", "conftest.py"):
        (folder / name).write_text("from first import First\n")
    assert plugins.know_folder(folder) == ["first"]


@pytest.mark.parametrize("name", ["../ideas/first.py", "/tmp/first.py:First", "ideas.first"])
def test_no_run_names_a_path(name: str, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(f'[learning]\nmean = "{name}"\n')
    with pytest.raises(ConfigError, match="mean: one of fedavg"):
        read_run_config(file, {"task": "agnews"})


def test_too_few_updates_for_the_mean_are_refused_when_a_run_is_made(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('[learning]\nmean = "krum:1"\n')
    said = r"mean krum:1 needs min_updates = 5 or more, .* it is 1"
    with pytest.raises(ConfigError, match=said):
        read_run_config(file, {"task": "agnews"})


def test_create_takes_the_names_of_its_folder(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('[learning]\nmean = "first"\n')
    line = ["coordinator", "create", str(file), "--task", "agnews", "--store"]
    refused = smidgen(*line, str(tmp_path / "store"))
    assert refused.exit_code == 2 and "'first' is not known" in refused.stderr
    done = smidgen(*line, str(tmp_path / "store"), "--plugins", str(folder), "--json")
    assert done.exit_code == 0 and json.loads(done.stdout.splitlines()[-1])["run_id"]
    said = smidgen(*line, str(tmp_path / "my store"), "--plugins", str(folder)).stdout
    (following,) = (text for text in said.splitlines() if text.startswith("next, here"))
    expected = ["--store", str(tmp_path / "my store"), "--plugins", str(folder)]
    assert shlex.split(following)[-4:] == expected


@pytest.mark.parametrize("with_folder", [True, False])
def test_a_coordinator_says_at_its_start_which_run_names_what_it_does_not_know(
    folder: Path, tmp_path: Path, with_folder: bool, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("fastapi")
    file, store = tmp_path / "run.toml", tmp_path / "store"
    file.write_text('name = "mail"\n[learning]\nmean = "first"\n')
    create_run(store, file, task="agnews", plugins=folder)
    with apart():  # as in another process
        told = folder if with_folder else None
        with ready(StorePlace(store), Serving("127.0.0.1", 0, plain_http=True, plugins=told)):
            pass
    said = [one.getMessage() for one in caplog.records if "will pause" in one.getMessage()]
    assert len(said) == (not with_folder)
    for line in said:
        assert line.startswith("run mail will pause: mean: 'first' is not known; known are fedavg")
        assert "--plugins FOLDER" in line and "\n" not in line
