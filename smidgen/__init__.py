"""The front door: `smidgen COMMAND` on a command line, and `import smidgen` in Python.

A command opens the one package that knows it, and no other: a device that has only the client
never imports the server. Errors are caught in `main` and nowhere else: one line on stderr and an
exit code.

In Python the same is done by functions, whose keywords and defaults are the commands' options:

    pack(model, bits, out)         -> Pack             a base, for devices to map
    plan(base)                     -> Plans            what training would take here; estimated
    doctor()                       -> Diagnosis        whether this device will work
    train(data, out)               -> TrainedAdapter   one device, by itself
    personalize(data, out)         -> PersonalAdapter  of the ranks that its texts need
    predict(texts, adapter)        -> list[Prediction]  labels
    tag(texts, adapter)            -> list[TaggedText]  entities in them
    fill(texts, adapter)           -> list[FilledText]  words for each [MASK], or perplexity
    generate(texts, adapter)       -> list[GeneratedText]  by a causal language model
    evaluate(data, adapter)        -> Scores
    create_run(store, run)         -> NewRun           run: RunConfig(Task, Training, Labelling)
    serve(store)                   -> Server           in a thread, until its `with` block ends
    runs(store)                    -> list[RunStatus]
    export(store, out)             -> ExportedAdapter  that a run keeps
    run_client(url, data, token)   -> Summary          one device in a run, to the run's end
    simulate(Experiment)           -> list[Simulated]  many devices in this process

Nothing is printed, no logging is set up; what goes wrong is raised, `WrongInput` or `Failed`.
Names are loaded when they are first used; those whose extra is not installed are left out of
`dir` and of `import *`. docs/python.md shows them at work.
"""

import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from io import TextIOWrapper
from typing import TYPE_CHECKING

from smidgen.edge_client.errors import Failed, WrongInput, installing

if TYPE_CHECKING:
    from smidgen.coordinator.api.create import NewRun, RunStatus, create_run, runs
    from smidgen.coordinator.api.export import export
    from smidgen.coordinator.api.serve import Server, serve
    from smidgen.coordinator.config import RunConfig
    from smidgen.coordinator.upkeep.export import ExportedAdapter
    from smidgen.edge_client.api.doctor import Diagnosis, doctor
    from smidgen.edge_client.api.generate import GeneratedText, generate
    from smidgen.edge_client.api.pack import Pack, pack
    from smidgen.edge_client.api.personalize import PersonalAdapter, personalize
    from smidgen.edge_client.api.plan import Planned, Plans, plan
    from smidgen.edge_client.api.predict import Prediction, evaluate, fill, predict, tag
    from smidgen.edge_client.api.run import NothingDone, run_client
    from smidgen.edge_client.api.train import TrainedAdapter, train
    from smidgen.edge_client.client.settings import Summary
    from smidgen.edge_client.doctor.machine import Finding
    from smidgen.edge_client.tasks.kinds.asked_words import FilledText
    from smidgen.edge_client.tasks.kinds.tag_answers import TaggedText
    from smidgen.edge_client.tasks.scores import Scores
    from smidgen.edge_client.tasks.task import Task
    from smidgen.edge_client.wire.training import Labelling, Training
    from smidgen.simulation.api import Simulated, simulate
    from smidgen.simulation.experiments.experiment import Experiment
    from smidgen.simulation.population.deal import Deal

