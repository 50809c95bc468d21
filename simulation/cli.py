"""`smidgen simulate`: the papers' experiments on one machine, their texts, clients and bases."""

import typer

from simulation.commands.data import data
from simulation.commands.experiments import run_command
from simulation.commands.papers import papers_command
from simulation.commands.pretrain import pretrain
from simulation.commands.scenarios import (
    attacks_command,
    aug_fedprompt_command,
    cloze_gap_command,
    fedp2eft_command,
    healthcare_command,
    interpolate_command,
    mfpt_command,
    mixed_ranks_command,
    selections_command,
    server_learning_command,
    traffic_accuracy_command,
)
from simulation.commands.split import split
from simulation.commands.waiting import waiting
from simulation.commands.zero_compute import zero_compute

app = typer.Typer(
    help="The papers' experiments on your own machine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("papers")(papers_command)
app.command("aug-fedprompt")(aug_fedprompt_command)
app.command("mfpt")(mfpt_command)
app.command("fedp2eft")(fedp2eft_command)
app.command("interpolate")(interpolate_command)
app.command("healthcare")(healthcare_command)
app.command("attacks")(attacks_command)
app.command("mixed-ranks")(mixed_ranks_command)
app.command("server-learning")(server_learning_command)
app.command("cloze-gap")(cloze_gap_command)
app.command("selections")(selections_command)
app.command("traffic-accuracy")(traffic_accuracy_command)
app.command("run")(run_command)
app.command()(data)
app.command()(split)
app.command("zero-compute")(zero_compute)
app.command()(waiting)
app.command()(pretrain)
