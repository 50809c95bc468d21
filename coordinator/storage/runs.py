"""Runs of a store, by the store alone: created from a base and an adapter, their status, orders.

Operators' orders are stored until the serving process has carried them out.
"""

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeAlias

import msgspec
import sqlalchemy as sql

from smidgen.coordinator.config import ConfigError, RunConfig
from smidgen.coordinator.rounds.accounting import USED_UP
from smidgen.coordinator.rounds.history import history_of
from smidgen.coordinator.rounds.learning.unmasking import step_in
from smidgen.coordinator.rounds.machine import (
    closes_at_s,
    devices_needed,
    ended_of,
    kept_of,
    rounds_of,
)
from smidgen.coordinator.rounds.orders import OrderError, OrderKind, event_of
from smidgen.coordinator.rounds.scheduling.step import Step
from smidgen.coordinator.rounds.selection import asked_size, counted_size, lack_of_tags
from smidgen.coordinator.rounds.state import State, evolve, heard_so_far, replay
from smidgen.coordinator.storage.credentials import draw_secret, insert_token, tokens
from smidgen.coordinator.storage.database import Statement, StoreError
from smidgen.coordinator.storage.devices import Device, Member, devices, members, who_joined
from smidgen.coordinator.storage.reports import pseudo_labels, rows, scores_by_round
from smidgen.coordinator.storage.schema import ORDERS
from smidgen.coordinator.storage.store import Run, Store
from smidgen.edge_client.adapters.initial import first_adapter
from smidgen.edge_client.adapters.spec import (
    AdapterError,
    AdapterSpec,
    parse_adapter,
    usual_adapter,
)
from smidgen.edge_client.bases.base import Base, open_base
from smidgen.edge_client.errors import demand
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.prompts.patterns import TaskError
from smidgen.edge_client.updates.forms import RIDGE
from smidgen.edge_client.updates.masks import (
    COMPLETE,
    CORRUPT,
    graph_of,
    shares_bytes_of,
)
from smidgen.edge_client.updates.registry import sent_shapes
from smidgen.edge_client.updates.secure_sum import BITS, lane_of
from smidgen.edge_client.wire.figures import Row
from smidgen.edge_client.wire.fleet import Terms
from smidgen.edge_client.wire.messages import (
    MAX_JSON_BYTES,
    PROTOCOL,
    Next,
    Work,
    encode,
    encode_brief,
)
from smidgen.edge_client.wire.tensors import AdapterState, encode_adapter, shapes_of

# A run's first adapter, for its base and task; it refuses what does not fit.
Start: TypeAlias = Callable[[Base, Task], tuple[AdapterSpec, AdapterState]]

REST_BYTES = 16 << 10  # of a message, for what is not known yet: ids, the base's pack, coded steps
LONGEST_NUMBER = -1.2345678901234567e-300


@dataclass(frozen=True)
class NewRun:
    """A run that was just created.

    Attributes:
        run_id: Its id.
        name: Its name.
        token: What devices may enrol with, which gives them the run's tags; a secret, which the
            store holds as a hash only.
        privacy: What its differential privacy comes to, in words; empty without.
    """

    run_id: str
    name: str
    token: str = field(repr=False)
    privacy: str = ""


def create_run(store: Store, config: RunConfig, now_s: float, start: Start | None = None) -> NewRun:
    """Open the base, draw the first adapter and store the run.

    Equal configurations start from equal bytes.

    Args:
        store: Where to.
        config: The run.
        now_s: Unix time.
        start: Gives the first adapter where it is not drawn; the run trains one of its kind.

    Raises:
        BaseError: There is no such base.
        ConfigError: Devices would never label.
        AdapterError: The adapter does not fit the base.
        StoreError: The store has a run of that name, or devices of which none has the tags.
        TaskError: A label word is unknown to the base's tokenizer, a pattern too long, or all of
            it together too long for a message.
    """
    base = open_base(config.base)
    spec, given = parse_adapter(config.adapter), None
    if start is not None:
        spec, given = start(base, config.task)
        config = _of_kind(config, spec)
    # Refused here alone: a run that is stored already is read, and may be extended.
    never = config.rounds < 3 and config.labelling is not None and RIDGE in config.update_steps
    why = f"devices label once +{RIDGE} is solved, for rounds before the last"
    demand(not never, f"rounds: 3 or more: {why}", ConfigError)
    _check_length(config)
    longest = config.training.tokens
    drawn = first_adapter(base, spec, config.task, config.prompt_init, config.seed, longest)
    state = drawn if given is None else given
    _check_name(store.runs(), config.name)
    _check_tags(store, config, now_s)
    said = list(filter(None, (_privacy_planned(config, state), _masks_planned(config))))
    token = draw_secret()
    with store.claiming():
        run = Run(
            run_id=f"r{secrets.token_hex(5)}",
            created_at_s=now_s,
            config=encode(config).decode(),
            base_id=base.base_id,
            base_reference=base.peft_name,
            architecture=base.architecture,
            adapter_sha256=store.put(encode_adapter(state)),
            secret=draw_secret(),
        )
        added = insert_token(token, now_s, tags=config.devices.tags)[1]
        # Another process may have made one of this name meanwhile.
        store.add_run(run, added, look=lambda others: _check_name(others, config.name))
    return NewRun(run.run_id, config.name, token, "; ".join(said))


