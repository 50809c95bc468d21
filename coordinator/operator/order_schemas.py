"""What operators ask of runs: to create one, and orders to those that are there."""

from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

from pydantic import Field, create_model

from coordinator.config import RunConfig
from coordinator.operator.schemas import Asked, Model, page_of
from coordinator.rounds.schedule import RunSpec, Schedule
from coordinator.storage.orders import Order


def _asked(hint: Any) -> Any:
    """A key's type in JSON; tables are checked key by key as those of a run file are."""
    if any(map(is_dataclass, get_args(hint) or (hint,))):
        return dict[str, Any] | None
    return (list[str] if get_origin(hint) is tuple else hint) | None


def _attributes(record: type) -> str:
    """What a docstring says of a record's fields."""
    return (record.__doc__ or "").partition("Attributes:\n")[2].partition("\n\n")[0] + "\n"


if TYPE_CHECKING:
    NewRun = Asked
else:
    NewRun = create_model(
        "NewRun",
        __base__=Asked,
        __doc__="A run to create, as a run file says it: see docs/examples/run.toml. `task` may be "
        "a ready-made one's name, `preset` names values for what is not said.\n"
        + "\n    Attributes:\n"
        + "".join(map(_attributes, (RunConfig, Schedule, RunSpec))),
        task=(str | dict[str, Any], ...),
        preset=(str | None, None),
        **{
            one.name: (_asked(get_type_hints(RunConfig)[one.name]), None)
            for one in fields(RunConfig)
            if one.name != "task"
        },
    )


class CreatedRun(Model):
    """A run that was just created, with a token for its devices that is not shown again."""

    run_id: str
    name: str
    token: str


class Extend(Asked):
    """More rounds for a run.

    Attributes:
        rounds: Rounds until it is finished, all in all; more than it has.
    """

    rounds: int = Field(ge=1, le=1_000_000)


class Rollback(Asked):
    """An earlier round to go on from.

    Attributes:
        round_index: The round whose adapter the run goes on from; 0 is its first adapter.
    """

    round_index: int = Field(ge=0, le=1_000_000)


Orders = page_of("Orders", "Orders, the newest first.", Order)