__version__ = "0.1.0"
__all__ = [
    "Deal",
    "Diagnosis",
    "Experiment",
    "ExportedAdapter",
    "Failed",
    "FilledText",
    "Finding",
    "GeneratedText",
    "Labelling",
    "NewRun",
    "NothingDone",
    "Pack",
    "PersonalAdapter",
    "Planned",
    "Plans",
    "Prediction",
    "RunConfig",
    "RunStatus",
    "Scores",
    "Server",
    "Simulated",
    "Summary",
    "TaggedText",
    "Task",
    "TrainedAdapter",
    "Training",
    "WrongInput",
    "__version__",
    "create_run",
    "doctor",
    "evaluate",
    "export",
    "fill",
    "generate",
    "pack",
    "personalize",
    "plan",
    "predict",
    "run_client",
    "runs",
    "serve",
    "simulate",
    "tag",
    "train",
]
# public name -> the module that has it; opened when the name is first used
_HOMES = {
    "Deal": "smidgen.simulation.population.deal",
    "Diagnosis": "smidgen.edge_client.api.doctor",
    "Experiment": "smidgen.simulation.experiments.experiment",
    "ExportedAdapter": "smidgen.coordinator.upkeep.export",
    "FilledText": "smidgen.edge_client.tasks.kinds.asked_words",
    "Finding": "smidgen.edge_client.doctor.machine",
    "GeneratedText": "smidgen.edge_client.api.generate",
    "Labelling": "smidgen.edge_client.wire.training",
    "NewRun": "smidgen.coordinator.api.create",
    "NothingDone": "smidgen.edge_client.api.run",
    "Pack": "smidgen.edge_client.api.pack",
    "PersonalAdapter": "smidgen.edge_client.api.personalize",
    "Planned": "smidgen.edge_client.api.plan",
    "Plans": "smidgen.edge_client.api.plan",
    "Prediction": "smidgen.edge_client.api.predict",
    "RunConfig": "smidgen.coordinator.config",
    "RunStatus": "smidgen.coordinator.api.create",
    "Scores": "smidgen.edge_client.tasks.scores",
    "Server": "smidgen.coordinator.api.serve",
    "Simulated": "smidgen.simulation.api",
    "Summary": "smidgen.edge_client.client.settings",
    "TaggedText": "smidgen.edge_client.tasks.kinds.tag_answers",
    "Task": "smidgen.edge_client.tasks.task",
    "TrainedAdapter": "smidgen.edge_client.api.train",
    "Training": "smidgen.edge_client.wire.training",
    "create_run": "smidgen.coordinator.api.create",
    "doctor": "smidgen.edge_client.api.doctor",
    "evaluate": "smidgen.edge_client.api.predict",
    "export": "smidgen.coordinator.api.export",
    "fill": "smidgen.edge_client.api.predict",
    "generate": "smidgen.edge_client.api.generate",
    "pack": "smidgen.edge_client.api.pack",
    "personalize": "smidgen.edge_client.api.personalize",
    "plan": "smidgen.edge_client.api.plan",
    "predict": "smidgen.edge_client.api.predict",
    "run_client": "smidgen.edge_client.api.run",
    "runs": "smidgen.coordinator.api.create",
    "serve": "smidgen.coordinator.api.serve",
    "simulate": "smidgen.simulation.api",
    "tag": "smidgen.edge_client.api.predict",
    "train": "smidgen.edge_client.api.train",
}

# command -> (module with a Typer `app`, what it does, the extra it needs)
COMMANDS = {
    "demo": (
        "smidgen.simulation.commands.demo",
        "see it work: four devices and a coordinator on this machine, about 2 minutes",
        "demo",
    ),
    "new": (
        "smidgen.edge_client.commands.new",
        "start a project: a task and folders from your labelled texts, and the next commands",
        "",
    ),
    "pack": (
        "smidgen.edge_client.commands.pack",
        "make a base pack of a model, for devices to map",
        "",
    ),
    "client": ("smidgen.edge_client.cli", "run on a device: join a run, or train alone", ""),
    "coordinator": (
        "smidgen.coordinator.cli",
        "run on a server: create runs, serve, status, export",
        "server",
    ),
    "profile": (
        "smidgen.profiling.cli",
        "benchmarks of training, and what the rounds of a run cost",
        "profile",
    ),
    "simulate": (
        "smidgen.simulation.cli",
        "experiments on one machine",
        "simulate",
    ),
}
# module with public names -> packages of its extra without which they are of no use
_NEEDS = {
    "smidgen.coordinator.api.create": ("sqlalchemy",),
    "smidgen.coordinator.api.export": ("sqlalchemy",),
    "smidgen.coordinator.upkeep.export": ("sqlalchemy",),
    "smidgen.coordinator.api.serve": ("sqlalchemy", "fastapi", "uvicorn"),
}
INTERRUPTED = 130
STOPPING = ("strict", "surrogateescape")  # ways to encode that refuse a letter
_COMPLETE = "_SMIDGEN_COMPLETE"  # set by a shell that asks what the last word may become


def _absent(name: str) -> str:
    """A package that a public name needs and that is not installed; empty if there is none."""
    needs = _NEEDS.get(_HOMES.get(name, ""), ())
    return next((package for package in needs if find_spec(package) is None), "")


if not TYPE_CHECKING:  # a type checker has the true names from above, and knows that no other is
    __all__ = [name for name in __all__ if not _absent(name)]  # what `import *` can load

    def __getattr__(name: str) -> object:
        """Load a public name where it is first used, PEP 562."""
        if name not in _HOMES:
            raise AttributeError(f"module 'smidgen' has no attribute {name!r}")
        # Python hides an AttributeError of `from smidgen import name`, and shows a missing module
        is_imported = sys._getframe(1).f_code.co_name == "_handle_fromlist"
        if absent := _absent(name):
            raise _needs(name, absent, is_imported)
        try:
            found = getattr(import_module(_HOMES[name]), name)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.split(".")[0] == "smidgen":
                raise
            raise _needs(name, error.name, is_imported) from error
        globals()[name] = found
        return found