def _masks_planned(config: RunConfig) -> str:
    if (secured := step_in(config.update_steps)) is None:
        return ""
    asked = _ring_planned(config)
    fewest = max(config.min_updates, secured.fewest(asked))
    graph, lane = graph_of(asked), lane_of(BITS[config.updates.secure_aggregation], asked)
    colluders = graph.threshold - 1 if asked <= COMPLETE else int(CORRUPT * asked)
    return (
        f"secure aggregation: of {asked} devices asked the coordinator learns the sum of "
        f"{fewest} updates or more, {lane} bits a number and "
        f"{shares_bytes_of(asked):,} bytes of shares each; {colluders} of them may collude with it"
    )


def _ring_planned(config: RunConfig) -> int:
    size = counted_size(config.fraction, config.min_clients, config.max_cohort)
    return asked_size(size, config.over_selection)


def _privacy_planned(config: RunConfig, adapter: AdapterState) -> str:
    account = config.account
    if account is None:
        return ""
    able = config.min_clients // account.privacy.separation
    devices = min(counted_size(config.fraction, config.min_clients, config.max_cohort), able)
    is_of_texts = account.privacy.unit == "text"
    count, of = devices, "updates"
    if is_of_texts:
        count, of = config.training.batch, "texts, where a device has so many,"
    sent = sent_shapes(config.update_steps, shapes_of(adapter), 1)
    parameters = sum(math.prod(shape) for shape in sent.values())
    ratio = account.signal_to_noise(count, parameters)
    if (masked := step_in(config.update_steps)) and account.is_distributed:
        count = _ring_planned(config)
        grid = masked.grid(count, parameters)
        ratio = grid.steps * math.sqrt(count / (grid.variance * parameters))
        of = (
            f"updates, the noise of {masked.fewest(count) - masked.colluding(count)} of which "
            "is counted on,"
        )
    more = "larger batches" if is_of_texts else "more devices"
    lack = f"; below 1 it is mostly noise: {more} or a smaller adapter" if ratio < 1.0 else ""
    afforded = account.most_participations * account.privacy.separation
    if afforded < config.rounds:
        lack += f"; the budget lasts for {afforded} of {config.rounds} rounds"
    return (
        f"{account.spent({})}; of {count} {of} with {parameters:,} numbers the sum is at most "
        f"{ratio:.2g} times as long as its noise{lack}"
    )


def _check_length(config: RunConfig) -> None:
    """Refuse a run whose terms or work no device could read: its message would be too long.

    Raises:
        TaskError: Says by how much; JSON writes what is not ASCII in several letters.
    """
    task, training, labelling = config.task, config.training, config.labelling
    numbers = (LONGEST_NUMBER,) * (len(task.labels) if labelling else 0)
    terms = Terms(
        run_id="r",
        run_name=config.name,
        base_id="b",
        base_name="b",
        adapter_spec=config.adapter,
        task=task,
        training=training,
        rounds=config.rounds,
        min_clients=config.min_clients,
        labelling=labelling,
        steps=config.update_steps,
    )
    work = Work(
        protocol=PROTOCOL,
        work_id="w",
        kind="train",
        run_id="r",
        round_index=config.rounds,
        base_id="b",
        adapter_spec=config.adapter,
        adapter_sha256="a",
        adapter_bytes=1,
        task=task,
        training=training,
        seed=config.seed,
        labelling=labelling,
        prior=numbers,
        thresholds=numbers,
    )
    length = max(len(encode_brief(one)) for one in (Next(terms=terms), Next(work=work)))
    demand(
        length <= MAX_JSON_BYTES - REST_BYTES,
        f"the run takes {length:,} bytes of a message to a device, at most "
        f"{MAX_JSON_BYTES - REST_BYTES:,} are expected, and a letter outside of ASCII takes 6 or "
        "12 of them; shorten labels, label words and patterns",
        TaskError,
    )


