"""Training and pseudo-labelling settings of a run, as its run file has them.

A run's `[labelling]` table: the coordinator decides when, who, how many and how confident, every
device the rest. Pacing is that of FeS (Cai et al., MobiCom 2023): before every f-th round, on n
devices, k labels each, and k grows with the rounds.
"""

import math
from dataclasses import dataclass, field

from smidgen.edge_client.errors import demand

ADAMW, SGD = "adamw", "sgd"


@dataclass(frozen=True)
class Training:
    """How a device trains in one round.

    Attributes:
        epochs: Passes over the texts that are trained on.
        batch: Texts in one optimizer step.
        lr: Learning rate of the optimizer.
        weight_decay: AdamW's decoupled weight decay; of SGD added to the gradient, as torch does.
        tokens: Longest input in tokens, pattern included; longer texts are cut, patterns never.
        optimizer: `adamw` or `sgd`.
        momentum: Of SGD: v = momentum * v + gradient is what a step follows.
        proximal: mu of FedProx (Li et al. 2020, arXiv:1812.06127): each step's objective has
            mu/2 * ||w - received||^2 beside the loss; 0 for none.
        scaffold: Whether devices hold control variates (`smidgen.edge_client.updates.scaffold`).
        adjusted: Whether the loss knows a device's own mix of labels (Menon et al. 2021,
            arXiv:2007.07314): how often it has each is added to the logits, as a logarithm, so that
            what it lacks is not unlearned.
        least_samples: Texts that a device trains on in a round, drawn anew and with replacement;
            0: all that it has, each once per epoch.
        sample_share: Share of its texts that are drawn where that is more: max(least_samples,
            sample_share x N), which throttles the largest devices (the healthcare paper's table 2).
    """

    epochs: int = 4
    batch: int = 8
    lr: float = 5e-3
    weight_decay: float = 0.0
    tokens: int = 128
    optimizer: str = ADAMW
    momentum: float = 0.0
    proximal: float = 0.0
    scaffold: bool = False
    adjusted: bool = False
    least_samples: int = 0
    sample_share: float = 0.0

    def __post_init__(self) -> None:
        demand(1 <= self.epochs <= 10_000, "epochs: 1 to 10000")
        demand(1 <= self.batch <= 4096, "batch: 1 to 4096")
        demand(0.0 < self.lr < 100.0, "lr: above 0 and below 100")
        demand(0.0 <= self.weight_decay < 1.0, "weight_decay: 0 to below 1")
        demand(8 <= self.tokens <= 8192, "tokens: 8 to 8192")
        demand(self.optimizer in (ADAMW, SGD), "optimizer: adamw or sgd")
        demand(0.0 <= self.momentum < 1.0, "momentum: 0 to below 1")
        is_fit = not self.momentum or self.optimizer == SGD
        demand(is_fit, "momentum: 0 (adamw has its own), or optimizer sgd")
        demand(0.0 <= self.proximal <= 1e4, "proximal: 0 to 10000")
        is_plain = self.optimizer == SGD and not self.momentum and not self.proximal
        demand(
            is_plain or not self.scaffold, "scaffold: optimizer sgd without momentum and proximal"
        )
        demand(0 <= self.least_samples <= 10**9, "least_samples: 0 to 10^9")
        demand(0.0 <= self.sample_share <= 1.0, "sample_share: 0 to 1")
        is_drawn = bool(self.least_samples) or not self.sample_share
        demand(is_drawn, "sample_share: least_samples of 1 or more beside it")

    def samples_of(self, texts: int) -> int:
        """Texts in one pass of a device that has so many; one that is repeated counts again."""
        if not self.least_samples:
            return texts
        return max(self.least_samples, round(self.sample_share * texts))

    @property
    def moments(self) -> int:
        """Numbers that the optimizer keeps of each trained one."""
        return 2 if self.optimizer == ADAMW else int(self.momentum > 0)


