"""Values outside its domain at every option of every command: one line each, never a traceback.

The list of commands and options is Typer's own, so a new option is tested as soon as it is there.
"""

import signal
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import typer.main
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")
pytest.importorskip("fastapi")
pytest.importorskip("matplotlib")

from smidgen import COMMANDS
from smidgen.edge_client.bases.base import Base
from tests.breadth import SLOW
from tests.command_line import Done, benchmarks, smidgen

SOON_S = 5.0  # of this process's computing, however busy the machine is
PATIENCE_S = 30.0  # of waiting, for what computes nothing
TASK = """
name = "hub"
labels = ["security", "weather"]
patterns = ["{text} [MASK]"]
"""
EXPERIMENT = """
dataset = "folder:none"
base = "embedded"
adapter = "lora:2"
"""
NOT_TEXT = "\udcff"  # a byte that is not UTF-8, as the command line gives it
LONG = "x" * 5000
INTEGERS = ("-1", f"{10**40}", "x", "", "1.5", f"-{10**40}")
NUMBERS = ("nan", "-1", "x", "", "-inf")
PATHS = ("/dev/null/below", LONG)
TEXTS = (LONG, NOT_TEXT, "", "\x1b]0;x\x07")
MORE = {"--coordinator": ("http://a..b", "http://xn--zzzz--", "http://[", "ftp://x")}
BENCHMARKS = "benchmarks"
FIRST = 2  # values of a kind that the fast suite tries


@dataclass(frozen=True)
class Option:
    """An option or argument of a command.

    Attributes:
        command: Words before it, such as `client run`.
        name: As the command's function calls it.
        flag: As typed; empty for an argument.
        kind: Typer's name of its type.
        default: A value of its domain, whatever its kind.
    """

    command: str
    name: str
    flag: str
    kind: str
    default: str

    def __str__(self) -> str:
        return f"{self.command} {self.flag or self.name}"

    @property
    def values(self) -> tuple[str, ...]:
        """Values that no option of this kind takes; to some texts anything is a value."""
        kinds = {"int": INTEGERS, "float": NUMBERS, "path": PATHS}
        found = (*MORE.get(self.flag, ()), *kinds.get(self.kind.split()[0], TEXTS))
        return tuple(value for value in found if value != self.default)


def leaves(words: str, command: Any) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if not inner:
        yield words, command
        return
    for name, below in inner.items():
        yield from leaves(f"{words} {name}", below)


def every_option(apps: Mapping[str, str]) -> list[Option]:
    found = []
    for name, module in apps.items():
        tree = typer.main.get_command(import_module(module).app)
        for words, command in leaves(name, tree):
            for param in command.params:
                if param.name == "help" or getattr(param, "is_flag", False):
                    continue
                is_option = param.param_type_name == "option"
                flag = param.opts[0] if is_option else ""
                found.append(Option(words, param.name, flag, param.type.name, str(param.default)))
    return found


OPTIONS = every_option({name: module for name, (module, _, _) in COMMANDS.items()})
# What comes from a checkout alone is tried where time is.
OF_BENCHMARKS = every_option({BENCHMARKS: "benchmarks.cli"})
# So is what another command has by this name and of this type.
FIRST_OF = {(one.flag or one.name, one.kind): one for one in reversed(OPTIONS)}
TRIED = [
    pytest.param(one, marks=() if one in FIRST_OF.values() else SLOW)
    for one in (*OPTIONS, *OF_BENCHMARKS)
]


