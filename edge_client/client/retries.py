"""Retries: which errors are waited out, with full jitter or the pause that the server asks for.

    given = patiently(lambda: coordinator.report(report, meter), math.inf)

Full jitter draws each pause between 0 and a bound that doubles, so devices that lost a coordinator
at the same moment do not return at the same moment.
"""

import logging
import math
import random
import re
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import TypeVar

from smidgen.edge_client.errors import Failed

log = logging.getLogger(__name__)
Given = TypeVar("Given", bound=object)

FIRST_PAUSE_S = 0.2  # the longest that the first pause can be
LONGEST_PAUSE_S = 30.0
LONGEST_ASKED_S = 600.0  # what a server may ask for; it would be taken for gone otherwise
SPREAD = 0.25  # of what was asked for, over which those who were asked come back
PASSING = (408, 425, 429)  # of 4xx: come again later


class TransportError(Failed):
    """The coordinator could not be asked, or did not give what was asked for."""


class Unreachable(TransportError):
    """The coordinator cannot be reached now, or what answers is not a coordinator.

    Args:
        message: For people.
        asked_s: For how long the server asked to be left alone.
        status: The HTTP status that something else than the coordinator answered with, or 0.
        is_own: Whether it is the coordinator itself that asks to come again.

    Attributes:
        is_further: Whether a part of what was to be moved has arrived since the last try.
        is_absent: Whether nobody could be connected to, in no try.
        is_body_alone: Whether the coordinator was heard just before: what did not get through is
            the body alone.
    """

    def __init__(
        self, message: str, asked_s: float = 0.0, status: int = 0, is_own: bool = False
    ) -> None:
        super().__init__(message)
        self.asked_s, self.status, self.is_own = asked_s, status, is_own
        self.is_further = self.is_absent = self.is_body_alone = False


class Refused(TransportError):
    """The coordinator answered with a 4xx and a reason of its own.

    Args:
        status: The HTTP status.
        detail: The coordinator's reason.
    """

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


def asked_pause_s(headers: Mapping[str, str], now: datetime) -> float:
    """How long `Retry-After` asks to wait: 0 to `LONGEST_ASKED_S`; 0 where it says nothing.

    A date is compared with the answer's own `Date`: a board without a battery has no clock at boot.

    Args:
        headers: Of an answer, found whatever their case.
        now: Where the answer has no date.
    """
    said = headers.get("Retry-After", "").strip()
    if re.fullmatch("[0-9]{1,10}", said):
        return min(float(said), LONGEST_ASKED_S)
    until, since = _date(said), _date(headers.get("Date", "")) or now
    left_s = (until - since).total_seconds() if until else 0.0
    return min(max(left_s, 0.0), LONGEST_ASKED_S)


def _date(said: str) -> datetime | None:
    try:
        found = parsedate_to_datetime(said)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return found if found.tzinfo else found.replace(tzinfo=timezone.utc)


def pause_s(
    failures: int, asked_s: float, uniform: Callable[[float, float], float] = random.uniform
) -> float:
    """How long to wait before the next try: what was asked for, and up to a growing bound more.

    Where everybody was asked to come again in 20 s, they come within the 5 s after that.

    Args:
        failures: Tries that failed one after the other, 1 or more.
        asked_s: What the server asked for.
        uniform: Draws between two numbers.
    """
    longest_s = max(FIRST_PAUSE_S * 2.0 ** min(failures - 1, 16), asked_s * SPREAD)
    return asked_s + uniform(0.0, min(longest_s, LONGEST_PAUSE_S))


def reached(call: Callable[[], Given], patience_s: float) -> Given:
    """As `patiently`, for the first words to a coordinator; says what to do if nobody is there.

    Args:
        call: See `patiently`.
        patience_s: What `--patience` says, or infinity.
    """
    try:
        return patiently(call, patience_s)
    except Unreachable as error:
        if not error.is_absent:
            raise
        unreachable = Unreachable(
            f"{error}; is the network up, and `smidgen coordinator serve` running there? "
            "--patience SECONDS waits longer"
        )
        unreachable.is_absent = True
        raise unreachable from error


def patiently(call: Callable[[], Given], give_up_after_s: float) -> Given:
    """Call until somebody answers.

    Args:
        call: Raises `Unreachable` when it should be tried again.
        give_up_after_s: Seconds after which the last `Unreachable` is raised; infinity for ever.
    """
    start, failures, is_told, is_absent = time.monotonic(), 0, False, True
    while True:
        try:
            given = call()
        except Unreachable as error:
            is_absent = error.is_absent = is_absent and error.is_absent
            left_s = give_up_after_s - (time.monotonic() - start)
            if left_s <= 0:
                raise
            if not is_told:
                until = f"for {give_up_after_s:g} s" if left_s < math.inf else "until it answers"
                log.warning("%s; trying again %s", error, until)
                is_told = True
            failures = 1 if error.is_further else failures + 1
            wait_s = pause_s(failures, error.asked_s)
        else:
            if is_told:
                log.info("connected again after %.0f s", time.monotonic() - start)
            return given
        time.sleep(min(left_s, wait_s))
