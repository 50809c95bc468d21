"""The demo's parts: what it looks at first, what it says when its end fails, and how far it is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("fastapi")
pytest.importorskip("matplotlib")

from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.wire.training import Training
from smidgen.simulation.demo.demo import Unfinished, check_extras, run_demo
from smidgen.simulation.demo.setting import ALONE, RUN, SCORE, Setting, Step
from tests.edge_client.commands.alone import TASK, write_data

ROOT = Path(__file__).parents[3]
ROWS = [
    f"{word} {n},{label}"
    for n in range(20)
    for word, label in [("door", "security"), ("rain", "weather")]
]


def devices(folder: Path) -> list[Path]:
    folder.mkdir()
    return [write_data(folder / name) for name in ("hall", "attic")]


def setting(out: Path, base: Base) -> Setting:
    training = Training(epochs=1, batch=4, tokens=32)
    return Setting(out, str(base.folder), "lora:2", 2, training, 0, ("onnx",))


def test_all_that_it_needs_is_looked_for_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_extras() == []
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    (said,) = check_extras()
    assert said.startswith("no chart") and "pip install '.[demo]'" in said
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(WrongInput, match=r"needs 'sqlalchemy'; pip install '\.\[demo"):
        check_extras()


@pytest.mark.slow
def test_every_part_of_it_tells_how_far_it_is(
    tiny_base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMIDGEN_DATABASE", "postgresql://nobody@127.0.0.1:1/fleet")  # not its own
    steps: list[Step] = []
    run_demo(setting(tmp_path / "out", tiny_base), devices(tmp_path / "data"), steps.append)
    assert list(dict.fromkeys(step.stage for step in steps)) == [RUN, ALONE, SCORE]
    for stage in (RUN, ALONE, SCORE):
        mine = [step for step in steps if step.stage == stage]
        done = [step.done for step in mine]
        assert done == sorted(done) and done[-1] == mine[-1].total
    scored = [step.done for step in steps if step.stage == SCORE]
    assert len(set(scored)) >= 4 and scored[-1] == 24  # base, two adapters, that of all; six texts


@pytest.mark.slow
def test_a_run_is_not_lost_where_what_comes_after_it_fails(tiny_base: Base, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "alone").write_text("in the way")
    with pytest.raises(
        Unfinished, match=f"the run is finished: its adapter is {out}/adapter"
    ) as end:
        run_demo(setting(out, tiny_base), devices(tmp_path / "data"), lambda step: None)
    assert [cost.round_index for cost in end.value.costs] == [0, 1, 2]
    assert (out / "adapter" / "adapter_config.json").is_file()


@pytest.mark.slow
def test_without_matplotlib_the_table_comes_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['matplotlib'] = None\n")
    (tmp_path / "own.csv").write_text("\n".join(["text,label", *ROWS]))
    (tmp_path / "task.toml").write_text(TASK)
    paths = {"PYTHONPATH": f"{tmp_path}:{ROOT}", "HF_HUB_OFFLINE": "1"}
    own = ["--data", "own.csv", "--task", "task.toml", "--labels", "8", "--test-texts", "8"]
    line = [sys.executable, "-m", "smidgen", "demo", "--rounds", "1", "--clients", "2", *own]
    done = subprocess.run(
        line, capture_output=True, text=True, cwd=tmp_path, env={**os.environ, **paths}, timeout=240
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout
    assert "no chart will be drawn" in said.splitlines()[1]
    assert "accuracy on the 8 test texts of all 2 devices" in said
    assert "no more texts were scored, by --test-texts 8" in said
    assert said.rstrip().endswith("--file TEXTS.csv") and "chart  " not in said
    assert not [row for row in ROWS if row.split(",")[0] in said]
