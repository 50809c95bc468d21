"""Pseudo-label quality over a population: how many are held and right, which no device can know."""

from collections.abc import Mapping

from edge_client.labelling.label_journal import LabelJournal
from edge_client.labelling.pseudo_labels import chosen, text_id
from edge_client.wire.labelling import keep_of
from simulation.experiments.federation.devices import Looking
from simulation.experiments.scoring import Tally
from simulation.experiments.stage import Stage


class PseudoScore:
    """Compares pseudo-labels with the labels that the data set has.

    Args:
        on: Texts and clients of an experiment that labels.
    """

    def __init__(self, on: Stage) -> None:
        self._on = on
        self._gold = {text_id(one): one.label for one in on.dataset.train}
        self._texts = {client.name: len(client.unlabelled) for client in on.population}

    def tally(self, books: Mapping[str, LabelJournal], looking: Looking, share: float) -> Tally:
        """Right ones among all that the clients would train on now.

        Args:
            books: The clients' books.
            looking: The label step that was; its thresholds.
            share: k of the round.
        """
        said = self._on.experiment.labelling
        assert said is not None, "an experiment that labels"
        thresholds = dict(zip(self._on.dataset.task.labels, looking.thresholds, strict=True))
        right = held = 0
        for name, book in books.items():
            limit = keep_of(said, share, self._texts[name])
            for text, reading in chosen(book.readings, thresholds, limit, said.class_share).items():
                held += 1
                right += self._gold[text] == reading.label
        return Tally(right, held)
