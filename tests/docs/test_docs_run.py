"""What pages tell a reader to type works: run where it can be, read by the real commands elsewhere.

Every block of code is of a kind below; a command that only a person can run is in `BY_HAND` with
the reason. A command that is run for real stands in a walk (`test_the_first_hour_...`) or in `RUN`.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("fastapi")
pytest.importorskip("matplotlib")

import typer.main

if sys.version_info >= (3, 11):
    import tomllib
else:  # the same library, before it moved into Python
    import tomli as tomllib

from smidgen import COMMANDS
from smidgen.coordinator.config import read_run_config
from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.planning.plan import parse_budget, parse_cache_size
from smidgen.edge_client.tasks.task import read_task
from smidgen.edge_client.texts.examples import read_folder
from smidgen.simulation.demo.setting import Fleet, fleet
from smidgen.simulation.experiments.experiment import read_experiment
from tests.command_line import Done, smidgen
from tests.docs.pages import EVERY_BLOCK, ROOT, Block
from tests.tiny import write_tiny_base

# Console words that no test runs, and why.
BY_HAND = {
    "make": "installs and tests for minutes; that the target is there is checked",
    "pip": "asks a package index; that the extra is there is checked",
    "sudo": "a board's own root; installing is tried in tests/jetson",
    "ssh": "another machine's",
    "python": "prints a figure of the machine it runs on",
    "systemctl": "needs systemd and root",
    "journalctl": "needs systemd",
    "apt-get": "installs as root",
    "podman": "needs an image to build on",
    ".": "is the shell's own",
    "hf": "talks to a hub; tried in tests/end_to_end/outside/test_hub.py",
    "docker": "needs a daemon; services are run in tests/end_to_end/outside/test_containers.py",
    "mv": "moves a store; restoring is tried in tests/coordinator/upkeep/test_copying.py",
    "cp": "the same",
    "flower-supernode": "needs Flower; tests/end_to_end/flower starts it",
    "llama-cli": "llama.cpp's; tests/parity/folders/test_gguf_adapter.py calls its library",
    "createuser": "changes a server; the role of tests/coordinator/servers.py is made likewise",
    "createdb": "changes a server; tests/coordinator/servers.py makes databases",
    "pg_dump": "copies a server's database",
    "pg_restore": "fills a server's database",
    "aws": "copies somebody's bucket",
    "export": "is the shell's own",
    "sed": "run by tests/docs/test_tickets_page.py",
    "echo": "the same",
    "cd": "is the shell's own",
    "mkdir": "makes room on a stick of one's own",
    "python3": "is the board's or makes a venv; the scripts it starts are tried in tests/jetson",
    "tools/bin/pip": "asks a package index",
    "tools/bin/python": "resolves from a package index; that the script is there is checked",
}
PLACEHOLDERS = {"S": "0"}  # for numbers; FOLDER, URL and TOKEN are words as good as any
LABELS = ("security", "delivery", "power", "weather", "family", "health")  # of the demo's task


def console() -> Iterator[tuple[Block, tuple[str, ...]]]:
    for block in EVERY_BLOCK:
        if block.is_console:
            yield from ((block, as_smidgen(words)) for words in block.commands())


def as_smidgen(words: tuple[str, ...]) -> tuple[str, ...]:
    """What the server's own command (scripts/server/smidgen-coordinator) makes of its words."""
    if words[0] != "smidgen-coordinator":
        return words
    return ("smidgen", "coordinator", *words[1:], "--store", "/var/lib/smidgen-coordinator/store")


def named(item: object) -> str:
    return " ".join(item)[:60] if isinstance(item, tuple) else str(item)


CONSOLE = list(console())
TYPED = [(block, words[words.index("smidgen") :]) for block, words in CONSOLE if "smidgen" in words]
TYPED += [(block, words[2:]) for block, words in CONSOLE if words[1:3] == ("-m", "benchmarks")]
OTHER = [(block, words) for block, words in CONSOLE if "smidgen" not in words]


def found(words: Sequence[str]) -> tuple[Any, list[str], str]:
    """The command that words call, what follows its name, and its name."""
    if words[0] == "benchmarks":
        name, module, rest = "python -m benchmarks", "benchmarks.cli", list(words[1:])
    else:
        name, module, rest = f"smidgen {words[1]}", COMMANDS[words[1]][0], list(words[2:])
    command: Any = typer.main.get_command(import_module(module).app)
    while inner := getattr(command, "commands", None):
        assert rest and rest[0] in inner, f"{name} has no command {rest[:1]}"
        name, command = f"{name} {rest[0]}", inner[rest.pop(0)]
    return command, rest, name


def check_value(name: str, kind: str, value: object) -> None:
    """What only the command's own body would refuse."""
    if not value or not isinstance(value, str):
        return
    if name == "adapter" and kind == "str" and value != "full":
        parse_adapter(value)
    elif name == "memory_budget":
        parse_budget(value)
    elif name in ("cgroup", "cache_size"):
        parse_cache_size(value)
    elif name == "engine":
        assert set(value.split(",")) <= {"auto", "torch", "onnx"}


