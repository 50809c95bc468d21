"""Aggregation settings of a run, as its run file has them."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from coordinator.rounds.extensions import split
from coordinator.rounds.learning.optimizers import Decay, ServerRates
from coordinator.rounds.learning.registry import (
    MEANS,
    OPTIMIZERS,
    check_known,
    check_name,
    least_of,
    mean_of,
)
from edge_client.adapters.spec import Net
from edge_client.codecs.codec import TOPK
from edge_client.errors import demand
from edge_client.tasks.kind import kind_named
from edge_client.updates.settings import Updates
from edge_client.wire.training import ADAMW, Training

Number: TypeAlias = float | Literal["default"]

SELECTIONS = ("random", "coverage", "utility", "memory", "balance")
SELECTION_FORMS = (*SELECTIONS[:-1], "balance:TAG")  # as they are typed
LORA_MEANS = ("factors", "product")
WRONG_MEANS = ("padded", "apart")  # that simulations compare with
NUMBERS = ("lr", "momentum", "beta_1", "beta_2", "tau")


@dataclass(frozen=True)
class Learning:
    """How a cohort's updates become the next adapter.

    Attributes:
        mean: What is made of a cohort's updates: `fedavg`, their mean by example counts; or
            `trimmed:SHARE`, `median`, `krum:F`, `multikrum:F:M`, `geometric`, or an extension's.
        optimizer: What is made of that: `fedavg`, it is added to the adapter; `fedavgm`,
            `fedadagrad`, `fedadam`, `fedyogi`, it is a step that remembers earlier ones; or an
            extension's.
        selection: How those who are asked to train are chosen: `random`, each with the same chance;
            `coverage`, `utility`, `memory`, `balance:TAG`, some with better odds; or an
            extension's.
        lr: The server's learning rate; by default the optimizer's own.
        momentum: fedavgm's share of the steps before, 0 to below 1.
        beta_1: Share of the mean of earlier steps that is kept, 0 to below 1.
        beta_2: Share of the mean of their squares that is kept, 0 to below 1.
        tau: What is added to the root of the squares, above 0.
        bias_correction: Whether fedadam and fedyogi correct for means that start at zero.
        decay: `none`; `linear`, lr falls by equal parts to 1 / rounds of it; d, it is times
            1 - d r in round r.
        lora_mean: What LoRA's mean is of: `factors`, A and B each for itself; `product`, what B A
            changes, exactly, for devices of any ranks.
    """

    mean: str = "fedavg"
    optimizer: str = "fedavg"
    selection: str = "random"
    lr: Number = "default"
    momentum: Number = "default"
    beta_1: Number = "default"
    beta_2: Number = "default"
    tau: Number = "default"
    bias_correction: bool = False
    decay: Decay = "none"
    lora_mean: str = "factors"

    def __post_init__(self) -> None:
        check_name("mean", self.mean, _forms())
        check_name("optimizer", self.optimizer, tuple(OPTIMIZERS))
        policy, arguments = split(self.selection)
        if policy == "balance":
            is_tag = len(arguments) == 1 and bool(arguments[0])
            demand(is_tag, "selection: balance:TAG is expected, such as balance:language")
        else:
            check_name("selection", self.selection, SELECTION_FORMS)
        if split(self.mean)[0] in MEANS:
            mean_of(self.mean)
        taken = OPTIMIZERS.get(self.optimizer, {})
        has = ", ".join(taken) or "arguments behind its name"
        for name in NUMBERS:
            value = getattr(self, name)
            said = f"{name}: {self.optimizer} does not have it; it has {has}"
            demand(value == "default" or name in taken, said)
            if name in ("lr", "tau"):
                is_fit = value == "default" or 0.0 < value <= 1e6
                demand(is_fit, f"{name}: above 0 to 1000000, or default")
            else:
                is_fit = value == "default" or 0.0 <= value < 1.0
                demand(is_fit, f"{name}: 0 to below 1, or default")
        is_running = "beta_2" in taken
        said = f"bias_correction: {self.optimizer} has none; fedadam and fedyogi have"
        demand(is_running or not self.bias_correction, said)
        is_share = isinstance(self.decay, int | float) and 0.0 <= self.decay < 1.0
        is_decay = is_share or self.decay in ("none", "linear")
        demand(is_decay, "decay: none, linear, or a number from 0 to below 1")

        demand(
            self.optimizer in OPTIMIZERS or self.decay == "none",
            f"decay: {self.optimizer} does not have it",
        )
        known = (*LORA_MEANS, *WRONG_MEANS)
        demand(self.lora_mean in known, f"lora_mean: one of {', '.join(LORA_MEANS)}")
        is_plain = (
            self.optimizer == "fedavg" and self.rates == ServerRates() and self.mean == "fedavg"
        )
        said = f"lora_mean = {self.lora_mean}: needs mean and optimizer fedavg, lr 1 and no decay"
        demand(self.lora_mean == LORA_MEANS[0] or is_plain, said)

    @property
    def least(self) -> int:
        return least_of(self.mean)

    @property
    def is_ours(self) -> bool:
        are_ours = self.optimizer in OPTIMIZERS and split(self.selection)[0] in SELECTIONS
        return are_ours and split(self.mean)[0] in MEANS

    @property
    def goes_by_facts(self) -> bool:
        """Whether the choice of devices goes by their memory or tags, or an extension may."""
        return split(self.selection)[0] not in ("random", "coverage", "utility")

    @property
    def goes_by_losses(self) -> bool:
        """Whether the choice of devices goes by the losses that they report, or an extension's."""
        return split(self.selection)[0] not in ("random", "coverage", "memory", "balance")

    def check_known(self) -> None:
        """Refuse extensions that this process does not know.

        Raises:
            ValueError: Names one.
        """
        check_known("mean", self.mean, _forms())
        check_known("optimizer", self.optimizer, tuple(OPTIMIZERS))
        check_known("selection", self.selection, SELECTION_FORMS)

    @property
    def rates(self) -> ServerRates:
        """The server optimizer's numbers: those that were said, else its own."""
        said = {name: getattr(self, name) for name in NUMBERS}
        found = {
            name: float(
                OPTIMIZERS.get(self.optimizer, {}).get(name, 0.0) if value == "default" else value
            )
            for name, value in said.items()
        }
        if self.optimizer == "fedavgm" and self.lr == "default":
            found["lr"] = 1.0 - found["momentum"]  # rounds that agree step as far as their mean
        return ServerRates(
            found["lr"],
            found["beta_1"] or found["momentum"],
            found["beta_2"],
            found["tau"],
            self.bias_correction,
            self.decay,
        )


