"""Coded steps over a real coordinator and in one process: the same adapter, the same bytes."""

from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("fastapi")

from smidgen.coordinator.storage.store import Store
from smidgen.edge_client.bases.base import Base, open_base
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.updates.settings import Updates
from smidgen.edge_client.wire.tensors import sha256
from smidgen.edge_client.wire.training import Training
from smidgen.simulation.experiments.federation.devices import Round, schedule_of
from smidgen.simulation.experiments.federation.resume import recalled
from smidgen.simulation.experiments.federation.run import federate
from smidgen.simulation.experiments.stage import Stage
from smidgen.simulation.experiments.virtual.devices import InProcess
from smidgen.simulation.population.deal import Deal, write_clients
from tests.breadth import SLOW
from tests.coordinator.page.conftest import Served, serving
from tests.edge_client.engine.engines import KINDS
from tests.simulation.experiments.experiments import staged
from tests.simulation.experiments.test_same_as_http import (
    GUARDED,
    LABELLING,
    SCAFFOLD,
    as_devices,
    config_of,
    take_part,
)


@dataclass
class Ended:
    """A run over HTTP.

    Attributes:
        adapter: SHA-256 of the last adapter.
        secret: What it drew by.
        handed: Bytes that `GET /v1/adapters/{name}` has sent, by the coordinator's own counter.
        steps: Bytes of steps that are kept at its end.
    """

    adapter: str
    secret: str
    handed: int
    steps: int


def sent(served: Served) -> int:
    """Bytes of adapters and steps, as Prometheus is told."""
    told = served.http.get("/metrics", headers=served.bearer(served.viewer)).text
    [line] = [one for one in told.splitlines() if "sent_bytes_total" in one and "adapters" in one]
    return round(float(line.rpartition(" ")[2]))


def over_http(on: Stage, folder: Path) -> Ended:
    config = config_of(on)
    write_clients(folder / "data", on.dataset.train, on.dataset.test, on.population, config.task)
    with closing(Store(folder / "store")) as store, serving(store, config) as served:
        take_part(on, served.url, served.token, folder)
        run = served.service.run(served.run_id)
        assert run.state.is_finished
        steps = sum(
            store.blobs.path(one.step_sha256).stat().st_size for one in run.state.kept.steps
        )
        return Ended(run.state.adapter_sha256, run.run.secret, sent(served), steps)


def in_process(on: Stage, devices: InProcess, secret: str, seen: list[Round]) -> None:
    names = [client.name for client in on.population]
    known = schedule_of(on.experiment, len(names)), on.template(), devices.start(), names
    texts = {client.name: len(client.labelled) for client in on.population}
    told = texts if on.experiment.updates.secured else None
    federate(*known, devices, seen.append, secret=secret, texts=told)
    halfway = seen[2].standing
    again = federate(*known[:2], halfway, names, devices, secret=secret, texts=told)
    assert again.adapter == seen[-1].standing.adapter and again.memory == seen[-1].standing.memory


def asked(base: Base, task: Task, down: str, **said: object) -> Stage:
    usual = {"engine": KINDS[0], "dtype": "auto", "rounds": 4, "updates": Updates(down=down)}
    return as_devices(staged(base, task, **(usual | GUARDED | said)))


SHORT = Training(epochs=1, batch=4, lr=0.01, tokens=32)
BOTH_WAYS = Updates("int8", "int4")
CASES = [
    pytest.param("int8", 3, 1),
    pytest.param("int4", 2, 1, marks=SLOW),
    pytest.param("topk:0.05", 2, 0, marks=SLOW),
    pytest.param("float32", 2, 0, marks=SLOW),
]


@pytest.mark.slow
@pytest.mark.parametrize(("down", "cohort", "evaluate_every"), CASES)
def test_coded_steps_are_the_same_over_http(
    tiny_base: Base,
    hub_task: Task,
    tmp_path: Path,
    down: str,
    cohort: int,
    evaluate_every: int,
) -> None:
    """Whether everybody evaluates each round's adapter, or is asked once in a while alone."""
    said = {"cohort": cohort, "evaluate_every": evaluate_every, "adapter": "lora:16"}
    on, seen = asked(tiny_base, hub_task, down, **said), list[Round]()
    with closing(InProcess(on)) as devices:  # first: it says how many threads all engines have
        ended = over_http(on, tmp_path)
        in_process(on, devices, ended.secret, seen)
        first = len(devices.start().adapter)
    last = seen[-1].standing
    assert sha256(last.adapter) == ended.adapter
    if down == "float32":
        assert all(one.bytes_down == cohort * first for one in seen[1:]) and not ended.steps
        return
    held = recalled(last.memory).carried.fetched.held
    assert len(held) == 3 and {one.sha256 for one in held.values()} == {ended.adapter}
    to_last = sum(one.step_bytes for one in held.values())
    trained = sum(closed.bytes_down for closed in seen[2:])
    fetched = trained * 3 // cohort if evaluate_every else trained  # by whom, but for the ends
    print(f"{down}: {ended.handed} bytes of adapters and steps went over HTTP")
    assert ended.handed == 3 * first + fetched + to_last
    assert seen[1].bytes_down == cohort * first
    assert all(closed.bytes_down < 0.6 * cohort * first for closed in seen[2:])
    assert any(one.standing.adapter != seen[1].standing.adapter for one in seen[2:])


