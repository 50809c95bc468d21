"""`smidgen simulate`: experiments on one machine, their texts and clients."""

from collections.abc import Callable
from typing import Any

from typer.core import TyperGroup

from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.options import Commands
from smidgen.simulation.commands.data import data, split
from smidgen.simulation.commands.experiments import run_command

BENCHMARKS = (
    *("papers", "aug-fedprompt", "mfpt", "fedp2eft", "interpolate", "healthcare", "attacks"),
    *("mixed-ranks", "server-learning", "cloze-gap", "selections", "traffic-accuracy"),
    *("adapter-forms", "pretrain", "waiting", "zero-compute"),
)


class Experiments(TyperGroup):
    """Points to `python -m benchmarks` where a benchmark's name is typed."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in BENCHMARKS:
            raise WrongInput(
                f"`{cmd_name}` is a benchmark and not part of the package; "
                "in a clone of the repository `python -m benchmarks --help` lists them"
            )
        return super().get_command(ctx, cmd_name)


app = Commands("Federated experiments on one machine.", cls=Experiments)
COMMANDS: dict[str, Callable[..., None]] = {
    "run": run_command,
    "data": data,
    "split": split,
}
for name, command in COMMANDS.items():
    app.command(name)(command)