@dataclass(frozen=True)
class Labelling:
    """How devices label their own texts before they train.

    Attributes:
        infer_every: f: a label step before every f-th training round (rounds 1, 1 + f, ...).
        infer_clients: n: devices asked in one; 0 for all that are there.
        keep_first: k before round 1: pseudo-labels, as a share of the texts they are drawn from.
        keep_last: The same before the last round; linear in between.
        keep_per_client: Most pseudo-labels that one device may hold, whatever its share; 0 for no
            cap.
        confidence: Least calibrated probability of a pseudo-label, 0.5 to below 1.
        confidences: The same by label, where it differs.
        class_floor: How far a rarer class's `confidence` may fall, so that all classes are held
            equally often; see `smidgen.edge_client.wire.reports`.
        class_share: Most of one device's pseudo-labels that one class may have.
        read_share: Most of a device's unlabelled texts that are ever read in one label work.
        known_first: Whether texts that were read come before those that never were: where the lower
            layers are cached they cost far less, and `read_share` says how many are ever taken up.
        compute_share: Most of a device's layer-forwards that labelling may take; 1 for no limit.
        weight: A pseudo-labelled text's weight in the loss; a gold one has 1.
        early_exit: Whether a text is read no further once its label is clear.
        hardly_moved: Relative change of the adapter up to which a confident text is not read again;
            0 reads all texts again.
        stops_when_found: Whether reading ends as soon as k labels are sure; if not, all texts that
            may be read are, and the surest k are kept.
        settled_after: Readings in a row, sure and of one label, after which a text's label is
            settled: while it is sure enough the text is not read again, however far the adapter
            has moved; 0: no label ever is.
        is_gated: Whether the first adapter labels while the newest evaluated one does worse.

    Raises:
        ValueError: A value outside its range; names it.
    """

    infer_every: int = 1
    infer_clients: int = 0
    keep_first: float = 0.1
    keep_last: float = 0.5
    keep_per_client: int = 0
    confidence: float = 0.9
    confidences: dict[str, float] = field(default_factory=dict, hash=False)
    class_floor: float = 0.5
    class_share: float = 1.0
    read_share: float = 1.0
    known_first: bool = False
    compute_share: float = 0.25
    weight: float = 1.0
    early_exit: bool = True
    hardly_moved: float = 0.1
    stops_when_found: bool = True
    settled_after: int = 0
    is_gated: bool = True

    def __post_init__(self) -> None:
        demand(1 <= self.infer_every <= 1_000_000, "infer_every: 1 to 1000000")
        demand(0 <= self.infer_clients <= 1_000_000, "infer_clients: 0 to 1000000")
        demand(0.0 < self.keep_first <= 1.0, "keep_first: above 0 and at most 1")
        demand(0.0 < self.keep_last <= 1.0, "keep_last: above 0 and at most 1")
        demand(0 <= self.keep_per_client <= 10**9, "keep_per_client: 0 to 10^9")
        demand(0.5 <= self.confidence < 1.0, "confidence: 0.5 to below 1")
        for label, least in self.confidences.items():
            demand(0.5 <= least < 1.0, f"confidences: {label!r}: 0.5 to below 1")
        demand(0.5 <= self.class_floor < 1.0, "class_floor: 0.5 to below 1")
        demand(0.0 < self.class_share <= 1.0, "class_share: above 0 and at most 1")
        demand(0.0 <= self.hardly_moved <= 1.0, "hardly_moved: 0 to 1")
        demand(0 <= self.settled_after <= 1_000_000, "settled_after: 0 (never) to 1000000")
        demand(0.0 < self.read_share <= 1.0, "read_share: above 0 and at most 1")
        demand(0.0 < self.compute_share <= 1.0, "compute_share: above 0 and at most 1")
        demand(0.0 < self.weight <= 1.0, "weight: above 0 and at most 1")

    def least(self, label: str) -> float:
        """Least calibrated probability of a pseudo-label of this label."""
        return self.confidences.get(label, self.confidence)


def keep_in(labelling: Labelling, round_index: int, rounds: int) -> float:
    """k before a training round, as a share of texts.

    Linear from `keep_first` before round 1 to `keep_last` before the last one, and between the two
    in every round. A run of one round keeps `keep_last`.

    Args:
        labelling: First and last k.
        round_index: 1-based, at most `rounds`.
        rounds: Rounds of the run.
    """
    first, last = labelling.keep_first, labelling.keep_last
    grown = (round_index - 1) / (rounds - 1) if rounds > 1 else 1.0
    return first + (last - first) * grown if grown < 1.0 else last


def share_of(share: float, texts: int) -> int:
    """A share of the texts, rounded up; 0.07 of 100 is 7, as in `selection`."""
    return math.ceil(share * texts - 1e-9)


def keep_of(labelling: Labelling, share: float, texts: int) -> int:
    """How many pseudo-labels a device with so many unlabelled texts may hold: at least one."""
    most = max(1, share_of(share, texts))
    return min(most, labelling.keep_per_client) if labelling.keep_per_client else most
