"""The public names of `import smidgen`: they are there, documented, light, and as the commands."""

import inspect
import subprocess
import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer.main

import smidgen
from smidgen.edge_client.errors import installing

pytest.importorskip("torch")
pytest.importorskip("fastapi")

# function -> the command whose options are its keywords
COMMAND = {
    "pack": "pack",
    "plan": "client plan",
    "doctor": "client doctor",
    "train": "client train",
    "personalize": "client personalize",
    "predict": "client predict",
    "tag": "client predict",
    "fill": "client predict",
    "generate": "client generate",
    "evaluate": "client evaluate",
    "run_client": "client run",
    "create_run": "coordinator create",
    "serve": "coordinator serve",
    "export": "coordinator export",
    "simulate": "simulate run",
}
OTHERWISE = {
    ("create_run", "run"): "file",
    ("simulate", "experiments"): "files",
    ("doctor", "bases"): "base",
    ("run_client", "tags"): "tag",
    ("run_client", "windows"): "window",
    ("run_client", "pack_mirrors"): "pack_mirror",
    ("serve", "trusted_proxies"): "trusted_proxy",
}
# A function that is called returns, a service does not; none is an empty tuple here.
OTHER_DEFAULT = {
    ("run_client", "until"),
    ("run_client", "pack_mirrors"),
    ("serve", "trusted_proxies"),
    ("doctor", "bases"),
    ("generate", "stop"),
    ("fill", "top"),
}
ONLY_PYTHON = {
    ("pack", "progress"),
    ("train", "tell"),
    ("simulate", "tell"),
    ("evaluate", "advance"),
    ("doctor", "tell"),
    ("predict", "texts"),
    ("tag", "texts"),
    ("fill", "texts"),
    ("generate", "texts"),
    ("generate", "tell"),
    ("generate", "on_piece"),
}
# A command that answers each kind of task has options that one kind alone needs.
OTHER_KINDS = {"predict": {"top"}, "tag": {"top", "prior"}, "fill": {"prior"}}
NO_KEYWORDS = ("json_output", "as_json", "help_all")
FILES = {"file", "out", "write", "text_column", "delimiter", "encoding"}  # a list has none
ONLY_COMMAND = {
    **{name: {"texts", *FILES, *more} for name, more in OTHER_KINDS.items()},
    "generate": {"texts"},  # or those of stdin
    "serve": {"drain", "log_format", "workers"},  # signals, logging, processes: its caller's
}


def options(name: str) -> dict[str, Any]:
    """A command's parameters by name."""
    first, *rest = COMMAND[name].split()
    command: Any = typer.main.get_command(import_module(smidgen.COMMANDS[first][0]).app)
    for word in rest:
        command = command.commands[word]
    return {p.name: p for p in command.params if p.name not in NO_KEYWORDS}


@pytest.mark.parametrize("name", smidgen.__all__)
def test_a_public_name_is_there_and_documented(name: str) -> None:
    found = getattr(smidgen, name)
    assert name in dir(smidgen)
    assert name == "__version__" or inspect.getdoc(found)


def test_every_name_of_dir_resolves() -> None:
    assert all(hasattr(smidgen, name) for name in dir(smidgen))
    assert len(set(smidgen.__all__)) == len(smidgen.__all__)


def test_the_front_page_of_the_module_names_every_function() -> None:
    functions = [n for n in smidgen.__all__ if inspect.isfunction(getattr(smidgen, n))]
    said = smidgen.__doc__ or ""
    assert all(f"    {name}(" in said for name in functions)
    assert set(COMMAND) == set(functions) - {"runs"}


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'simulat'"):
        smidgen.simulat  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", COMMAND)
def test_keywords_and_defaults_are_the_commands(name: str) -> None:
    known, said = options(name), inspect.signature(getattr(smidgen, name)).parameters
    for word, parameter in said.items():
        if (name, word) in ONLY_PYTHON:
            continue
        option = known.pop(OTHERWISE.get((name, word), word))
        is_required = parameter.default is inspect.Parameter.empty
        assert is_required == option.required, f"{name}: {word}"
        is_same = (name, word) in OTHER_DEFAULT or str(parameter.default) == str(option.default)
        assert is_required or is_same, f"{name}: {word}"
    assert set(known) == ONLY_COMMAND.get(name, set()), f"{name} has no such keywords"


@pytest.mark.parametrize("name", COMMAND)
def test_the_docstring_explains_every_argument(name: str) -> None:
    function = getattr(smidgen, name)
    for word in inspect.signature(function).parameters:
        assert f"    {word}: " in (inspect.getdoc(function) or ""), f"{name}: {word}"


def test_importing_smidgen_imports_nothing_that_it_may_not_need() -> None:
    code = (
        "import sys; before = set(sys.modules); import smidgen; print(*sys.modules.keys() - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name for name in done.stdout.split() if name.split(".")[0] not in LIGHT}
    assert loaded == {"smidgen", "smidgen.edge_client", "smidgen.edge_client.errors"}


LIGHT = sys.stdlib_module_names


SERVER = ("sqlalchemy", "fastapi", "uvicorn", "pydantic")
NOT_ON_A_DEVICE = (*SERVER, "torch", "pyarrow", "transformers", "matplotlib")


def without(packages: Iterable[str], code: str) -> "subprocess.CompletedProcess[str]":
    """Run code where packages are not installed."""
    hidden = f"import sys; sys.modules.update(dict.fromkeys({list(packages)!r}))\n"
    return subprocess.run([sys.executable, "-c", hidden + code], capture_output=True, text=True)


@pytest.mark.parametrize("package", ["sqlalchemy", "fastapi", "uvicorn"])
@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("import smidgen; smidgen.serve", "AttributeError"),
        ("from smidgen import serve", "ModuleNotFoundError"),
    ],
)
def test_a_name_of_an_extra_that_is_not_installed_names_the_extra(
    package: str, code: str, error: str
) -> None:
    said = f"smidgen.serve needs {package!r}; {installing('server')}"
    assert without([package], code).stderr.splitlines()[-1] == f"{error}: {said}"


def test_a_device_can_look_around_in_the_module() -> None:
    code = """
import inspect, pydoc, smidgen
from smidgen import *
assert not hasattr(smidgen, "serve") and not hasattr(smidgen, "create_run")
found = dict(inspect.getmembers(smidgen))
assert all(hasattr(smidgen, name) for name in dir(smidgen))
assert found.keys() >= {"train", "predict", "run_client", "RunConfig"}, sorted(found)
assert not found.keys() & {"serve", "Server", "runs", "export"}, sorted(found)
assert "train(" in pydoc.render_doc(smidgen)
assert train is smidgen.train
"""
    done = without(NOT_ON_A_DEVICE, code)
    assert not done.returncode, done.stderr


def test_type_checkers_of_users_see_the_types() -> None:
    assert Path(smidgen.__file__).with_name("py.typed").is_file()


def test_the_folder_profiling_hides_no_package_of_that_name(tmp_path: Path) -> None:
    """Python 3.15 has one, which `cProfile` imports: a checkout's folder must come after it."""
    (tmp_path / "profiling").mkdir()
    (tmp_path / "profiling" / "__init__.py").write_text("IS_THEIRS = True")
    path = [str(Path(smidgen.__file__).parents[1]), str(tmp_path)]
    code = f"import sys; sys.path[:0] = {path}; import profiling; assert profiling.IS_THEIRS\n"
    done = without((), code + "import smidgen.profiling.cli")
    assert not done.returncode, done.stderr
