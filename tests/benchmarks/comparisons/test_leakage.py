"""Attacks on a tiny adapter: what they find where memory is all there is, and with noise."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.comparisons.leakage import Attacked, area, attack
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.wire.training import Training
from smidgen.simulation.datasets.dataset import DataSet
from tests.tiny import WORDS


def test_an_area_is_the_chance_to_be_above() -> None:
    assert area(np.array([2.0, 3.0]), np.array([0.0, 1.0])) == 1.0
    assert area(np.array([1.0, 1.0]), np.array([1.0])) == 0.5
    assert area(np.array([0.0, 2.0]), np.array([1.0])) == 0.5


@pytest.mark.slow
def test_updates_give_texts_away_and_noise_hides_them(tiny_base: Base, hub_task: Task) -> None:
    rng, words = np.random.default_rng(0), [word for word in WORDS.split() if word.isalpha()]
    texts = tuple(
        Example(" ".join(rng.choice(words, 8)), label=str(rng.choice(hub_task.labels)))
        for _ in range(120)
    )
    data = DataSet("made up", hub_task, texts, texts[:1], "here", "", "", ())
    training = Training(epochs=40, batch=16, lr=0.02, tokens=32)
    asked = Attacked("lora:8", training, texts=40)
    plain = attack(asked, str(tiny_base.folder), data)
    private = attack(replace(asked, epsilon=0.25), str(tiny_base.folder), data)
    assert plain.found_of_one > 0.9 > 0.5 > private.found_of_one
    assert plain.members > 0.6 and abs(private.members - 0.5) < 0.15
    assert plain.by_shadows > 0.6 and abs(private.by_shadows - 0.5) < 0.2
    assert plain.exposure > 2.0 > private.exposure