def _needs(name: str, package: str, is_imported: bool) -> Exception:
    """What to raise for a name whose extra is absent; `hasattr` is to be false, and not to fail."""
    # Of the folders with public names
    extra = {"coordinator": "server", "simulation": "simulate"}.get(_HOMES[name].split(".")[1], "")
    told = f"smidgen.{name} needs {package!r}; {installing(extra)}"
    if is_imported:
        return ModuleNotFoundError(told, name=package)
    return AttributeError(told, name=package, obj=None)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def usage() -> str:
    lines = [f"  {name:<12} {text}" for name, (_, text, _) in COMMANDS.items()]
    head = "usage: smidgen COMMAND [OPTIONS]   (smidgen COMMAND --help)"
    tail = "--version   --install-completion [bash|zsh|fish]   --show-completion [bash|zsh|fish]"
    return "\n".join([head, "", *lines, "", tail])


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command; exit code 0 done, 1 failed while working, 2 wrong use or input.

    Args:
        arguments: What follows `smidgen`; by default the process's own.

    Raises:
        SystemExit: Always but after --version and --help; its code is the exit code.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    _check_words("smidgen", given)
    if _COMPLETE in os.environ or given[:1] in (["--install-completion"], ["--show-completion"]):
        _complete(given)
    elif given and given[0] in ("--version", "version"):
        print(__version__)
    elif not given or given[0] in ("-h", "--help", "help"):
        print(usage())
    elif given[0] not in COMMANDS:
        close = get_close_matches(given[0], COMMANDS, 1)
        meant = f"; did you mean {close[0]!r}?" if close else ""
        print(f"smidgen: no command {given[0]!r}{meant}\n{usage()}", file=sys.stderr)
        raise SystemExit(WrongInput.exit_code)
    else:
        module, _, extra = COMMANDS[given[0]]
        run_app(f"smidgen {given[0]}", module, extra, given[1:])


def _check_words(name: str, words: Sequence[str]) -> None:
    _show_all_letters()
    for place, word in enumerate(words, start=1):
        if any("\ud800" <= letter <= "\udfff" for letter in word):  # bytes that are not UTF-8
            print(f"{name}: word {place} of the command is not UTF-8 text", file=sys.stderr)
            raise SystemExit(WrongInput.exit_code)


def _show_all_letters() -> None:
    """Let texts be printed where the terminal's encoding lacks a letter of theirs, as \\u65e5."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and stream.errors in STOPPING:
            stream.reconfigure(errors="backslashreplace")


def _complete(given: Sequence[str]) -> None:
    """Answer a shell that completes a line, or tell it how to ask."""
    from smidgen.edge_client import completion

    if _COMPLETE in os.environ:
        said = {name: text for name, (_, text, _) in COMMANDS.items()}

        def open_app(name: str) -> object:
            return import_module(COMMANDS[name][0]).app

        for name, text in completion.candidates(said, open_app, given):
            print(f"{name}\t{text}")
        return
    shell = given[1] if len(given) > 1 else completion.this_shell()
    try:
        is_shown = given[0] == "--show-completion"
        if is_shown:
            print(completion.script(shell))
        else:
            from smidgen.edge_client.outputs import home_folder  # heavy for a shell that waits

            print(completion.install(shell, home_folder("set HOME")))
    except (WrongInput, Failed) as error:
        _end(f"smidgen {given[0]}", str(error), error.exit_code)


def run_app(name: str, module: str, extra: str, arguments: Sequence[str]) -> None:
    """Run one command of an app; what goes wrong is one line and an exit code.

    Args:
        name: What is typed for the app, as in `smidgen client`.
        module: Has the Typer `app`.
        extra: What it needs of the package's extras; may be empty.
        arguments: What follows the name.

    Raises:
        SystemExit: Always but after --help.
    """
    _check_words(name, arguments)  # once more where `main` has; a benchmark has no other
    try:
        import_module(module).app(args=arguments, prog_name=name)
    except (WrongInput, Failed) as error:
        _end(name, str(error), error.exit_code)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] in ("smidgen", module.split(".")[0]):
            raise
        _end(name, f"needs {error.name!r}; {installing(extra)}", WrongInput.exit_code)
    except OSError as error:  # a full disk, a folder that is not ours
        _end(name, str(error), Failed.exit_code)
    except KeyboardInterrupt:
        _end(name, "stopped", INTERRUPTED)
    except SystemExit as end:
        if end.code == INTERRUPTED:  # Typer has caught a KeyboardInterrupt and says nothing
            _end(name, "stopped", INTERRUPTED)
        raise


def _end(name: str, message: str, exit_code: int) -> None:
    from smidgen.edge_client.log_lines import shown  # a command that ends well needs none of it

    print(f"{name}: {shown(' '.join(message.split()))}", file=sys.stderr)
    raise SystemExit(exit_code)
