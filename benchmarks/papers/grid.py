"""A paper's experiments from its TOML file: grids of overrides of one experiment.

`data/PAPER.toml` has what the paper prints (`tables`, `figures`) and `scenarios`, each applied over
their `common` part. A scenario's `cells` are blocks: `over` names axes and their options, and each
combination is one cell. Options that are tables set variables, and may override the block's
`experiment`. `like` names overrides shared by several cells. `when` overrides all of it where its
words (`quick`, a data set) apply. In strings `{name}` stands for a variable, a printed table or a
printed figure; a string that is nothing else becomes its value.
"""

import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, reduce
from itertools import product
from pathlib import Path
from string import Formatter
from typing import Any

import msgspec

from benchmarks.papers.paired import columns_apart, rows_apart
from benchmarks.papers.published import Paper, read_paper
from smidgen.edge_client.errors import WrongInput, demand
from smidgen.simulation.experiments.experiment import Experiment, ExperimentError
from smidgen.simulation.report.scenario import Cell, Figure, Name, Scenario

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover - the same library, before it moved into Python
    import tomli as tomllib

DATA = Path(__file__).parent / "data"
WHOLE = re.compile(r"\{([^{}:!]+)\}")
MEAN = "Avg"  # what papers call the column of their languages' mean
Doc = dict[str, Any]


@cache
def read_file(paper: str) -> tuple[Doc, Paper]:
    """A paper's file, and what the paper prints."""
    text = (DATA / f"{paper}.toml").read_text(encoding="utf-8")
    return (doc := tomllib.loads(text)), read_paper(doc)


def laid_over(under: Doc, over: Doc) -> Doc:
    """A table laid on another, table by table; lists are replaced."""
    return under | {
        key: laid_over(under[key], value)
        if isinstance(value, dict) and isinstance(under.get(key), dict)
        else value
        for key, value in over.items()
    }


class Names(dict[str, Any]):
    """Variables, whose values may name others."""

    def __getitem__(self, name: str) -> Any:
        return filled(super().__getitem__(name), self)


def filled(value: Any, names: Names) -> Any:
    """A value with its variables put in."""
    if isinstance(value, dict):
        return {key: filled(part, names) for key, part in value.items()}
    if isinstance(value, list):
        return [filled(part, names) for part in value]
    if not isinstance(value, str):
        return value
    if whole := WHOLE.fullmatch(value):
        return Formatter().get_field(whole[1], (), names)[0]
    return Formatter().vformat(value, (), names)


def grid_of(
    paper: str,
    name: str,
    given: Mapping[str, Any],
    words: Collection[str] = (),
    only: Mapping[str, Sequence[str]] | None = None,
) -> tuple[Doc, Names]:
    """A scenario's table as it holds for these words, and its variables.

    Args:
        paper: Name of its file.
        name: Of `scenarios`.
        given: Variables beside the file's own.
        words: What holds, such as `quick`.
        only: Axis -> the options that are asked for.
    """
    doc, printed = read_file(paper)
    found = laid_over(doc["common"], doc["scenarios"][name])
    for holds, more in found.get("when", {}).items():
        if set(holds.split()) <= set(words):
            found = laid_over(found, more)
    known = printed.tables | printed.figures | {"paper": printed}
    names = Names({**known, **found.get("vars", {}), **given})
    return found | {"only": {**found.get("only", {}), **(only or {})}}, names


def asked_of(paper: str, name: str, said: Sequence[str]) -> tuple[Doc, dict[str, list[str]]]:
    """What a scenario is asked by `NAME=VALUE`: variables, and options of axes.

    Its table `asked` has variables: one of a list, whose first is the default; any number of texts
    where the list is empty; else a value like the default. Its table `chosen` has axes, with the
    options that stay beside those that are chosen.

    Args:
        paper: Name of its file.
        name: Of `scenarios`.
        said: Each `NAME=VALUE`.

    Raises:
        WrongInput: Names what is not known.
    """
    doc, _ = read_file(paper)
    found = laid_over(doc["common"], doc["scenarios"][name])
    asked, chosen = found.get("asked", {}), found.get("chosen", {})
    given = {key: one[0] if isinstance(one, list) and one else one for key, one in asked.items()}
    only: dict[str, list[str]] = {}
    for text in said:
        key, is_said, value = text.partition("=")
        is_known = key in {**asked, **chosen} and is_said != ""
        names = ", ".join([*asked, *chosen]) or "none"
        demand(is_known, f"{text!r}: NAME=VALUE is expected, NAME one of: {names}")
        if key in chosen:
            one_of(key, value, _names_of(key, found, name))
            only.setdefault(key, [*chosen[key]]).append(value)
        elif asked[key] == []:
            given[key] = [*given[key], value]
        elif isinstance(asked[key], list):
            one_of(key, value, asked[key])
            given[key] = value
        else:
            given[key] = _like(asked[key], key, value)
    return given, only


