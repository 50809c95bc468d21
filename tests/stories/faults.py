"""Faults: what happens to whom and when, in numbers that a story is replayed by."""

from dataclasses import dataclass

OF_REQUEST = ("lost", "late", "cut request", "cut answer", "between", "slow", "repeated")
OF_RUN = ("paused", "extended", "rolled back", "revoked", "forgotten")
OF_OP = ("kill", "power", "flip", "full", "read-only", "clock", "pause")


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        kind: One of `OF_REQUEST`, `OF_OP`, `OF_RUN`, or a lie.
        who: The machine: `coordinator` or a device's name; `operator` of an order.
        at: Number of the request, operation or answer of that machine at which it happens, from 1;
            of an order the second.
        seconds: How late, or how long.
        size: Where it is cut: share of a request, byte of an answer; a status; of an order, which
            round or device.
    """

    kind: str
    who: str
    at: int
    seconds: float = 0.0
    size: float = 0.0

    @property
    def is_of_op(self) -> bool:
        return self.kind in OF_OP

    @property
    def is_of_request(self) -> bool:
        return self.kind in OF_REQUEST

    def __str__(self) -> str:
        known = {"who": self.who, "s": f"{self.seconds:.3g}", "size": self.size}
        known |= {"at": _th(self.at), "at_s": self.at, "kind": self.kind}
        return SAID.get(self.kind, "{who} lies in its {at} answer: {kind}").format(**known)


SAID = {
    "paused": "the operator pauses the run after {at_s} s, for {s} s",
    "extended": "the operator extends the run to {size:.0f} rounds after {at_s} s",
    "rolled back": "the operator rolls the run back to round {size:.0f} after {at_s} s",
    "revoked": "the operator revokes d{size:.0f} after {at_s} s",
    "forgotten": "the operator forgets d{size:.0f} after {at_s} s",
    "lost": "{who}: the {at} request is lost; {who} hears nothing, and after {s} s a reset",
    "late": "{who}: the {at} request is cut off here and arrives {s} s later all the same",
    "cut request": "{who}: the {at} request is cut after {size:.0%} of its bytes",
    "cut answer": "{who}: the answer to the {at} request is cut after {size:.0f} bytes",
    "between": "{who}: something in between answers the {at} request with {size:.0f}",
    "slow": "{who}: the {at} request and its answer take {s} s",
    "repeated": "{who}: the {at} request arrives a second time {s} s later",
    "kill": "{who} dies at its {at} operation, and starts again after {s} s",
    "power": "{who} loses its power at its {at} operation, and has it again after {s} s",
    "flip": "{who} dies at its {at} operation, and starts again after {s} s with a bit flipped",
    "full": "{who}: from its {at} operation on the disk is full, for {s} s",
    "read-only": "{who}: from its {at} operation on the disk is read-only, for {s} s",
    "clock": "{who}: at its {at} operation the wall clock is moved by {s} s",
    "pause": "{who} stands still at its {at} operation, for {s} s",
}


def _th(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10 if number % 100 // 10 != 1 else 0, "th")
    return f"{number}{ending}"
