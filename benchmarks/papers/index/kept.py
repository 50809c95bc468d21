"""Archive of finished experiments beside the index, so that they need not be run again.

INDEX.zip has a line per experiment, by its key, which covers base, texts, settings and engine, so a
result is used for nothing else. Rounds without evaluation are added to the next that has one; of
adapters only the last one's hash is kept, to compare a repeated run. The index as it was then is
included, for readers without the texts and bases to generate it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from lzma import LZMAError
from pathlib import Path
from zipfile import ZIP_LZMA, BadZipFile, ZipFile, ZipInfo

import msgspec

from smidgen.edge_client.files import from_json, write_atomically
from smidgen.simulation.experiments.personalization import parts
from smidgen.simulation.experiments.record import RecordError, Result, Row
from smidgen.simulation.experiments.runner import Place, finished
from smidgen.simulation.experiments.stage import Stage, stage

Rows = tuple[Row, ...]
RESULTS, PAGE = "results.jsonl", "page.md"
SUMMED = ("clients", "num_examples", "bytes_down", "bytes_up", "layer_forwards", "train_s")


@dataclass(frozen=True)
class _Line:
    key: str
    name: str
    rows: list[Row]


@dataclass(frozen=True)
class Kept:
    """What is in such a file, or what would be.

    Attributes:
        rows: Of each finished experiment, by its key.
        names: What it is called for people, by its key.
    """

    rows: Mapping[str, Rows]
    names: Mapping[str, str]

    def result(self, on: Stage, place: Place) -> Result | None:
        """What an experiment gave, run here or elsewhere; None where it has not been run.

        Raises:
            RecordError: A row on disk is damaged.
        """
        found = finished(on, place)
        if found is not None or on.key not in self.rows:
            return found
        before = [stage(part, place.data) for part in parts(on.experiment).rounds]
        if not all(one.key in self.rows for one in before):
            return None
        ended = tuple(Result(one.experiment, self.rows[one.key]) for one in before)
        return Result(on.experiment, self.rows[on.key], ended)

    def with_results(self, found: Iterable[tuple[Stage, Result]], place: Place) -> "Kept":
        """The same with more experiments, those that they go on from among them."""
        rows, names = dict(self.rows), dict(self.names)
        for on, result in found:
            before = [stage(part, place.data) for part in parts(on.experiment).rounds]
            several = [(on, result), *zip(before, result.parts, strict=True)]
            for one, own in several:
                rows[one.key] = condensed(own.rows)
                names[one.key] = one.experiment.name
        return Kept(rows, names)


NOTHING = Kept({}, {})


def read_kept(path: Path) -> Kept:
    """Read a file; nothing where there is none.

    Raises:
        RecordError: It is no such file, or a line is damaged, which is named.
    """
    rows: dict[str, Rows] = {}
    names: dict[str, str] = {}
    if not path.is_file():
        return NOTHING
    try:
        with ZipFile(path) as file:
            lines = file.read(RESULTS).splitlines()
    except (BadZipFile, KeyError, LZMAError) as error:
        raise RecordError(f"{path}: not an index's results; move it away, or delete it") from error
    for number, text in enumerate(lines, start=1):
        try:
            line = from_json(text, _Line)
        except msgspec.DecodeError as error:
            told = "not an experiment's results; take the line out, and it is run again"
            raise RecordError(f"{path}, line {number}: {told}") from error
        rows[line.key], names[line.key] = tuple(line.rows), line.name
    return Kept(rows, names)


def write_kept(path: Path, kept: Kept, page: str = "") -> None:
    """Write a file whole, equal bytes for equal results.

    Args:
        path: To be replaced.
        kept: The results.
        page: The index that was made of them.
    """
    lines = [
        msgspec.json.encode(_Line(key, kept.names[key], list(rows))) + b"\n"
        for key, rows in sorted(kept.rows.items())
    ]
    packed = BytesIO()
    with ZipFile(packed, "w") as file:
        for name, text in ((RESULTS, b"".join(lines)), (PAGE, page.encode())):
            file.writestr(ZipInfo(name), text, ZIP_LZMA)  # without the date of today
    write_atomically(path, packed.getvalue())


def condensed(rows: Sequence[Row]) -> Rows:
    """The same sums, scores and troubles in fewer rows; those that are condensed stay as they are.

    A row of which nothing but counts is known goes into the next of its arm.
    """
    found: list[Row] = []
    waiting: dict[str, Row] = {}
    last = {row.arm: row for row in rows}
    for row in rows:
        before = waiting.pop(row.arm, None)
        if before is not None:
            sums = {name: getattr(before, name) + getattr(row, name) for name in SUMMED}
            row = replace(row, **sums)
        if row.round_index != last[row.arm].round_index:
            row = replace(row, adapter_sha256="")
            if _is_counts(row):
                waiting[row.arm] = row
                continue
        found.append(row)
    return tuple(found)


def _is_counts(row: Row) -> bool:
    is_judged = row.score or row.kept_score or row.reported is not None
    is_more = row.labels or row.failed or row.trouble or row.ranks or row.between
    return not (is_judged or is_more)