def _of_kind(config: RunConfig, spec: AdapterSpec) -> RunConfig:
    """The run with the kind of adapter that it starts from.

    Raises:
        AdapterError: It says another kind.
    """
    usual = usual_adapter(config.task, RunConfig.adapter)
    if config.adapter != usual and parse_adapter(config.adapter) != spec:
        raise AdapterError(
            f"the run trains {config.adapter}, --from is {spec}; leave --adapter out"
        )
    return replace(config, adapter=str(spec))


def config_of(run: Run) -> RunConfig:
    return msgspec.json.decode(run.config, type=RunConfig)


def _check_name(runs: list[Run], name: str) -> None:
    """Refuse the name of a run that is there.

    Raises:
        StoreError: Names that run.
    """
    for run in runs:
        if config_of(run).name == name:
            raise StoreError(
                f"a run called {name} is there ({run.run_id}); choose another --name for this one"
            )


def _check_tags(store: Store, config: RunConfig, now_s: float) -> None:
    """Refuse tags that no device of the fleet has, and that no token gives to those to come.

    Raises:
        StoreError: Names the tags there are.
    """
    fleet = [device.tags for device in devices(store.database) if not device.revoked_at_s]
    promised = [token.tags for token in tokens(store.database) if not token.lack(now_s)]
    if lack := lack_of_tags(config.devices, fleet, promised):
        raise StoreError(
            f"{lack}; tag a device first (`devices tag`), make a token for new ones (`tokens new "
            "--tag KEY=VALUE`), or ask for others with --tag KEY=VALUE"
        )


def find_run(store: Store, run_id: str | None) -> Run:
    """The run of an id or name; the newest one if None.

    Raises:
        StoreError: There is no such run, or several have that name.
    """
    runs = store.runs()
    if not runs:
        raise StoreError("the store holds no run; make one with `smidgen coordinator create`")
    if run_id is None:
        return runs[-1]
    found = [run for run in runs if run.run_id == run_id]
    found = found or [run for run in runs if config_of(run).name == run_id]
    if not found:
        known = ", ".join(f"{run.run_id} ({config_of(run).name})" for run in runs[-5:])
        raise StoreError(f"no run {run_id!r} in the store; --run can be one of {known}")
    if len(found) > 1:
        ids = ", ".join(run.run_id for run in found)
        raise StoreError(f"--run {run_id} fits {len(found)} runs; give the id, one of {ids}")
    return found[0]


def state_of(store: Store, run: Run) -> State:
    return replay(run.adapter_sha256, store.journal(run.run_id))


def lack_of_budget(store: Store, run: Run) -> str:
    """That a run's next round cannot open, for its budget of privacy is used up; else empty."""
    config, state = config_of(run), state_of(store, run)
    if config.account is None:
        return ""
    known = {*state.heard, *who_joined(store.database, run.run_id)} - state.left.keys()
    at = state.round_index + 1, config.min_updates
    lack = config.account.lack(state.heard, sorted(known), *at)
    return lack if lack.startswith(USED_UP) else ""


