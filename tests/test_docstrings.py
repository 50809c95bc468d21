"""Longer public functions say what a reader cannot see; shorter ones may leave it to their name."""

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCES = [
    path
    for package in ("edge_client", "coordinator", "profiling", "simulation", "benchmarks")
    for path in sorted((ROOT / package).rglob("*.py"))
]
SHORT = 10  # lines, signature included, from which on a docstring is asked for


def undocumented(tree: ast.Module) -> list[str]:
    """Public functions of ten lines or more, of modules and their public classes."""
    found, open_nodes = [], [tree.body]
    while open_nodes:
        for node in open_nodes.pop():
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            if node.name.startswith("_"):
                continue
            if isinstance(node, ast.ClassDef):
                open_nodes.append(node.body)
            elif _lines(node) >= SHORT and ast.get_docstring(node) is None and not _is_made(node):
                found.append(node.name)
    return sorted(found)


def _is_made(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether it is a command whose docstring is that of a function of the Python API."""
    calls = [one.func for one in node.decorator_list if isinstance(one, ast.Call)]
    return any(isinstance(one, ast.Name) and one.id == "options_of" for one in calls)


def _lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def test_every_longer_public_function_has_a_docstring() -> None:
    assert len(SOURCES) > 100
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in SOURCES
        for name in undocumented(ast.parse(path.read_text()))
    ]
    assert not found


def test_a_longer_public_function_without_a_docstring_is_named() -> None:
    filler = "\n".join(["        x = 1"] * 9)
    said = '        """Say it."""\n'
    tree = ast.parse(
        f"def short():\n    pass\n"
        f"class Shown:\n    def bare(self):\n{filler}\n    def told(self):\n{said}{filler}\n"
        f"    def _inner(self):\n{filler}\n"
    )
    assert undocumented(tree) == ["bare"]
