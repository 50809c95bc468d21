"""A run's adapter as a folder that PEFT loads."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Literal

from smidgen import __version__
from smidgen.coordinator.rounds.bounds import is_computable
from smidgen.coordinator.rounds.history import Past, history_of
from smidgen.coordinator.rounds.machine import kept_of
from smidgen.coordinator.rounds.state import heard_so_far
from smidgen.coordinator.storage.reports import rows
from smidgen.coordinator.storage.runs import config_of, find_run
from smidgen.coordinator.storage.store import Run, Store
from smidgen.edge_client.adapters.card import Card, licence_of
from smidgen.edge_client.adapters.peft_folder import (
    Exported,
    WithBase,
    write_peft_folder,
)
from smidgen.edge_client.adapters.spec import AdapterSpec, parse_adapter
from smidgen.edge_client.bases.base import EMBEDDED, Base, open_base
from smidgen.edge_client.bases.gguf.model import ARCHITECTURES
from smidgen.edge_client.errors import Failed, WrongInput, demand
from smidgen.edge_client.tasks.kind import kind_of
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.tensors import decode_adapter


@dataclass(frozen=True)
class ExportedAdapter:
    """A run's adapter in a folder of its own.

    Attributes:
        folder: The PEFT folder.
        run_id: The run.
        round_index: The round whose adapter it is; 0: the untrained one.
        adapter_sha256: Of its bytes in the store.
        rounds: Rounds of training that have closed.
        best_round: The round that was best by evaluation; None: none was evaluated.
        lacks: What is left out since the run's base is not here, in words; empty: nothing.
    """

    folder: Path
    run_id: str
    round_index: int
    adapter_sha256: str
    rounds: int
    best_round: int | None = None
    lacks: str = ""

    @property
    def is_trained(self) -> bool:
        return self.round_index > 0


def export_from(
    store: Store,
    folder: Path,
    *,
    run: str | None = None,
    round_index: int | Literal["best", "last"] | None = None,
    base: str | None = "",
    base_name: str = "",
    with_base: WithBase | None = None,
) -> ExportedAdapter:
    """Write a round's adapter as a folder that PEFT loads; see `smidgen.export`.

    Args:
        store: An open store.
        folder: PEFT adapter folder to write.
        run: Run id or name; None: the newest.
        round_index: Whose adapter; None: that which the run keeps.
        base: Where the run's base is; empty: its name; None: its name where that is a folder.
        base_name: Name by which PEFT users load it; empty: the run's base.
        with_base: Whether the base comes with it, and how.

    Raises:
        WrongInput: No such run, adapter or base.
        Failed: It could not be written after all.
    """
    chosen = find_run(store, run)
    config = config_of(chosen)
    state, past = history_of(chosen.adapter_sha256, store.journal(chosen.run_id))
    index, sha256 = kept_of(config, state)
    if round_index is not None:
        index, sha256 = _round_of(store, past, state.round_index, round_index)
    there = store.blobs.present()
    demand(sha256 in there, f"the adapter of round {index} is gone; `--round N` takes another")
    is_here = chosen.base_reference == EMBEDDED or Path(chosen.base_reference).exists()
    is_asked = base is not None or is_here  # no hub for its sake
    opened_base = (
        _base_of(chosen, base or "", is_needed=with_base is not None) if is_asked else None
    )
    exported = Exported(
        adapter=config.adapter,
        base_name=base_name or chosen.base_reference,
        base_id=chosen.base_id,
        architecture=chosen.architecture,
        task=config.task,
    )
    privacy = config.account and config.account.spent(heard_so_far(state))
    card = replace(_card(store, chosen, past, index), privacy=str(privacy or ""))
    card = replace(card, secure_aggregation=config.updates.secure_aggregation)
    card = replace(card, licence=licence_of(opened_base) if opened_base else "")
    if past.best and sha256 == past.best_sha256 and index in card.accuracies:
        # Its round may have been evaluated again, with an adapter that the run went back to.
        best = {index: past.best[1].accuracy}
        card = replace(card, accuracies=dict(card.accuracies) | best)
    body = store.read(sha256)
    demand(
        all(is_computable(tensor) for tensor in decode_adapter(body).values()),
        f"--round {index}: its adapter holds numbers that nothing can compute with; take "
        "another round's, such as --round best",
    )
    write_peft_folder(folder, exported, body, card, opened_base, with_base=with_base)
    lacks = "" if opened_base else _lacks(chosen, parse_adapter(config.adapter), config.task)
    counts = state.round_index, past.best_round
    return ExportedAdapter(folder, chosen.run_id, index, sha256, *counts, lacks)


def _lacks(run: Run, spec: AdapterSpec, task: Task) -> str:
    if spec.net:
        return ""
    has_lora = spec.rank and not (spec.prompt_tokens or spec.ridge)
    has_gguf = has_lora and run.architecture in ARCHITECTURES.values()
    parts = {"adapter.gguf": has_gguf, "tokens of label words": task.labels and not spec.head}
    named = " and ".join(name for name, is_had in parts.items() if is_had)
    where = f"the run's base {run.base_reference} is not here; name it by --base, or this lacks "
    return named and where + named


def _base_of(run: Run, named: str, *, is_needed: bool) -> Base | None:
    """The run's base, of whose shape and tokenizer an export tells; None: it is not here.

    Raises:
        WrongInput: It is named or needed, and not here or another one by now.
    """
    option = "--base" if named else "--with-base"
    try:
        base = open_base(named or run.base_reference)
    except (WrongInput, Failed) as error:
        where = "" if named else "; name it by --base"
        demand(not (named or is_needed), f"{option}: {error}{where}")
        return None
    is_same = base.base_id == run.base_id
    demand(
        is_same or not (named or is_needed),
        f"{option}: {named or run.base_reference} is not the run's base, {run.base_id[:12]}"
        f", but {base.base_id[:12]}",
    )
    return base if is_same else None


def _round_of(store: Store, past: Past, last: int, asked: int | str) -> tuple[int, str]:
    """The round that was asked for, and its adapter, which is there.

    Raises:
        WrongInput: It is not; names those that are.
    """
    if asked == "best":
        demand(past.best is not None, "--round best: no round was evaluated on any text yet")
    present = store.blobs.present()
    named = {"last": last, "best": past.best_round or 0}
    adapters = {index: past.adapter_of(index) for index in past.adapters}
    adapters |= {last: past.adapters[last]} if asked == "last" else {}
    there = [index for index, name in adapters.items() if name in present]
    kept = f"adapters are there of rounds {ranges(there)}"
    index = named[asked] if isinstance(asked, str) and asked in named else int(asked)
    is_closed = index <= last
    demand(is_closed, f"--round {asked}: no such round has closed; {kept}")
    demand(index in there, f"--round {asked}: its adapter was pruned; {kept}")
    return index, adapters[index]


def ranges(numbers: Sequence[int]) -> str:
    """Numbers in words: `0, 3, 5 to 9`."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][-1] + 1:
            found[-1].append(number)
        else:
            found.append([number])
    return ", ".join(
        f"{one[0]} to {one[-1]}" if len(one) > 2 else ", ".join(map(str, one)) for one in found
    )


def _card(store: Store, run: Run, past: Past, rounds: int) -> Card:
    """What is known of a run up to a round; the scores are those that the run goes by."""
    is_counted = kind_of(config_of(run).task).measure.is_counted
    scores = {index: one for index, one in past.scores.items() if index <= rounds}
    shares = {index: one.accuracy for index, one in scores.items()}
    return Card(
        rounds=rounds,
        devices=len({row["device_id"] for row in rows(store, run.run_id)}),
        accuracies={} if is_counted else shares,
        date=date.today().isoformat(),
        version=__version__,
        entity_f1=shares if is_counted else {},
        losses={index: one.loss for index, one in scores.items() if one.loss is not None},
    )
