"""`smidgen coordinator status`: where runs stand, and whom they wait for."""

import json
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from smidgen.coordinator.api.stores import open_store
from smidgen.coordinator.commands.console import EveryOption, JsonOption, StoreOption, at_store
from smidgen.coordinator.fleet.presence import ALIVE_S, now_of
from smidgen.coordinator.rounds.accounting import USED_UP
from smidgen.coordinator.rounds.scoring import heads_of, measures_of
from smidgen.coordinator.storage.database import StorePlace
from smidgen.coordinator.storage.runs import find_run, status_of
from smidgen.coordinator.upkeep.retention import Room, noted
from smidgen.edge_client.tables import (
    Column,
    Table,
    plain,
    share,
    share_within,
    show,
    size,
    some,
    span,
    tell,
)
from smidgen.edge_client.tasks.kind import kind_named
from smidgen.edge_client.wire.messages import ENDED
from smidgen.edge_client.wire.reports import SAID, Failure

EVERY_S = 1.0
REST = 4  # times as long as a look took: following takes a fifth of a core at most
MOST = 20  # devices that a screen lists; --json has all
FIRST = (
    Column("run", "word"),
    Column("name", "text"),
    Column("phase", "word"),
    Column("round", "word"),
    Column("devices", optional=1),
    Column("answered"),
)
NOTE = (
    "answered: of the devices that are asked now; {}: after the newest evaluation; median: "
    "the median device's; labels: of texts that devices labelled themselves, in the newest "
    "labelling"
)
COHORT = "+-: standard error, where some devices, or a share of their texts, stand for all"
WAITED = {  # by how a device is called that was asked and has not answered
    "working": "working: was asked, was there then, and is within the time that such work takes",
    "silent": "silent: has not answered within that time, or was not there when it was asked",
    "late": "late: has not answered, and the step was to close by now",
}
DEVICES = (
    Column("device", "word"),
    Column("now", "word"),
    Column("last seen", "word"),
    Column("last answer", "text"),
)

Status = Mapping[str, Any]