@pytest.fixture(scope="module")
def place(tiny_base: Base, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What commands need to begin with, so that it is the one value that stops them."""
    import_module("benchmarks.pretraining.run")  # transformers: its seconds are no call's
    folder = tmp_path_factory.mktemp("options")
    data = folder / "data"
    data.mkdir()
    (data / "labelled.csv").write_text("text,label\nrain at nine,weather\na door,security\n")
    (data / "task.toml").write_text(TASK)
    (folder / "experiment.toml").write_text(EXPERIMENT)
    (folder / "rounds.jsonl").write_text("")
    (folder / "tiny").symlink_to(tiny_base.folder)
    done = smidgen("coordinator", "create", "--store", f"{folder}/store", *task_and_base(folder))
    assert done.exit_code == 0, done.stderr
    return folder


def task_and_base(folder: Path) -> list[str]:
    return ["--task", f"{folder}/data/task.toml", "--base", f"{folder}/tiny"]


def usual(folder: Path, port: int) -> dict[str, dict[str, str]]:
    """What is typed beside the option that is tried, by command."""
    base, data, out = f"{folder}/tiny", f"{folder}/data", f"{folder}/out"
    store, onnx = f"{folder}/store", {"--engine": "onnx"}
    small = {"--base": base, **onnx}
    return {
        "demo": {"--out": out},
        "pack": {"": base, "--bits": "8", "--out": out},
        "client run": {
            "--coordinator": "http://127.0.0.1:9",
            "--data": data,
            "--token": "t",
            "--patience": "0",
            "--state": f"{folder}/state",
            **small,
        },
        "client train": {"--data": data, "--out": out, "--tokens": "16", "--epochs": "1", **small},
        "client predict": {"": "rain", "--task": f"{data}/task.toml", **small},
        "client evaluate": {"--data": f"{data}/labelled.csv", **small},
        "client base": {"": base},
        "client plan": {"--state": f"{folder}/state", **small},
        "client doctor": {"--state": f"{folder}/state", **small},
        "client patterns": {"--data": data, **small},
        "client labels": {"--state": f"{folder}/state"},
        "coordinator init": {"--store": f"{folder}/hub"},
        "coordinator create": {
            "--store": f"{folder}/other",
            "--task": f"{data}/task.toml",
            "--base": base,
        },
        "coordinator serve": {"--store": store, "--port": str(port)},
        "coordinator status": {"--store": store},
        "coordinator figures": {"--store": store},
        "coordinator export": {"--store": store, "--out": out},
        "coordinator list": {"--store": store},
        "coordinator pause": {"--store": store},
        "coordinator resume": {"--store": store},
        "coordinator stop": {"--store": store},
        "coordinator extend": {"--store": store, "--rounds": "20"},
        "coordinator devices list": {"--store": store},
        "coordinator devices show": {"": "pi", "--store": store},
        "coordinator devices tag": {"": "pi", "--store": store},
        "coordinator devices revoke": {"": "pi", "--store": store},
        "coordinator tokens list": {"--store": store},
        "coordinator tokens new": {"--store": store},
        "coordinator tokens revoke": {"": "t0", "--store": store},
        "coordinator operators list": {"--store": store},
        "coordinator operators new": {"--store": store},
        "coordinator operators revoke": {"": "o0", "--store": store},
        "profile rounds": {"": f"{folder}/rounds.jsonl"},
        "profile train": {"--base": base, **onnx},
        "profile models": {"--out": out},
        "profile grid": {"--out": out},
        "profile gradients": {"--base": base, **onnx},
        "profile estimate": {"--base": base, "--board": "tx2"},
        "profile soak": {"--rounds": "4"},
        "profile wire": {"--base": base, "--rounds": "1", "--rtt": "0"},
        "benchmarks paper": {"": "aug-fedprompt:table2", "--out": out, "--data": "/no/such"},
        "simulate run": {"": f"{folder}/experiment.toml", "--out": out},
        "simulate data": {"": "ag_news", "--data": "/no/such"},
        "simulate split": {"": f"{data}/labelled.csv", "--out": out, "--clients": "2"},
        "benchmarks pretrain": {"--data": "/no/such", "--out": out, "--steps": "1"},
    }


class TooLate(BaseException):
    """A call has not ended in time; nothing in the product may catch it."""


@contextmanager
def soon() -> Iterator[None]:
    def late(_signal: int, _frame: FrameType | None) -> None:
        raise TooLate

    before = {kind: signal.signal(kind, late) for kind in (signal.SIGPROF, signal.SIGALRM)}
    signal.setitimer(signal.ITIMER_PROF, SOON_S)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for kind, handler in before.items():
            signal.signal(kind, handler)


def tried(option: Option, value: str, folder: Path) -> Done:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        typed = usual(folder, taken.getsockname()[1]).get(option.command, {}) | {option.flag: value}
        words = [word for flag, given in typed.items() if flag for word in (flag, given)]
        words += ["--", typed[""]] if "" in typed else []
        program, *command = option.command.split()
        with soon():
            if program == BENCHMARKS:
                return benchmarks(*command, *words)
            return smidgen(program, *command, *words)


def is_one_line(option: Option, value: str, folder: Path) -> None:
    done = tried(option, value, folder)
    assert done.exit_code in (0, 1, 2), (value[:80], done)
    told = [one for one in done.stderr.splitlines() if one.startswith(("smidgen", "python -m"))]
    is_told = len(told) == 1 or "Usage: " in done.stderr
    assert done.exit_code == 0 or is_told, (value[:80], done.stderr)


@pytest.fixture
def inside(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place, which is also where the command is called and its user's home."""
    monkeypatch.chdir(place)
    monkeypatch.setenv("HOME", str(place))
    monkeypatch.delenv("SMIDGEN_DATA", raising=False)  # whole data sets take longer than is waited
    return place


@pytest.mark.parametrize("option", TRIED, ids=str)
def test_a_value_outside_its_domain_is_one_line(option: Option, inside: Path) -> None:
    for value in option.values[: FIRST + len(MORE.get(option.flag, ()))]:
        is_one_line(option, value, inside)


@pytest.mark.slow
@pytest.mark.parametrize("option", [*OPTIONS, *OF_BENCHMARKS], ids=str)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_is_typed_is_one_line(option: Option, inside: Path, data: st.DataObject) -> None:
    anything = st.text(st.characters(exclude_characters="\0"), min_size=1, max_size=80)
    is_number = option.kind.startswith(("int", "float"))
    known = st.sampled_from(option.values)
    value = data.draw(known | anything.filter(not_a_number) if is_number else known)
    is_one_line(option, value, inside)


def not_a_number(text: str) -> bool:
    """Whether neither int nor float reads it, nor does it start like a path or an option."""
    try:
        float(text)
    except ValueError:
        return not text.startswith(("-", "/", "."))
    return False


def test_every_command_is_tried() -> None:
    assert {option.command.split()[0] for option in OPTIONS} == set(COMMANDS)
    assert len(OPTIONS) > 150
