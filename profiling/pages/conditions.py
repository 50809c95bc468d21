"""What a table was measured on, said once however many records it came from."""

from collections.abc import Iterable, Sequence

from edge_client.tables import plain, size
from profiling.records.record import Conditions

NAMES = {
    "machine": "architecture",
    "processor": "processor",
    "instruction_sets": "instruction sets",
    "cores": "cores",
    "memory_bytes": "memory",
    "kernel": "kernel",
    "governor": "clock governor",
}
APART = ("load_1m",)  # of a machine: told as a range


def told_left_out(count: int) -> str:
    """Of records of other machines, in one line."""
    return f"{count} of another machine left out: processor, instruction sets or cores differ"


def told(conditions: Sequence[Conditions], left_out: int = 0) -> list[tuple[str, str]]:
    """Name -> what was found, every differing value of it; in words.

    Args:
        conditions: Of every record that is shown.
        left_out: How many records are not, since they are of other machines.
    """
    fields: dict[str, list[object]] = {name: [] for name in NAMES}
    for one in conditions:
        for name, value in one.machine.items():
            if name not in APART:
                fields.setdefault(name, []).append(value)
    rows = [(NAMES.get(name, plain(name)), _each(name, found)) for name, found in fields.items()]
    rows = [(name, text) for name, text in rows if text]
    libraries: dict[str, list[object]] = {}
    for one in conditions:
        for name, version in one.versions.items():
            libraries.setdefault(plain(name), []).append(version)
    known = [f"{name} {_each(name, found)}" for name, found in libraries.items() if any(found)]
    if known:
        rows.append(("versions", ", ".join(known)))
    absent = [name for name, found in libraries.items() if not any(found)]
    if absent:
        rows.append(("not installed", ", ".join(absent)))
    rows.append(("libraries held to", _each("isa", [one.isa or "nothing" for one in conditions])))
    loads = [one.load_1m for one in conditions]
    if loads:
        rows.append(
            (
                "load before",
                f"{loads[0]:.1f} before the first cell, {min(loads):.1f} to {max(loads):.1f} of "
                "all: the last minute's, which holds the cell before; above a few tenths at first "
                "other programs took time that is in the seconds",
            )
        )
    seeds = _each("seed", [one.seed for one in conditions])
    if seeds:
        rows.append(("seed", seeds))
    return [*rows, ("measurements", told_left_out(left_out))] if left_out else rows


def _each(name: str, values: Iterable[object]) -> str:
    """Values that differ, in words; empty where none is known."""
    shown = (_said(name, value) for value in values if value not in (None, "", []))
    return " / ".join(dict.fromkeys(shown))


def _said(name: str, value: object) -> str:
    if name.endswith("_bytes") and isinstance(value, int | float):
        return size(value)
    if isinstance(value, list | tuple):
        return plain(", ".join(map(str, value)))
    return plain(str(value))
