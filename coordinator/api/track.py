"""Logging a run's rounds to an experiment tracker, from its store and beside whoever serves it."""

import csv
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from importlib.metadata import entry_points
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from smidgen.coordinator.api.export import export
from smidgen.coordinator.api.stores import AtStore, open_store
from smidgen.coordinator.operator.views import round_told
from smidgen.coordinator.rounds.extensions import FAILURES, line_of
from smidgen.coordinator.rounds.history import Past, history_of
from smidgen.coordinator.rounds.state import State
from smidgen.coordinator.storage.reports import rows, rows_of_round
from smidgen.coordinator.storage.runs import config_of, find_run
from smidgen.coordinator.storage.store import Run, Store
from smidgen.coordinator.watch.trackers import TRACKERS, Figures, TrackedRun, Tracker, TrackerError
from smidgen.edge_client.errors import Failed, WrongInput, demand
from smidgen.edge_client.wire.figures import Row, traffic_of

EVERY_S = 2.0  # between two looks at the store
COLUMNS = (
    *("device", "answers", "failed", "late", "seconds"),
    *("up_bytes", "down_bytes", "peak_rss_bytes"),
)


def open_tracker(to: str, run: TrackedRun) -> Tracker:
    """The tracker of `NAME` or `NAME:WHERE`, such as `mlflow:http://127.0.0.1:5000`.

    Raises:
        WrongInput: No such tracker, or its library is not installed.
        TrackerError: It cannot be reached.
    """
    name, _, where = to.partition(":")
    others = {point.name: point for point in entry_points(group="smidgen.trackers")}
    known = sorted({*TRACKERS, *others})
    demand(name in known, f"--to {name!r}: {', '.join(known)} expected, then :WHERE", WrongInput)
    with _in_one_line(name):
        opened: Tracker = (TRACKERS.get(name) or others[name].load())(where, run)
        return opened


@contextmanager
def _in_one_line(name: str) -> Iterator[None]:
    """A block in which a tracker's library is at work."""
    try:
        yield
    except (WrongInput, Failed):
        raise
    except ModuleNotFoundError as error:
        raise WrongInput(
            f"tracker {name} needs {error.name!r}: pip install {error.name}"
        ) from error
    except FAILURES as error:
        raise TrackerError(f"tracker {name}: {line_of(error)}; the run goes on") from error


def track(
    store: AtStore,
    to: str,
    *,
    run: str | None = None,
    tell: Callable[[int, Figures], None] = lambda round_index, figures: None,
) -> int:
    """Log a run's rounds as they close, until it is finished; then its adapter and devices' costs.

    Rounds that the tracker has are left out, so tracking goes on where it was cut. A round counts
    as it stands when the next step opens: what comes later is in `devices.csv`.

    Args:
        store: A store, served or not.
        to: `NAME:WHERE`, of `smidgen.coordinator.watch.trackers` or another package.
        run: Run id or name; default: the newest run.
        tell: Told each round that was logged.

    Returns:
        How many rounds were logged.

    Raises:
        TrackerError: The tracker cannot be reached, or refuses; the run itself goes on.
    """
    with closing(open_store(store)) as opened:
        chosen = find_run(opened, run)
        config = config_of(chosen)
    # Where the base lies on this machine is nobody's business.
    settings = dict(_flat(asdict(config))) | {"base": Path(config.base).name}
    tracker = open_tracker(to, TrackedRun(chosen.run_id, config.name, settings))
    with _in_one_line(to.partition(":")[0]):
        logged, is_finished = 0, False
        try:
            last = tracker.last_round()
            while not is_finished:
                with closing(open_store(store)) as opened:
                    state, past = history_of(chosen.adapter_sha256, opened.journal(chosen.run_id))
                    for index in range(last + 1, _closed(state) + 1):
                        if figures := figures_of(opened, chosen, index, past):
                            tracker.log_round(index, figures)
                            tell(index, figures)
                            logged += 1
                        last = index
                if state.is_finished:
                    _log_files(store, chosen, tracker)
                    is_finished = True
                else:
                    time.sleep(EVERY_S)
        finally:
            tracker.close(is_finished)
        return logged


def _log_files(store: AtStore, run: Run, tracker: Tracker) -> None:
    with TemporaryDirectory() as folder:
        export(store, Path(folder) / "adapter", run=run.run_id)
        with closing(open_store(store)) as opened:
            _write_devices(Path(folder) / "devices.csv", rows(opened, run.run_id))
        tracker.log_folder(Path(folder))


def _closed(state: State) -> int:
    """The newest round whose figures are final but for answers that come late."""
    is_open = state.step is None or state.step.opened.kind == "evaluate"
    return state.round_index - (is_open and not state.is_finished)


def figures_of(store: Store, run: Run, round_index: int, past: Past) -> Figures:
    """A round's figures by the names of `round_told`, those inside others as `phases_s.train`."""
    table = rows_of_round(store, run.run_id, round_index)
    if not table:
        return {}
    told = round_told(round_index, table, config_of(run).task, past.scores.get(round_index))
    return {
        name: float(value)
        for name, value in _flat(told)
        if isinstance(value, int | float) and not isinstance(value, bool) and name != "round_index"
    }


def _flat(settings: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _write_devices(path: Path, table: Sequence[Row]) -> None:
    """What each device has given and cost over the run, one row per device."""
    moved, by_device = traffic_of(table), dict[str, list[Row]]()
    for row in table:
        by_device.setdefault(row["device"], []).append(row)
    with path.open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(COLUMNS)
        for name, mine in sorted(by_device.items()):
            spent_s = [sum(row["cost"].get("phases_s", {}).values()) for row in mine]
            lines.writerow(
                [name, len(mine), sum(row["outcome"] == "failed" for row in mine)]
                + [sum(bool(row["is_late"]) for row in mine), round(sum(spent_s), 3)]
                + [sum(moved.bytes_of(row, way) for row in mine) for way in ("up", "down")]
                + [max(row["cost"]["peak_rss_bytes"] or 0 for row in mine)]
            )
