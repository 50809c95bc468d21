"""`python -m benchmarks`: the papers' tables beside ours, our comparisons, and making a base."""

from benchmarks.commands.hostile import hostile_command
from benchmarks.commands.labelling import labelling
from benchmarks.commands.leakage import leakage
from benchmarks.commands.paper import paper_command
from benchmarks.commands.papers import papers_command
from benchmarks.commands.pretrain import pretrain
from benchmarks.commands.secure_sums import secure_sums
from benchmarks.commands.waiting import waiting
from benchmarks.commands.zero_compute import zero_compute
from smidgen.edge_client.options import Commands

app = Commands("The papers' tables beside ours, comparisons, and making a base; from a checkout.")
app.command("papers")(papers_command)
app.command("paper")(paper_command)
app.command("hostile")(hostile_command)
app.command("pretrain")(pretrain)
app.command("zero-compute")(zero_compute)
app.command("waiting")(waiting)
app.command("labelling")(labelling)
app.command("leakage")(leakage)
app.command("secure-sums")(secure_sums)
