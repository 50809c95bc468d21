"""Fixtures that every part shares: a tiny base, the real small bases and data sets, a task."""

import os
import signal
from pathlib import Path

# Before torch is loaded: its threads wait for each other without computing. Spinning ones make a
# test several times slower where something else runs too. The numbers are the same.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
from hypothesis import settings

from edge_client.bases.base import Base, open_base
from edge_client.texts.tasks import Task
from tests.tiny import write_tiny_base

SHARED = Path(os.environ.get("SMIDGEN_SHARED", Path(__file__).parents[2] / "shared"))
# A shell that starts the tests in the background has them ignore Ctrl-C, and so their children.
signal.signal(signal.SIGINT, signal.default_int_handler)
# A law holds on a busy machine too; how long one example takes there says nothing.
settings.register_profile("any-machine", deadline=None)
settings.load_profile("any-machine")
HUB_WORDS = ("security", "mail", "power", "weather", "family", "health")


@pytest.fixture(scope="session")
def tiny_base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    """A random 2-layer BERT of width 16 with a real tokenizer."""
    folder = tmp_path_factory.mktemp("tiny") / "base"
    write_tiny_base(folder)
    return open_base(str(folder))


@pytest.fixture
def hub_task() -> Task:
    """The demo's six labels."""
    words = dict(zip(HUB_WORDS, HUB_WORDS, strict=True))
    return Task("hub", HUB_WORDS, ("{text} . this is about [MASK] .",), words)


def shared(kind: str, name: str) -> Path:
    """A folder of the shared models or data; skips with a reason where it is absent."""
    folder = SHARED / kind / name
    if not folder.is_dir():
        pytest.skip(f"no {kind}/{name} in the shared folder (set SMIDGEN_SHARED)")
    return folder


@pytest.fixture(params=["bert-tiny-mlm", "minilm-l6-mlm"])
def real_base(request: pytest.FixtureRequest) -> Base:
    """Each of the real small masked language models."""
    return open_base(str(shared("models", request.param)))


@pytest.fixture(scope="session")
def ort_training_environment() -> Path:
    """Where onnxruntime-training is installed; skips with a reason where it is not."""
    from profiling.peers import ort as ort_training

    if reason := ort_training.missing():
        pytest.skip(f"onnxruntime-training: {reason}")
    return ort_training.environment()