def check_together(learning: Learning, training: Training, updates: Updates, rounds: int) -> None:
    """Refuse settings that are each fine and together learn nothing, or something wrong.

    Raises:
        ValueError: Names both.
    """
    mean, up = split(learning.mean)[0], updates.up
    is_sparse = up.startswith(f"{TOPK}:")
    if training.scaffold:
        demand(
            mean == "fedavg",
            f"scaffold: control variates are not robust; mean {learning.mean} needs them left out",
        )
        demand(
            not is_sparse,
            f"scaffold: with up = {up} control variates diverge; int8 and int4 are fine",
        )
        demand(
            not updates.down.startswith(f"{TOPK}:"),
            f"scaffold: with down = {updates.down} nobody has tried it; int8 and int4 are fine",
        )
        demand(
            learning.lora_mean == LORA_MEANS[0],
            "scaffold: its control variates are of factors; leave lora_mean = product out",
        )
    demand(
        not (is_sparse and mean in ("median", "trimmed")),
        f"updates: up = {up}: mean {mean} sees zeros where most send nothing; take int8 or int4",
    )
    what = "steps are" if updates.steps else "what codecs leave out is"
    demand(
        updates.is_plain or learning.lora_mean == LORA_MEANS[0],
        f"updates: {what} of factors; leave lora_mean = product out",
    )
    check_decay(learning, rounds)


def check_decay(learning: Learning, rounds: int) -> None:
    """Refuse more rounds than the learning rate lasts for.

    Raises:
        WrongInput: Says so.
    """
    if isinstance(learning.decay, int | float):
        demand(
            learning.decay * rounds < 1.0,
            f"decay: {learning.decay:g} x {rounds} rounds leave no learning rate; below 1 in all",
        )


def check_net(
    net: Net,
    learning: Learning,
    training: Training,
    is_labelling: bool,
    patience: int = 0,
    keep: str = "last",
) -> None:
    """Refuse, all in one line, what a run that trains a net for adapters has no use for.

    Raises:
        ValueError: Names what to leave out.
    """
    wrong = {
        "labelling": is_labelling,
        "patience": bool(patience),
        f"keep = {keep}": keep != "last",
        f"lora_mean = {learning.lora_mean}": learning.lora_mean != LORA_MEANS[0],
        f"optimizer = {training.optimizer}": training.optimizer != ADAMW,
        "proximal": bool(training.proximal),
        "scaffold": training.scaffold,
        "adjusted": training.adjusted,
        "least_samples": bool(training.least_samples),
        "weight_decay": net == "rates" and bool(training.weight_decay),
    }
    found = [name for name, is_there in wrong.items() if is_there]
    demand(not found, f"adapter +{net}: leave out {', '.join(found)}")


def check_kind(kind: str, learning: Learning, training: Training, is_labelling: bool) -> None:
    """Refuse, all in one line, what goes by labels of texts in a run whose task has none.

    Raises:
        ValueError: Names what to leave out.
    """
    wrong = {
        "labelling": is_labelling,
        "adjusted": training.adjusted,
        f"selection = {learning.selection}": learning.selection == "coverage",
    }
    found = [name for name, is_there in wrong.items() if is_there]
    known = kind_named(kind)
    if known.is_labelled:
        found = [] if known.is_one_label else [name for name in found if name != "labelling"]
    is_fit = not found
    demand(is_fit, f"a task of kind {kind} has no labels of texts: leave out {', '.join(found)}")


def _forms() -> tuple[str, ...]:
    return tuple(form for form, _ in MEANS.values())
