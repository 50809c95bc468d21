"""A device whose owner goes on labelling while a run goes on, with a real coordinator."""

import threading
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from smidgen.coordinator.config import RunConfig
from smidgen.coordinator.storage.reports import rows
from smidgen.coordinator.storage.store import Store
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.client.loop import Client
from smidgen.edge_client.client.settings import Settings
from smidgen.edge_client.client.state import ClientState
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.training import Training
from tests.coordinator.conftest import serving
from tests.coordinator.devices import wait_for


def test_texts_added_in_one_round_are_trained_on_in_the_next(
    tiny_base: Base, hub_task: Task, tmp_path: Path
) -> None:
    """The other device is driven by hand: no round ends before it has answered."""
    file = tmp_path / "labelled.csv"
    file.write_text("text,label\nthe front door opened,security\nstorm at nine,weather\n")
    training = Training(epochs=1, batch=4, tokens=32)
    config = RunConfig(
        *("mail", hub_task, str(tiny_base.folder)), adapter="lora:2", training=training, rounds=2
    )
    with closing(Store(tmp_path / "store")) as store, serving(store, config) as live:
        settings = Settings(
            *(str(live.http.base_url), live.token, "a", file, tiny_base, "onnx"),
            wait_s=1.0,
            is_until_finished=True,
        )
        client = Client(settings, ClientState(tmp_path / "state"))
        thread = threading.Thread(target=client.run)
        thread.start()

        def answered() -> list[int]:
            return [
                row["num_examples"]
                for row in rows(store, live.run_id)
                if (row["kind"], row["device"]) == ("train", "a")
            ]

        (other,) = live.join("b")
        while (work := other.work()).kind != "train":
            other.do(work)
        wait_for(lambda: answered() == [2])
        with file.open("a") as adding:
            adding.write("dinner with grandma,family\n")
        other.do(work)
        other.until_finished()
        thread.join(90)
        assert answered() == [2, 3] and not thread.is_alive()
