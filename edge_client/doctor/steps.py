"""The self-test of an engine, seen from outside: started as a process, and judged."""

import json
from tempfile import TemporaryDirectory

from edge_client.doctor.engines import OTHER_ENGINE, run
from edge_client.doctor.finding import ERROR, OK, UNKNOWN, Finding
from edge_client.doctor.numbers import TOLERANCE, difference, stored

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
