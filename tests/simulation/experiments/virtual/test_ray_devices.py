import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("fastapi")
pytest.importorskip("ray")

from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.tasks.task import Task
from smidgen.profiling.instruments.sampler import ProcessTree
from smidgen.simulation.experiments.federation.devices import SimulationError
from smidgen.simulation.experiments.runner import Place
from smidgen.simulation.experiments.virtual.devices import RayDevices
from tests.simulation.experiments.experiments import staged
from tests.simulation.experiments.test_runner import place  # noqa: F401 - a fixture


@pytest.mark.parametrize(
    ("address", "reason"),
    [("127.0.0.1:1", "refused"), ("nonsense", "nvalid|expected|service|Name")],
)
def test_nobody_there_is_said_at_once(
    tiny_base: Base, hub_task: Task, address: str, reason: str
) -> None:
    with pytest.raises(SimulationError, match=f"--ray {address}: no cluster there .*{reason}"):
        RayDevices(staged(tiny_base, hub_task), address)


def results(experiment: Path, data: Path, out: Path, *more: str) -> dict[str, Any]:
    """What `smidgen simulate run` says, in a process of its own that leaves none behind."""
    line = [sys.executable, "-m", "smidgen", "simulate", "run", str(experiment), "--json"]
    options = ["--data", str(data), "--out", str(out), *more]
    with subprocess.Popen([*line, *options], stdout=subprocess.PIPE, text=True) as process:
        with ProcessTree(process.pid) as tree:
            said, _ = process.communicate(timeout=240)
        assert process.returncode == 0
    assert not tree.left
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    for name in ("date", "seconds"):  # when and how long, which no two runs share
        del found[name]
    del found["machine"]["load_1m"]
    for cell in found["cells"]:
        del cell["train_seconds"]
        cell["rows_files"] = [str(Path(each).relative_to(out)) for each in cell["rows_files"]]
    return found


LABELLING = "labelled = 2\nlabelled_clients = 1\n[labelling]\nconfidence = 0.5\n"
SCAFFOLD = 'optimizer = "sgd"\nscaffold = true\n'


@pytest.mark.slow
@pytest.mark.parametrize(("labelling", "more"), [("", ""), (LABELLING, ""), ("", SCAFFOLD)])
def test_a_run_on_ray_gives_the_numbers_of_one_in_process(
    tiny_base: Base,
    place: Place,  # noqa: F811
    tmp_path: Path,
    labelling: str,
    more: str,
) -> None:
    experiment = tmp_path / "small.toml"
    experiment.write_text(
        f'dataset = "masakhanews"\nbase = "{tiny_base.folder}"\nadapter = "lora:2"\nrounds = 2\n'
        f"gate_texts = 2\n[deal]\nclients = 4\n{labelling}[training]\nlr = 0.01\ntokens = 32\n"
        f"{more}"
    )
    assert place.data is not None
    here = results(experiment, place.data, tmp_path / "here")
    there = results(experiment, place.data, tmp_path / "there", "--ray", "local")
    assert here == there and here["cells"][0]["bytes_up"] > 0
    rows = [sorted((tmp_path / name).rglob("*.safetensors")) for name in ("here", "there")]
    assert [path.name for path in rows[0]] == [path.name for path in rows[1]]
    assert rows[0][0].read_bytes() == rows[1][0].read_bytes()


GENERATOR = 'adapter = "lora:4@q,k,v,o,up,down+generator"\nrounds = 1'
ABOVE = 'method = "bt-lora"\nsearch_steps = 2\nabove = "lora:2"\nstages = 2\n'


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rounds", "own"),
    [
        ("rounds = 0", 'method = "adalora"\n'),
        ('adapter = "lora:2"\nrounds = 2', 'method = "interpolated"\nstart = 1\n'),
        (GENERATOR, 'method = "fedp2eft"\ngroups = 2\n'),
        ("rounds = 2", ABOVE),
    ],
)
def test_adapters_of_ones_own_on_ray_are_those_of_one_process(
    tiny_base: Base,
    place: Place,  # noqa: F811
    tmp_path: Path,
    rounds: str,
    own: str,
) -> None:
    experiment = tmp_path / "small.toml"
    experiment.write_text(
        f'dataset = "masakhanews"\nlanguages = ["eng", "hau"]\nbase = "{tiny_base.folder}"\n'
        f'{rounds}\nevaluate_every = 0\ngate_texts = 2\n[deal]\nby = "language"\nclients = 0\n'
        "[training]\nlr = 0.01\ntokens = 32\n"
        f"[personal]\nrank_budget = 2\nbank = 4\nepochs = 2\nbatch = 2\n{own}"
    )
    assert place.data is not None
    here = results(experiment, place.data, tmp_path / "here")
    there = results(experiment, place.data, tmp_path / "there", "--ray", "local")
    assert here == there
    files = [sorted((tmp_path / name).rglob("*.safetensors")) for name in ("here", "there")]
    assert [path.name for path in files[0]] == [path.name for path in files[1]]
    assert all(one.read_bytes() == other.read_bytes() for one, other in zip(*files, strict=True))
    assert len([path for path in files[0] if not path.name.startswith("all")]) >= 2
