"""DP-SGD on a device: each text's gradient clipped, noise on their sum, with every backend."""

import math
import os
import subprocess
import sys
import tracemalloc
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.engine.engine import Engine
from smidgen.edge_client.engine.trainer import train
from smidgen.edge_client.errors import Failed
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.updates.privacy import (
    AT_ONCE,
    ClippedTexts,
    Gaussians,
    TextNoise,
    gaussians,
)
from smidgen.edge_client.updates.states import DeviceSteps
from smidgen.edge_client.updates.step import Correction, DeviceContext, GradientRule
from smidgen.edge_client.wire.tensors import AdapterState, encode_adapter
from smidgen.edge_client.wire.training import Training
from tests.edge_client.engine.engines import KINDS, TEXTS, batch_of, engine_of

SGD = Training(epochs=2, batch=3, lr=0.1, tokens=48, optimizer="sgd")
each_kind = pytest.mark.parametrize("kind", KINDS)
NO_NOISE = 1e-9


@dataclass
class Seen:
    """Takes a rule's gradients down on their way to the optimizer."""

    rule: ClippedTexts
    found: list[AdapterState] = field(default_factory=list)

    def gradients(self, *told: object) -> tuple[float, AdapterState]:
        loss, given = self.rule.gradients(*told)  # type: ignore[arg-type]
        self.found.append({name: one.copy() for name, one in given.items()})
        return loss, given


def stepped(engine: Engine, rule: GradientRule) -> float:
    engine.hold(Correction(engine.adapter(), rule=rule))
    loss = engine.train_step(batch_of(engine))
    engine.hold(None)
    return loss


def one_by_one(engine: Engine, clip: float) -> tuple[AdapterState, list[float]]:
    """The mean of gradients that are each no longer than clip, and how long they were."""
    batch, total, norms = batch_of(engine), dict[str, np.ndarray](), []
    for text in range(len(TEXTS)):
        _, found = engine.gradients(batch.some([text]))
        squares = sum(float(np.square(one, dtype=np.float64).sum()) for one in found.values())
        norms.append(math.sqrt(squares))
        for name, one in found.items():
            share = min(1.0, clip / norms[-1]) / len(TEXTS)
            total[name] = total.get(name, 0.0) + share * one.astype(np.float64)
    return total, norms


@each_kind
@pytest.mark.parametrize("name", ["lora:2+head", "prompt:4", "lora:4+ffa"])
def test_a_step_follows_the_mean_of_clipped_gradients(
    tiny_base: Base, hub_task: Task, kind: str, name: str
) -> None:
    engine = engine_of(kind, tiny_base, hub_task, name)
    middle = float(np.median(one_by_one(engine, 1e9)[1]))
    expected, norms = one_by_one(engine, middle)
    assert min(norms) < middle < max(norms)  # some are clipped, some not
    seen = Seen(ClippedTexts(middle, NO_NOISE, len(TEXTS), b"secret"))
    plain = float(np.mean([engine.gradients(batch_of(engine).some([i]))[0] for i in range(6)]))
    assert stepped(engine, seen) == pytest.approx(plain, rel=1e-5)
    [found] = seen.found
    length = math.sqrt(sum(float(np.square(one).sum()) for one in expected.values()))
    for key, one in found.items():
        np.testing.assert_allclose(one, expected[key], atol=1e-5 * length)


def test_both_engines_clip_alike(tiny_base: Base, hub_task: Task) -> None:
    found = []
    for kind in KINDS:
        seen = Seen(ClippedTexts(0.05, NO_NOISE, len(TEXTS), b"secret"))
        stepped(engine_of(kind, tiny_base, hub_task, "lora:2+head"), seen)
        found += seen.found
    for other in found[1:]:
        for name, one in found[0].items():
            np.testing.assert_allclose(other[name], one, atol=1e-6)


