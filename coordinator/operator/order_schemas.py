"""What operators ask of runs: to create one, and orders to those that are there."""

from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

from pydantic import Field, create_model

from coordinator.config import RunConfig
from coordinator.operator.schemas import Asked, Model, example
from coordinator.storage.orders import Order


def _asked(hint: Any) -> Any:
    """A key's type in JSON; tables are checked key by key as those of a run file are."""
    if any(map(is_dataclass, get_args(hint) or (hint,))):
        return dict[str, Any] | None
    return (list[str] if get_origin(hint) is tuple else hint) | None


if TYPE_CHECKING:
    NewRun = Asked
else:
    NewRun = create_model(
        "NewRun",
        __base__=Asked,
        __doc__="A run to create, as a run file says it: see docs/examples/run.toml. `task` may be "
        "a ready-made one's name, `preset` names values for what is not said.\n"
        + (RunConfig.__doc__ or "").partition("\n")[2].partition("Raises:")[0],
        task=(str | dict[str, Any], ...),
        preset=(str | None, None),
        **{
            name: (_asked(hint), None)
            for name, hint in get_type_hints(RunConfig).items()
            if name != "task"
        },
    )
    NewRun.model_config["json_schema_extra"] = example(
        {"task": "agnews", "name": "news", "adapter": "lora:8@q,v", "rounds": 20, "min_clients": 3}
    )["json_schema_extra"]


class CreatedRun(Model):
    """A run that was just created, with a token for its devices that is not shown again."""

    model_config = example({"run_id": "r0a1b2c3d4e", "name": "news", "token": "sEcReT"})

    run_id: str
    name: str
    token: str


ORDER = {
    "order_id": 7,
    "run_id": "r0a1b2c3d4e",
    "kind": "pause",
    "rounds": None,
    "asked_at_s": 1790000020.0,
    "done_at_s": None,
    "refused": None,
}


class Extend(Asked):
    """More rounds for a run.

    Attributes:
        rounds: Rounds until it is finished, all in all; more than it has.
    """

    model_config = example({"rounds": 40})

    rounds: int = Field(ge=1, le=1_000_000)


class Rollback(Asked):
    """An earlier round to go on from.

    Attributes:
        round_index: The round whose adapter the run goes on from; 0 is its first adapter.
    """

    model_config = example({"round_index": 3})

    round_index: int = Field(ge=0, le=1_000_000)


class Orders(Model):
    """Orders, the newest first."""

    model_config = example({"orders": [ORDER], "next": None})

    orders: list[Order]
    next: str | None
