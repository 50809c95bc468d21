"""A published number, which tables show in brackets beside ours."""

from dataclasses import dataclass

SENTENCE = "a sentence, which does not say of which base and data but where it is told"


@dataclass(frozen=True)
class Figure:
    """One printed number.

    Attributes:
        value: In `unit`.
        unit: Such as `%`, `GB` or `parameters`.
        paper: Name of the paper that prints it.
        table: Such as `table 2`, or the section of a figure that stands in a sentence.
        row: The row's name as printed; of a sentence, what the number is.
        column: The column's name as printed; empty of a sentence.
        setting: What the paper says about how it was made.
        runs: Runs that it is the mean of; 0 where it is counted, None where the paper does not say.
        spread: What it prints behind ±, in `unit`; None where it prints nothing.
        printed: The cell as it is printed, with all its digits; empty of a sentence.
        remark: What else has to be known, such as another reading of the cell.
    """

    value: float
    unit: str
    paper: str
    table: str
    row: str
    column: str = ""
    setting: str = SENTENCE
    runs: int | None = None
    spread: float | None = None
    printed: str = ""
    remark: str = ""

    def __str__(self) -> str:
        return self.printed or f"{self.value:,}"

    def to_json(self) -> dict[str, object]:
        """The number and where it stands, for machines."""
        names = ("value", "spread", "unit", "paper", "table", "row", "column", "runs", "remark")
        return {name: getattr(self, name) for name in names}