def one_of(name: str, value: str, known: Iterable[str]) -> None:
    """Refuse a value that is not among the known ones."""
    demand(value in (every := [*known]), f"{name} {value!r} is not one of {', '.join(every)}")


def _names_of(axis: str, found: Doc, name: str) -> list[str]:
    """All options of an axis, whichever block has them."""
    names = Names({"scenario": name, **found.get("vars", {})})
    every = [
        option[axis]
        for block in found["cells"]
        if axis in block.get("over", {})
        for option in _options(axis, block["over"][axis], names)
    ]
    among = found.get("among", {}).get(axis, every)
    return [one for one in dict.fromkeys(every) if one in among]


def _like(default: Any, name: str, value: str) -> Any:
    try:
        return type(default)(value)
    except ValueError as error:
        raise WrongInput(f"{name}={value}: a number such as {default:g} is expected") from error


def scenario_of(paper: str, grid: Doc, names: Names) -> Scenario:
    """The scenario of a table.

    Args:
        paper: Name of its file.
        grid: The table.
        names: Its variables.

    Raises:
        ExperimentError: A variable makes an experiment that makes no sense.
    """
    _, printed = read_file(paper)
    cells = tuple(cell for block in grid["cells"] for cell in _cells(block, grid, names, printed))
    source = printed.tables[grid["source"]].source if grid.get("source") else ""
    notes = tuple(note for note in filled(grid["notes"], names) if note)
    pairs = tuple(pair for one in filled(grid["pairs"], names) for pair in _pairs(one, cells))
    title = filled(grid["title"], names)
    return Scenario(filled(grid["name"], names), title, cells, notes, source, pairs)


def experiment_of(grid: Doc, names: Names, *layers: Doc) -> Experiment:
    """One experiment: what all cells share, with overrides; each may be `like` others."""
    every = [grid["experiment"]]
    for layer in layers:
        every += [grid["like"][one] for one in layer.get("like", ())]
        every.append(layer.get("experiment", {}))
    try:
        return msgspec.convert(filled(reduce(laid_over, every), names), Experiment)
    except msgspec.ValidationError as error:
        raise ExperimentError(str(error)) from error


def _cells(block: Doc, grid: Doc, names: Names, printed: Paper) -> Iterator[Cell]:
    axes = [
        [option for option in _options(axis, options, names) if _is_asked(axis, option, grid)]
        for axis, options in block.get("over", {}).items()
    ]
    for chosen in product(*axes):
        own = Names({**names, **block.get("vars", {})})
        for option in chosen:
            own.update(option)
        figures = _printed(filled(block.get("published", []), own), printed)
        yield Cell(
            str(filled(block["row"], own)),
            str(filled(block["column"], own)),
            experiment_of(grid, own, block, *chosen),
            figures.pop("", figures.get(MEAN)),
            of_languages=bool(grid.get("of_languages")),
            published_by_language=figures,
            is_fixed=filled(block.get("is_fixed", False), own),
            language=filled(block.get("language", ""), own),
        )


def _options(axis: str, options: Any, names: Names) -> list[Doc]:
    """An axis' options as tables of variables, its own name among them."""
    found: Any = names.get(options.strip("{}")) if isinstance(options, str) else options
    if isinstance(found, dict):
        return [{axis: name, **option} for name, option in found.items()]
    return [one if isinstance(one, dict) else {axis: filled(one, names)} for one in found]


def _is_asked(axis: str, option: Doc, grid: Doc) -> bool:
    is_among = axis not in grid.get("among", {}) or option[axis] in grid["among"][axis]
    return is_among and (axis not in grid["only"] or option[axis] in grid["only"][axis])


def _printed(where: Sequence[str], printed: Paper) -> dict[str, Figure]:
    """What a paper prints for a cell: one figure under an empty name, or one per language."""
    if not where:
        return {}
    name, row, *columns = where
    known = printed.tables[name].known
    if not row:
        return {one: cells[columns[0]] for one, cells in known.items() if columns[0] in cells}
    cells = known.get(row, {})
    return {"": cells[columns[0]]} if columns and cells else dict(cells)


def _pairs(one: Doc, cells: Sequence[Cell]) -> Iterator[tuple[Name, Name]]:
    """Pairs of rows in each column, of columns in each row, or cell by cell."""
    there = [cell for cell in cells if one.get("column", cell.column) == cell.column]
    yield from rows_apart(there, *map(tuple, one.get("rows", ())))
    yield from columns_apart(there, *map(tuple, one.get("columns", ())))
    for upper, lower in one.get("cells", ()):
        yield tuple(upper), tuple(lower)
