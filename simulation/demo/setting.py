"""A demo's settings, and its progress."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

from edge_client.tasks.task import read_task
from edge_client.wire.training import Training

RUN, ALONE, SCORE = "together", "each alone", "scoring"  # its parts


@dataclass(frozen=True)
class Setting:
    """What a demo runs.

    Attributes:
        out: Folder for everything the demo writes.
        base: `embedded`, a folder or a hub name.
        adapter: Such as `lora:8`.
        rounds: Server steps.
        training: What every device does in a round, in a run and alone.
        seed: Root seed.
        engines: Dealt to the devices in turn.
        is_personal: Whether each device makes an adapter of its own after the run.
    """

    out: Path
    base: str
    adapter: str
    rounds: int
    training: Training
    seed: int
    engines: tuple[str, ...]
    is_personal: bool = False


@dataclass(frozen=True)
class Step:
    """How far a demo is.

    Attributes:
        stage: One of its parts, each of which has a bar of its own.
        doing: What happens in it now.
        done: How much of it is done.
        total: How much there is to do.
        unit: Of what.
    """

    stage: str
    doing: str
    done: int
    total: int
    unit: str = "rounds"


Progress = Callable[[Step], None]


def engine_by_name(setting: Setting, folders: Sequence[Path]) -> dict[str, str]:
    names = [folder.name for folder in folders]
    return dict(zip(names, cycle(setting.engines), strict=False))


def prompt_init(folders: Sequence[Path]) -> str:
    """What a soft prompt starts from: the words it has to choose among."""
    return " ".join([*read_task(folders[0] / "task.toml").words(), "message", ":"])
