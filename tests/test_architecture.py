"""The rooms and their arrows, proved on the source and in fresh interpreters.

Three tables say it all: in which order rooms stand, what a package sees of another, and where the
libraries that compute are imported. `scripts/pictures.py` draws the same.
"""

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from smidgen.edge_client.tasks.task import OURS

ROOT = Path(__file__).parents[1]

# A room imports only from lines above its own, and from itself; rooms of one line do not know each
# other. What is not named in a package (`cli`, a lone module) is a room of its own.
ORDER: dict[str, tuple[tuple[str, ...], ...]] = {
    "edge_client": (
        ("errors", "tables"),
        ("files", "log_lines", "proxies"),
        ("outputs", "completion", "options"),
        ("formats",),
        ("texts", "codecs"),
        ("tasks",),
        ("wire",),
        ("updates",),
        ("metering",),
        ("bases",),
        ("adapters",),
        ("planning",),
        ("guest",),
        ("engine",),
        ("labelling",),
        ("personal",),
        ("client",),
        ("doctor",),
        ("api",),
        ("commands", "flower"),
        ("cli",),
    ),
    "edge_client.tasks": (
        ("counts",),
        ("scores",),
        ("task",),
        ("ready_tasks", "kind"),
        ("encoder", "kinds"),
    ),
    "edge_client.engine": (
        ("ensemble", "activation_cache", "frozen_base", "generation", "limits"),
        ("frozen_layers_cache",),
        ("backend",),
        ("engine",),
        ("torch_backend", "onnx_backend"),
        ("linear",),
        ("opening",),
        ("trainer", "budgeted"),
        ("scoring",),
    ),
    "coordinator": (
        ("rounds",),
        ("plugins", "kit", "presets", "flower"),
        ("config",),
        ("storage", "trust", "watch"),
        ("fleet", "upkeep"),
        ("serving",),
        ("operator",),
        ("page",),
        ("api",),
        ("commands",),
        ("cli",),
    ),
    "profiling": (
        ("canvas", "records"),
        ("instruments", "estimates"),
        ("rounds", "peers"),
        ("benchmarks", "wire", "fleet"),
        ("models", "soak"),
        ("commands",),
        ("cli",),
    ),
    "simulation": (
        ("datasets", "population", "demo"),
        ("experiments",),
        ("api", "report"),
        ("commands",),
        ("cli",),
    ),
    "simulation.report": (("scenario",), ("plots",), ("report",)),
    "benchmarks": (
        ("papers", "pretraining", "comparisons"),
        ("commands",),
        ("cli",),
        ("__main__",),
    ),
    "benchmarks.papers": (
        ("published", "paired"),
        ("grid",),
        ("tables",),
        ("pieces",),
        ("index",),
    ),
}
BELOW_LABELLING = {
    *(
        "errors",
        "files",
        "outputs",
        "options",
        "tables",
        "formats",
        "texts",
        "tasks",
        "wire",
        "bases",
        "adapters",
        "planning",
    ),
    *("codecs", "updates", "guest", "engine", "metering"),
}
EVERY_ROOM = {room for line in ORDER["edge_client"] for room in line}
PREFIX = "smidgen."  # of every package but TREE where it is imported; left out in these tables
TREE = "benchmarks"  # beside the packages: it sees all of them, and none of them sees it
# package -> other package -> the rooms of it that it sees
SEES: dict[str, dict[str, set[str]]] = {
    "edge_client": {},
    "coordinator": {
        "edge_client": {
            "errors",
            "files",
            "outputs",
            "options",
            "tables",
            "log_lines",
            "texts",
            "tasks",
            "codecs",
            "wire",
            "updates",  # both halves of a step lie beside each other; pure numpy
            "bases",
            "adapters",
            "planning",
        }
    },
    # The wire's benchmark sends by the device's own transport.
    "profiling": {"edge_client": BELOW_LABELLING | {"client"}},
    "simulation": {
        "edge_client": EVERY_ROOM,
        "coordinator": {"rounds", "plugins", "presets"},
        "profiling": {
            *("rounds", "canvas", "peers", "instruments", "estimates", "records"),
        },
    },
    TREE: {
        package: {room for line in ORDER[package] for room in line}
        for package in ("edge_client", "coordinator", "profiling", "simulation")
    },
}
# library -> the folders and modules that import it; simulation and benchmarks may import torch
COMPUTES: dict[str, set[str]] = {
    "torch": {
        "edge_client/engine/torch_backend",
        "profiling/benchmarks/gradients.py",
        "profiling/peers/torch_checkpoint.py",
        "profiling/peers/torch_peers.py",
    },
    "onnxruntime": {
        "edge_client/engine/onnx_backend/runtime.py",
        "profiling/peers/ort_graph.py",
        "profiling/peers/ort_child.py",
    },
    "sqlalchemy": {"coordinator/storage"},
    "cryptography": {"coordinator/trust", "edge_client/updates/masks.py"},
    "fastapi": {"coordinator/serving", "coordinator/operator", "coordinator/page"},
}
WITH_TORCH = {"torch", "transformers", "peft"}
MOST_MODULES = 14  # in a folder

