"""Experiments on a CUDA device: refused where there is none, and the processor's up to rounding."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("fastapi")

import torch

from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.engine.engine import EngineError
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.tensors import sha256
from smidgen.edge_client.wire.training import Labelling, Training
from smidgen.simulation.experiments.experiment import Experiment
from smidgen.simulation.experiments.federation.devices import SimulationError
from smidgen.simulation.experiments.record import Result
from smidgen.simulation.experiments.runner import run_all
from smidgen.simulation.experiments.stage import stage
from smidgen.simulation.experiments.virtual.devices import InProcess, is_of_card, told_of_card
from tests.command_line import smidgen
from tests.edge_client.engine.engines import TEXTS, batch_of
from tests.simulation.experiments.experiments import small
from tests.simulation.experiments.test_runner import place_in

HAS_CARD = torch.cuda.is_available()
needs_card = pytest.mark.skipif(not HAS_CARD, reason="no CUDA device here")
without_card = pytest.mark.skipif(HAS_CARD, reason="a CUDA device is here")
NEWS = "masakhanews"


@without_card
def test_without_a_card_nothing_is_begun(tiny_base: Base, tmp_path: Path) -> None:
    place = replace(place_in(tmp_path), device="cuda")
    with pytest.raises(EngineError, match="torch sees no CUDA device here"):
        run_all([small(tiny_base, dataset=NEWS)], place)
    assert not place.out.exists()


@pytest.mark.slow
@without_card
def test_a_command_says_so_in_one_line(tiny_base: Base, tmp_path: Path) -> None:
    file, data = tmp_path / "mine.toml", place_in(tmp_path).data
    file.write_text(f'dataset = "{NEWS}"\nbase = "{tiny_base.folder}"\nadapter = "lora:2"\n')
    asked = ("run", str(file), "--data", str(data), "--out", str(tmp_path / "out"))
    done = smidgen("simulate", *asked, "--device", "cuda")
    assert done.exit_code == 2
    (line,) = done.stderr.splitlines()
    assert "--device cuda: torch sees no CUDA device here" in line


def test_what_does_not_compute_there_is_refused(tiny_base: Base, tmp_path: Path) -> None:
    place = replace(place_in(tmp_path), device="cuda")
    asked = small(tiny_base, dataset=NEWS)
    with pytest.raises(EngineError, match="the onnx engine computes on the processor"):
        run_all([replace(asked, engine="onnx")], place)
    with pytest.raises(SimulationError, match="--ray: a cluster's processors compute"):
        run_all([asked], replace(place, ray="local"))
    with pytest.raises(EngineError, match="'tpu' is not known; cpu or cuda"):
        run_all([asked], replace(place, device="tpu"))


def test_a_card_that_is_full_is_nobodys_failure() -> None:
    full = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nMore of it")
    with pytest.raises(SimulationError) as told, told_of_card("cuda"):
        raise full
    (line,) = str(told.value).splitlines()
    assert "CUDA out of memory" in line and "run fewer experiments at once" in line
    with pytest.raises(torch.OutOfMemoryError), told_of_card("cpu"):
        raise full
    assert is_of_card(full, "cuda") and not is_of_card(full, "cpu")
    assert not is_of_card(RuntimeError("the loss is not finite"), "cuda")


def test_a_card_that_is_full_in_a_step_ends_the_round(
    tiny_base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on = stage(small(tiny_base, dataset=NEWS), place_in(tmp_path).data)
    devices = InProcess(on)
    adapter = devices.start().adapter
    work = replace(on.template(), adapter_sha256=sha256(adapter), adapter_bytes=len(adapter))
    name = next(client.name for client in on.population if len(client.labelled))

    def full(*_tensors: object, **_more: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")

    monkeypatch.setattr(torch.Tensor, "backward", full)
    (failed,) = devices.do(adapter, [(name, work)])
    assert failed.report.outcome == "failed"  # a processor's memory is the client's own
    devices._on = replace(on, device="cuda")
    with pytest.raises(torch.OutOfMemoryError):
        list(devices.do(adapter, [(name, work)]))
    devices.close()


def on_both(experiment: Experiment, folder: Path) -> tuple[Result, Result]:
    """What the processor gives, and what the card does, in folders of their own."""
    place = place_in(folder)
    (here,) = run_all([experiment], place)
    (there,) = run_all([experiment], replace(place, out=folder / "card", device="cuda"))
    key = stage(experiment, place.data).key
    assert (folder / "card" / key / "finished").is_file()  # one key for both
    return here, there


@pytest.mark.gpu
@needs_card
@pytest.mark.parametrize(
    "said",
    [
        {},
        {"adapter": "prompt:3"},
        {"adapter": "lora:2+head"},
        {"adapter": "full", "training": Training(batch=2, lr=1e-4, tokens=32)},
        {"adapter": "full+head", "training": Training(batch=2, lr=1e-4, tokens=32)},
        {"paradigm": "centralised", "cohort": 0},
        {"cache_bytes": 1 << 24, "adapter": "lora:2/top1"},
    ],
    ids=["lora", "prompt", "head", "full", "full+head", "centralised", "cached"],
)
def test_rounds_on_a_card_are_the_processors(
    tiny_base: Base, tmp_path: Path, said: dict[str, object]
) -> None:
    asked = small(tiny_base, **{"dataset": NEWS} | said)
    here, there = on_both(asked, tmp_path)
    assert {row.card for row in here.rows} == {""}
    assert {row.card for row in there.rows} == {torch.cuda.get_device_name(0)}
    assert [row.layer_forwards for row in there.rows] == [row.layer_forwards for row in here.rows]
    losses = [(mine.loss, its.loss) for mine, its in zip(here.rows, there.rows, strict=True)]
    for mine, its in losses:
        assert (mine is None) == (its is None)
        assert mine is None or its == pytest.approx(mine, rel=2e-2)


@pytest.mark.gpu
@needs_card
def test_labelling_on_a_card_asks_what_it_asks_on_the_processor(
    tiny_base: Base, tmp_path: Path
) -> None:
    labelling = Labelling(infer_every=1, infer_clients=2)
    asked = small(tiny_base, dataset=NEWS, labelling=labelling, gate_texts=2)
    asked = replace(asked, deal=replace(asked.deal, clients=2, labelled=4))
    here, there = on_both(asked, tmp_path)
    told = [
        [row.labels.looking.forwards if row.labels else 0 for row in one.rows]
        for one in (here, there)
    ]
    assert told[0] == told[1] and any(told[0])


@pytest.mark.gpu
@needs_card
@pytest.mark.parametrize("head", [False, True])
def test_every_weight_on_a_card_is_the_processors(
    tiny_base: Base, hub_task: Task, head: bool
) -> None:
    from smidgen.simulation.experiments.virtual.full_backend import open_full

    training = Training(lr=1e-3, tokens=48)
    given = tiny_base, hub_task, training, head, 0
    here, there = open_full(*given), open_full(*given, device="cuda")
    there.load_adapter(here.adapter())
    batch = batch_of(here)
    loss, wanted = here.gradients(batch)
    found, gradients = there.gradients(batch)
    assert found == pytest.approx(loss, rel=1e-4)
    for name, exact in wanted.items():
        np.testing.assert_allclose(gradients[name], exact, rtol=1e-3, atol=1e-5, err_msg=name)
    np.testing.assert_allclose(there.predict(TEXTS), here.predict(TEXTS), atol=1e-3)
    np.testing.assert_allclose(there.features(TEXTS, 1), here.features(TEXTS, 1), atol=1e-3)
