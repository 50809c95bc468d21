"""A story: the real coordinator and real clients meet faults that a seed has drawn.

told = play(shape_of(7), [])              # undisturbed
told = play(shape_of(7), drawn(7, told))  # the same run with faults
assert not told.wrong
"""

import asyncio
import atexit
import logging
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from smidgen.coordinator.config import RunConfig
from smidgen.coordinator.rounds.events import (
    Answered,
    Event,
    StepClosed,
    StepOpened,
    encode_event,
)
from smidgen.coordinator.rounds.learning.unmasking import step_in
from smidgen.coordinator.rounds.machine import kept_of
from smidgen.coordinator.rounds.orders import OrderKind
from smidgen.coordinator.rounds.state import heard_so_far
from smidgen.coordinator.serving.ledger import Live
from smidgen.coordinator.serving.service import Service
from smidgen.coordinator.storage.blobs import BlobDamaged
from smidgen.coordinator.storage.database import StoreError
from smidgen.coordinator.storage.devices import revoke
from smidgen.coordinator.storage.runs import add_order, create_run, open_orders
from smidgen.coordinator.storage.store import Store
from smidgen.coordinator.upkeep.forgetting import ask_to_forget
from smidgen.edge_client.bases.base import Base, open_base
from smidgen.edge_client.client.settings import Settings
from smidgen.edge_client.client.state import ClientState, Identity
from smidgen.edge_client.errors import Failed
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.updates.masks import public_key
from smidgen.edge_client.updates.privacy import Privacy
from smidgen.edge_client.updates.settings import Updates
from smidgen.edge_client.wire.fleet import device_id_of
from smidgen.edge_client.wire.tensors import decode_adapter, digest_header
from smidgen.edge_client.wire.training import Training
from tests.coordinator.devices import key_of
from tests.coordinator.secure.draws import Sent, reused
from tests.stories import clock, disk, engine, machines
from tests.stories.faults import OF_OP, OF_REQUEST, OF_RUN, Fault
from tests.stories.lies import LIAR, LIES
from tests.stories.machines import Device, Host
from tests.stories.network import OTHERS
from tests.tiny import write_tiny_base

HORIZON_S = 15_000.0  # of virtual time: who is not home by then never will be
LOOK_S = 10.0  # of it, between two looks whether a story is over; each costs real time
MOST = 10.0  # of the adapter's numbers; the engine's stand-in gives below 1
ORDERS: Mapping[str, OrderKind] = {
    "paused": "pause",
    "resumed": "resume",
    "extended": "extend",
    "rolled back": "rollback",
}
SIZE = 256  # numbers of the adapter
CANARY = "grandma"  # in each device's texts, and nowhere else
LABELS = ("weather", "family")
TASK = Task("hub", LABELS, ("{text} . this is about [MASK] .",), {one: one for one in LABELS})
ROWS = (("rain at nine", "weather"), ("dinner with grandma", "family"), ("storm today", "weather"))
STEPS: Mapping[
    str, dict[str, Any]
] = {  # update steps that keep something on the device between rounds
    "plain": {},
    "scaffold": {"training": {"scaffold": True}},
    "coded": {"updates": Updates(up="int8", down="int8")},
    "secure": {"updates": Updates(secure_aggregation="int16")},
    "secure noise": {
        "updates": Updates(secure_aggregation="int16"),
        "privacy": Privacy(epsilon=8.0, clip=0.05),
    },
    "ridge": {"adapter": "lora:2+ridge", "updates": Updates(up="int8", down="int8")},
    "secure ridge": {
        "adapter": "lora:2+ridge",
        "updates": Updates(secure_aggregation="int16"),
    },
}


DRAWN = ("plain", "scaffold", "coded")  # by seeds, which tests name: others are told by --steps