COMMAND = """
import contextlib, io, smidgen
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    smidgen.main({!r}.split())
"""
# What our modules lie on is imported once; a process of its own then imports each of them.
LIBRARIES = (
    *("httpx", "msgspec", "numpy.random", "onnxruntime", "safetensors.numpy", "tokenizers"),
    *("typer", "torch", "fastapi", "sqlalchemy", "uvicorn"),
)
IMPORT_EACH = """
import importlib, os, sys
for name in {}:
    importlib.import_module(name)
for name in {}:
    if os.fork() == 0:
        try:
            importlib.import_module(name)
            os._exit(0)
        except BaseException as error:
            print(name, repr(error), file=sys.stderr, flush=True)
            os._exit(1)  # at once: what libraries do at an exit hangs in a process that was forked
    if os.wait()[1] == 0:
        print(name, flush=True)
"""


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def modules() -> dict[str, Path]:
    """Every module of the four packages and of the benchmarks, by its dotted name."""
    found = (path for package in SEES for path in sorted((ROOT / package).rglob("*.py")))
    return {dotted(path): path for path in found}


@cache
def imports(name: str) -> frozenset[str]:
    """Dotted names that a module imports, at its top or inside functions; ours without PREFIX."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(modules()[name].read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module and not node.level, f"{name}: an absolute import is expected"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    bare = {one for one in names if one.split(".")[0] in SEES.keys() - {TREE}}
    assert not bare, f"{name}: {PREFIX} is left out of {bare}, which is in no wheel"
    return frozenset(name.removeprefix(PREFIX) for name in names)


def arrows(name: str) -> set[str]:
    """The modules of ours that a module imports."""
    found = {part if part in modules() else part.rpartition(".")[0] for part in imports(name)}
    return {part for part in found if part in modules()} - {name}


def room_in(package: str, name: str) -> str:
    """The room of a package (or of a room with rooms) that a module lies in; its first word."""
    return name.removeprefix(f"{package}.").split(".")[0]


def inside(package: str) -> Iterator[str]:
    return (name for name in modules() if name.startswith(f"{package}."))


def offences(package: str, order: tuple[tuple[str, ...], ...]) -> list[str]:
    floor = {room: number for number, line in enumerate(order) for room in line}
    found = []
    for name in inside(package):
        own = room_in(package, name)
        if own not in floor:
            found.append(f"{name}: room {own!r} stands in no order")
            continue
        for target in arrows(name):
            room = room_in(package, target)
            if target.startswith(f"{package}.") and room != own and floor[room] >= floor[own]:
                found.append(f"{name} imports {target}: {room} does not lie below {own}")
    return found


@pytest.mark.parametrize("package", ORDER)
def test_a_room_imports_only_rooms_below_it(package: str) -> None:
    assert not offences(package, ORDER[package])


def test_an_arrow_up_is_named() -> None:
    upside_down = tuple(reversed(ORDER["coordinator"]))
    found = offences("coordinator", upside_down)
    offender = "coordinator.api.create imports coordinator.config"
    assert f"{offender}: config does not lie below api" in found


@pytest.mark.parametrize("package", SEES)
def test_a_package_sees_only_the_rooms_it_may(package: str) -> None:
    for name in inside(package):
        for target in arrows(name):
            other = target.split(".")[0]
            seen = SEES[package].get(other, set())
            assert other == package or room_in(other, target) in seen, f"{name} imports {target}"


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """The modules that lie on circles or between two; none where there is no circle."""
    left = dict(graph)
    while free := [name for name, targets in left.items() if not targets & set(left)]:
        for name in free:
            del left[name]
    return sorted(left)


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": set()}) == ["a", "b", "c"]
    assert not circle({name: arrows(name) for name in modules()})


def test_a_folder_holds_at_most_as_many_modules_as_one_takes_in() -> None:
    tests = (ROOT / "tests").rglob("*.py")
    every = [path for path in (*modules().values(), *tests) if path.stem != "__init__"]
    folders = Counter(path.parent for path in every)
    crowded = {str(f.relative_to(ROOT)): n for f, n in folders.items() if n > MOST_MODULES}
    assert not crowded


@pytest.mark.parametrize("library", COMPUTES)
def test_a_library_is_imported_only_where_it_is_at_home(library: str) -> None:
    names = WITH_TORCH if library == "torch" else {library}
    for name, path in modules().items():
        heavy = {part for part in imports(name) if part.split(".")[0] in names}
        place = path.relative_to(ROOT)
        is_home = {str(place), *map(str, place.parents)} & COMPUTES[library]
        is_free = library == "torch" and name.startswith(("simulation.", f"{TREE}."))
        assert not heavy or is_home or is_free, f"{name} imports {sorted(heavy)}"


def kinds_named_in(tree: ast.AST) -> list[str]:
    """Names of kinds of task that code says, but for those of a `Task` that is written down."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    written = {
        id(word.value)
        for call in calls
        for word in call.keywords
        if word.arg == "kind" and isinstance(call.func, ast.Name) and call.func.id == "Task"
    }
    plain = {"labels"}  # a word of its own, which is looked for beside a `.kind` alone
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value in set(OURS) - plain:
            found += [str(node.value)] if id(node) not in written else []
        if isinstance(node, ast.Compare | ast.Subscript | ast.Match):
            parts = list(ast.walk(node))
            is_kind = any(isinstance(one, ast.Attribute) and one.attr == "kind" for one in parts)
            names = [one.value for one in parts if isinstance(one, ast.Constant)]
            found += [str(name) for name in names if is_kind and name in plain]
    return found


