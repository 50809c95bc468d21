"""One thing that was looked at: what was found, how bad it is, and what to do.

Finding("clock", ERROR, "the clock says 1970-01-01", "set the clock")
"""

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "unknown", "warning", "error"]
OK: State = "ok"
UNKNOWN: State = "unknown"
WARNING: State = "warning"
ERROR: State = "error"
NOTHING = "nothing to do"


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Attributes:
        check: What was looked at, such as `glibc`.
        state: `error`: smidgen will not work so; `warning`: it will, but worse than it could;
            `unknown`: this machine does not say, and nothing is guessed.
        found: What it is.
        todo: What to do.
    """

    check: str
    state: State
    found: str
    todo: str = NOTHING
