"""Rows of a file by what became of them: read, or left out for a reason.

Law: rows = read + all that were left out, whoever reads a file and however.
"""

from collections import Counter
from dataclasses import dataclass, field

from edge_client.formats.reader import Reason

NAMED = 10  # rows left out that are named with their reasons


@dataclass
class Accounting:
    """What became of the rows of a file.

    Attributes:
        read: Rows that gave a text.
        reasons: How many rows were left out, by reason.
        lines: Numbers of the rows that were left out, in their order.
        faults: Line and reason of the first of them, those without a text aside.
        notes: How the file was read, where that was found out without being told.
    """

    read: int = 0
    reasons: Counter[Reason] = field(default_factory=Counter)
    lines: list[int] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def left_out(self) -> int:
        """Rows that gave no text."""
        return self.reasons.total()

    @property
    def bad(self) -> int:
        """Rows that were left out, those without a text aside: these are no fault."""
        return self.left_out - self.reasons["empty"]

    @property
    def rows(self) -> int:
        """All rows of the file so far."""
        return self.read + self.left_out

    def leave_out(self, line: int, reason: Reason, fault: str) -> None:
        """Leave a row out.

        Args:
            line: Its number.
            reason: The kind of reason.
            fault: Where it is and what was expected, in words that quote no text.
        """
        self.lines.append(line)
        self.reasons[reason] += 1
        if reason != "empty" and len(self.faults) < NAMED:
            self.faults.append(fault)

    def as_json(self) -> dict[str, object]:
        """For machines: `rows`, `read`, and `left_out` by reason."""
        reasons = {name: count for name, count in sorted(self.reasons.items()) if count}
        return {"rows": self.rows, "read": self.read, "left_out": reasons}

    def __str__(self) -> str:
        """How many of how many rows were left out, why, and the first of them."""
        counts = ", ".join(f"{count} {name}" for name, count in self.reasons.most_common() if count)
        rows = f"{self.left_out} of {self.rows} row{'s' * (self.rows > 1)} left out ({counts})"
        more = "; ..." if self.bad > len(self.faults) else ""
        return f"{rows}: {'; '.join(self.faults)}{more}" if self.faults else rows
