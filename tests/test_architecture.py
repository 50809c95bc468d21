"""The arrows between the packages, proved on the source and in fresh interpreters."""

import ast
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("edge_client", "coordinator", "profiling", "simulation")
MAY_IMPORT = {
    "edge_client": set(),
    "coordinator": {"edge_client"},
    "profiling": {"edge_client"},
    "simulation": {"edge_client", "coordinator", "profiling"},
}
# The rooms of the device that the server may know: the contract, and what draws an adapter.
CONTRACT = {"adapters", "bases", "errors", "texts", "wire"}
COMPUTES = {
    "edge_client/engine/torch_backend/adamw.py",
    "edge_client/engine/torch_backend/backend.py",
    "edge_client/engine/torch_backend/layers.py",
    "edge_client/engine/torch_backend/matrices.py",
    "edge_client/engine/torch_backend/network.py",
    "edge_client/engine/torch_backend/micro_batch.py",
    "profiling/benchmarks/gradients.py",
    "profiling/peers/torch_checkpoint.py",
    "profiling/peers/torch_peers.py",
}
TORCH = {"torch", "transformers", "peft"}
COMMAND = """
import contextlib, io, smidgen
sys.argv = ["smidgen", *{!r}.split()]
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    smidgen.main()
"""
# What our modules lie on is imported once; a process of its own then imports each of them.
LIBRARIES = (
    *("httpx", "msgspec", "numpy.random", "onnxruntime", "safetensors.numpy", "tokenizers"),
    *("typer", "torch", "fastapi", "sqlalchemy", "uvicorn"),
)
IMPORT_EACH = """
import importlib, os
for name in {}:
    importlib.import_module(name)
for name in {}:
    if os.fork() == 0:
        importlib.import_module(name)
        os._exit(0)
    if os.wait()[1] == 0:
        print(name, flush=True)
"""


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Full dotted names a module imports, at its top or inside functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return names


@pytest.mark.parametrize("package", PACKAGES)
def test_arrows_go_one_way(package: str) -> None:
    forbidden = set(PACKAGES) - {package} - MAY_IMPORT[package]
    for path in modules(package):
        crossed = {name for name in imports(path) if name.split(".")[0] in forbidden}
        assert not crossed, f"{path.relative_to(ROOT)} imports {sorted(crossed)}"


def test_the_coordinator_knows_the_contract_alone() -> None:
    for path in modules("coordinator"):
        known = {n.split(".")[1] for n in imports(path) if n.startswith("edge_client.")}
        assert known <= CONTRACT, f"{path.name} imports edge_client.{known - CONTRACT}"


@pytest.mark.parametrize("package", ["edge_client", "coordinator", "profiling"])
def test_torch_is_imported_only_where_it_computes(package: str) -> None:
    for path in modules(package):
        heavy = {name for name in imports(path) if name.split(".")[0] in TORCH}
        assert not heavy or str(path.relative_to(ROOT)) in COMPUTES, f"{path} imports {heavy}"


def loaded_after(statement: str) -> set[str]:
    """Modules a fresh interpreter holds after a statement."""
    code = f"import sys\n{statement}\nprint('\\n'.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    return set(done.stdout.split())


def test_the_client_starts_without_torch_and_without_the_server() -> None:
    loaded = loaded_after("import edge_client.cli, edge_client.client.loop")
    assert not loaded & (TORCH | {"coordinator", "fastapi", "sqlalchemy", "pydantic"})


@pytest.mark.parametrize("command", ["client --help", "client predict --task none.toml text"])
def test_help_and_wrong_input_wait_for_no_library_that_works(command: str) -> None:
    loaded = loaded_after(COMMAND.format(command))
    assert "edge_client.cli" in loaded
    assert not loaded & (TORCH | {"onnxruntime", "tokenizers", "httpx", "huggingface_hub"})


def test_the_server_starts_without_torch() -> None:
    pytest.importorskip("fastapi")
    loaded = loaded_after("import coordinator.cli, coordinator.serving.app")
    assert not loaded & (TORCH | {"simulation", "profiling"})


@pytest.mark.parametrize("package", ["edge_client", "coordinator"])
def test_every_module_can_be_imported_first(package: str) -> None:
    """No import cycles: each module alone, in a process that has imported none of ours."""
    if package == "coordinator":
        pytest.importorskip("fastapi")
    is_heavy_here = find_spec("torch") is not None
    names = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in modules(package)
        if path.stem != "__init__"
        and (is_heavy_here or str(path.relative_to(ROOT)) not in COMPUTES)
    ]
    code = IMPORT_EACH.format([name for name in LIBRARIES if find_spec(name)], names)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.split() == names, done.stderr


def test_only_the_front_door_names_packages_as_text() -> None:
    front = (ROOT / "smidgen.py").read_text()
    assert all(f'"{package}.cli"' in front for package in PACKAGES)