@pytest.mark.slow
def test_control_variates_come_whole_beside_coded_steps(
    tiny_base: Base, hub_task: Task, tmp_path: Path
) -> None:
    said = {"cohort": 3, "adapter": "lora:16", "training": SCAFFOLD, "updates": BOTH_WAYS}
    on, seen = asked(tiny_base, hub_task, "int4", **said), list[Round]()
    with closing(InProcess(on)) as devices:
        ended = over_http(on, tmp_path)
        in_process(on, devices, ended.secret, seen)
        first = len(devices.start().adapter)
    last = seen[-1].standing
    assert sha256(last.adapter) == ended.adapter
    held = recalled(last.memory).carried.fetched.held
    to_last = sum(one.step_bytes for one in held.values())
    assert ended.handed == sum(closed.bytes_down for closed in seen) + to_last
    assert all(3 * first < closed.bytes_down < 4.5 * first for closed in seen[2:])


@pytest.mark.slow
def test_devices_that_label_are_led_by_steps_too(
    tiny_base: Base, hub_task: Task, tmp_path: Path
) -> None:
    deal = Deal(clients=3, labelled=8, labelled_clients=1)
    said = {"deal": deal, "labelling": LABELLING, "adapter": "lora:16"}
    on, seen = asked(tiny_base, hub_task, "int8", **said), list[Round]()
    on = replace(on, gate=on.dataset.test)
    names, texts = [c.name for c in on.population], {c.name: len(c.labelled) for c in on.population}
    schedule = schedule_of(on.experiment, len(names), hub_task.labels)
    with closing(InProcess(on)) as devices:
        ended = over_http(on, tmp_path)
        known = schedule, on.template(), devices.start(), names, devices, seen.append
        last = federate(*known, texts=texts, secret=ended.secret)
        first = len(devices.start().adapter)
    assert sha256(last.adapter) == ended.adapter
    fetched = {closed.round_index: closed.bytes_down for closed in seen}
    assert all(fetched[index] < 0.5 * len(seen[index].cohort) * first for index in (2, 3, 4))


@pytest.mark.slow
@pytest.mark.parametrize(("down", "share"), [("int8", 0.27), ("int4", 0.15)])
def test_later_rounds_come_down_in_a_fraction_of_float32s_bytes(
    hub_task: Task, tmp_path: Path, down: str, share: float
) -> None:
    """The embedded base with LoRA of rank 8, by the coordinator's own counter of bytes sent."""
    found: dict[str, Ended] = {}
    rounds: dict[str, list[Round]] = {}
    for name in ("float32", down):
        said = {"adapter": "lora:8", "cohort": 3, "rounds": 3, "training": SHORT}
        on = asked(open_base("embedded"), hub_task, name, **said)
        with closing(InProcess(on)) as devices:
            found[name] = over_http(on, tmp_path / name)
            in_process(on, devices, found[name].secret, rounds.setdefault(name, []))
            first = len(devices.start().adapter)
        assert sha256(rounds[name][-1].standing.adapter) == found[name].adapter
    later = {name: (one.handed - 3 * first) for name, one in found.items()}
    counted = {name: sum(one.bytes_down for one in closed[2:]) for name, closed in rounds.items()}
    told = later[down] / later["float32"], counted[down] / counted["float32"]
    print(f"{down} down: {told[0]:.4f} of float32's bytes over HTTP, {told[1]:.4f} counted here")
    assert max(told) <= share and told[0] == pytest.approx(told[1], rel=1e-3)


FORMS = [
    pytest.param("lora:4+rolora", Updates("int4", "int4")),
    pytest.param("lora:4+core", Updates("int8", "int8"), marks=SLOW),
    pytest.param("lora:4+ffa", Updates("int4:128", "int4:128"), marks=SLOW),
    pytest.param("lora:4+rolora", Updates(), marks=SLOW),
    pytest.param("lora:4+ridge", Updates("int8", "int8")),
    pytest.param("lora:4+ridge", Updates(secure_aggregation="int8"), marks=SLOW),
]


@pytest.mark.slow
@pytest.mark.parametrize(("adapter", "updates"), FORMS)
def test_adapters_with_exact_means_are_the_same_over_http(
    tiny_base: Base, hub_task: Task, tmp_path: Path, adapter: str, updates: Updates
) -> None:
    """And so they are from any round on; what is left out of A waits for A's next turn."""
    said = {"adapter": adapter, "updates": updates, "evaluate_every": 0}
    said |= {"cohort": 3} if updates.secured else {}
    on, seen = asked(tiny_base, hub_task, "float32", **said), list[Round]()
    with closing(InProcess(on)) as devices:
        ended = over_http(on, tmp_path)
        in_process(on, devices, ended.secret, seen)
    assert sha256(seen[-1].standing.adapter) == ended.adapter


def test_control_variates_go_with_turns(tiny_base: Base, hub_task: Task) -> None:
    """What rests keeps its variate on either side, and a run goes on from any round."""
    training = Training(epochs=1, batch=4, lr=0.05, tokens=32, optimizer="sgd", scaffold=True)
    said = {"adapter": "lora:4+rolora", "updates": Updates("int8"), "training": training}
    on, seen = asked(tiny_base, hub_task, "float32", **said), list[Round]()
    with closing(InProcess(on)) as devices:
        in_process(on, devices, "secret", seen)
    assert len({one.standing.adapter for one in seen}) == len(seen)
