"""Experiment trackers: where the rounds of a run are logged, one class for each.

    tracker = MlflowTracker("http://127.0.0.1:5000", TrackedRun("4f", "mail", {"rounds": 10}))
    tracker.log_round(1, {"accuracy": 0.71})

Packages add theirs as entry points in the group `smidgen.trackers`: what is called with the text
behind the colon and a `TrackedRun`, and gives a `Tracker`.
"""

import csv
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from time import time
from typing import Any, Protocol, TypeAlias

from smidgen.edge_client.errors import Failed, WrongInput, demand
from smidgen.edge_client.outputs import check_out_file, new_file

Figures: TypeAlias = Mapping[str, float]
PROJECT = "smidgen"  # where none is named
LAST_ROUND = "smidgen.last_round"  # a tag of an MLflow run


class TrackerError(Failed):
    """A tracker cannot be reached, or did not take what it was given; one line that names it."""


@dataclass(frozen=True)
class TrackedRun:
    """A run as trackers know it.

    Attributes:
        run_id: Unique, also among coordinators.
        name: As its operator calls it.
        settings: Of its run file, flat: `training.lr` and the like.
    """

    run_id: str
    name: str
    settings: Mapping[str, Any]

    @property
    def title(self) -> str:
        return f"{self.name}-{self.run_id}"


class Tracker(Protocol):
    """Where one run is logged. Whatever these raise ends the tracking, and nothing of the run."""

    def last_round(self) -> int:
        """The newest round that was logged before this object was made; -1 of none."""

    def log_round(self, round_index: int, figures: Figures) -> None:
        """Log a closed round; each once, in ascending order."""

    def log_folder(self, folder: Path) -> None:
        """Keep files of the run's end: its adapter, and what each device has cost."""

    def close(self, is_finished: bool) -> None:
        """Let everything that was logged be kept, of a run that is over or is tracked on later."""


class CsvTracker:
    """A CSV file, one row per round; columns are added as figures come.

    Args:
        path: The file; of this run, if it is there already.
        run: The run.
    """

    def __init__(self, path: str, run: TrackedRun) -> None:
        self._path, self._run_id = Path(path), run.run_id
        check_out_file("--to csv", self._path, sign="run_id,round_index")
        lines = self._path.read_text("utf-8").splitlines() if self._path.exists() else ()
        self._rows: list[dict[str, Any]] = list(csv.DictReader(lines))
        others = {row["run_id"] for row in self._rows} - {run.run_id}
        demand(not others, f"--to csv:{path}: it is of run {min(others, default='')}", WrongInput)

    def last_round(self) -> int:
        return max((int(row["round_index"]) for row in self._rows), default=-1)

    def log_round(self, round_index: int, figures: Figures) -> None:
        self._rows.append({"run_id": self._run_id, "round_index": round_index, **figures})
        columns = dict.fromkeys(name for row in self._rows for name in row)
        with new_file("--to csv", self._path) as file:
            table = csv.DictWriter(file, columns, lineterminator="\n")
            table.writeheader()
            table.writerows(self._rows)

    def log_folder(self, folder: Path) -> None:
        """Rows are all that it has."""

    def close(self, is_finished: bool) -> None:
        """Each row is on disk already."""


class TensorBoardTracker:
    """Event files for `tensorboard --logdir`, in a folder of the run's own.

    Args:
        folder: The log folder.
        run: The run.
    """

    def __init__(self, folder: str, run: TrackedRun) -> None:
        reading: Any = import_module("tensorboard.backend.event_processing.event_accumulator")
        writing: Any = import_module("tensorboard.summary")
        own = Path(folder) / run.title
        events = reading.EventAccumulator(str(own)).Reload() if own.is_dir() else None
        known = [events.Tensors(tag) for tag in events.Tags()["tensors"]] if events else []
        steps = (one.step for told in known for one in told)
        self._last, self._writer = max(steps, default=-1), writing.Writer(str(own))

    def last_round(self) -> int:
        return int(self._last)

    def log_round(self, round_index: int, figures: Figures) -> None:
        for name, figure in figures.items():
            self._writer.add_scalar(name, figure, round_index)
        self._writer.flush()

    def log_folder(self, folder: Path) -> None:
        """Event files hold no others."""

    def close(self, is_finished: bool) -> None:
        self._writer.close()


