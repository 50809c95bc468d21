"""Messages to devices about their runs: terms, work, reasons to wait, how a run ended."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import islice
from typing import TypeVar

from smidgen.coordinator.rounds.events import StepOpened
from smidgen.coordinator.rounds.guidance import guidance_of, step_orders
from smidgen.coordinator.rounds.learning.exact import spec_at_rank
from smidgen.coordinator.rounds.machine import closes_at_s, devices_needed, ended_of, kept_of
from smidgen.coordinator.rounds.scoring import Score
from smidgen.coordinator.serving.ledger import Live
from smidgen.edge_client.adapters.card import portable_name
from smidgen.edge_client.tasks.kind import kind_of
from smidgen.edge_client.wire.fleet import Pack, Terms
from smidgen.edge_client.wire.messages import PROTOCOL, Over, Waiting, Work

Names = Callable[[Iterable[str]], list[str]]  # of devices, by their ids, in alphabetical order
Told = TypeVar("Told")

MOST_NAMES = 8  # that a device is told
LOOKED_AT = 64  # of those who have not answered, for their names in alphabetical order
MOST_ROUNDS = 1000  # whose accuracy a device is told; more would not fit a message


def terms_of(live: Live, pack: Pack | None = None) -> Terms:
    """What a run asks of its devices.

    Args:
        live: The run.
        pack: What its base is, where that is known.
    """
    config = live.config
    return Terms(
        run_id=live.run.run_id,
        run_name=config.name,
        base_id=live.run.base_id,
        base_name=base_name_of(live),
        adapter_spec=config.adapter,
        task=config.task,
        training=config.training,
        rounds=live.rounds,
        min_clients=config.min_clients,
        labelling=config.labelling,
        pack=pack,
        steps=config.update_steps,
    )


def base_name_of(live: Live) -> str:
    """A base's name for others: what is not loaded by the name that was given is a folder."""
    named = live.config.base
    return portable_name(named if named == live.run.base_reference else f"./{named}")


def work_of(
    live: Live, opened: StepOpened, work_id: str, bytes_of: Callable[[str], int], device_id: str
) -> Work:
    """A piece of work, as its device is told.

    Args:
        live: The run.
        opened: The step that asks for it.
        work_id: Names it.
        bytes_of: Sizes of adapters by their SHA-256.
        device_id: Who is asked.
    """
    guidance, state = guidance_of(live.config, live.state, opened), live.state
    rank, name = opened.given(device_id)
    work = Work(
        protocol=PROTOCOL,
        work_id=work_id,
        kind=opened.kind,
        run_id=live.run.run_id,
        round_index=opened.round_index,
        base_id=live.run.base_id,
        adapter_spec=spec_at_rank(live.config.adapter, rank),
        adapter_sha256=name,
        adapter_bytes=bytes_of(name),
        task=live.config.task,
        training=live.config.training,
        seed=live.config.seed,
        labelling=live.config.labelling,
        keep=guidance.keep,
        prior=guidance.prior,
        thresholds=guidance.thresholds,
        most=guidance.most,
        test_share=opened.test_share,
    )
    if name == state.adapter_sha256:
        work = replace(work, steps=state.kept.steps_to(work.adapter_bytes))
    if not opened.brings_files:
        return work
    return replace(work, updates=step_orders(state, opened, device_id, bytes_of))


def waiting_of(
    live: Live,
    alive: Callable[[], set[str]],
    names_of: Names,
    now_s: float,
    is_full: bool = False,
) -> Waiting:
    """What a run waits for, as a device that has nothing to do is told.

    Args:
        live: The run.
        alive: Who is there; asked only where that matters.
        names_of: Names of devices.
        now_s: Unix time.
        is_full: Whether the coordinator's disk has no room for more.
    """
    config, state, step = live.config, live.state, live.state.step
    next_round = step.opened.round_index if step else min(state.round_index + 1, live.rounds)
    if state.is_paused or is_full:
        return Waiting(
            "paused" if state.is_paused else "full", config.name, next_round, live.rounds
        )
    if step is None:
        needed = devices_needed(config, state)
        here = alive()  # a poll of a million that wait must not copy it
        missing = max(0, needed - len(here) + sum(key in here for key in state.left))
        return Waiting("waiting", config.name, next_round, live.rounds, missing, needed)
    return Waiting(
        step.opened.kind,
        config.name,
        step.opened.round_index,
        live.rounds,
        missing_of(live),
        len(step.members),
        round(max(0.0, closes_at_s(config, step) - now_s), 1),
        _named(live, names_of) if config.tell_names else (),
    )


def _named(live: Live, names_of: Names) -> tuple[str, ...]:
    """Some of those who have not answered: of a crowd the first few that were asked.

    Each of many that wait is told, so that nobody looks at all of them for each.
    """
    step = live.state.step
    if step is None:
        return ()
    left = (one for work_id, one in step.members.items() if work_id not in step.answers)
    is_crowd = missing_of(live) > LOOKED_AT
    return tuple(names_of(islice(left, MOST_NAMES) if is_crowd else left)[:MOST_NAMES])


def missing_of(live: Live) -> int:
    """How many devices have not answered in the open step."""
    step = live.state.step
    return 0 if step is None else len(step.members) - len(step.answers)


def over_of(live: Live, devices: int, scores: Mapping[int, Score]) -> Over:
    """What came of a finished run.

    Args:
        live: The run.
        devices: How many joined it.
        scores: By round; of many rounds a part is told.
    """
    is_masked = kind_of(live.config.task).measure.has_perplexity
    told = thinned(scores, MOST_ROUNDS)
    losses = {index: one.loss for index, one in told.items() if one.loss is not None}
    kept_round, name = kept_of(live.config, live.state)
    return Over(
        run_id=live.run.run_id,
        run_name=live.config.name,
        adapter_sha256=name,
        rounds=live.state.round_index,
        devices=devices,
        accuracies={index: one.accuracy for index, one in told.items()},
        ended=ended_of(live.config, live.state) or "rounds",
        kept_round=None if name == live.state.adapter_sha256 else kept_round,
        losses=losses if is_masked else {},
    )


def thinned(by_round: Mapping[int, Told], most: int) -> dict[int, Told]:
    """At most so many rounds, two or more: the first, the last, and evenly between them."""
    rounds = sorted(by_round)
    last = len(rounds) - 1
    if last >= most:
        rounds = [rounds[index * last // (most - 1)] for index in range(most)]
    return {one: by_round[one] for one in rounds}
