"""`smidgen coordinator`: create a run, serve it, inspect it, export its adapter.

With `--json` the last line of stdout is one JSON object.
"""

from smidgen.coordinator.commands import devices
from smidgen.coordinator.commands.access import operators_app, tokens_app
from smidgen.coordinator.commands.runs import (
    export,
    extend,
    figures,
    forget,
    list_runs,
    pause,
    resume,
    rollback,
    stop,
    track_command,
)
from smidgen.coordinator.commands.serve import create, serve_command
from smidgen.coordinator.commands.status import status
from smidgen.coordinator.commands.stores import backup, init_command, move, prune, verify
from smidgen.edge_client.options import Commands

app = Commands("Run on a server: create runs, serve them to devices, export the adapter.")
app.command("init")(init_command)
app.command()(create)
app.command("serve")(serve_command)
app.command("list")(list_runs)
app.command()(status)
app.command()(figures)
app.command()(export)
app.command("track")(track_command)
app.command()(prune)
app.command()(verify)
app.command()(backup)
app.command()(move)
app.command()(pause)
app.command()(resume)
app.command()(stop)
app.command()(extend)
app.command()(rollback)
app.command()(forget)
app.add_typer(devices.app, name="devices")
app.add_typer(tokens_app, name="tokens")
app.add_typer(operators_app, name="operators")
