"""Runs an engine's self-test in a process of its own and judges the result."""

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from tempfile import TemporaryDirectory

import numpy as np

from edge_client.doctor.engines import OTHER_ENGINE, run
from edge_client.doctor.machine import ERROR, OK, UNKNOWN, Finding

LOSS = "loss"
TOLERANCE = 1e-5  # of a loss, and of a step's longest gradient

Numbers = Mapping[str, Sequence[float]]  # `loss`, and each tensor's name: one number per step


def stored() -> Numbers:
    """What the machine that we trust computed."""
    text = (files("edge_client") / "doctor" / "self_test.json").read_text()
    return dict(json.loads(text))


def difference(found: Numbers, expected: Numbers) -> float:
    """The largest difference: of losses as they are, of gradients over the step's longest.

    Infinite where something is missing or is not a number.
    """
    if found.keys() != expected.keys():
        return float("inf")
    if any(len(found[name]) != len(expected[name]) for name in expected):
        return float("inf")
    rows = [np.array([one[name] for name in sorted(expected)]) for one in (found, expected)]
    if not np.isfinite(rows[0]).all():
        return float("inf")
    is_loss = np.array([name == LOSS for name in sorted(expected)])
    apart = abs(rows[0] - rows[1])
    longest = rows[1][~is_loss].max(axis=0)
    return float(max(apart[is_loss].max(), (apart[~is_loss] / longest).max()))


MODULE = "edge_client.doctor.self_test"
DO_NOT_TRAIN = "do not train with it here: reinstall it, or take the other --engine"


def read_steps(kind: str) -> Finding:
    """Whether ten training steps give the numbers that are stored.

    Args:
        kind: An engine that loads.
    """
    check = f"{kind} self-test"
    try:
        with TemporaryDirectory(prefix="smidgen-doctor-") as place:
            ended = run(["-m", MODULE, kind, place])
    except OSError as error:
        told = f"no temporary folder: {error.strerror}"
        return Finding(check, UNKNOWN, told, "name a folder that may be written to in TMPDIR")
    if ended.how:
        told = f"it {ended.how}: {ended.said}" if ended.said else f"it {ended.how}"
        return Finding(check, ERROR, told, OTHER_ENGINE)
    try:
        apart = difference(json.loads(ended.out.splitlines()[-1]), stored())
    except (ValueError, LookupError, TypeError, AttributeError):
        return Finding(check, ERROR, "it printed no numbers", DO_NOT_TRAIN)
    if not apart <= TOLERANCE:
        told = f"gradients are {apart:.1e} from the stored ones, {TOLERANCE:g} is allowed"
        return Finding(check, ERROR, told, DO_NOT_TRAIN)
    told = f"10 steps, gradients {apart:.1e} from the stored ones, in {ended.elapsed_s:.1f} s"
    return Finding(check, OK, told)
