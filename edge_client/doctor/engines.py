"""Engine checks and self-tests, each in a process of its own, because a failing one may crash.

A wheel built for a newer processor kills its process by SIGILL at import, which no `except` sees.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from smidgen.edge_client.doctor.machine import ERROR, OK, UNKNOWN, WARNING, Finding
from smidgen.edge_client.engine.opening import ENGINES
from smidgen.edge_client.errors import installing

LSE, ALL_HAVE = "atomics", "asimd"  # as /proc/cpuinfo calls them; every aarch64 has the second
DIE_WITHOUT_LSE = {"torch": ("2.0.0", "2.4.0", "2.10.0"), "onnxruntime": ("1.21.0",)}
NEWEST_WITHOUT_CUDA = (2, 10)  # torch; later aarch64 wheels of the public index are CUDA 13 builds
NO_WHEEL = "install the version of the wheelhouse's lock"


def is_without_lse(machine: str, flags: Collection[str]) -> bool:
    """Whether this is an ARMv8.0; not where the processor does not say what it has."""
    return machine == "aarch64" and ALL_HAVE in flags and LSE not in flags


def objection(library: str, version: str, machine: str, flags: Collection[str]) -> str:
    """Why a release will die on a processor; empty where nothing is known against it."""
    plain = version.partition("+")[0]
    if is_without_lse(machine, flags) and plain in DIE_WITHOUT_LSE.get(library, ()):
        return f"{library} {plain} dies on ARMv8.0 processors such as this one"
    return ""


def is_for_a_server(library: str, version: str) -> bool:
    """Whether an aarch64 wheel from the public index brings CUDA for servers."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if library != "torch" or numbers is None or "+cpu" in version:
        return False
    return (int(numbers[1]), int(numbers[2])) > NEWEST_WITHOUT_CUDA


PATIENCE_S = 300.0  # an import took 16 s under emulation
TLS = "static TLS block"
LOAD = 'from smidgen.edge_client.engine.opening import load_engine; load_engine("{}")'
# What a client loads before its engine, then the engines, then the OpenMP that others bring.
IN_TURN = """
import ctypes, sys
for name in sys.argv[1:]:
    __import__(name)
try:
    ctypes.CDLL("libgomp.so.1")
except OSError as error:
    if "static TLS" in str(error):
        raise
"""
BEFORE = ("numpy", "tokenizers", "safetensors", "httpx")
OTHER_ENGINE = "reinstall it from the wheelhouse, or take the other --engine"


@dataclass(frozen=True)
class Ended:
    """How a process ended.

    Attributes:
        how: Empty where it ended well; else such as `died by SIGILL`.
        out: What it printed.
        said: The last line of what it said on stderr.
        elapsed_s: How long it took.
    """

    how: str
    out: str
    said: str
    elapsed_s: float


@dataclass(frozen=True)
class Processor:
    """What wheels are judged by.

    Attributes:
        machine: Architecture, such as `aarch64`.
        flags: What it says it has.
        is_jetson: Whether a CUDA build for servers is of no use on it.
    """

    machine: str
    flags: Collection[str]
    is_jetson: bool


@dataclass(frozen=True)
class Tried:
    """An engine that was tried.

    Attributes:
        finding: What is said of it.
        loads: Whether it can be used, whatever is said.
    """

    finding: Finding
    loads: bool


def run(words: Sequence[str], patience_s: float = PATIENCE_S) -> Ended:
    """Run this interpreter with words, and wait for its end."""
    begun_s = time.monotonic()
    environment: Mapping[str, str] = os.environ | {"ORT_DISABLE_TELEMETRY": "1"}
    try:
        done = subprocess.run(
            [sys.executable, *words],
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=patience_s,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        return Ended(f"did not end within {patience_s:g} s", "", "", patience_s)
    except OSError as error:
        return Ended(f"could not be started: {error.strerror}", "", "", 0.0)
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return Ended(
        _how(done.returncode), done.stdout, lines[-1] if lines else "", time.monotonic() - begun_s
    )


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}" if code else ""
    try:
        return f"died by {signal.Signals(-code).name}"
    except ValueError:
        return f"died by signal {-code}"


def version_of(library: str) -> str:
    """An installed library's version, without importing it; empty where nobody wrote it down."""
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return ""


def read_engine(kind: str, processor: Processor, is_asked: bool) -> Tried:
    """Whether an engine's libraries load and compute.

    Args:
        kind: `torch` or `onnx`.
        processor: What it is to run on.
        is_asked: Whether it was asked for by name.
    """
    check, row = f"{kind} engine", ENGINES[kind]
    if find_spec(row.library) is None:
        told = f"{row.library} is not installed"
        if kind == "torch" and not is_asked:
            todo = "nothing to do: the onnx engine does without"
            return Tried(Finding(check, OK, told, todo), False)
        return Tried(Finding(check, ERROR, told, installing(row.extra)), False)
    version = version_of(row.library)
    known = objection(row.library, version, processor.machine, processor.flags)
    ended = run(["-c", f"{LOAD.format(kind)}\n{row.warm_up}"])
    shown = f"{row.library} {version or 'of unknown version'}"
    if ended.how:
        told = _joined(f"{shown} {ended.how}", known or ended.said)
        return Tried(Finding(check, ERROR, told, _todo(ended, known)), False)
    shown = f"{shown}, loaded in {ended.elapsed_s:.1f} s"
    if known:
        return Tried(Finding(check, WARNING, f"{shown}, and yet {known}", NO_WHEEL), True)
    if processor.is_jetson and is_for_a_server(row.library, version):
        told = f"{shown}, is a CUDA build for servers unless it was made for this board"
        return Tried(Finding(check, WARNING, told, NO_WHEEL), True)
    return Tried(Finding(check, OK, shown), True)


