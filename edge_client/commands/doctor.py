"""`smidgen client doctor`: whether this device will work, and what to do where it will not."""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict

from edge_client.api.doctor import Diagnosis
from edge_client.api.doctor import doctor as diagnose
from edge_client.commands.console import JsonOption
from edge_client.errors import Failed
from edge_client.options import options_of
from edge_client.tables import Column, Table, seconds, show


@options_of(diagnose, without=("tell",), bases={"name": "base"}, ca={"envvar": "SMIDGEN_CA"})
def doctor(call: Callable[..., Diagnosis], json_output: JsonOption = False) -> None:
    """Say whether this device will work, and what to do where it will not.

    Looks at board, system, memory, clocks, disk and clock; loads each engine in a process of its
    own and lets it make ten steps; plans for each base; reaches for the coordinator without
    enrolling. Changes nothing, and sends neither token nor key.

    Exit code 1 where something found is an error; warnings and unknowns are 0.
    """
    found = call(tell=_tell)
    if json_output:
        rows = [asdict(one) for one in found.findings]
        elapsed_s = round(found.elapsed_s, 3)
        print(json.dumps({"works": found.works, "findings": rows, "elapsed_s": elapsed_s}))
    else:
        show(_table(found))
    if not found.works:
        names = ", ".join(dict.fromkeys(one.check for one in found.errors))
        raise Failed(f"this device will not work yet: {names}; what to do is said beside each")


def _tell(line: str) -> None:
    """What is being waited for; to people alone."""
    if sys.stderr.isatty():
        print(f"{line} ...", file=sys.stderr, flush=True)


def _table(found: Diagnosis) -> Table:
    columns = [
        Column("check", "word"),
        Column("state", "word"),
        Column("found", "text"),
        Column("what to do", "text"),
    ]
    rows = [[one.check, one.state, one.found, one.todo] for one in found.findings]
    return Table(columns, rows, notes=[f"Looked at in {seconds(found.elapsed_s)}."])