@pytest.mark.parametrize(("block", "words"), TYPED, ids=named)
def test_a_command_is_one_that_smidgen_takes(block: Block, words: tuple[str, ...]) -> None:
    command, rest, name = found(words)
    rest = [PLACEHOLDERS.get(word, word) for word in rest]
    context = command.make_context(name, list(rest))  # parses and checks, runs nothing
    kinds = {param.name: str(param.type.name) for param in command.params}
    for key, value in context.params.items():
        check_value(key, kinds[key], value)
    for word in rest:
        assert not word.startswith("docs/") or (ROOT / word).exists(), f"{block}: no {word}"


@pytest.mark.parametrize(("block", "words"), OTHER, ids=named)
def test_another_command_is_there_or_listed(block: Block, words: tuple[str, ...]) -> None:
    script = ROOT / words[0]
    if words[0].startswith("scripts/"):
        assert os.access(script, os.X_OK), f"{block}: {words[0]} is not executable"
        return
    assert words[0] in BY_HAND, f"{block}: {words[0]} is neither run nor listed in BY_HAND"
    for word in words[1:] if words[0] in ("python3", "tools/bin/python", "bash") else ():
        assert not word.startswith("scripts/") or (ROOT / word).is_file(), f"{block}: no {word}"
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for extra in re.findall(r"\[([\w,]+)\]", " ".join(words)) if words[0] == "pip" else ():
        project = (ROOT / "pyproject.toml").read_text()
        assert all(re.search(rf"^{one} = \[", project, re.MULTILINE) for one in extra.split(","))


# What a program says, or another program is told.
SHOWN = {"text", "json", "yaml", "xml", "nginx", "caddyfile"}


def test_every_block_is_of_a_kind_that_is_tested() -> None:
    kinds = {block.language for block in EVERY_BLOCK}
    assert kinds <= {"", "sh", "toml", "python", "csv"} | SHOWN
    assert len(TYPED) > 60 and len(OTHER) > 10


def of(language: str, page: str = "") -> list[Block]:
    return [b for b in EVERY_BLOCK if b.language == language and b.page.startswith(page)]


@pytest.mark.parametrize("block", of("json"), ids=str)
def test_a_line_of_json_is_read(block: Block) -> None:
    for line in block.text.splitlines():
        json.loads(line)


@pytest.mark.parametrize("block", of("toml"), ids=str)
def test_a_toml_file_is_read_by_what_takes_it(block: Block, tmp_path: Path) -> None:
    """A task, a run file or a part of one, or a package's entry points."""
    file = tmp_path / "file.toml"
    file.write_text(block.text)
    told = tomllib.loads(block.text)
    if "project" in told:
        kinds = (
            "means",
            "optimizers",
            "selections",
            "formats",
            "tasks",
            "families",
            "update_steps",
        )
        groups = {f"smidgen.{kind}" for kind in (*kinds, "update_steps")}
        assert set(told["project"]["entry-points"]) <= groups
    elif told.keys() & {"labels", "kind"}:
        assert read_task(file)
    else:
        assert read_run_config(file, {"task": "agnews"})


@pytest.mark.parametrize("file", sorted(ROOT.glob("docs/examples/*.toml")), ids=lambda p: p.name)
def test_an_example_is_read_by_the_command_that_takes_it(file: Path) -> None:
    names = ("skewed", "mnli1024", "private", "private-devices")
    experiments = dict.fromkeys(names, read_experiment)
    readers: dict[str, Any] = {"agnews": read_task, **experiments}
    reader: Any = readers.get(file.stem, lambda path: read_run_config(path, {}))
    assert reader(file)


def write_device(folder: Path) -> Path:
    """The first hour's files: its task and a device's texts."""
    (task,), given = of("toml", "docs/first-hour"), of("csv", "docs/first-hour")
    (folder / "task.toml").write_text(task.text)
    (folder / "mine").mkdir()
    for name, block in zip(("mine/labelled", "mine/test", "texts"), given, strict=True):
        (folder / f"{name}.csv").write_text(block.text)
    return folder


def test_the_texts_of_the_first_hour_fit_its_task(tmp_path: Path) -> None:
    write_device(tmp_path)
    data = read_folder(tmp_path / "mine", read_task(tmp_path / "task.toml"))
    assert len(data.labelled) == 6 and len(data.test) == 3


def lines(page: str, start: str, replaced: dict[str, str]) -> list[list[str]]:
    """A page's commands that start so, with placeholders replaced."""
    words = [words for block, words in TYPED if block.page == page]
    chosen = [list(one) for one in words if " ".join(one).startswith(f"smidgen {start}")]
    return [[replaced.get(word, word) for word in one] for one in chosen]


def typed(page: str, start: str, replaced: dict[str, str] | None = None, place: int = 0) -> Done:
    """Run one line of a page in this process."""
    done = smidgen(*lines(page, start, replaced or {})[place][1:])
    assert done.exit_code == 0, (start, done.stderr)
    return done


