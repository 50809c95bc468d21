"""How a run comes to be: base opened and hashed, first adapter drawn, all of it stored."""

import secrets
from dataclasses import dataclass

import msgspec

from coordinator.config import RunConfig
from coordinator.storage.keys import draw_secret, hash_secret
from coordinator.storage.store import Run, Store, StoreError
from edge_client.adapters.initial import first_adapter
from edge_client.adapters.peft_folder import check_exportable
from edge_client.adapters.spec import parse_adapter
from edge_client.bases.base import open_base
from edge_client.wire.messages import encode
from edge_client.wire.tensors import encode_adapter


@dataclass(frozen=True)
class Created:
    """A new run and its enrolment token, which is stored as a hash only."""

    run_id: str
    token: str


def create_run(store: Store, config: RunConfig, now_s: float) -> Created:
    """Open the base, draw the first adapter and store the run.

    Equal configurations start from equal bytes.

    Raises:
        BaseError: There is no such base.
        AdapterError: The adapter does not fit the base.
        StoreError: The store has a run of that name.
        TaskError: A label word is unknown to the base's tokenizer, or a pattern too long.
    """
    base = open_base(config.base)
    spec = parse_adapter(config.adapter)
    check_exportable(spec)
    longest = config.training.tokens
    state = first_adapter(base, spec, config.task, config.prompt_init, config.seed, longest)
    _check_name(store, config.name)
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
    token = draw_secret()
    store.add_run(run, hash_secret(token))
    return Created(run.run_id, token)


def config_of(run: Run) -> RunConfig:
    return msgspec.json.decode(run.config, type=RunConfig)


def _check_name(store: Store, name: str) -> None:
    """Refuse the name of a run that is there.

    Raises:
        StoreError: Names that run.
    """
    for run in store.runs():
        if config_of(run).name == name:
            raise StoreError(
                f"a run called {name} is there ({run.run_id}); choose another --name for this one"
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