class MlflowTracker:
    """A run of an MLflow server or store.

    Args:
        uri: As MLFLOW_TRACKING_URI has it; by default that.
        run: The run.
    """

    def __init__(self, uri: str, run: TrackedRun) -> None:
        mlflow: Any = import_module("mlflow")
        self._client, self._kinds = mlflow.MlflowClient(tracking_uri=uri or None), mlflow.entities
        project = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        known = self._client.get_experiment_by_name(project)
        place = known.experiment_id if known else self._client.create_experiment(project)
        same = self._client.search_runs([place], f"tags.`smidgen.run_id` = '{run.run_id}'")
        if same:
            self._id, tags = same[0].info.run_id, same[0].data.tags
            self._client.update_run(self._id, status="RUNNING")
        else:
            tags = {"smidgen.run_id": run.run_id, LAST_ROUND: "-1"}
            self._id = self._client.create_run(place, run_name=run.title, tags=tags).info.run_id
            params = [
                self._kinds.Param(name, str(value)[:500]) for name, value in run.settings.items()
            ]
            self._client.log_batch(self._id, params=params)
        self._last = int(tags[LAST_ROUND])

    def last_round(self) -> int:
        return self._last

    def log_round(self, round_index: int, figures: Figures) -> None:
        about = int(time() * 1000), round_index
        metrics = [self._kinds.Metric(name, one, *about) for name, one in figures.items()]
        self._client.log_batch(self._id, metrics=metrics)
        self._client.set_tag(self._id, LAST_ROUND, str(round_index))

    def log_folder(self, folder: Path) -> None:
        self._client.log_artifacts(self._id, str(folder))

    def close(self, is_finished: bool) -> None:
        self._client.set_terminated(self._id, "FINISHED" if is_finished else "KILLED")


class WandbTracker:
    """A run of Weights & Biases, or with WANDB_MODE=offline files for `wandb sync`.

    Args:
        project: Where it stands; WANDB_ENTITY says whose.
        run: The run.
    """

    def __init__(self, project: str, run: TrackedRun) -> None:
        self._wandb: Any = import_module("wandb")
        self._run = self._wandb.init(
            project=project or PROJECT,
            id=run.run_id,
            name=run.title,
            resume="allow",
            config=dict(run.settings),
            settings=self._wandb.Settings(
                silent=True,  # and nothing of this machine: its name, paths, repository, load
                host=PROJECT,
                console="off",
                disable_code=True,
                disable_git=True,
                x_disable_machine_info=True,
                x_disable_meta=True,
                x_disable_stats=True,
            ),
        )

    def last_round(self) -> int:
        return int(self._run.starting_step) - 1

    def log_round(self, round_index: int, figures: Figures) -> None:
        self._run.log(dict(figures), step=round_index)

    def log_folder(self, folder: Path) -> None:
        artifact = self._wandb.Artifact(f"adapter-{self._run.id}", type="model")
        artifact.add_dir(str(folder))
        self._run.log_artifact(artifact)

    def close(self, is_finished: bool) -> None:
        self._run.finish(exit_code=0 if is_finished else 1)


class TrackioTracker:
    """A run of Trackio, on this machine or where TRACKIO_SPACE_ID or TRACKIO_SERVER_URL says.

    Args:
        project: Where it stands.
        run: The run.
    """

    def __init__(self, project: str, run: TrackedRun) -> None:
        self._trackio: Any = import_module("trackio")
        self._run = self._trackio.init(
            project or PROJECT,
            name=run.title,
            resume="allow",
            config=dict(run.settings),
            auto_log_cpu=False,
            auto_log_gpu=False,
        )

    def last_round(self) -> int:
        return int(self._run._next_step) - 1  # no public name says it (0.43)

    def log_round(self, round_index: int, figures: Figures) -> None:
        self._run.log(dict(figures), step=round_index)

    def log_folder(self, folder: Path) -> None:
        artifact = self._trackio.Artifact(f"adapter-{self._run.name}", type="model")
        artifact.add_dir(str(folder))
        self._trackio.log_artifact(artifact)

    def close(self, is_finished: bool) -> None:
        self._trackio.finish()


TRACKERS: Mapping[str, Callable[[str, TrackedRun], Tracker]] = {
    "csv": CsvTracker,
    "mlflow": MlflowTracker,
    "tensorboard": TensorBoardTracker,
    "trackio": TrackioTracker,
    "wandb": WandbTracker,
}
