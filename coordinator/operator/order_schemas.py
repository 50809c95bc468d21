"""What operators ask of runs: to create one, and orders to those that are there."""

from typing import Any, Literal

from pydantic import Field

from coordinator.operator.schemas import Asked, Model, example
from coordinator.rounds.orders import OrderKind


class NewRun(Asked):
    """A run to create, as a run file says it: see docs/examples/run.toml.

    Attributes:
        task: A ready-made task's name, or a table as in task.toml.
        name: By default the task's.
        base: `embedded`, or one that is on the server: a folder or a name in its cache.
        preset: Values for what is not said here, by name, such as `silos`.
        adapter: What is trained.
        prompt_init: With `prompt:N`, the text it starts from.
        training: How a device trains in one round.
        learning: How the coordinator learns from a round.
        asynchronous: How rounds go on without waiting; null if they do not.
        labelling: How devices label their own texts; null if they do not.
        devices: Which devices it chooses.
        rounds: Rounds of training until it is finished.
        fraction: Share of the devices asked to train in a round.
        max_cohort: Most devices asked to train in a round; 0 for no cap.
        over_selection: How many times the cohort is asked; as many as the cohort close a round.
        patience: Evaluations in a row without an improvement that end the run; 0: none do.
        min_clients: Devices to wait for before the first round.
        min_updates: Updates without which no round is closed.
        evaluate_cohort: Devices asked to evaluate an adapter; 0: all.
        evaluate_share: Share of its test texts that a device evaluates on, drawn in each round.
        keep: Which adapter is the run's in the end: the `last`, or the `best` evaluated one.
        deadline_s: Seconds after which a step goes on without late devices.
        adaptive_deadline: Whether a step of which half is done may close before `deadline_s`.
        evaluate_every: Rounds between evaluations; 0 for the first and last alone.
        norm_bound: Norm down to which a longer update is scaled: `adaptive`, a number, 0 for none.
        max_examples: Most texts that an update weighs as: `adaptive`, a number, 0 for any.
        seed: Root seed.
        tell_names: Whether waiting devices are told the names of those that are waited for.
        pack_mirrors: https addresses where devices find the base's pack, as `BASE_ID/FILE`.
    """

    model_config = example(
        {"task": "agnews", "name": "news", "adapter": "lora:8@q,v", "rounds": 20, "min_clients": 3}
    )

    task: str | dict[str, Any]
    name: str | None = None
    base: str | None = None
    preset: str | None = None
    adapter: str | None = None
    prompt_init: str | None = None
    training: dict[str, Any] | None = None
    learning: dict[str, Any] | None = None
    updates: dict[str, Any] | None = None
    asynchronous: dict[str, Any] | None = None
    labelling: dict[str, Any] | None = None
    devices: dict[str, Any] | None = None
    rounds: int | None = None
    fraction: float | None = None
    max_cohort: int | None = None
    over_selection: float | None = None
    patience: int | None = None
    min_clients: int | None = None
    min_updates: int | None = None
    evaluate_cohort: int | None = None
    evaluate_share: float | None = None
    keep: Literal["best", "last"] | None = None
    deadline_s: float | None = None
    adaptive_deadline: bool | None = None
    evaluate_every: int | None = None
    norm_bound: float | Literal["adaptive"] | None = None
    max_examples: int | Literal["adaptive"] | None = None
    seed: int | None = None
    tell_names: bool | None = None
    pack_mirrors: list[str] | None = None


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


class Order(Model):
    """What an operator asked of a run.

    Attributes:
        order_id: Later orders have higher ones.
        run_id: The run.
        kind: What is asked.
        rounds: Of `extend`: rounds until the run is finished; of `rollback`: the round to go to.
        asked_at_s: When it was asked.
        done_at_s: When the server took it up; null until then.
        refused: Why it could not be followed then; null where it was.
    """

    model_config = example(ORDER)

    order_id: int
    run_id: str
    kind: OrderKind
    rounds: int | None
    asked_at_s: float
    done_at_s: float | None
    refused: str | None


class Orders(Model):
    """Orders, the newest first."""

    model_config = example({"orders": [ORDER], "next": None})

    orders: list[Order]
    next: str | None
