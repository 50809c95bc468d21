"""`smidgen profile`: tables and charts of what was measured, and benchmarks that measure."""

import typer

from smidgen.profiling.commands.fleet import fleet
from smidgen.profiling.commands.models import estimate_step, models
from smidgen.profiling.commands.rounds import compare_records, rounds
from smidgen.profiling.commands.training import exact_gradients, predicted_peaks, train_steps
from smidgen.profiling.commands.wire import soak, wire

app = typer.Typer(
    help="Tables and charts of what was measured, and benchmarks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def profile() -> None:
    """Tables and charts of what was measured, and benchmarks."""


app.command()(rounds)
app.command("compare")(compare_records)
app.command("train")(train_steps)
app.command()(models)
app.command("grid")(predicted_peaks)
app.command("gradients")(exact_gradients)
app.command("estimate")(estimate_step)
app.command()(wire)
app.command()(fleet)
app.command()(soak)
