"""`smidgen simulate`: the papers' experiments on one machine, their texts, clients and bases."""

import typer

from simulation.data_cli import data
from simulation.experiment_cli import aug_fedprompt_command, mfpt_command, run_command
from simulation.pretrain_cli import pretrain
from simulation.split_cli import split
from simulation.zero_compute_cli import zero_compute

app = typer.Typer(
    help="The papers' experiments on your own machine.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command("aug-fedprompt")(aug_fedprompt_command)
app.command("mfpt")(mfpt_command)
app.command("run")(run_command)
app.command()(data)
app.command()(split)
app.command("zero-compute")(zero_compute)
app.command()(pretrain)