@at_store
def status(
    store: StoreOption,
    run: EveryOption = None,
    follow: Annotated[
        bool,
        typer.Option("--follow", help="Print a line for each change until all runs are finished."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show each run's phase and round, which devices have answered, and who is missing or late."""
    if follow:
        _follow(store, run)
    with closing(open_store(store)) as opened:
        newest = find_run(opened, run)
        chosen = opened.runs() if run is None else [newest]
        found = {item.run_id: status_of(opened, item) for item in chosen}
        is_served = opened.is_served()
    if as_json:
        told = {"runs": [*found.values()], "is_full": bool(lack_of_room(store.folder))}
        print(json.dumps(found[newest.run_id] | told, sort_keys=True))
        return
    now_s = now_of(store.folder)
    if not is_served and any(one["phase"] != "finished" for one in found.values()):
        tell(["nobody serves this store now"])
    tell(lack_of_room(store.folder))
    show(runs_table([*found.values()]))
    for one in found.values():
        if one["phase"] != "finished" or run is not None:
            print()
            tell(said_of(one, now_s))
            if one["devices"]:
                show(devices_table(one, now_s))
        elif one["privacy"]:
            tell([f"{one['name']}: privacy: {one['privacy']['said']}"])
    print(next_step(store, found[newest.run_id], is_served, now_s))


def next_step(store: StorePlace, newest: Status | None, is_served: bool, now_s: float) -> str:
    """What the operator does next, in a line that has the command.

    Args:
        store: Where the runs are.
        newest: The run that is looked at; None: there is none yet.
        is_served: Whether a process serves the store.
        now_s: See `now_of`.
    """

    def command(name: str, *more: str) -> str:
        return shlex.join(["smidgen", "coordinator", *name.split(), *store.options, *more])

    if newest is None:
        return f"next  {command('create', '--task', 'TASK')}"
    is_used_up = newest["phase"] == "paused" and newest["trouble"].startswith(USED_UP)
    if newest["phase"] == "finished" or is_used_up:
        return f"next  {command('export', '--run', newest['name'], '--out', 'adapter')}"
    if not is_served:
        return f"next  {command('serve')}"
    if newest["phase"] == "paused":
        return f"next  {command('resume', '--run', newest['name'])}"
    missing = newest["needed"] - sum(_is_here(one, now_s) for one in newest["devices"])
    if newest["step"] or missing <= 0:
        return f"next  wait; {command('status', '--follow')} shows each change"
    return (
        f"next  start {some(missing, 'device')} by the line that `create` printed; "
        f"{command('tokens new')} prints another"
    )


def _follow(store: StorePlace, run: str | None) -> None:
    before: list[str] = []
    while True:
        start_s = time.monotonic()
        with closing(open_store(store)) as opened:
            newest = find_run(opened, run)
            chosen = opened.runs() if run is None else [newest]
            found = [status_of(opened, item) for item in chosen]
        lines = [line for one in found for line in news_of(one, now_of(store.folder))]
        for line in lines:
            if line not in before:
                print(f"{time.strftime('%H:%M:%S')}  {plain(line)}", flush=True)
        if all(one["phase"] == "finished" for one in found):
            return
        before = lines
        time.sleep(max(EVERY_S, REST * (time.monotonic() - start_s)))


def news_of(one: Status, now_s: float) -> Iterator[str]:
    """What a run has come to and does now, in lines that only change when something happens."""
    title, measure = f"{one['name']} ({one['run_id']})", kind_named(one["kind"]).measure
    step = one["step"]
    evaluated = str(step["round_index"]) if step and step["kind"] == "evaluate" else None
    for index, score in one[f"{measure.key}_by_round"].items():
        if str(index) != evaluated:  # its answers so far
            yield f"{title}: {measure.word} {share(score)} after round {index}"
    first, *more = said_of(one, now_s)
    if step and one["phase"] not in ("paused", "finished"):
        first = f"{title}: {_work(step)}, {one['answers']} of {one['asked']} answered"
    yield from (first, *more)


def lack_of_room(folder: Path) -> list[str]:
    """That the store's disk is full, if it is; by what `serve` was told last."""
    room = Room(folder, noted(folder).least_free_bytes)
    if not room.is_full:
        return []
    free, least = size(room.free_bytes), size(room.least_free_bytes)
    return [
        f"the disk of the store is full: {free} free, --least-free is {least}; no step opens and "
        "no update is taken until there is room (`smidgen coordinator prune` may make some)"
    ]


def runs_table(found: list[Status]) -> Table:
    """One row per run, oldest first."""
    rows, measures = [], measures_of(one["kind"] for one in found)
    has_perplexity = any(measure.has_perplexity for measure in measures)
    for one in found:
        key = kind_named(one["kind"]).measure.key
        last = list(one[f"{key}_by_round"].items())[-1:]
        errors = one[f"{key}_error_by_round"]
        labels = list(one["pseudo_labels_by_round"].values())[-1:]
        rows.append(
            [
                one["run_id"],
                one["name"],
                one["phase"],
                f"{one['round_index']} of {one['rounds']}{_kept(one, ', {} kept')}",
                str(len(one["devices"])),
                f"{one['answers']} of {one['asked']}" if one["asked"] else "-",
                share_within(last[0][1], errors.get(last[0][0], 0.0)) if last else "-",
                _median(one, key, last[0][0]) if last else "-",
                *([_perplexity(one)] if has_perplexity else []),
                f"{labels[0]}" if labels else "-",
            ]
        )
    columns = [*FIRST, Column(heads_of(measures), optional=2), Column("median", optional=4)]
    columns += [Column("perplexity", optional=2)] if has_perplexity else []
    said = NOTE.format(", ".join(dict.fromkeys(measure.word for measure in measures)))
    notes = [said, *(measure.note for measure in measures if measure.hears_loss)]
    is_drawn = any(one[f"{kind_named(one['kind']).measure.key}_error_by_round"] for one in found)
    return Table(
        [*columns, Column("labels", optional=3)],
        rows,
        notes=[*notes, *([COHORT] if is_drawn else [])],
    )


def _median(one: Status, key: str, round_index: int) -> str:
    found = one[f"{key}_median_by_round"].get(round_index)
    return "-" if found is None else f"{found:.1%}"


def _perplexity(one: Status) -> str:
    last = list(one["perplexity_by_round"].values())[-1:]
    return f"{last[0]:.2f}" if last else "-"


def said_of(one: Status, now_s: float) -> Iterator[str]:
    """What a run does or waits for, in words."""
    title = f"{one['name']} ({one['run_id']})"
    if one["phase"] == "finished":
        yield f"{title}: finished, {_ended(one)}"
    elif one["phase"] == "paused":
        yield f"{title}: {_paused(one)}"
    elif step := one["step"]:
        yield f"{title}: {_work(step)}, {_times(step, now_s)}"
        if passed := step.get("passed"):
            told = ", ".join(f"{each['devices']} ({each['reason']})" for each in passed)
            yield f"not asked: {told}"
    else:
        yield f"{title}: {_waiting(one, now_s)}"
    if one["privacy"]:
        yield f"privacy: {one['privacy']['said']}"
    if bits := one["secure_aggregation"]:
        yield f"secure aggregation ({bits}): of updates nothing is seen but their sum"
    if one["trouble"]:
        yield one["trouble"]
    if failing := one["failing"]:
        tries = f" in {failing['attempts']} attempts" if failing["attempts"] > 1 else ""
        yield (
            f"every device has failed at it{tries}: {_work(failing)} "
            f"({', '.join(failing['devices'])}); {_why(failing['failures'])}"
            "the log of each says more"
        )


def _ended(one: Status) -> str:
    done = f"round {one['round_index']} of {one['rounds']}: {ENDED[one['ended']]}"
    return f"{done}{_kept(one, '; the adapter of round {} is kept')}"


def _kept(one: Status, words: str) -> str:
    """Which round's adapter is kept, in these words; empty where it is the newest."""
    is_last = one["kept"]["adapter_sha256"] == one["adapter_sha256"]
    return "" if is_last else words.format(one["kept"]["round_index"])


def _paused(one: Status) -> str:
    within = ""
    if one["step"]:
        done = f"{one['answers']} of {one['asked']} have answered"
        within = f" in {_work(one['step'])}, {done}"
    why = one["trouble"]
    is_own = why.startswith(("every device", "privacy: ")) or "gave no sum" in why
    by = f" by itself: {one['trouble']}" if is_own else ""
    return f"paused{by}{within}; `smidgen coordinator resume` lets it go on"


def _work(step: Mapping[str, Any]) -> str:
    before = "before round" if step["kind"] == "label" else "round"
    again = f", attempt {step['attempt']}" if step.get("attempt", 1) > 1 else ""
    return f"{step['kind']}, {before} {step['round_index']}{again}"


def _times(step: Mapping[str, Any], now_s: float) -> str:
    opened, left_s = span(now_s - step["opened_at_s"]), step["closes_at_s"] - now_s
    if left_s > 0:
        return f"opened {opened} ago, closes in {span(left_s)} at the latest"
    return (
        f"opened {opened} ago, was to close {span(-left_s)} ago: does `smidgen coordinator serve` "
        "run on this store?"
    )


def _waiting(one: Status, now_s: float) -> str:
    here = [item["name"] for item in one["devices"] if _is_here(item, now_s)]
    names = ", ".join(here) or "none"
    missing = one["needed"] - len(here)
    if missing > 0:
        more = "device" if missing == 1 else "devices"
        is_new = one["needed"] == one["min_clients"]
        option = f" (--min-clients {one['min_clients']})" if is_new else ""
        return f"waiting for {missing} more {more}{option}; here: {names}"
    return f"enough devices are here ({names}); the next step begins once they ask for work"


def _is_here(item: Mapping[str, Any], now_s: float) -> bool:
    seen = item["last_seen_s"]
    is_in = item["membership"] == "joined" and not item["left"] and not item["is_revoked"]
    return is_in and seen is not None and now_s - seen < ALIVE_S


def devices_table(one: Status, now_s: float) -> Table:
    """One row per device, those that the run waits for first."""
    order = {"missing": 0, "failed": 1, "done": 2, None: 3}
    devices = sorted(one["devices"], key=lambda item: order[item["open_work"]])
    rows = [
        [
            item["name"],
            f"{_gone(item)} ({item['left']})" if item["left"] else _now(item, one["step"], now_s),
            "never" if (seen := item["last_seen_s"]) is None else seen_ago(now_s - seen),
            _last(item["last"]),
        ]
        for item in devices[:MOST]
    ]
    more = len(devices) - len(rows)
    notes = ["last seen: to within a minute"]
    if more:
        notes.append(f"and {more} more devices; see --json")
    notes += [note for word, note in WAITED.items() if any(row[1].startswith(word) for row in rows)]
    if any(map(_missed, devices)):
        notes.append("slow, silent: missed so many steps in a row, and is asked less often")
    gone = {_gone(item) for item in devices if item["left"]}
    notes += [f"{word}: takes no part until it is started again" for word in sorted(gone)]
    lasts: list[Mapping[str, Any]] = [item["last"] for item in devices if item["last"]]
    codes: set[Failure] = {last["failure"] for last in lasts if last["failure"]}
    codes |= {item["left"] for item in devices if item["left"]}
    notes += [f"{code}: {SAID[code]}" for code in sorted(codes)]
    return Table(DEVICES, rows, notes=notes)


def seen_ago(silent_s: float) -> str:
    """When a device was last seen, which is only known to within a minute."""
    return "under a minute ago" if silent_s < 60 else f"{span(silent_s)} ago"


def _now(item: Mapping[str, Any], step: Mapping[str, Any] | None, now_s: float) -> str:
    """What a device does now, and whether it missed steps."""
    missed, work = _missed(item), item["open_work"]
    if work != "missing" or step is None:
        return f"{({'done': 'answered', None: '-'}).get(work, work)}{missed}"
    if now_s > step["closes_at_s"]:
        return f"late{missed}"
    if missed.startswith(", silent"):  # until it answers: it may be gone
        return missed.removeprefix(", ")
    seen_s = item["last_seen_s"]
    is_usual = now_s - step["opened_at_s"] <= step["usual_s"]
    if is_usual and seen_s is not None and seen_s >= step["opened_at_s"] - ALIVE_S:
        return f"working{missed}"
    return f"silent{missed}"


def _gone(item: Mapping[str, Any]) -> str:
    is_new = item["membership"] == "declined" and item["last"] is None
    return "declined" if is_new else "left"


def _missed(item: Mapping[str, Any]) -> str:
    """Whether a device is slow, its newest answer too late, or silent, and for how long."""
    if not item["misses"]:
        return ""
    is_slow = item["last"] is not None and item["last"]["is_late"]
    return f", {'slow' if is_slow else 'silent'} {item['misses']}"


def _last(answer: Mapping[str, Any] | None) -> str:
    if answer is None:
        return "-"
    late = ", too late to count" if answer["is_late"] else ""
    refused = f", {size(answer['refused_bytes'])}" if answer.get("refused_bytes") else ""
    why = f" ({answer['failure']}{refused})" if answer["failure"] else ""
    return f"{_work(answer)}: {answer['outcome']}{why}{late}"


def _why(codes: Sequence[Failure]) -> str:
    return "".join(f"{SAID[code]}; " for code in codes)
