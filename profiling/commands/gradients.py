"""`smidgen profile gradients`: every plan's gradients beside plain PyTorch + PEFT."""

import json
from collections.abc import Callable
from dataclasses import asdict

import typer

from edge_client.options import options_of
from edge_client.tables import show, tell
from profiling.benchmarks.exactness import Question, compare
from profiling.benchmarks.report import exactness_table, machine_notes
from profiling.commands.options import (
    JsonOption,
    working,
)
from profiling.instruments.child import Line, terminable
from profiling.instruments.machine import this_machine


@options_of(Question, is_random={"flag": "--random"})
def exact_gradients(call: Callable[[], Question], json_output: JsonOption = False) -> None:
    """Compare every plan's gradients with plain PyTorch + PEFT; exit code 1 if one is not exact."""
    with terminable():
        question = call()
        with working("looking for the base") as say:

            def listen(line: Line) -> None:
                if line["event"] == "plan":
                    say(f"a plan with {len(line['plan']['recompute'])} recomputed layers is done")

            say("the reference, in float64")
            found = compare(question, listen)
    if json_output:
        print(json.dumps(found.to_json()))
    else:
        show(exactness_table(found.plans))
        plain = f"plain PyTorch + PEFT in float32 is itself {found.plain_error:.1e} off"
        tell((plain, *machine_notes(asdict(this_machine()), ())))
    if not found.is_exact:
        raise typer.Exit(1)