def test_the_commands_of_the_first_hour_on_one_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = "docs/first-hour.md"
    monkeypatch.chdir(write_device(tmp_path))
    assert "CA           sha256:" in typed(page, "coordinator init").stdout
    assert " --ca sha256:" in typed(page, "coordinator create").stdout
    assert "home" in typed(page, "coordinator status").stdout
    typed(page, "coordinator figures")
    typed(page, "coordinator export")
    assert (tmp_path / "adapter" / "adapter_config.json").is_file()
    typed(page, "client train")
    assert "somebody is at the front door" in typed(page, "client predict", place=1).stdout
    typed(page, "client predict", {"FOLDER": "alone"})
    assert len((tmp_path / "labels.csv").read_text().splitlines()) == 3
    assert "accuracy" in typed(page, "client evaluate", {"FOLDER": "alone"}).stdout


def test_the_first_hour_begins_a_project_from_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = "docs/first-hour.md"
    monkeypatch.chdir(write_device(tmp_path))
    (tmp_path / "mine" / "labelled.csv").rename(tmp_path / "tickets.csv")
    typed(page, "new")
    assert (tmp_path / "support" / "run.toml").is_file()


def test_the_run_file_page_makes_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (words,) = lines("docs/reference/run-file.md", "coordinator create", {})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    assert smidgen(*words[1:]).exit_code == 0


def serve(scene: Fleet, page: str) -> str:
    (words,) = lines(page, "coordinator serve", {})
    scene.start("coordinator", [*words[1:], "--port", "0", "--exit-when-finished"])
    return scene.url_of("coordinator")


@pytest.mark.slow
def test_the_first_hour_from_create_to_labels_with_two_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = "docs/first-hour.md"
    monkeypatch.chdir(write_device(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "yours").symlink_to("mine")
    token = typed(page, "coordinator create").stdout.split("SMIDGEN_TOKEN=")[1].split()[0]
    with fleet(tmp_path / "logs", 1) as scene:
        replaced = {"http://127.0.0.1:8700": serve(scene, page)}
        monkeypatch.setenv("SMIDGEN_TOKEN", token)  # as the page's lines set it
        both = lines(page, "client run", replaced)[1:]  # the two of one machine
        assert len(both) == 2
        for words in both:
            name = words[words.index("--name") + 1]
            scene.start(name, [*words[1:], "--state", name])
        scene.wait()
    folder = tmp_path / "first" / "adapter"
    said = (tmp_path / "logs" / "first.log").read_text()
    assert folder.is_dir() and "finished adapter: first/adapter" in said
    typed(page, "client predict", {"FOLDER": str(folder)})
    assert len((tmp_path / "labels.csv").read_text().splitlines()) == 3


def in_a_fresh_interpreter(code: str, folder: Path) -> str:
    """Standard output of a script that runs in a folder."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    line = [sys.executable, "-c", code]
    done = subprocess.run(line, capture_output=True, text=True, cwd=folder, env=env, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_python_of_partitions_runs(tmp_path: Path) -> None:
    (block,) = of("python", "docs/partitions")
    before = (
        "from smidgen.edge_client.texts.examples import Example\n"
        "train = [Example(f'text {n}', label=str(n % 4)) for n in range(4000)]\n"
        "test = train[:100]\n"
    )
    after = "print(len(clients), sum(len(client.labelled) for client in clients))\n"
    assert in_a_fresh_interpreter(before + block.text + after, tmp_path) == "1000 64\n"


def test_the_python_of_packs_runs(tmp_path: Path) -> None:
    (block,) = of("python", "docs/packs")
    write_tiny_base(tmp_path / "tiny", hidden=64)
    made = smidgen("pack", f"{tmp_path}/tiny", "--bits", "4", "--out", f"{tmp_path}/packed")
    assert made.exit_code == 0, made.stderr
    (tmp_path / "roberta-large-4").symlink_to("packed")
    code = block.text.replace('"roberta.', '"bert.') + "print(rows.shape)\n"
    assert in_a_fresh_interpreter(code, tmp_path) == "(2, 64)\n"


@pytest.mark.slow
def test_the_python_of_peft_labels_a_text_with_a_trained_adapter(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    blocks = [one.text for one in of("python", "docs/peft")]
    data = tmp_path / "texts.csv"
    data.write_text("text,label\n" + "".join(f"this is about {one},{one}\n" for one in LABELS))
    task = ("--task", str(ROOT / "simulation" / "data" / "task.toml"))
    made = smidgen("client", "train", "--data", str(data), *task, "--out", f"{tmp_path}/adapter")
    assert made.exit_code == 0, made.stderr
    (tmp_path / "adapter" / "embedded").symlink_to(ROOT / "edge_client" / "embedded" / "base")
    shown = in_a_fresh_interpreter("".join(blocks), tmp_path / "adapter")
    assert len(re.findall(r"0\.\d+", shown)) == len(LABELS)


def test_a_command_that_is_not_there_is_told() -> None:
    with pytest.raises(AssertionError, match="no command"):
        found(["smidgen", "client", "fly"])
    block = Block("x.md", 1, "sh", "smidgen client plan --bse x  # comment\n")
    with pytest.raises(Exception, match="No such option"):
        test_a_command_is_one_that_smidgen_takes(block, block.commands()[0])