@dataclass(frozen=True)
class Shape:
    """What a story is about, beside its faults.

    Attributes:
        seed: Of all chances.
        devices: How many.
        rounds: How many.
        steps: One of `STEPS`.
        step_s: Virtual seconds of an optimizer step.
        trouble: `""`, `orders` of an operator, or a device that `lies`, beside the honest ones.
    """

    seed: int
    devices: int
    rounds: int
    steps: str
    step_s: float
    trouble: str = ""

    @property
    def names(self) -> list[str]:
        honest = [f"d{number}" for number in range(self.devices)]
        return [*honest, LIAR] if self.trouble == "lies" else honest

    @property
    def has_noise(self) -> bool:
        """Whether devices draw noise by what they keep to themselves and by when they are asked."""
        return "noise" in self.steps


@dataclass
class Told:
    """What came of a story.

    Attributes:
        adapter: SHA-256 of the run's adapter in the end.
        wrong: What must never be, a line each.
        lacks: What may be where the disk was damaged and somebody says so, a line each.
        is_said: Whether somebody says so.
        met: Faults that happened, by kind.
        ops: Operations by machine.
        requests: Requests by device.
        virtual_s: How long it took.
        files: How many there are in the store and the state folders in the end.
    """

    adapter: str = ""
    wrong: list[str] = field(default_factory=list)
    lacks: list[str] = field(default_factory=list)
    is_said: bool = False
    met: Counter[str] = field(default_factory=Counter)
    ops: dict[str, int] = field(default_factory=dict)
    requests: dict[str, int] = field(default_factory=dict)
    virtual_s: float = 0.0
    files: int = 0


def shape_of(seed: int, devices: int = 3, rounds: int = 3, steps: str | None = None) -> Shape:
    draw = random.Random(f"shape {seed}")
    drawn_steps, step_s = draw.choice(DRAWN), draw.choice([0.1, 5.0, 40.0])
    steps = steps or drawn_steps
    trouble = draw.choice(["", "", "", "orders", "lies"])
    trouble = "" if "secure" in steps else trouble  # three devices are the fewest of a sum
    return Shape(seed, devices, rounds, "plain" if trouble == "lies" else steps, step_s, trouble)


def drawn(shape: Shape, calm: Told) -> list[Fault]:
    """Faults of a seed, at places that the undisturbed run comes by."""
    draw = random.Random(f"faults {shape.seed}")
    found = {}
    for _ in range(draw.randint(1, 12)):
        who = draw.choice(["coordinator", *calm.requests])
        is_of_op = who == "coordinator" or draw.random() < 0.3
        one = _of_op(who, calm, draw) if is_of_op else _of_network(who, calm, draw)
        found[one.who, one.at, is_of_op] = one
    if shape.trouble:
        some = [_of_run(shape, calm, draw) for _ in range(draw.randint(1, 4))]
        found |= {(one.who, one.at, one.kind in OF_OP): one for one in some}
    return list(found.values())


def _of_run(shape: Shape, calm: Told, draw: random.Random) -> Fault:
    if shape.trouble == "lies":
        return Fault(draw.choice(LIES), LIAR, draw.randint(1, 2 * shape.rounds + 1))
    kind, seconds = draw.choice(OF_RUN), draw.choice([1.0, 60.0, 600.0])
    is_of_device = kind in ("revoked", "forgotten")
    most = shape.devices - 2 if is_of_device else shape.rounds  # one is left
    size = draw.randint(0, most) + (shape.rounds if kind == "extended" else 0)
    return Fault(kind, "operator", draw.randint(1, round(calm.virtual_s)), seconds, float(size))


def _of_op(who: str, calm: Told, draw: random.Random) -> Fault:
    kind = draw.choice(("kill", *OF_OP))
    seconds = draw.choice([0.1, 5.0, 90.0, 400.0])
    if kind == "clock":
        seconds = draw.choice([-clock.START_S, -7200.0, 60.0, 86_400.0, 79 * 365.25 * 86_400])
    return Fault(kind, who, draw.randint(1, calm.ops[who]), seconds)


def _of_network(who: str, calm: Told, draw: random.Random) -> Fault:
    kind, after_s = draw.choice(OF_REQUEST), draw.choice([0.0, 1.0, 20.0, 70.0])
    sizes = {
        "cut request": draw.random(),
        "cut answer": float(draw.randint(0, draw.choice([400, 6000]))),
        "between": float(draw.choice(list(OTHERS))),
    }
    return Fault(kind, who, draw.randint(1, calm.requests[who] + 3), after_s, sizes.get(kind, 0.0))


