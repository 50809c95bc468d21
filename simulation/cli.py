"""`smidgen simulate`: experiments on one machine, their texts and clients."""

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperGroup

from smidgen.edge_client.errors import WrongInput
from smidgen.simulation.commands.data import data
from smidgen.simulation.commands.experiments import run_command, waiting, zero_compute
from smidgen.simulation.commands.split import split

BENCHMARKS = (
    *("papers", "aug-fedprompt", "mfpt", "fedp2eft", "interpolate", "healthcare", "attacks"),
    *("mixed-ranks", "server-learning", "cloze-gap", "selections", "traffic-accuracy"),
    *("adapter-forms", "pretrain"),
)


class Commands(TyperGroup):
    """Says of what is a benchmark that it is not in the package, and where it is."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in BENCHMARKS:
            raise WrongInput(
                f"`{cmd_name}` is a benchmark, which the package has not; "
                "in a clone of the repository `python -m benchmarks --help` lists them"
            )
        return super().get_command(ctx, cmd_name)


app = typer.Typer(
    cls=Commands,
    help="Experiments on your own machine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS: dict[str, Callable[..., None]] = {
    "run": run_command,
    "data": data,
    "split": split,
    "zero-compute": zero_compute,
    "waiting": waiting,
}
for name, command in COMMANDS.items():
    app.command(name)(command)