def _joined(told: str, why: str) -> str:
    return f"{told}: {why}" if why else told


def _todo(ended: Ended, known: str) -> str:
    if known:
        return NO_WHEEL
    if TLS in ended.said:
        return _preload()
    if "SIGILL" in ended.how:
        return f"{NO_WHEEL}: this one is built for a newer processor"
    return OTHER_ENGINE


def read_static_tls(kinds: Sequence[str]) -> Finding:
    """Whether all libraries fit into one process.

    On aarch64 an old glibc has little room for thread-local variables of libraries that are loaded
    late, and each copy of OpenMP wants some.

    Args:
        kinds: Engines that load by themselves.
    """
    check = "static TLS"
    names = [*BEFORE, *(ENGINES[kind].library for kind in reversed(kinds))]
    ended = run(["-c", IN_TURN, *(name for name in names if find_spec(name))])
    if not ended.how:
        return Finding(check, OK, f"{', '.join(names)} and OpenMP load in one process")
    if TLS in ended.said:
        return Finding(check, ERROR, ended.said, _preload())
    return Finding(check, UNKNOWN, _joined(f"the probe {ended.how}", ended.said), OTHER_ENGINE)


def _preload() -> str:
    """What to write into the service's settings, with the OpenMP that PyTorch brought if it did."""
    spec = find_spec("torch")
    places = [Path(one) for one in spec.submodule_search_locations or ()] if spec else []
    found = [
        file
        for place in places
        for folder in (place.parent / "torch.libs", place / "lib")
        for file in sorted(folder.glob("libgomp*.so*"))
    ]
    library = found[0] if found else "libgomp.so.1"
    return f"start it with LD_PRELOAD={library} in its environment (/etc/smidgen.env)"


LOSS = "loss"
TOLERANCE = 1e-5  # of a loss, and of a step's longest gradient

Numbers = Mapping[str, Sequence[float]]  # `loss`, and each tensor's name: one number per step


def stored() -> Numbers:
    """What the machine that we trust computed."""
    text = (files("smidgen.edge_client") / "doctor" / "self_test.json").read_text()
    return dict(json.loads(text))


def difference(found: Numbers, expected: Numbers) -> float:
    """The largest difference: of losses as they are, of gradients over the step's longest.

    Infinite where something is missing or is not a number.
    """
    if found.keys() != expected.keys():
        return float("inf")
    if any(len(found[name]) != len(expected[name]) for name in expected):
        return float("inf")
    rows = [np.array([one[name] for name in sorted(expected)]) for one in (found, expected)]
    if not np.isfinite(rows[0]).all():
        return float("inf")
    is_loss = np.array([name == LOSS for name in sorted(expected)])
    apart = abs(rows[0] - rows[1])
    longest = rows[1][~is_loss].max(axis=0)
    return float(max(apart[is_loss].max(), (apart[~is_loss] / longest).max()))


DO_NOT_TRAIN = "do not train with it here: reinstall it, or take the other --engine"


def read_steps(kind: str) -> Finding:
    """Whether ten training steps give the numbers that are stored.

    Args:
        kind: An engine that loads.
    """
    check = f"{kind} self-test"
    try:
        with TemporaryDirectory(prefix="smidgen-doctor-") as place:
            ended = run(["-m", "smidgen.edge_client.doctor.self_test", kind, place])
    except OSError as error:
        return Finding(
            check,
            UNKNOWN,
            f"no temporary folder: {error.strerror}",
            "name a folder that may be written to in TMPDIR",
        )
    if ended.how:
        told = f"it {ended.how}: {ended.said}" if ended.said else f"it {ended.how}"
        return Finding(check, ERROR, told, OTHER_ENGINE)
    try:
        apart = difference(json.loads(ended.out.splitlines()[-1]), stored())
    except (ValueError, LookupError, TypeError, AttributeError):
        return Finding(check, ERROR, "it printed no numbers", DO_NOT_TRAIN)
    if not apart <= TOLERANCE:
        return Finding(
            check,
            ERROR,
            f"gradients are {apart:.1e} from the stored ones, {TOLERANCE:g} is allowed",
            DO_NOT_TRAIN,
        )
    return Finding(
        check,
        OK,
        f"10 steps, gradients {apart:.1e} from the stored ones, in {ended.elapsed_s:.1f} s",
    )
