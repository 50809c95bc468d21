"""`smidgen profile`: tables and charts of what was measured, and benchmarks that measure."""

from smidgen.edge_client.options import Commands
from smidgen.profiling.commands.models import estimate_step, models
from smidgen.profiling.commands.rounds import compare_records, rounds
from smidgen.profiling.commands.training import exact_gradients, predicted_peaks, train_steps
from smidgen.profiling.commands.wire import fleet, soak, wire

app = Commands("Benchmarks, and tables and charts of their results.")


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
