"""Presets: named defaults of a run file or an experiment.

preset = "silos"
[training]
batch = 32        # overrides the preset's, as a flag does
"""

from collections.abc import Collection, Mapping
from typing import Any

from smidgen.edge_client.errors import WrongInput

# Federated masked-language training over silos of health texts in many languages (the
# federated-healthcare paper, table 2 and section 2.4). Silos are few, trusted and very unequal:
# each draws as many texts in a round, the largest alone more, and its update weighs all that it
# holds. Bounds that follow the median silo would undo that, so there are none.
SILOS: Mapping[str, Any] = {
    "evaluate_every": 5,
    "evaluate_share": 0.1,
    "keep": "best",
    "norm_bound": 0.0,
    "max_examples": 0,
    "training": {
        "optimizer": "sgd",
        "lr": 1e-4,
        "epochs": 1,
        "least_samples": 500,
        "sample_share": 0.8e-4,
    },
    "learning": {  # Adam as Kingma and Ba 2015 (arXiv:1412.6980) have it
        "mean": "fedavg",
        "optimizer": "fedadam",
        "lr": 3e-4,
        "beta_1": 0.9,
        "beta_2": 0.999,
        "tau": 1e-8,
        "bias_correction": True,
        "decay": 1e-3,
    },
}
PRESETS: Mapping[str, Mapping[str, Any]] = {"silos": SILOS}
# What a table's optimizer goes by: another optimizer has its own, or none.
OF_OPTIMIZER: Mapping[str, Collection[str]] = {
    "training": {"lr"},
    "learning": {"lr", "beta_1", "beta_2", "tau", "bias_correction", "decay"},
}


class PresetError(WrongInput):
    """No preset has that name; says which there are."""


def laid_under(table: Mapping[str, Any], name: str | None) -> dict[str, Any]:
    """A table with a preset's values where it says nothing; tables in it alike.

    A preset's values that another one of the table's makes meaningless are left out: those of an
    optimizer where the table names another, the share of a draw where nothing is drawn.

    Laws: what the table says stays as it is; laid under twice is laid under once; without a name
    the table stays as it is.

    Args:
        table: As a TOML file or a request says it; `preset` names one too.
        name: The preset, which goes before the table's own; None: the table's, if it has one.

    Raises:
        PresetError: No preset has that name.
    """
    said = {key: value for key, value in table.items() if key != "preset"}
    name = table.get("preset") if name is None else name
    if name is None:
        return said
    if not isinstance(name, str) or name not in PRESETS:
        raise PresetError(f"preset {str(name)[:40]!r}: one of {', '.join(PRESETS)} is expected")
    under = PRESETS[name]
    inner = {
        key: {**_fitting(key, value, said[key]), **said[key]}
        for key, value in under.items()
        if isinstance(value, dict) and isinstance(said.get(key), dict)
    }
    return {**under, **said, **inner}


def _fitting(name: str, under: Mapping[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a preset's inner table that go with what is said."""
    unfit = set[str]()
    if said.get("optimizer", under.get("optimizer")) != under.get("optimizer"):
        unfit.update(OF_OPTIMIZER.get(name, ()))
    if said.get("least_samples") == 0:
        unfit.add("sample_share")
    return {key: value for key, value in under.items() if key not in unfit}
