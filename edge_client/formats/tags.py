"""Tags as files have them: BIO, also called IOB2, in which each entity begins with B-.

    Scheme(("Drug",)).fault(("O", "B-Drug", "I-Drug"))  # None

What is said of a wrong tag quotes none: a type that is not known may be a word that slipped.
"""

from collections.abc import Sequence
from typing import NamedTuple

from edge_client.formats.dialect import find
from edge_client.texts.faults import named
from edge_client.texts.tasks import OUTSIDE

HINT = (
    "; write the file as BIO (IOB2), where every entity begins with B-, one of a single word too: "
    "in IOB1 and its like some begin with I-"
)


class Fault(NamedTuple):
    """What is wrong with the tags of a text.

    Attributes:
        place: The word, from 0.
        said: What was expected.
    """

    place: int
    said: str


class Scheme:
    """The tags of one file, text by text.

    Args:
        labels: Types that they may name; empty allows any.
    """

    def __init__(self, labels: Sequence[str]) -> None:
        self._labels, self._is_told = labels, False

    def fault(self, tags: Sequence[str]) -> Fault | None:
        """The first tag of a text that may not stand where it does.

        Law: where there is none, each I- follows a B- or I- of its type, and every type is known.
        """
        before = ""
        for place, tag in enumerate(tags):
            start, label = parted(tag)
            if not start or (self._labels and start != OUTSIDE and label not in self._labels):
                return Fault(place, self._unknown(label))
            if start == "I" and label != before:
                return Fault(place, self._not_begun(label))
            before = label
        return None

    def _unknown(self, label: str) -> str:
        if not self._labels:
            return f"its tag is not {OUTSIDE}, nor B- or I- and a type"
        told = f"its tag is not {OUTSIDE}, nor B- or I- and one of {named(self._labels)}"
        alike = find(self._labels, label)
        return f"{told}; it differs from {named([alike])} in case or spaces" if alike else told

    def _not_begun(self, label: str) -> str:
        """What helps where a whole file is written in an older way is said once."""
        what = named([label]) if self._labels else "a type"
        hint, self._is_told = HINT * (not self._is_told), True
        return f"its tag goes on with {what}, of which the word before is not; B- is expected{hint}"


def parted(tag: str) -> tuple[str, str]:
    """A tag's first letter and its type; two empty ones if it is none at all."""
    if tag == OUTSIDE:
        return OUTSIDE, ""
    return (tag[0], tag[2:]) if tag[:2] in ("B-", "I-") and tag[2:] else ("", tag)
