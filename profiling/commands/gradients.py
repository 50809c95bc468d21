"""`smidgen profile gradients`: every plan's gradients beside plain PyTorch + PEFT."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from edge_client.tables import show, tell
from profiling.benchmarks.exactness import Question, compare
from profiling.benchmarks.report import exactness_table, machine_notes
from profiling.commands.options import (
    AdapterOption,
    DeviceOption,
    JsonOption,
    SeedOption,
    TokensOption,
    working,
)
from profiling.instruments.child import Line, terminable
from profiling.instruments.machine import this_machine


def exact_gradients(
    base: Annotated[
        str, typer.Option(help="Pack, folder, hub name, `embedded`; with --random a shape's name.")
    ],
    is_random: Annotated[
        bool, typer.Option("--random", help="Random weights of a shape such as roberta-large.")
    ] = False,
    bits: Annotated[
        int | None,
        typer.Option(help="Bits of the base's weights: 4, 8 or 16; by default its own."),
    ] = None,
    engine: Annotated[str, typer.Option(help="Ours that is compared: torch or onnx.")] = (
        Question.engine
    ),
    device: DeviceOption = Question.device,
    adapter: AdapterOption = Question.adapter,
    task: Annotated[
        str,
        typer.Option(
            help="What is asked: labels; mlm, all words at some places of a text; tagging, a tag "
            "of most of its tokens, by an adapter with +head."
        ),
    ] = Question.task,
    batch: Annotated[int, typer.Option(help="Texts in a step, 1 or more.")] = Question.batch,
    tokens: TokensOption = Question.tokens,
    seed: SeedOption = 0,
    json_output: JsonOption = False,
) -> None:
    """Compare every plan's gradients with plain PyTorch + PEFT; exit code 1 if one is not exact."""
    with terminable():
        sizes = batch, tokens, seed
        question = Question(base, is_random, bits, adapter, *sizes, engine, device, task)
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
