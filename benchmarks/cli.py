"""`python -m benchmarks`: the papers' tables beside ours, our comparisons, and making a base."""

import typer

from benchmarks.commands.hostile import hostile_command
from benchmarks.commands.paper import paper_command
from benchmarks.commands.papers import papers_command
from benchmarks.commands.pretrain import pretrain

app = typer.Typer(
    help="The papers' tables beside ours, comparisons, and making a base; from a checkout.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("papers")(papers_command)
app.command("paper")(paper_command)
app.command("hostile")(hostile_command)
app.command("pretrain")(pretrain)
