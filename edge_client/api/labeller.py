"""An adapter, or the base alone, opened to answer; and texts labelled by it, piece by piece.

Memory is bounded however many texts there are, and answers come in the texts' order.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from smidgen.edge_client.adapters.peft_folder import (
    CONFIG,
    is_exported,
    read_origin,
    read_peft_folder,
)
from smidgen.edge_client.adapters.peft_import import read_peft_adapter
from smidgen.edge_client.adapters.spec import AdapterError, AdapterSpec, parse_adapter
from smidgen.edge_client.bases.base import Base, open_base
from smidgen.edge_client.engine.budgeted import open_within, ready_engine
from smidgen.edge_client.engine.engine import Engine
from smidgen.edge_client.errors import WrongInput, demand
from smidgen.edge_client.personal.choice import chosen_in
from smidgen.edge_client.planning.cuda_memory import CPU
from smidgen.edge_client.planning.plan import parse_budget
from smidgen.edge_client.tasks.kind import TaskKind, check_same, kind_named, kind_of
from smidgen.edge_client.tasks.ready_tasks import find_task
from smidgen.edge_client.tasks.task import DEFAULT, Task
from smidgen.edge_client.texts.prompts.patterns import TaskError
from smidgen.edge_client.wire.tensors import AdapterState
from smidgen.edge_client.wire.training import Training

Place: TypeAlias = str | Path
Tell: TypeAlias = Callable[[str], None]
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


@dataclass(frozen=True)
class Labeller:
    """An adapter (or the base alone) that answers texts: what its task asks.

    Attributes:
        engine: What computes.
        task: What is asked.
        spec: The adapter.
        prior: Mean log-probability of each label, which is taken off every answer; empty: nothing.
    """

    engine: Engine
    task: Task
    spec: AdapterSpec
    prior: tuple[float, ...] = ()

    def check_function(self, asked: str) -> None:
        """Refuse an adapter for another kind of task than a function answers.

        Args:
            asked: The function's name.

        Raises:
            AdapterError: Names the one that answers.
        """
        kind = kind_of(self.task)
        demand(
            kind.function == asked,
            f"{asked} is not for {self.task.name!r}, a task of kind {kind.name}: take "
            f"{kind.function}",
            AdapterError,
        )

    @property
    def needs_pairs(self) -> bool:
        """Whether it is asked by patterns that hold a second text."""
        patterns = () if self.spec.head else self.task.asked()
        return any("{text_b}" in pattern for pattern in patterns)


def check_adapter(adapter: Path | None) -> None:
    """Refuse a folder that holds no adapter.

    Args:
        adapter: The folder; None: the base alone.
    """
    demand(adapter is None or adapter.is_dir(), f"--adapter {adapter}: there is no such folder")
    is_one = adapter is None or is_exported(adapter) or (adapter / CONFIG).is_file()
    inner = "" if adapter is None or not (adapter / "adapter" / CONFIG).is_file() else "/adapter"
    other = f"its adapter is in {adapter}{inner}" if inner else "name another folder"
    demand(is_one, f"--adapter {adapter} holds no adapter (no {CONFIG}); {other}")


def open_labeller(
    adapter: Path | None,
    task: Asked | None,
    base: str,
    engine: str,
    memory_budget: str,
    device: str = CPU,
) -> Labeller:
    """Open an adapter: exported here, saved by PEFT elsewhere, or none at all (the base alone).

    Args:
        adapter: Its folder.
        task: Task, its file or a ready-made one, where the folder does not know it. An exported
            adapter is asked by its own task; one that is named beside it must have its labels.
        base: As `open_base` takes it.
        engine: `torch`, `onnx` or `auto`.
        memory_budget: As `parse_budget` takes it.
        device: `cpu` or `cuda`.

    Raises:
        AdapterError: No adapter, or one of another base.
        TaskError: It is not known which labels there are, or others are named than an export's.
    """
    check_adapter(adapter)
    budget, engine = parse_budget(memory_budget), ready_engine(engine, device)
    if task is None and (adapter is None or not is_exported(adapter)):
        whose = "which labels this adapter has" if adapter else "the base alone"
        raise TaskError(f"give --task task.toml for {whose}, or --adapter with an exported adapter")
    opened = open_base(base)
    chosen, spec, state = adapter_and_task(adapter, task, opened)
    computer = open_within(engine, opened, chosen, spec, Training(), budget, device=device)
    if state is not None:
        computer.load_adapter(state)
    return Labeller(computer, chosen, spec)


def kind_asked(adapter: Path | None, task: Asked | None) -> TaskKind:
    """The kind of task that `open_labeller` will find; the usual one where it will refuse."""
    if adapter is not None and is_exported(adapter):
        return kind_of(read_origin(adapter).task)
    return kind_of(as_task(task)) if task else kind_named(DEFAULT)


def adapter_or_own(adapter: Path | None, personal: Path | None) -> Path | None:
    """The folder of the adapter to answer with; none for the base alone.

    Args:
        adapter: One that is named.
        personal: A client's state folder instead, which has one of its own.

    Raises:
        WrongInput: Both are named, or there is none of its own.
    """
    if personal is None:
        return adapter
    demand(adapter is None, "--adapter and --personal both say the adapter; give one of them")
    return chosen_in(personal)[0]


def adapter_and_task(
    folder: Path | None, task: Asked | None, base: Base
) -> tuple[Task, AdapterSpec, AdapterState | None]:
    """What is asked, and the adapter that answers; None for the base alone.

    Raises:
        AdapterError: No adapter, or one of another base, or one that answers no text.
        TaskError: The task is not the adapter's.
    """
    if folder is not None and is_exported(folder):
        origin, state = read_peft_folder(folder, base)
        demand(
            not parse_adapter(origin.adapter).net,
            f"--adapter {folder} is a net for adapters, which answers no text itself; "
            "`smidgen client personalize --generator` makes an adapter by it",
            AdapterError,
        )
        if task is not None:
            own, named = origin.task, as_task(task)
            said = f"--adapter {folder} is for a task of kind {own.kind}, --task of kind "
            check_same(own, named, f"{said}{named.kind}; leave --task away")
            _check_labels(folder, origin.task, as_task(task))
        return origin.task, parse_adapter(origin.adapter), state
    chosen = as_task(task or "")
    if folder is None:
        head = kind_of(chosen).head(chosen)
        what = "tags words, which the base alone cannot" if head.is_of_words else "needs a head"
        demand(
            head.answers is not None, f"task {chosen.name!r} {what}; give --adapter", AdapterError
        )
        return chosen, parse_adapter("lora:1"), None  # whose first values change nothing
    return chosen, *read_peft_adapter(folder, base, chosen)


def _check_labels(folder: Path, own: Task, named: Task) -> None:
    """Refuse a task of other labels than an export's; their order does not matter."""
    if other := sorted({*own.labels} ^ {*named.labels}):
        whose = "--task has" if other[0] in named.labels else f"--adapter {folder} has"
        raise TaskError(
            f"{whose} a label that the other does not: {other[0][:40]!r}; an exported adapter has "
            "a task of its own: leave --task away, or give one with its labels"
        )
