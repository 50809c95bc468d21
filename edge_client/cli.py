"""`smidgen client`: join a run from a device, train alone, or use an adapter.

Modules are imported on demand; torch only when there is work to compute.
"""

from smidgen.edge_client.commands.base import base
from smidgen.edge_client.commands.labels import labels
from smidgen.edge_client.commands.patterns import patterns, tasks
from smidgen.edge_client.commands.predict import evaluate, generate_command, predict
from smidgen.edge_client.commands.run import doctor, run
from smidgen.edge_client.commands.train import personalize_command, plan, train_alone
from smidgen.edge_client.options import Commands

app = Commands("Run on a device: join a run, train alone, use an adapter.")
app.command()(run)
app.command("train")(train_alone)
app.command("personalize")(personalize_command)
app.command()(predict)
app.command("generate")(generate_command)
app.command()(evaluate)
app.command()(plan)
app.command()(doctor)
app.command()(tasks)
app.command()(patterns)
app.command()(labels)
app.command()(base)
