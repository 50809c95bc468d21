"""Counts of a checkout's source, tests left out: `python scripts/size.py [FOLDER ...]`.

The same rules for any checkout, ours or another's: statements are the nodes of the syntax tree,
docstrings with them; records are classes that are dataclasses, msgspec structs, pydantic models or
named tuples; constants are upper-case names of a module; options are parameters in the commands.
A `benchmarks` folder at the top, which is not installed, is counted apart.
"""

import ast
import sys
from collections import Counter
from pathlib import Path

LEFT_OUT = {"tests", "test", "docs", "findings", "build", "dist", "site", "node_modules"}
APART = "benchmarks"
RECORDS = ("dataclass", "Struct", "BaseModel", "NamedTuple")


def size(root: Path) -> Counter[str]:
    """Files, lines, statements, functions, records, constants and options below a folder."""
    found: Counter[str] = Counter()
    # By folder: a virtual environment beside them holds ten times as many.
    tops = [one for one in root.glob("[!.]*") if one.name not in LEFT_OUT | {APART}]
    for file in sorted({*root.glob("*.py"), *(file for top in tops for file in top.rglob("*.py"))}):
        if any(one in LEFT_OUT or one.startswith(".") for one in file.relative_to(root).parts):
            continue
        text = file.read_text(encoding="utf-8")
        tree = ast.parse(text)
        found["files"] += 1
        found["lines"] += text.count("\n")
        found["constants"] += sum(map(_constants, tree.body))
        for node in ast.walk(tree):
            if isinstance(node, ast.stmt):
                found["statements"] += 1
                found["functions"] += isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                found["records"] += isinstance(node, ast.ClassDef) and _is_record(node)
            elif isinstance(node, ast.Call):
                found["options"] += _name(node.func) == "Option"
    return found


def _constants(node: ast.stmt) -> int:
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    names = [name for target in targets if target for name in ast.walk(target)]
    return sum(isinstance(name, ast.Name) and name.id.isupper() for name in names)


def _is_record(node: ast.ClassDef) -> bool:
    return any(_name(one) in RECORDS for one in (*node.bases, *node.decorator_list))


def _name(node: ast.expr) -> str:
    node = node.func if isinstance(node, ast.Call) else node
    return getattr(node, "attr", getattr(node, "id", ""))


if __name__ == "__main__":
    for name in sys.argv[1:] or ["."]:
        for folder in (Path(name), Path(name) / APART):
            counts = sorted(size(folder).items())
            print(folder, *(f"{count:,} {what}" for what, count in counts), sep="  ")
