"""A device's own texts: which may get a pseudo-label, and which it uses in a round.

Whether an unlabelled text is readable takes its tokens, so this is computed once, by the first work
that asks, and again only after the texts were reloaded from disk. Texts to train or evaluate on are
drawn by the run's seed, the device and the round alone: neither the order of devices nor earlier
rounds matter, and repeated work draws the same texts.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from smidgen.edge_client.labelling.pseudo_labels import readable, text_id
from smidgen.edge_client.texts.examples import ClientData, Example
from smidgen.edge_client.wire.messages import Work
from smidgen.edge_client.wire.seeds import derive_seed
from smidgen.edge_client.wire.training import Training


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


def sampled(texts: int, training: Training, seed: int) -> list[int]:
    """Rows to train on: all, or so many of them as the training says; ascending.

    Drawn uniformly and with replacement, so a row may come several times, and a device that holds
    fewer texts than it is to draw repeats them. Laws: `training.samples_of(texts)` rows of any
    texts at all; equal seeds give equal rows.

    Args:
        texts: How many the device has to train on.
        training: How it trains.
        seed: Of this device and this round.
    """
    if not training.least_samples or not texts:
        return list(range(texts))
    generator = np.random.Generator(np.random.PCG64(derive_seed(seed, "samples")))
    rows: list[int] = generator.integers(texts, size=training.samples_of(texts)).tolist()
    return sorted(rows)


def capped(labels: Sequence[str | None], gold: int, most: int, seed: int) -> list[int]:
    """Rows to train on: of each label all, or as many as may be, drawn; ascending.

    Gold labels win: of a label nothing else is drawn while there is a gold one left.

    Args:
        labels: The texts' labels, gold ones first.
        gold: How many these are.
        most: Most texts of one label; 0 for no cap.
        seed: Of this device and this round.
    """
    if not most:
        return list(range(len(labels)))
    generator = np.random.Generator(np.random.PCG64(derive_seed(seed, "drawn")))
    counts: Counter[str | None] = Counter()
    kept = []
    order = generator.permutation(len(labels)).tolist()
    for row in sorted(order, key=lambda row: row >= gold):  # stable
        if counts[labels[row]] < most:
            counts[labels[row]] += 1
            kept.append(row)
    return sorted(kept)


def evaluated(texts: int, share: float, seed: int) -> list[int]:
    """Rows to evaluate on: all, or a share of them, drawn without replacement; ascending.

    Laws: `share_of(texts, share)` rows, none twice; equal seeds give equal rows.

    Args:
        texts: How many test texts the device keeps.
        share: Above 0 to 1.
        seed: Of this device and this round.
    """
    count = share_of(texts, share)
    if count == texts:
        return list(range(texts))
    generator = np.random.Generator(np.random.PCG64(derive_seed(seed, "tests")))
    rows: list[int] = generator.permutation(texts)[:count].tolist()
    return sorted(rows)


def tests_of(work: Work, device_id: str, texts: int) -> list[int]:
    """Rows of a device's test texts that an evaluation asks for; see `evaluated`."""
    seed = derive_seed(work.seed, "evaluate", device_id, work.round_index)
    return evaluated(texts, work.test_share, seed)


def share_of(texts: int, share: float) -> int:
    """A share of a device's texts, rounded; one at least of those who have any."""
    return min(texts, max(1, round(share * texts)))