def status_of(store: Store, run: Run) -> dict[str, Any]:
    """What `smidgen coordinator status` says of a run, in base units; holds no secret."""
    state, past = history_of(run.adapter_sha256, store.journal(run.run_id))
    config, table = config_of(run), rows(store, run.run_id)
    fleet = {device.device_id: device for device in devices(store.database)}
    told = members(store.database, run.run_id)
    names = {device_id: device.name for device_id, device in fleet.items()}
    kept_round, kept = kept_of(config, state)
    privacy = config.account and config.account.spent(heard_so_far(state))
    return {
        "run_id": run.run_id,
        "name": config.name,
        "kind": config.kind,
        "created_at_s": run.created_at_s,
        "phase": state.phase,
        "ended": ended_of(config, state),
        "trouble": state.trouble,
        "round_index": state.round_index,
        "rounds": rounds_of(config, state),
        "min_clients": config.min_clients,
        "needed": devices_needed(config, state),
        "devices": _devices(fleet, told, state, table),
        "step": _step(config, state.step) if state.step else None,
        "failing": failing_of(state, table),
        "answers": len(state.step.answers) if state.step else 0,
        "asked": len(state.step.members) if state.step else 0,
        **scores_by_round(config.task, table, past.scores),
        "pseudo_labels_by_round": pseudo_labels(table),
        "lost_by_round": past.lost,
        "adapter_sha256": state.adapter_sha256,
        "kept": {"round_index": kept_round, "adapter_sha256": kept},
        "privacy": privacy and asdict(privacy) | {"said": str(privacy)},
        "secure_aggregation": config.updates.secure_aggregation,
        "texts": {names.get(key, key): texts for key, texts in sorted(state.texts.items())},
    }


def _devices(
    fleet: Mapping[str, Device], told: Mapping[str, Member], state: State, table: Sequence[Row]
) -> list[dict[str, Any]]:
    """Every device that answered the run's invitation, by name, and how it stands.

    Attributes of each: `membership` is its answer; `last_seen_s` is Unix time, half a minute old
    at most where a coordinator runs; `open_work` is `done`, `failed` or `missing` for who is asked
    now, else None; `left` is the code of why it takes no part for now; `misses` are steps in a row
    that closed without it; `last` is its newest answer.
    """
    step = state.step
    asked = {device_id: work_id for work_id, device_id in step.members.items()} if step else {}
    newest = {row["device_id"]: row for row in table}  # rows come in the order of the run
    found = []
    for device in fleet.values():  # by name
        device_id = device.device_id
        if device_id not in told:
            continue
        answer = step.answers.get(asked.get(device_id, "")) if step else None
        waits = "missing" if device_id in asked else None
        found.append(
            {
                "device_id": device_id,
                "name": device.name,
                "membership": told[device_id].membership.state,
                "is_revoked": device.revoked_at_s is not None,
                "last_seen_s": device.last_seen_s,
                "open_work": answer.outcome if answer else waits,
                "left": state.left.get(device_id) or told[device_id].membership.failure,
                "misses": missed.misses if (missed := state.silences.get(device_id)) else 0,
                "last": _answer(newest[device_id]) if device_id in newest else None,
            }
        )
    return found


def _answer(row: Row) -> dict[str, Any]:
    names = ("kind", "round_index", "attempt", "outcome", "is_late")
    told = {name: row[name] for name in names} | {"failure": row.get("failure")}
    return told | {"refused_bytes": row.get("refused_bytes", 0)}


def _step(config: RunConfig, step: Step) -> dict[str, Any]:
    opened = step.opened
    return {
        "kind": opened.kind,
        "round_index": opened.round_index,
        "attempt": opened.attempt,
        "opened_at_s": opened.opened_at_s,
        "closes_at_s": closes_at_s(config, step),
        "passed": [{"reason": one.reason, "devices": one.count} for one in opened.passed],
        "usual_s": opened.deadline_s or config.deadline_s,
    }


def failing_of(state: State, table: Sequence[Row]) -> dict[str, Any] | None:
    """The newest task that nobody could do, if everyone who was asked has failed at it."""
    if state.is_finished or not table:
        return None
    last, step = table[-1], state.step
    same = [row for row in table if all(row[key] == last[key] for key in ("kind", "round_index"))]
    is_waited_for = step is not None and step.opened.attempt == 1 and not step.is_answered
    if any(row["outcome"] != "failed" for row in same) or (is_waited_for and _is_of(step, last)):
        return None
    return {
        "kind": last["kind"],
        "round_index": last["round_index"],
        "attempts": max(row["attempt"] for row in same),
        "devices": sorted({row["device"] for row in same}),
        "failures": sorted({row["failure"] for row in same if row.get("failure")}),
    }


def _is_of(step: Step | None, row: Row) -> bool:
    """Whether a row answers the open step, some attempt of it."""
    here = (step.opened.kind, step.opened.round_index) if step else None
    return here == (row["kind"], row["round_index"])


