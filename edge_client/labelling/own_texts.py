"""A device's own texts, and which of the unlabelled ones may get a pseudo-label.

Finding out which are readable tokenizes every unlabelled text, so it is done once for the texts at
hand, by the first work that asks, and not again until they are read from disk anew.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property

from edge_client.labelling.pseudo_labels import readable, text_id
from edge_client.texts.examples import ClientData, Example


@dataclass(frozen=True)
class OwnTexts:
    """A device's texts as its engine reads them.

    Attributes:
        data: The texts by role: labelled, unlabelled, to test on.
        unknown_share: Share of a text's tokens that the base does not know, see `Encoder`.
    """

    data: ClientData
    unknown_share: Callable[[Example], float]

    @cached_property
    def readable(self) -> dict[str, Example]:
        return readable(self.data.unlabelled, self.data.labelled, self.unknown_share)

    def to_label(self, revoked: Collection[str]) -> dict[str, Example]:
        """The texts that may get a pseudo-label, by id, in order.

        Args:
            revoked: Ids of texts whose pseudo-label was taken back by hand; they get none.
        """
        return {name: text for name, text in self.readable.items() if name not in revoked}

    def not_read(self, revoked: Collection[str]) -> str:
        """How many of the unlabelled texts are never read, and why; empty if all are."""
        names = [text_id(example) for example in self.data.unlabelled]
        once, gold = set(names), {text_id(example) for example in self.data.labelled}
        taken_back = (once - gold) & set(revoked)
        unknown = len(once - gold - taken_back) - len(self.to_label(revoked))
        counts = {
            "there more than once": len(names) - len(once),
            "labelled by hand": len(once & gold),
            "whose label was taken back": len(taken_back),
            "mostly of tokens the base does not know": unknown,
        }
        return ", ".join(f"{count} {why}" for why, count in counts.items() if count)
