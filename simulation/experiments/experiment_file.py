"""Reads an experiment from a TOML file and refuses what no experiment has."""

import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec

from coordinator.plugins import check_known
from coordinator.presets import laid_under
from coordinator.rounds.schedule import Learning
from edge_client.errors import WrongInput, demand
from edge_client.updates.settings import Updates
from edge_client.wire.labelling import Labelling
from edge_client.wire.training import Training
from simulation.experiments.experiment import Experiment, ExperimentError
from simulation.experiments.hostile import Hostile
from simulation.experiments.personal.settings import Personal
from simulation.population.deal import Deal

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover - the same library, before it moved into Python
    import tomli as tomllib

CLOCKED = ("over_selection", "asynchronous")  # of run files; they go by who answers when


def read_experiment(path: Path) -> Experiment:
    """Read an experiment's TOML file.

    Raises:
        ExperimentError: The file is missing, is not TOML, or has an unknown key or a wrong value.
        PresetError: No preset has the name that it says.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ExperimentError(f"no experiment at {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ExperimentError(f"{path} is not TOML: {error}") from error
    for key in CLOCKED:
        said = "experiments have no clock to tell who answers first; `smidgen simulate waiting` has"
        demand(key not in table, f"{path}: {key}: {said}", ExperimentError)
    table = laid_under(table, None)
    _check_tables(table, str(path))
    try:
        experiment = msgspec.convert({"name": path.stem} | table, Experiment)
        check_known(experiment.learning)
        if experiment.taught is not None:
            check_known(experiment.taught.learning)
        return experiment
    except ExperimentError:
        raise
    except WrongInput as error:
        raise ExperimentError(f"{path}: learning: {error}") from error
    except msgspec.ValidationError as error:
        raise ExperimentError(f"{path}: {error}") from error


TABLES = {
    "deal": Deal,
    "training": Training,
    "learning": Learning,
    "updates": Updates,
    "hostile": Hostile,
    "personal": Personal,
    "labelling": Labelling,
}


def _check_tables(table: Any, origin: str) -> None:
    """Refuse a key that an experiment, or a table in it, does not have."""
    _check_keys(table, Experiment, origin)
    for name, kind in TABLES.items():
        _check_keys(table.get(name, {}), kind, f"{origin}: [{name}]")
    if "taught" in table:
        _check_tables(table["taught"], f"{origin}: [taught]")
        table["taught"].setdefault("name", "taught")


def _check_keys(table: Any, kind: type[Any], origin: str) -> None:
    demand(isinstance(table, dict), f"{origin}: a table is expected", ExperimentError)
    names = [item.name for item in fields(kind)]
    for key in sorted(set(table) - set(names)):
        raise ExperimentError(f"{origin}: unknown key {key!r}; known are {', '.join(names)}")
