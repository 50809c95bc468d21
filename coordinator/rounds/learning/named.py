"""Means and server optimizers by the names that run files give them: ours, then extensions."""

from collections.abc import Callable, Mapping, Sequence

from coordinator.rounds.extensions import (
    NAME,
    CheckedMean,
    CheckedOptimizer,
    Kind,
    PluginError,
    find,
    made,
    names_of,
    split,
)
from coordinator.rounds.learning.mean import Mean, WeightedMean
from coordinator.rounds.learning.optimizers import (
    Adaptive,
    AddMean,
    Momentum,
    Rates,
    ServerOptimizer,
    adagrad,
    adam,
    yogi,
)
from coordinator.rounds.learning.robust import GeometricMedian, Krum, Median, TrimmedMean
from edge_client.errors import WrongInput, demand

# By name: how a mean is written, and what makes it of the texts behind its name.
MEANS: Mapping[str, tuple[str, Callable[..., Mean]]] = {
    "fedavg": ("fedavg", WeightedMean),
    "trimmed": ("trimmed:SHARE", lambda share: TrimmedMean(float(share))),
    "median": ("median", Median),
    "krum": ("krum:F", lambda hostile: Krum(int(hostile))),
    "multikrum": ("multikrum:F:M", lambda hostile, chosen: Krum(int(hostile), int(chosen))),
    "geometric": ("geometric", GeometricMedian),
}
# The numbers that each optimizer goes by where the run file does not say them.
OPTIMIZERS: Mapping[str, Mapping[str, float]] = {
    "fedavg": {"lr": 1.0},
    "fedavgm": {"lr": 1.0, "momentum": 0.9},
    "fedadagrad": {"lr": 0.01, "beta_1": 0.0, "tau": 1e-3},
    "fedadam": {"lr": 0.01, "beta_1": 0.9, "beta_2": 0.99, "tau": 1e-3},
    "fedyogi": {"lr": 0.01, "beta_1": 0.9, "beta_2": 0.99, "tau": 1e-3},
}


def mean_of(text: str) -> Mean:
    """What a run makes of a cohort's updates.

    Raises:
        ValueError: One of ours that is not written so, or whose numbers make no sense.
        PluginError: Neither ours nor known here.
    """
    name, arguments = split(text)
    if name not in MEANS:
        return CheckedMean(*made("mean", text))
    form, factory = MEANS[name]
    count = form.count(":")
    demand(len(arguments) == count, f"mean: {form} is expected, not {text!r}")
    try:
        return factory(*arguments)
    except ValueError as error:
        is_number = "could not convert" in str(error) or "invalid literal" in str(error)
        demand(not is_number, f"mean: {form} is expected, not {text!r}")
        raise


def least_of(text: str) -> int:
    """Updates that one of our means needs; of an extension nobody knows: 1."""
    return getattr(mean_of(text), "least", 1) if split(text)[0] in MEANS else 1


def optimizer_of(text: str, rates: Rates) -> ServerOptimizer:
    """What a run makes of their mean.

    Raises:
        PluginError: Neither ours nor known here.
    """
    ours: dict[str, ServerOptimizer] = {
        "fedavg": AddMean(rates),
        "fedavgm": Momentum(rates),
        "fedadagrad": Adaptive(rates, adagrad),
        "fedadam": Adaptive(rates, adam),
        "fedyogi": Adaptive(rates, yogi),
    }
    return ours[text] if text in ours else CheckedOptimizer(*made("optimizer", text))


def check_name(kind: Kind, text: str, ours: Sequence[str]) -> None:
    """Refuse what no run file can name, whatever is installed.

    Raises:
        ValueError: It is not a name with arguments, or gives arguments to one of ours without.
    """
    known = ", ".join(ours)
    is_name = NAME.fullmatch(text) and (
        kind == "mean" or split(text)[0] not in ours or text in ours
    )
    demand(bool(is_name), f"{kind}: one of {known}, or an extension such as name:argument")


def check_known(kind: Kind, text: str, ours: Sequence[str]) -> None:
    """Refuse what this process does not know, and an extension that cannot be made as it is named.

    Raises:
        WrongInput: Nobody here has that name, or what stands behind it is wrong.
    """
    name, known = split(text)[0], [*ours, *names_of(kind)]
    demand(
        name in {split(one)[0] for one in known},
        f"{kind}: {name!r} is not known; known are {', '.join(known)}. An extension is known where "
        "its package is installed, or with --plugins FOLDER",
    )
    if find(kind, name) is not None:
        try:
            made(kind, text)
        except PluginError as error:
            raise WrongInput(str(error)) from error
