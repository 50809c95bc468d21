"""A Flower `ClientApp` that runs a smidgen device in a federation led by Flower's server.

The app that `flwr run` sends to the nodes contains:

    from smidgen.edge_client.flower.app import client_app

    app = client_app()

A SuperNode configures its own side, `--node-config 'texts="/srv/texts" memory-budget="512M"'`; the
app's configuration says how to train (`RECIPE`). Flower comes from `pip install flwr`; nothing
else here imports it.
"""

import logging
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import TypeAlias

import numpy as np

from smidgen.edge_client.errors import WrongInput, demand

try:
    from flwr.app import (
        Array,
        ArrayRecord,
        ConfigRecord,
        Context,
        Error,
        Message,
        MetricRecord,
        RecordDict,
    )
    from flwr.clientapp import ClientApp
except ImportError as error:
    raise WrongInput("a seat in a Flower federation wants flwr: pip install flwr") from error

from smidgen.edge_client.api.labeller import training_of
from smidgen.edge_client.flower.seat import Seat, SeatRecipe, SeatSettings
from smidgen.edge_client.planning.plan import AUTO
from smidgen.edge_client.wire.training import Training

log = logging.getLogger(__name__)

Value: TypeAlias = str | int | float | bool
OWN = ("texts", "memory-budget", "engine")
NAMED = ("adapter", "base", "task")
TRAINING = ("epochs", "batch", "lr", "tokens", "optimizer", "momentum", "proximal")
RECIPE = (*NAMED, *TRAINING)  # from the app's configuration, or from a message's
ROUND, SEED, EXAMPLES = "server-round", "seed", "num-examples"
SAID = "this device could not do it; its own log says why"  # no path, no text leaves a device


def client_app() -> ClientApp:
    """The seat: `train` and `evaluate` as messages of Flower's strategies ask for them."""
    app = ClientApp()
    app.train()(train)
    app.evaluate()(evaluate)
    return app


def train(message: Message, context: Context) -> Message:
    """Train what came on this device's texts."""

    def work(seat: Seat, told: Mapping[str, Value]) -> RecordDict:
        key, came = _arrays(message)
        seed = int(told.get(SEED, 0)) ^ context.node_id >> 1  # below 2^63
        turn = seat.train(came, int(told.get(ROUND, 1)), seed)
        arrays = {name: Array(np.ascontiguousarray(one)) for name, one in turn.adapter.items()}
        metrics = MetricRecord({EXAMPLES: turn.num_examples, "train_loss": turn.loss})
        return RecordDict({key: ArrayRecord(arrays), "metrics": metrics})

    return _reply(message, context, work)


def evaluate(message: Message, context: Context) -> Message:
    """Score what came on this device's test texts."""

    def work(seat: Seat, _told: Mapping[str, Value]) -> RecordDict:
        score = seat.evaluate(_arrays(message)[1])
        found = {"eval_loss": score.loss, "accuracy": score.accuracy}
        return RecordDict({"metrics": MetricRecord({EXAMPLES: score.num_examples, **found})})

    return _reply(message, context, work)


def settings(
    told: Mapping[str, Value], node: Mapping[str, Value]
) -> tuple[SeatSettings, SeatRecipe]:
    """What the app and the node say, made into ours.

    Args:
        told: Of the app; names that are not in `RECIPE` are the app's own affair.
        node: Of the SuperNode.

    Raises:
        WrongInput: No texts are named, or a value is none of ours.
    """
    demand(
        "texts" in node,
        '--node-config names no texts; texts="FOLDER" is expected, with labelled.csv in it',
    )
    own = SeatSettings(
        str(node["texts"]), str(node.get("memory-budget", AUTO)), str(node.get("engine", AUTO))
    )
    named = {name: str(told[name]) for name in NAMED if name in told}
    for name in TRAINING:
        usual = getattr(Training, name)
        is_right = isinstance(told.get(name, usual), (type(usual), int))
        demand(is_right, f"{name} = {told.get(name)!r}: {type(usual).__name__} is expected")
    training = training_of(**{name: told[name] for name in TRAINING if name in told})
    return own, SeatRecipe(**named, training=training)


def _reply(
    message: Message, context: Context, work: Callable[[Seat, Mapping[str, Value]], RecordDict]
) -> Message:
    """Do some work in the seat; a device that cannot says so without a word of its own."""
    told = {**context.run_config, **_config(message)}
    try:
        with closing(Seat(*settings(told, context.node_config))) as seat:
            return Message(work(seat, told), reply_to=message)
    except Exception as error:  # Flower would send its words, and so a path, to the server
        log.error("smidgen: %s", str(error) or type(error).__name__)
        return Message(Error(2, SAID), reply_to=message)  # Flower's code for a client that raised


def _arrays(message: Message) -> tuple[str, dict[str, np.ndarray]]:
    """The arrays that came, and the name of their record."""
    records = list(message.content.array_records.items())
    demand(len(records) == 1, f"{len(records)} records of arrays came; one is expected")
    key, record = records[0]
    return key, {name: array.numpy() for name, array in record.items()}


def _config(message: Message) -> dict[str, Value]:
    """What the server says with this message; lists are no settings of ours."""
    records: list[ConfigRecord] = list(message.content.config_records.values())
    pairs = [pair for record in records for pair in record.items()]
    return {name: value for name, value in pairs if isinstance(value, str | int | float | bool)}