@each_kind
def test_noise_is_as_large_as_clip_and_multiplier_say(
    tiny_base: Base, hub_task: Task, kind: str
) -> None:
    """Of noise alone: clip is far below what gradients are."""
    engine = engine_of(kind, tiny_base, hub_task, "lora:8@q,k,v,o")
    seen = Seen(ClippedTexts(1e-3, 50.0, len(TEXTS), b"secret"))
    stepped(engine, seen)
    drawn = np.concatenate([one.ravel() for one in seen.found[0].values()])
    assert drawn.std() == pytest.approx(50.0 * 1e-3 / len(TEXTS), rel=5.0 / math.sqrt(drawn.size))
    assert abs(drawn.mean()) < 5.0 * drawn.std() / math.sqrt(drawn.size)


@each_kind
def test_training_is_the_same_again_and_another_with_another_secret(
    tiny_base: Base, hub_task: Task, kind: str
) -> None:
    def delta(secret: bytes) -> bytes:
        engine = engine_of(kind, tiny_base, hub_task, "lora:2", training=SGD)
        steps = DeviceSteps(("dp-text:0.1:1.0:8.0:1e-05",))
        correct = partial(steps.correction, context=DeviceContext(SGD, 1, secret=secret))
        return encode_adapter(train(engine, TEXTS, SGD, seed=1, correct=correct).delta)

    assert delta(b"one") == delta(b"one") != delta(b"two")


def drawn_by(secret: bytes, clip: float = 1e-6, z: float = 1.0, batch: int = 2) -> np.ndarray:
    """Of gradients that are far longer than clip: noise alone, by clip and multiplier."""
    given = {"a": np.ones(20_000, np.float32)}
    rule = ClippedTexts(clip, z, batch, secret)
    found = rule.gradients(2, lambda text: (1.0, given), given)[1]["a"]
    drawn: np.ndarray = found.astype(np.float64) * batch / clip / z
    return drawn


def test_noise_of_another_run_clip_or_multiplier_is_another() -> None:
    """Else two updates from the same start would give the gradient away by their difference."""
    noises = [
        drawn_by(b"one"),
        drawn_by(b"two"),
        drawn_by(b"one", clip=2e-6),
        drawn_by(b"one", z=2.0),
        drawn_by(b"one", batch=3),
    ]
    correlations = np.corrcoef(noises) - np.eye(len(noises))
    assert np.abs(correlations).max() < 5.0 / math.sqrt(20_000)


def test_a_step_of_fewer_texts_has_no_more_noise_than_others() -> None:
    given = {"a": np.ones(20_000, np.float32)}
    rule = ClippedTexts(1e-3, 1.0, 64, b"secret")
    for texts in (1, 64):
        found = rule.gradients(texts, lambda text: (1.0, given), given)[1]["a"]
        assert found.std() == pytest.approx(1e-3 / 64, rel=0.03)


def test_a_text_without_a_finite_gradient_counts_as_none() -> None:
    good = 1.0, {"a": np.ones(3, np.float32)}
    bad = math.inf, {"a": np.full(3, np.inf, np.float32)}
    rule = ClippedTexts(10.0, NO_NOISE, 2, b"secret")
    loss, found = rule.gradients(2, lambda text: (good, bad)[text], good[1])
    assert loss == 0.5
    np.testing.assert_allclose(found["a"], 0.5, rtol=1e-6)


@each_kind
def test_batches_do_not_depend_on_what_texts_say(
    tiny_base: Base, hub_task: Task, kind: str
) -> None:
    """One text says something longer: each other one stays in its step."""
    training = Training(epochs=1, batch=2, lr=1e-9, tokens=48, optimizer="sgd")
    longer = replace(TEXTS[3], text="storm over the hills all night and all of the next morning")
    steps = []
    for texts in (TEXTS, [*TEXTS[:3], longer, *TEXTS[4:]]):
        engine = engine_of(kind, tiny_base, hub_task, "lora:2", training=training)
        seen = Seen(ClippedTexts(1e9, NO_NOISE, 2, b"secret"))
        train(engine, texts, training, 1, correct=partial(Correction, rule=seen))
        steps.append(seen.found)
    apart = [
        max(float(np.abs(one[name] - other[name]).max()) for name in one)
        for one, other in zip(*steps, strict=True)
    ]
    assert sum(one > 1e-5 for one in apart) == 1  # the same but for its own step