# Where stories take place


@cache
def ground() -> Path:
    """A folder of this process, in memory where there is one."""
    memory = Path("/dev/shm")
    place = memory if memory.is_dir() else None
    folder = Path(tempfile.mkdtemp(prefix="smidgen-stories-", dir=place))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def base() -> Base:
    return open_base(str(write_tiny_base(ground() / "base")))


@cache
def texts(number: int) -> Path:
    folder = ground() / "texts" / str(number)
    folder.mkdir(parents=True)
    for part in ("labelled", "test"):
        rows = [ROWS[(place + number) % 3] for place in range(3 + number % 2)]
        lines = "".join(f"{text},{label}\n" for text, label in rows)
        (folder / f"{part}.csv").write_text(f"text,label\n{lines}")
    return folder


@cache
def prepared(devices: int, rounds: int, steps: str, trouble: str) -> tuple[Path, str, str]:
    """A store with its run, not served yet; the run's id, and the token."""
    folder = ground() / "stores" / f"{devices}-{rounds}-{steps}-{trouble}"
    more = {"adapter": "lora:2", **STEPS[steps]}
    training = Training(epochs=2, batch=2, lr=0.01, tokens=32, optimizer="sgd")
    training = replace(training, **more.pop("training", {}))
    config = RunConfig(
        "mail",
        TASK,
        base=str(base().folder),
        rounds=rounds,
        min_clients=devices,
        min_updates=1 if trouble else devices,
        deadline_s=600.0 if trouble else 5_000.0,
        adaptive_deadline=False,
        training=training,
        **more,
    )
    with closing(Store(folder)) as store:
        created = create_run(store, config, clock.START_S)
    return folder, created.run_id, created.token


