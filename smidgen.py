"""The front door: `smidgen COMMAND` opens the one package that knows the command, and no other.

Every package brings its own `cli.py`; a device that has only the client never imports the server.
"""

import sys
from importlib import import_module

__version__ = "0.1.0"

# command -> (module with a Typer `app`, what it does, the extra it needs)
COMMANDS = {
    "demo": (
        "simulation.commands.demo",
        "four devices and a coordinator on this machine, 3 minutes",
        "simulate",
    ),
    "pack": (
        "edge_client.commands.pack",
        "make a base pack of a model, for devices to map",
        "torch",
    ),
    "client": ("edge_client.cli", "run on a device: join a run, or train alone", "torch"),
    "coordinator": (
        "coordinator.cli",
        "run on a server: create runs, serve, status, export",
        "server",
    ),
    "profile": ("profiling.cli", "tables and charts of what rounds cost", "profile"),
    "simulate": (
        "simulation.cli",
        "train the embedded base; experiments on one machine",
        "simulate",
    ),
}


def usage() -> str:
    """The list of commands."""
    lines = [f"  {name:<12} {text}" for name, (_, text, _) in COMMANDS.items()]
    return "\n".join(["usage: smidgen COMMAND [OPTIONS]   (smidgen COMMAND --help)", "", *lines])


def main() -> None:
    """Run one command; exit code 0 done, 1 failed while working, 2 wrong use or input."""
    arguments = sys.argv[1:]
    if arguments and arguments[0] == "--version":
        print(__version__)
        return
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return
    if arguments[0] not in COMMANDS:
        print(f"smidgen: no command {arguments[0]!r}\n{usage()}", file=sys.stderr)
        raise SystemExit(2)
    module, _, extra = COMMANDS[arguments[0]]
    try:
        app = import_module(module).app
    except ModuleNotFoundError as error:
        print(
            f"smidgen {arguments[0]}: needs {error.name!r}; pip install 'smidgen[{extra}]'",
            file=sys.stderr,
        )
        raise SystemExit(2) from error
    app(args=arguments[1:], prog_name=f"smidgen {arguments[0]}")


if __name__ == "__main__":
    main()
