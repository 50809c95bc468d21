"""`smidgen simulate`: make the embedded base; experiments on one machine come here."""

import typer

from simulation.pretrain_cli import pretrain

app = typer.Typer(
    help="Train the embedded base.", no_args_is_help=True, pretty_exceptions_enable=False
)


@app.callback()
def simulate() -> None:
    """Train the embedded base from open texts."""


app.command()(pretrain)