def test_no_kind_of_task_is_named_outside_its_room() -> None:
    said = 'x = one.kind == "labels" or kind in ("mlm", "tagging")'
    assert sorted(kinds_named_in(ast.parse(said))) == ["labels", "mlm", "tagging"]
    fine = 'Task("t", kind="mlm"), {"labels": 1}, work.kind == "label"'
    assert not kinds_named_in(ast.parse(fine))
    quoted = re.compile(rf"""["'](?:{"|".join(OURS)})["']""")  # most files need no parsing
    named = {
        name: kinds
        for name, path in modules().items()
        if not name.startswith("edge_client.tasks.")
        and quoted.search(path.read_text())
        and (kinds := kinds_named_in(ast.parse(path.read_text())))
    }
    assert not named


def test_rounds_are_decided_without_clock_disk_or_server() -> None:
    allowed = {"numpy", "msgspec", "safetensors", "edge_client", "coordinator"}
    outside = {"time", "pathlib", "os", "datetime", "random", "secrets", "socket", "threading"}
    for name in inside("coordinator.rounds"):
        for part in imports(name):
            first = part.split(".")[0]
            is_ours = first in allowed or first in sys.stdlib_module_names
            assert is_ours and first not in outside, f"{name} imports {part}"


def loaded_after(statement: str) -> set[str]:
    """Modules a fresh interpreter holds after a statement."""
    code = f"import sys\n{statement}\nprint('\\n'.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    return set(done.stdout.split())


def test_the_client_starts_without_torch_and_without_the_server() -> None:
    loaded = loaded_after("import smidgen.edge_client.cli, smidgen.edge_client.client.loop")
    assert not loaded & (WITH_TORCH | {PREFIX + "coordinator", "fastapi", "sqlalchemy", "pydantic"})


@pytest.mark.parametrize("command", ["client --help", "client predict --task none.toml text"])
def test_help_and_wrong_input_wait_for_no_library_that_works(command: str) -> None:
    loaded = loaded_after(COMMAND.format(command))
    assert PREFIX + "edge_client.cli" in loaded
    assert not loaded & (WITH_TORCH | {"onnxruntime", "tokenizers", "httpx", "huggingface_hub"})


def test_the_server_starts_without_torch() -> None:
    pytest.importorskip("fastapi")
    loaded = loaded_after("import smidgen.coordinator.cli, smidgen.coordinator.serving.server")
    assert not loaded & (WITH_TORCH | {PREFIX + "simulation", PREFIX + "profiling"})


@pytest.mark.slow
@pytest.mark.parametrize("package", ["edge_client", "coordinator"])
def test_every_module_can_be_imported_first(package: str) -> None:
    """Each module alone, in a process that has imported none of ours."""
    if package == "coordinator":
        pytest.importorskip("fastapi")
    wants = {"edge_client.engine.torch_backend": "torch", "edge_client.flower.app": "flwr"}
    absent = tuple(name for name, library in wants.items() if find_spec(library) is None)
    names = [PREFIX + name for name in inside(package) if not name.startswith(absent)]
    code = IMPORT_EACH.format([name for name in LIBRARIES if find_spec(name)], names)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.split() == names, done.stderr


def test_a_module_named_as_text_exists() -> None:
    """What is started as a process or imported by name is seen by no import."""
    packages = "|".join(SEES.keys() - {TREE})
    text = re.compile(rf"(?:{PREFIX})?(?:{packages})(?:\.[a-z_0-9]+)+")
    for path in (ROOT / "smidgen/__init__.py", *modules().values()):
        is_there = re.search(f'"{text.pattern}"', path.read_text())
        for node in ast.walk(ast.parse(path.read_text())) if is_there else ():
            said = node.value if isinstance(node, ast.Constant) else None
            if isinstance(said, str) and text.fullmatch(said) and said != "coordinator.db":
                is_known = said.startswith(PREFIX) and said.removeprefix(PREFIX) in modules()
                assert is_known, f"{path.relative_to(ROOT)}: {said}"
