"""Fixtures that every part shares: a tiny base, the real small bases and data sets, a task."""

import gc
import math
import os
import random
import signal
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path

# Before torch and numpy are loaded: their threads wait for each other without computing. Spinning
# ones make a test several times slower (OpenBLAS's: sixty times) where something else runs too.
# The numbers are the same.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
from hypothesis import settings

from smidgen.edge_client.bases.base import Base, open_base
from smidgen.edge_client.tasks.task import Task
from tests.breadth import first_fast, thin
from tests.coordinator.servers import Buckets, Postgres, bucket_server, postgres_server
from tests.tiny import write_tiny_base

# Or hundreds of processes would compile all that they import, each by itself.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
SHARED = Path(os.environ.get("SMIDGEN_SHARED", Path(__file__).parents[2] / "shared"))
# A shell that starts the tests in the background has them ignore Ctrl-C, and so their children.
signal.signal(signal.SIGINT, signal.default_int_handler)
# A law holds on a busy machine too; how long one example takes there says nothing.
settings.register_profile("any-machine", deadline=None, max_examples=10)
settings.register_profile("thorough", deadline=None, max_examples=100)
settings.load_profile("any-machine")
STARTED_S = time.monotonic()
UMASK = os.umask(0o022)
os.umask(UMASK)
# What tests of random faults draw from; the processes of pytest-xdist inherit it.
SEED = int(os.environ.setdefault("SMIDGEN_FAULT_SEED", str(random.SystemRandom().randrange(10**6))))
HUB_WORDS = ("security", "mail", "power", "weather", "family", "health")


def pytest_addoption(parser: pytest.Parser) -> None:
    said = "skip, by name, every test that would start after so many seconds"
    parser.addoption("--start-within", type=float, default=math.inf, metavar="S", help=said)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected lives to the end: garbage is neither looked for meanwhile nor in it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before `-m` leaves out what is slow
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put tests of faults first, laws of many examples last: what time is left for is run."""
    thin(items)
    items.sort(key=lambda item: [item.get_closest_marker(n) is None for n in ("fault", "slow")])


def pytest_runtest_setup(item: pytest.Item) -> None:
    os.umask(UMASK)  # a command of a test before may have kept what it wrote from others
    within_s = item.config.getoption("--start-within")
    if time.monotonic() - STARTED_S > within_s:
        pytest.skip(f"not run: the {within_s:g} seconds of --start-within are over")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"random faults of this run: SMIDGEN_FAULT_SEED={SEED}")


@pytest.fixture(scope="session")
def seed() -> int:
    """What all chances of a test come from; told at the end of every run."""
    return SEED


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A real PostgreSQL, where Debian's package is here."""
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
def buckets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Buckets]:
    """A real server of S3; every process finds it in its environment."""
    with (
        bucket_server(tmp_path_factory.mktemp("buckets")) as server,
        pytest.MonkeyPatch.context() as patched,
    ):
        for name, value in server.settings.items():
            patched.setenv(name, value)
        yield server


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


@pytest.fixture
def smollm2() -> Path:
    """A real decoder's GGUF file, with its tokenizer.json beside it."""
    return shared("models", "smollm2-135m-instruct") / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(params=first_fast(["bert-tiny-mlm", "minilm-l6-mlm"]))
def real_base(request: pytest.FixtureRequest) -> Base:
    """Each of the real small masked language models."""
    return open_base(str(shared("models", request.param)))


@pytest.fixture(scope="session")
def ort_training_environment() -> Path:
    """Where onnxruntime-training is installed; skips with a reason where it is not."""
    from smidgen.profiling.peers import ort as ort_training

    if reason := ort_training.missing():
        pytest.skip(f"onnxruntime-training: {reason}")
    return ort_training.environment()