@dataclass(frozen=True)
class Order:
    """One order.

    Attributes:
        order_id: Later orders have higher ones.
        run_id: The run.
        kind: What is asked.
        rounds: Of `extend`: rounds until the run is finished, all in all; of `rollback`: the round
            to go back to.
        asked_at_s: Unix time.
        done_at_s: When it was taken up; None until then.
        refused: Why it could not be followed; None where it was.
    """

    order_id: int
    run_id: str
    kind: OrderKind
    rounds: int | None
    asked_at_s: float
    done_at_s: float | None = None
    refused: str | None = None


def add_order(store: Store, run: Run, kind: OrderKind, rounds: int | None, now_s: float) -> Order:
    """Ask something of a run; the process that serves the store carries it out.

    Raises:
        StoreError: The run, as it will stand after the orders before, cannot follow it.
    """
    config = config_of(run)
    try:
        state, adapters = _after_open_orders(store, run, now_s), adapters_there(store, run)
        event_of(kind, rounds, config, state, now_s, adapters)
    except OrderError as error:
        raise StoreError(f"cannot {kind} run {config.name} ({run.run_id}): {error}") from error
    with store.database.transaction() as connection:
        return insert_order(connection, run, kind, rounds, now_s)


def insert_order(
    connection: sql.Connection, run: Run, kind: OrderKind, rounds: int | None, now_s: float
) -> Order:
    values = {"run_id": run.run_id, "kind": kind, "rounds": rounds, "asked_at_s": now_s}
    added = connection.execute(sql.insert(ORDERS).values(**values)).inserted_primary_key
    assert added is not None
    return Order(order_id=added[0], run_id=run.run_id, kind=kind, rounds=rounds, asked_at_s=now_s)


def _after_open_orders(store: Store, run: Run, now_s: float) -> State:
    waiting = open_orders(store, run.run_id)  # first: one that is carried out now counts once
    state, config = replay(run.adapter_sha256, store.events(run.run_id)), config_of(run)
    adapters = adapters_there(store, run)
    for order in waiting:
        try:
            state = evolve(
                state, event_of(order.kind, order.rounds, config, state, now_s, adapters)
            )
        except OrderError:
            continue  # it will be refused
    return state


def adapters_there(store: Store, run: Run) -> dict[int, str]:
    """A run's adapters by round, of those that have not been pruned; see `Past.adapter_of`."""
    _, past = history_of(run.adapter_sha256, store.journal(run.run_id))
    found = {index: past.adapter_of(index) for index in past.adapters}
    present = store.blobs.present()
    return {index: name for index, name in found.items() if name in present}


def open_orders(store: Store, run_id: str | None = None) -> list[Order]:
    """Orders that are still to be carried out, oldest first; of one run or of all."""
    here: sql.ColumnElement[bool] = ORDERS.c.done_at_s.is_(None)
    here = here if run_id is None else here & (ORDERS.c.run_id == run_id)
    chosen = sql.select(ORDERS).where(here).order_by(ORDERS.c.order_id)
    return [_order(row) for row in store.database.rows(chosen)]


def orders_of(store: Store, run_id: str, before: int | None, limit: int) -> list[Order]:
    """A run's orders, the newest first; with `before`, those asked before that one."""
    here: sql.ColumnElement[bool] = ORDERS.c.run_id == run_id
    here = here if before is None else here & (ORDERS.c.order_id < before)
    chosen = sql.select(ORDERS).where(here).order_by(ORDERS.c.order_id.desc()).limit(limit)
    return [_order(row) for row in store.database.rows(chosen)]


def order_of(store: Store, order_id: int) -> Order | None:
    found = store.database.rows(sql.select(ORDERS).where(ORDERS.c.order_id == order_id))
    return _order(found[0]) if found else None


def taken_up(order_id: int, now_s: float, refused: str | None = None) -> Statement:
    """The statement that notes an order as carried out; in the transaction of its event."""
    here = (ORDERS.c.order_id == order_id) & ORDERS.c.done_at_s.is_(None)
    return sql.update(ORDERS).where(here).values(done_at_s=now_s, refused=refused)


def _order(row: Mapping[str, Any]) -> Order:
    return Order(**{name: row[name] for name in Order.__dataclass_fields__})
