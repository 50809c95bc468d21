"""What must agree before two records of this machine may be compared, read in one place."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from profiling.instruments.machine import this_machine, versions
from profiling.records.record import Conditions


def conditions(
    base_id: str = "",
    plan: Mapping[str, Any] | None = None,
    seed: int = 0,
    isa: str = "",
    libraries: Mapping[str, str | None] | None = None,
) -> Conditions:
    """This machine as it is now.

    Args:
        base_id: SHA-256 of the base; empty where none takes part.
        plan: How a step is computed, or None.
        seed: Root seed.
        isa: What the libraries were held to.
        libraries: Their versions; None: those installed beside us.
    """
    machine = asdict(this_machine())
    load = machine.pop("load_1m")
    found = versions() if libraries is None else dict(libraries)
    held = None if plan is None else dict(plan)
    return Conditions(machine, found, base_id, held, seed, isa, load)
