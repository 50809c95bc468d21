"""`smidgen simulate`: the papers' experiments on one machine, their texts, clients and bases."""

from collections.abc import Callable

import typer

from simulation.commands.data import data
from simulation.commands.experiments import run_command
from simulation.commands.papers import papers_command
from simulation.commands.pretrain import pretrain
from simulation.commands.scenarios import (
    adapter_forms_command,
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
COMMANDS: dict[str, Callable[..., None]] = {
    "papers": papers_command,
    "aug-fedprompt": aug_fedprompt_command,
    "mfpt": mfpt_command,
    "fedp2eft": fedp2eft_command,
    "interpolate": interpolate_command,
    "healthcare": healthcare_command,
    "attacks": attacks_command,
    "mixed-ranks": mixed_ranks_command,
    "server-learning": server_learning_command,
    "cloze-gap": cloze_gap_command,
    "selections": selections_command,
    "traffic-accuracy": traffic_accuracy_command,
    "adapter-forms": adapter_forms_command,
    "run": run_command,
    "data": data,
    "split": split,
    "zero-compute": zero_compute,
    "waiting": waiting,
    "pretrain": pretrain,
}
for name, command in COMMANDS.items():
    app.command(name)(command)
