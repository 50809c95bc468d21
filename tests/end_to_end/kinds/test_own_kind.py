"""A kind of task of another package: docs/extending.md, walked from outside by an entry point."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from smidgen.edge_client.bases.base import Base
from smidgen.simulation.demo.setting import fleet
from tests.end_to_end.conftest import TASK, Scene, write_labelled

EXTENDING = Path(__file__).parents[3] / "docs" / "extending.md"


def section() -> str:
    text = EXTENDING.read_text()
    return text[text.index("## Add a task kind") :]


def install(site: Path, code: str, name: str = "headline") -> None:
    """What `pip install` would leave there."""
    points = re.search(r"```toml\n(.*?)```", section(), re.DOTALL)
    assert points is not None
    group = points[1].replace('[project.entry-points."smidgen.tasks"]', "[smidgen.tasks]")
    (site / "ward-1.dist-info").mkdir(parents=True)
    (site / "ward.py").write_text(code)
    (site / "ward-1.dist-info" / "METADATA").write_text("Name: ward\nVersion: 1\n")
    lines = group.replace('"', "").replace("headline", name)
    (site / "ward-1.dist-info" / "entry_points.txt").write_text(lines)


def told(site: Path, code: str) -> str:
    run = f"import sys; sys.path.insert(0, {str(site)!r})\n{code}"
    done = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.slow
def test_a_kind_of_the_docs_is_trained_and_evaluated_over_http(
    tmp_path: Path, tiny_base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = re.search(r"```python\n(.*?)```", section(), re.DOTALL)
    assert code is not None
    install(tmp_path / "site", code[1])
    paths = [str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    with fleet(tmp_path / "logs", cores_each=1) as processes:
        scene = Scene(tmp_path, tiny_base, processes)
        scene.task, scene.write = f'kind = "headline"\n{TASK}', write_labelled
        scene.create(2, 2, 4)
        url = scene.serve()
        for name in ("a", "b"):
            scene.client(name, url, "--engine", "onnx")
        scene.finish()
        status = scene.coordinator_json("status")
    accuracies = list(status["accuracy_by_round"].values())
    assert status["kind"] == "headline" and len(accuracies) == 3
    assert accuracies[-1] >= accuracies[0]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("class Headline:\n    name = 'headline'\n", "has no `measure`"),
        ("raise OSError('no such idea')", "cannot be imported: OSError: no such idea"),
        (
            "from smidgen.edge_client.tasks.kinds.classification import Classification as Headline",
            "calls itself 'labels'",
        ),
    ],
)
def test_a_kind_that_lacks_something_is_refused_in_one_line(
    tmp_path: Path, code: str, said: str
) -> None:
    install(tmp_path, code)
    ask = (
        "from smidgen.edge_client.tasks.task import Task\n"
        "from smidgen.edge_client.errors import WrongInput\n"
        "try: Task('t', kind='headline')\n"
        "except WrongInput as error: print(error)\n"
    )
    line = told(tmp_path, ask)
    assert said in line and "headline" in line and "package ward" in line and "\n" not in line


def test_a_broken_kind_stops_nothing_of_the_others(tmp_path: Path) -> None:
    install(tmp_path, "class Headline:\n    name = 'headline'\n")
    ask = (
        "from smidgen.coordinator.rounds.scoring import measures_of\n"
        "from smidgen.edge_client.tasks.kind import every_files, measure_called\n"
        "print(measure_called('f1').word, measures_of(['mlm'])[0].word, len(every_files()))"
    )
    assert told(tmp_path, ask) == "F1 accuracy 7"


def test_a_kind_that_nobody_knows_is_refused_with_those_that_are(tmp_path: Path) -> None:
    ask = "from smidgen.edge_client.tasks.task import find\n"
    ask += "try: find('x')\nexcept ValueError as error: print(error)"
    assert told(tmp_path, ask).startswith("kind is one of labels, ")
