"""What the functions of this room are given, made into what the rooms below take."""

from pathlib import Path
from typing import TypeAlias

from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.tasks.ready_tasks import find_task
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.training import Training

Place: TypeAlias = str | Path
Asked: TypeAlias = Task | str | Path  # a task, its file, or the name of a ready-made one


def place(given: Place) -> Path:
    return Path(given)


def place_or_none(given: Place | None) -> Path | None:
    return None if given is None else Path(given)


def task_file(data: Path) -> Path:
    """Where a data folder's own task lies, or that of the folder a data file is in."""
    return (data if data.is_dir() else data.parent) / "task.toml"


def task_for(given: Asked | None, data: Path) -> Task:
    """The task that is named, or else the data folder's own."""
    return as_task(given or task_file(data))


def as_task(given: Asked) -> Task:
    return given if isinstance(given, Task) else find_task(given)


def training_of(**given: int | float | str) -> Training:
    """Training as options give it, by the names of its fields.

    Raises:
        WrongInput: A value outside its range; names its option and what came.
    """
    try:
        return Training(**given)  # type: ignore[arg-type]  # the options' own types
    except ValueError as error:
        name, _, expected = str(error).partition(": ")
        raise WrongInput(f"--{name} {given[name]}: {expected} is expected") from error
