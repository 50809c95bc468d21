"""Converts tag schemes to BIO (also called IOB2), in which each entity begins with B-.

    Scheme(("Drug",)).bio(("O", "S-Drug", "O"))  # ("O", "B-Drug", "O")

BIOES, BILOU and the like have more letters; IOB1, in which an entity begins with I- unless another
of its type precedes it, has fewer. Messages quote no tag: an unknown one may be a misplaced word.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from smidgen.edge_client.formats.source import find, named

OUTSIDE = "O"  # the tag of a word that belongs to no entity
BEGINS, GOES_ON = "BSUW", "IELM"  # a single word, the first; a further word, the last
OF_BIOES = "SUWELM"
HINT = (
    "; write the file as BIO (IOB2), where every entity begins with B-, one of a single word too: "
    "in IOB1 and its like some begin with I-"
)


class TagFault(NamedTuple):
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
        is_first: Whether it is IOB1, see `is_iob1`.
        notes: Gets what was made of tags that are not BIO.
    """

    def __init__(
        self, labels: Sequence[str], is_first: bool = False, notes: list[str] | None = None
    ) -> None:
        self._labels, self._is_first, self._is_told = labels, is_first, False
        self._notes = [] if notes is None else notes

    def bio(self, tags: Sequence[str]) -> tuple[str, ...] | TagFault:
        """The tags of a text as BIO, or the first that may not stand where it does.

        Law: each I- follows a B- or I- of its type, and every type is known; tags that are BIO
        stay as they are.
        """
        found, before = list[str](), ""
        for place, tag in enumerate(tags):
            letter, label = parted(tag)
            if not letter or (self._labels and letter != OUTSIDE and label not in self._labels):
                return TagFault(place, self._unknown(label))
            if letter in OF_BIOES:
                self._note("tags of BIOES, BILOU or the like as BIO")
            if letter == OUTSIDE:
                found.append(OUTSIDE)
            elif letter in BEGINS:
                found.append(f"B-{label}")
            elif label == before:
                found.append(f"I-{label}")
            elif self._is_first and letter == "I":
                found.append(f"B-{label}")
                self._note("tags of IOB1 as BIO")
            else:
                return TagFault(place, self._not_begun(label))
            before = "" if letter in "SUWEL" else label
        return tuple(tag if new == tag else new for new, tag in zip(found, tags, strict=True))

    def _note(self, said: str) -> None:
        self._notes += [] if said in self._notes else [said]

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


def is_iob1(texts: Iterable[Sequence[str]]) -> bool:
    """Whether entities begin with I-, and with B- only right behind another of their type."""
    begun_by_i = False
    for tags in texts:
        before = ""
        for tag in tags:
            letter, label = parted(tag)
            if letter in (*BEGINS, *OF_BIOES) and (letter != "B" or label != before):
                return False
            begun_by_i |= letter == "I" and label != before
            before = label if letter else ""
    return begun_by_i


def parted(tag: str) -> tuple[str, str]:
    """A tag's first letter and its type; two empty ones if it is none at all."""
    if tag == OUTSIDE:
        return OUTSIDE, ""
    is_tag = tag[:1] in (*BEGINS, *GOES_ON) and tag[1:2] == "-" and tag[2:]
    return (tag[0], tag[2:]) if is_tag else ("", tag)