def test_frozen_tensors_count_in_no_length_and_get_no_noise() -> None:
    given = {"a": np.full(3, 2.0, np.float32), "b": np.full(3, 100.0, np.float32)}
    rule = ClippedTexts(10.0, NO_NOISE, 2, b"secret", frozenset({"b"}))
    _, found = rule.gradients(2, lambda text: (1.0, given), given)
    assert set(found) == {"a"}
    np.testing.assert_allclose(found["a"], 2.0, rtol=1e-6)


def test_a_step_holds_no_more_than_the_planner_counts() -> None:
    numbers = 1_000_000
    given = {f"{part}": np.ones(numbers // 4, np.float32) for part in range(4)}
    rule = ClippedTexts(0.1, 1.0, 2, b"secret")
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        rule.gradients(2, lambda text: (1.0, given), given)
        held = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    largest = 12 * AT_ONCE * 8  # of some numbers at a time
    assert 0.8 * TextNoise.held_bytes * numbers < held < TextNoise.held_bytes * numbers + largest


@pytest.mark.parametrize("numbers", [1, 2, 7, AT_ONCE, 2 * AT_ONCE + 3])
def test_numbers_that_are_drawn_in_parts_are_those_drawn_at_once(numbers: int) -> None:
    whole, drawn = gaussians(b"key", numbers), Gaussians(b"key", numbers)
    cuts = sorted({0, numbers // 3, numbers // 2, numbers})
    parts = [drawn.some(*pair) for pair in pairwise(cuts)]
    assert np.array_equal(np.concatenate(parts), whole) and whole.shape == (numbers,)


def test_no_secret_no_noise_no_training() -> None:
    with pytest.raises(Failed, match="no secret"):
        TextNoise("1.0", "1.0", "8.0", "1e-05").correct(Correction({}), DeviceContext(SGD, 1))


OPACUS = """
import sys, warnings
warnings.filterwarnings("ignore")
import numpy as np, torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from smidgen.edge_client.updates.privacy import ClippedTexts

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
x, y = torch.randn(8, 6) * 3, torch.arange(8) % 3
loss_of, worst = torch.nn.functional.cross_entropy, 0.0
def of_text(text):
    model.zero_grad()
    loss = loss_of(model(x[text : text + 1]), y[text : text + 1])
    loss.backward()
    named = model.named_parameters()
    return float(loss), {name: one.grad.numpy().copy() for name, one in named}
at = {name: one.detach().numpy() for name, one in model.named_parameters()}
for clip in (0.1, 0.5, 2.0, 50.0):
    _, ours = ClippedTexts(clip, 1e-9, 8, b"secret").gradients(8, of_text, at)
    model.zero_grad()
    wrapped = GradSampleModule(model)
    optimizer = DPOptimizer(torch.optim.SGD(wrapped.parameters(), lr=0.0), noise_multiplier=0.0,
                            max_grad_norm=clip, expected_batch_size=8)
    loss_of(wrapped(x), y).backward()
    optimizer.pre_step()
    for name, one in wrapped._module.named_parameters():
        worst = max(worst, float(np.abs(one.grad.numpy() - ours[name]).max()))
    wrapped.to_standard_module()
    model.zero_grad()
print(worst)
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif("torch" not in KINDS, reason="Opacus works with PyTorch")
def test_clipped_gradients_are_those_of_opacus(tmp_path: Path) -> None:
    """Opacus 1.6.0 in a folder of its own, beside the PyTorch that is here."""
    folder = str(tmp_path / "opacus")
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", folder]
    wanted = ["opacus==1.6.0", "opt-einsum==3.4.0", "scipy==1.15.3"]
    if subprocess.run([*install, *wanted], check=False, capture_output=True).returncode:
        pytest.skip("Opacus cannot be installed here")
    path = os.pathsep.join([*sys.path, folder])
    done = subprocess.run(
        [sys.executable, "-c", OPACUS],
        check=False,
        capture_output=True,
        text=True,
        env=dict(os.environ, PYTHONPATH=path),
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 1e-6
