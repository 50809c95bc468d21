"""Engines that start, that are missing, and that die by a signal; each in a real process."""

import sys
from collections.abc import Iterator
from importlib import invalidate_caches
from pathlib import Path

import pytest

from smidgen.edge_client.doctor.engines import (
    Processor,
    is_for_a_server,
    objection,
    read_engine,
    read_static_tls,
    run,
)
from smidgen.edge_client.doctor.machine import ERROR, OK, UNKNOWN
from tests.edge_client.doctor.trees import A57, A78
from tests.edge_client.engine.engines import KINDS

HERE = Processor("x86_64", ("avx2",), False)
OLD = Processor("aarch64", A57.split(), True)


def stub(folder: Path, library: str, body: str, version: str = "") -> None:
    """A package that stands before the installed one, with or without its version."""
    (folder / f"{library}.py").write_text(body)
    if version:
        facts = folder / f"{library}-{version}.dist-info" / "METADATA"
        facts.parent.mkdir()
        facts.write_text(f"Metadata-Version: 2.1\nName: {library}\nVersion: {version}\n")


@pytest.fixture
def first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that this process and its children search first."""
    root = str(Path(__file__).parents[3])
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{root}")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "onnxruntime", raising=False)
    yield tmp_path
    invalidate_caches()


def dies_by(name: str) -> str:
    return f"import os, signal\nos.kill(os.getpid(), signal.{name})\n"


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "todo"), [("SIGILL", "built for a newer processor"), ("SIGSEGV", "reinstall it")]
)
def test_an_engine_that_dies_by_a_signal_is_named_and_takes_nobody_along(
    first: Path, name: str, todo: str
) -> None:
    stub(first, "onnxruntime", dies_by(name))
    tried = read_engine("onnx", HERE, is_asked=False)
    assert (tried.finding.state, tried.loads) == (ERROR, False)
    assert f"died by {name}" in tried.finding.found and todo in tried.finding.todo


def test_a_release_that_is_known_to_die_here_is_named(first: Path) -> None:
    stub(first, "onnxruntime", dies_by("SIGILL"), "1.21.0")
    found = read_engine("onnx", OLD, is_asked=True).finding
    assert found.found == (
        "onnxruntime 1.21.0 died by SIGILL: onnxruntime 1.21.0 dies on ARMv8.0 processors such as "
        "this one"
    )
    assert found.todo == "install the version of the wheelhouse's lock"


@pytest.mark.slow
def test_an_engine_that_cannot_be_imported_says_its_last_line(first: Path) -> None:
    stub(first, "onnxruntime", "raise ImportError('libfoo.so: not there')")
    found = read_engine("onnx", HERE, is_asked=False).finding
    assert found.state == ERROR and found.found.endswith("ImportError: libfoo.so: not there")


@pytest.mark.slow
def test_a_full_static_tls_block_is_told_with_what_to_preload(first: Path) -> None:
    body = "raise OSError('libgomp.so.1: cannot allocate memory in static TLS block')"
    stub(first, "onnxruntime", body)
    found = read_engine("onnx", HERE, is_asked=False).finding
    assert "LD_PRELOAD=" in found.todo and "static TLS block" in found.found
    probed = read_static_tls(["onnx"])
    assert probed.state == ERROR and "LD_PRELOAD=" in probed.todo


def test_a_probe_that_fails_otherwise_is_unknown(first: Path) -> None:
    stub(first, "onnxruntime", dies_by("SIGKILL"))
    found = read_static_tls(["onnx"])
    assert found.state == UNKNOWN and "died by SIGKILL" in found.found


def test_an_engine_that_does_not_end_is_ended() -> None:
    ended = run(["-c", "import time; time.sleep(60)"], patience_s=0.2)
    assert ended.how == "did not end within 0.2 s"


def test_torch_may_be_absent_unless_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parents[3]), str(tmp_path)])
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert read_engine("torch", HERE, is_asked=False).finding.state == OK
    asked = read_engine("torch", HERE, is_asked=True).finding
    assert asked.state == ERROR and "torch]" in asked.todo


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=[pytest.mark.slow] * (k == "torch")) for k in KINDS]
)
def test_an_installed_engine_loads(kind: str) -> None:
    tried = read_engine(kind, HERE, is_asked=True)
    assert tried.loads and tried.finding.state == OK, tried


@pytest.mark.skipif("onnx" not in KINDS, reason="no onnxruntime here")
def test_all_libraries_load_in_one_process() -> None:
    assert read_static_tls(["onnx"]).state == OK


def test_only_a_processor_that_says_what_it_has_is_called_old() -> None:
    assert objection("torch", "2.4.0+cpu", "aarch64", A57.split())
    assert not objection("torch", "2.4.0", "aarch64", A78.split())
    assert not objection("torch", "2.4.0", "aarch64", ())
    assert not objection("torch", "2.4.0", "aarch64", ("avx2",))  # an emulator's host
    assert not objection("torch", "2.4.1", "aarch64", A57.split())
    assert not objection("torch", "2.4.0", "x86_64", ("avx2",))


def test_a_wheel_of_the_public_index_from_2_11_on_is_for_servers() -> None:
    assert is_for_a_server("torch", "2.11.0") and is_for_a_server("torch", "3.0.0+cu130")
    assert not is_for_a_server("torch", "2.10.0") and not is_for_a_server("torch", "2.12.0+cpu")
    assert not is_for_a_server("onnxruntime", "2.11.0") and not is_for_a_server("torch", "")