class Lines(logging.Handler):
    """All that is logged in a story."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.said: list[str] = []
        self.raised: list[str] = []  # what was logged with a traceback

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not _is_death(error):
            self.raised.append(f"{record.getMessage()}: {error!r}")


def _is_death(error: BaseException) -> bool:
    """Whether it is how a process died, or a group of nothing else."""
    inner = getattr(error, "exceptions", None)
    deaths = machines.Killed, asyncio.CancelledError
    return isinstance(error, deaths) or (inner is not None and all(map(_is_death, inner)))


class Story:
    """One story, while it is told."""

    def __init__(self, shape: Shape, faults: Sequence[Fault]) -> None:
        self.shape, self.told, self._faults = shape, Told(), faults
        self._lines = Lines()
        self.loop = clock.begin(shape.seed)
        self.folder = Path(tempfile.mkdtemp(dir=ground()))
        template, self.run_id, self.token = prepared(
            *(shape.devices, shape.rounds, shape.steps, shape.trouble)
        )
        clock.now.is_virtual = False
        shutil.copytree(template, self.folder / "store")
        self.devices = list[Device]()
        self.host = Host(self._look_at_receipts, *self._known("coordinator", "store"))
        self.devices = [self._device(*one) for one in enumerate(shape.names)]
        clock.now.is_virtual = True
        self._at_work = {device.name for device in self.devices} - {LIAR}

    def _known(self, name: str, folder: str) -> tuple[object, ...]:
        own = [fault for fault in self._faults if fault.who == name]
        return name, self.folder / folder, self.loop, own, self.told.met

    def _device(self, number: int, name: str) -> Device:
        settings = Settings(
            url="http://127.0.0.1:8700",
            token=self.token,
            name=name,
            data=texts(number),
            base=base(),
            engine="onnx",
            budget_bytes=1 << 40,
            cache_bytes=0,
            wait_s=50.0,
            is_until_finished=True,
        )
        known = self._known(name, name)
        device = Device(settings, self.host, lambda: self._at_work.discard(name), *known)
        ClientState(device.folder).keep_identity(Identity("", key_of(name)))
        return device

    def _is_over(self) -> bool:
        """Whether nobody works any more, nor waits for what this run still owes."""
        service = self.host.service
        if service is None:
            return False
        is_finished = service.run(self.run_id).state.is_finished
        late = {one.name for one in self.devices if is_finished and not one.has_joined}
        return not self._at_work - late

    def tell(self) -> Told:
        root = logging.getLogger()
        root.setLevel(logging.INFO)
        root.addHandler(self._lines)
        disk.hooked(self.host)
        clock.now.sleep = self._sleep
        clock.now.wall_s = self._skew_s
        self.loop.set_exception_handler(self._failed)
        engine.step_s[0] = self.shape.step_s
        try:
            self.loop.run_until_complete(self._run())
        except clock.Stuck:
            self.told.wrong.append("everybody waits, and nothing will ever come")
        finally:
            root.removeHandler(self._lines)
            self._clear()
        return self.told

    async def _run(self) -> None:
        above = asyncio.current_task()
        assert above is not None
        serving = asyncio.create_task(self.host.run(above))
        for device in self.devices:
            device.start()
        for order in (one for one in self._faults if one.who == "operator"):
            self.loop.call_later(order.at, self._order, order, order.kind)
        try:
            began_s = self.loop.time()
            while not self._is_over():
                await asyncio.sleep(LOOK_S if self._faults else 1.0)
                if self.loop.time() - began_s > HORIZON_S:
                    self.told.lacks.append("it does not come to an end")
                    break
                if self.host.lives > machines.MOST_LIVES:
                    break
                if serving.done():
                    serving.result()
            self.told.virtual_s = self.loop.time() - began_s
            await asyncio.sleep(3 * machines.TICK_S)  # what is no longer needed goes
            self._look()
        finally:
            for device in self.devices:
                device.end()
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    def _failed(self, _: object, context: dict[str, object]) -> None:
        error = context.get("exception")
        if not isinstance(error, machines.Killed):
            self.told.wrong.append(f"{context.get('message')}: {error!r}")

    def _order(self, order: Fault, kind: str) -> None:
        """An operator asks for something, and again where the coordinator is not there."""
        service, now_s = self.host.service, time.time()
        try:
            if service is None:
                raise OSError
            live, device_id = service.run(self.run_id), device_id_of(key_of(f"d{order.size:.0f}"))
            if live.state.is_finished:
                return
            is_of_device = kind in ("revoked", "forgotten")
            if is_of_device and not (live.state.round_index or live.state.forgets):
                raise OSError  # without it the run would never begin
            if kind == "revoked":
                revoke(service.store.database, device_id, now_s)
            elif kind == "forgotten":
                (device,) = (one for one in service.fleet.all() if one.device_id == device_id)
                ask_to_forget(service.store, device, now_s)
            else:
                rounds = None if kind in ("paused", "resumed") else int(order.size)
                add_order(service.store, live.run, ORDERS[kind], rounds, now_s)
            self.told.met[kind] += 1
        except (StoreError, ValueError):  # it has no effect any more
            return
        except (OSError, SQLAlchemyError, Failed, machines.Killed):  # it died while it was asked
            self.loop.call_later(30.0, self._order, order, kind)
            return
        if kind == "paused":
            self.loop.call_later(order.seconds, self._order, order, "resumed")

    def _sleep(self, seconds: float) -> None:
        device = clock.of_greenlet("process")
        if device is None:  # the coordinator's code blocks its process, and so everybody's time
            clock.now.monotonic_s += seconds
        else:
            device.sleep(seconds)

    def _skew_s(self) -> float:
        machine = clock.of_greenlet("process") or self.host
        return float(machine.skew_s)

    def _clear(self) -> None:
        clock.end()
        disk.hooked(None)
        self.loop.close()
        shutil.rmtree(self.folder)

    # What must hold

    def _look(self) -> None:
        clock.now.is_virtual = False
        told, service = self.told, self.host.service
        told.ops = {one.name: one.ops for one in (self.host, *self.devices)}
        told.requests = {one.name: one.requests for one in self.devices}
        if service is None:
            told.lacks.append(f"the coordinator does not serve: {self.host.said}")
        else:
            live = service.run(self.run_id)
            told.adapter = kept_of(live.config, live.state)[1]
            self._look_at_adapter(service.store)
            if not live.state.is_finished:
                told.lacks.append("the run is not finished")
            self._look_at_journal(service.store.events(self.run_id))
            self._look_at_receipts(service)
            self._look_at_draws(live, service.store.events(self.run_id))
        for device in self.devices:
            self._look_at_device(device)
        if not self._faults and not all(device.receipts for device in self.devices):
            told.wrong.append("not every device has a receipt")
        self._look_at_files(is_served=service is not None)
        said = [
            *self._lines.said,
            *self._lines.raised,
            self.host.said,
            *(device.said for device in self.devices),
        ]
        words = ["damaged", "verify"] if told.met["flip"] else []
        died, lacked = (
            any(told.met[kind] for kind in kinds)
            for kinds in (("kill", "power", "flip"), ("full", "read-only", "flip"))
        )
        if died and lacked:  # what was held in memory alone
            words.append("is lost; it begins anew")
        if lacked:  # of a secure aggregation, which needs each device's answer
            words += ["takes no note of what is said, so nothing is", "cannot be joined: [Errno"]
        told.is_said = any(word in line for line in said for word in words)
        if not any(told.met[kind] for kind in ("flip", "full", "read-only")):
            told.wrong += self._lines.raised
        clock.now.is_virtual = True

    def _look_at_adapter(self, store: Store) -> None:
        try:
            adapter = decode_adapter(store.read(self.told.adapter))
        except BlobDamaged as error:
            self.told.lacks.append(str(error))
            return
        if any(abs(tensor).max() > MOST for tensor in adapter.values()):
            self.told.wrong.append(f"the adapter has a number above {MOST}")

    def _look_at_draws(self, live: Live, events: Sequence[Event]) -> None:
        """No mask and no noise hides two updates, and what is spent is as much as was released."""
        step, account = step_in(live.config.update_steps), live.config.account
        rings = {name: ring for device in self.devices for name, ring in device.rings.items()}
        asked = {
            work: rings.get(event.handed(""))
            for event in events
            if isinstance(event, StepOpened) and event.kind == "train" and event.masks
            for work, _ in event.members
        }
        sent = [
            Sent(device.name, ring, secret, update)
            for device in self.devices
            for secret, update in device.masked
            if (ring := asked.get(update.work_id)) and public_key(secret) in ring.keys
        ]
        if step is not None and sent:
            self.told.wrong += reused(sent, step, SIZE)
        if step is not None and not self._faults and len(sent) < self.shape.devices:
            self.told.wrong.append(f"{len(sent)} masked updates were seen")
        if account is not None and not self.told.lacks:
            spent = account.spent(heard_so_far(live.state))
            if (spent.participations, spent.epsilon) != (self.shape.rounds, spent.budget):
                self.told.lacks.append(f"privacy: {spent}")

    def _look_at_journal(self, events: Sequence[Event]) -> None:
        done = [e.work_id for e in events if isinstance(e, Answered) and e.update_sha256]
        twice = [work for work, n in Counter(done).items() if n > 1]
        self.told.wrong += [f"the update of work {work[:8]} counts twice" for work in twice]
        asked = [e for e in events if isinstance(e, StepOpened | StepClosed)]
        # A round that lacks updates is tried again: those of its step that never closed are over.
        steps = [one for one, after in pairwise(asked) if isinstance(after, StepClosed)]
        works = [work for e in steps if isinstance(e, StepOpened) for work, _ in e.members]
        counted = sum(work in done for work in works)
        if not self.shape.trouble and counted != self.shape.devices * self.shape.rounds:
            self.told.lacks.append(f"{counted} updates count in {len(steps)} steps")

    def _look_at_receipts(self, service: Service) -> None:
        """At each start of the coordinator and in the end: nothing acknowledged is lost.

        But where a device was forgotten: then nothing that was asked of it stays.
        """
        events = service.store.events(self.run_id)
        for device_id in service.fleet.forgotten():
            told = [event for event in map(encode_event, events) if device_id in event]
            if told and not open_orders(service.store):
                self.told.wrong.append(f"the journal tells of {device_id}: {told[0][:80]}")
        if service.run(self.run_id).state.forgets:
            return
        done = [e for e in events if isinstance(e, Answered) and e.update_sha256]
        journal = {one.work_id: digest_header(str(one.update_sha256)).lower() for one in done}
        for device in self.devices:
            for work_id, digest in device.receipts.items():
                if journal.get(work_id) != digest:
                    lost = f"{device.name}: the update of work {work_id[:8]} was acknowledged"
                    self.told.wrong.append(f"{lost} and is not in the journal")

    def _look_at_device(self, device: Device) -> None:
        lacked = any(self.told.met[kind] for kind in ("full", "read-only", "flip"))
        if device.has_missed_it and not (lacked or self.shape.trouble == "orders"):
            self.told.wrong.append(f"{device.name}: {device.said}")
        is_told = device.is_revoked or device.has_missed_it
        if device.name == LIAR or is_told or not device.has_joined:
            return
        adapter = device.folder / "adapter" / "adapter_model.safetensors"
        if device.summary is None:
            self.told.lacks.append(f"{device.name} is not home; it said last: {device.said}")
        elif not adapter.is_file():
            self.told.lacks.append(f"{device.name} ended without an adapter")
        left = [path.name for path in (device.folder / "outbox").iterdir()]
        if left and not self.told.met["read-only"]:  # it keeps what was to be deleted
            self.told.lacks.append(f"{device.name} has kept {len(left)} files in its outbox")

    def _look_at_files(self, is_served: bool) -> None:
        """No folder grows, and neither texts nor keys nor tokens lie where they do not belong."""
        keys = {device.name: key_of(device.name) for device in self.devices}
        down = {device.name for device in self.devices if device.is_down}  # nobody sweeps there,
        down |= set() if is_served else {self.host.folder.name}  # nor in a store that is refused
        logged = "\n".join(self._lines.said).encode()
        for what in (CANARY, self.token, *keys.values()):
            if what.encode() in logged:
                self.told.wrong.append(f"the log says {what[:9]}...")
        for path in self.folder.rglob("*"):
            if not path.is_file():
                continue
            self.told.files += 1
            body, of = path.read_bytes(), path.relative_to(self.folder).parts[0]
            mine = [key for name, key in keys.items() if name != of.removesuffix(".left")]  # dying
            found = [what for what in (CANARY, self.token, *mine) if what.encode() in body]
            self.told.wrong += [f"{path.name} of {of} holds {what[:9]}..." for what in found]
            is_half = path.name.endswith(".part") or path.parent.name == "steps"
            if is_half and of not in down and not self.told.met["read-only"]:
                self.told.wrong.append(f"{of} has kept {path.name}")


def play(shape: Shape, faults: Sequence[Fault]) -> Told:
    return Story(shape, faults).tell()


@cache
def _calm(devices: int, rounds: int, steps: str, trouble: str) -> Told:
    told = play(Shape(0, devices, rounds, steps, 1.0, trouble), [])
    assert not told.wrong, told.wrong
    return told


def calm(shape: Shape) -> Told:
    """The undisturbed run; its bytes hang on neither the seed of chances nor on speed."""
    return _calm(shape.devices, shape.rounds, shape.steps, shape.trouble)


def judged(shape: Shape, faults: Sequence[Fault]) -> Told:
    """Play a story, and compare what came of it with the undisturbed run."""
    told = play(shape, faults)
    is_exact = not (told.lacks or shape.trouble or shape.has_noise)
    if is_exact and told.adapter != calm(shape).adapter:
        told.lacks.append(f"adapter {told.adapter[:12]}, undisturbed {calm(shape).adapter[:12]}")
    # A device that parted from a coordinator that was away keeps terms and states of its steps.
    if not (told.lacks or shape.trouble) and told.files > calm(shape).files + 4 * shape.devices:
        told.lacks.append(f"{told.files} files are left, undisturbed {calm(shape).files}")
    if not told.is_said:
        told.wrong += told.lacks
    return told
