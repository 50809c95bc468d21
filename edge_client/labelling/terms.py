"""The terms on which a device labels its texts and trains on them: a piece of work, read once."""

from collections.abc import Mapping
from dataclasses import dataclass

from edge_client.adapters.spec import AdapterSpec, parse_adapter
from edge_client.tasks.kind import kind_of
from edge_client.wire.labelling import Labelling, keep_of
from edge_client.wire.messages import Work
from edge_client.wire.reported.confidences import as_bin
from edge_client.wire.training import Training


@dataclass(frozen=True)
class Terms:
    """What a piece of work says of labelling.

    Attributes:
        work_id: The work.
        round_index: 1-based; the round it belongs to, or comes before.
        spec: The kind of adapter.
        adapter_sha256: The adapter to start from.
        labels: The task's labels, in order.
        labelling: The run's settings.
        thresholds: Least confidence of a pseudo-label, by label.
        keep: k of this round, as a share of the device's unlabelled texts.
        prior: Mean log-probability of each label, in label order; empty where nobody knows.
        training: How it trains, which labelling is weighed against.
        exits_early: Whether a text is read no further than needed.
    """

    work_id: str
    round_index: int
    spec: AdapterSpec
    adapter_sha256: str
    labels: tuple[str, ...]
    labelling: Labelling
    thresholds: Mapping[str, float]
    keep: float
    prior: tuple[float, ...]
    training: Training
    exits_early: bool

    def limit(self, texts: int) -> int:
        """Most pseudo-labels that a device with so many unlabelled texts may hold."""
        return keep_of(self.labelling, self.keep, texts)


def terms_of(work: Work) -> Terms:
    """The terms of a piece of work of a run that labels.

    Thresholds are those the work brings, or else the run's settings. An ensemble's patterns are
    always read in full, and so are texts that may have several labels.
    """
    said, labels = work.labelling, work.task.labels
    assert said is not None, "a run that labels sends its settings with all its work"
    least = work.thresholds or [as_bin(said.least(label)) for label in labels]
    return Terms(
        work_id=work.work_id,
        round_index=work.round_index,
        spec=parse_adapter(work.adapter_spec),
        adapter_sha256=work.adapter_sha256,
        labels=labels,
        labelling=said,
        thresholds=dict(zip(labels, least, strict=True)),
        keep=work.keep,
        prior=work.prior,
        training=work.training,
        exits_early=said.early_exit and not work.task.ensemble and kind_of(work.task).is_one_label,
    )
