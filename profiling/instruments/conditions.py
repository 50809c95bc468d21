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
    machine: Mapping[str, Any] | None = None,
    libraries: Mapping[str, str | None] | None = None,
) -> Conditions:
    """This machine, and what else must agree.

    Args:
        base_id: SHA-256 of the base; empty where none takes part.
        plan: How a step is computed, or None.
        seed: Root seed.
        isa: What the libraries were held to.
        machine: `asdict` of `this_machine()`, where it was read before; None: it is read now.
        libraries: Their versions; None: those installed beside us.
    """
    here = dict(asdict(this_machine()) if machine is None else machine)
    load = here.pop("load_1m")
    found = versions() if libraries is None else dict(libraries)
    held = None if plan is None else dict(plan)
    return Conditions(here, found, base_id, held, seed, isa, load)
