"""Settings of a run's rounds and of their aggregation, as run files and experiments have them."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from smidgen.coordinator.rounds.accounting import Account
from smidgen.coordinator.rounds.extensions import split
from smidgen.coordinator.rounds.learning.optimizers import Decay, ServerRates
from smidgen.coordinator.rounds.learning.registry import (
    MEANS,
    OPTIMIZERS,
    check_known,
    check_name,
    least_of,
    mean_of,
)
from smidgen.coordinator.rounds.scheduling.step import Asynchronous
from smidgen.edge_client.adapters.spec import Net, parse_adapter
from smidgen.edge_client.codecs import TOPK
from smidgen.edge_client.errors import WrongInput, demand
from smidgen.edge_client.tasks.kind import kind_named
from smidgen.edge_client.updates.forms import RIDGE, steps_of
from smidgen.edge_client.updates.privacy import Privacy
from smidgen.edge_client.updates.settings import Updates, steps_of_run
from smidgen.edge_client.wire.training import ADAMW, Labelling, Training

Number: TypeAlias = float | Literal["default"]

SELECTIONS = ("random", "coverage", "utility", "memory", "balance")
SELECTION_FORMS = (*SELECTIONS[:-1], "balance:TAG")  # as they are typed
LORA_MEANS = ("factors", "product")
MOST_ODDS = 8.0  # of a device to be asked, times another's, whatever a selection goes by
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
            demand(
                value == "default" or name in taken,
                f"{name}: {self.optimizer} does not have it; it has {has}",
            )
            if name in ("lr", "tau"):
                is_fit = value == "default" or 0.0 < value <= 1e6
                demand(is_fit, f"{name}: above 0 to 1000000, or default")
            else:
                is_fit = value == "default" or 0.0 <= value < 1.0
                demand(is_fit, f"{name}: 0 to below 1, or default")
        is_running = "beta_2" in taken
        demand(
            is_running or not self.bias_correction,
            f"bias_correction: {self.optimizer} has none; fedadam and fedyogi have",
        )
        is_share = isinstance(self.decay, int | float) and 0.0 <= self.decay < 1.0
        is_decay = is_share or self.decay in ("none", "linear")
        demand(is_decay, "decay: none, linear, or a number from 0 to below 1")

        demand(
            self.optimizer in OPTIMIZERS or self.decay == "none",
            f"decay: {self.optimizer} does not have it",
        )
        known = (*LORA_MEANS, "padded", "apart")  # that simulations compare with
        demand(self.lora_mean in known, f"lora_mean: one of {', '.join(LORA_MEANS)}")
        is_plain = (
            self.optimizer == "fedavg" and self.rates == ServerRates() and self.mean == "fedavg"
        )
        demand(
            self.lora_mean == LORA_MEANS[0] or is_plain,
            f"lora_mean = {self.lora_mean}: needs mean and optimizer fedavg, lr 1 and no decay",
        )

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
    if updates.secured:
        check_secured(learning, training, updates)
    what = "steps are" if updates.steps else "what codecs leave out is"
    demand(
        updates.is_plain or learning.lora_mean == LORA_MEANS[0],
        f"updates: {what} of factors; leave lora_mean = product out",
    )
    check_decay(learning, rounds)


def check_secured(learning: Learning, training: Training, updates: Updates) -> None:
    """Refuse, all in one line, what needs to see each update by itself.

    Raises:
        ValueError: Names what to leave out.
    """
    wrong = {
        f"mean = {learning.mean}": learning.mean != "fedavg",
        f"lora_mean = {learning.lora_mean}": learning.lora_mean != LORA_MEANS[0],
        "scaffold": training.scaffold,
        f"steps = {', '.join(updates.steps)}": bool(updates.steps),
    }
    found = [name for name, is_there in wrong.items() if is_there]
    demand(
        not found,
        "secure_aggregation: the coordinator sees no single update: leave out " + ", ".join(found),
    )
    demand(
        training.optimizer == ADAMW or updates.secure_aggregation == "int16",
        f"secure_aggregation = {updates.secure_aggregation}: no setting bounds single numbers of "
        f"training by {training.optimizer}; int16 is expected",
    )


def check_shares(learning: Learning, over_selection: float, is_asynchronous: bool) -> None:
    """Refuse a mean that bears a share of the cohort where speed or claims multiply a share.

    `krum` bears a number of devices, each of which is in a cohort once at most.

    Raises:
        ValueError: Says by how much, and what to leave out.
    """
    mean, arguments = split(learning.mean)
    if mean not in ("trimmed", "median", "geometric"):
        return
    share = float(arguments[0]) if arguments else 0.5
    demand(
        over_selection == 1.0,
        f"mean {learning.mean} bears {share:.0%} of the updates that count; with over_selection = "
        f"{over_selection:g} the first to answer are {over_selection:g} times as many of those as "
        f"of the devices asked, so {share / over_selection:.0%} of them: leave one of the two out",
    )
    demand(
        not is_asynchronous,
        f"mean {learning.mean} bears {share:.0%} of a buffer; in asynchronous rounds whoever "
        "answers at once is in each, 1 of 2 by itself with a buffer of 2: leave one of the two out",
    )
    demand(
        split(learning.selection)[0] not in SELECTIONS[1:],
        f"mean {learning.mean} bears {share:.0%} of a cohort; with selection {learning.selection} "
        f"what devices say of themselves gives one up to {MOST_ODDS:g} times another's odds to be "
        "in it: leave one of the two out",
    )


def check_private(spec: "RunSpec") -> None:
    """Refuse, all in one line, what differential privacy's account does not hold for.

    Raises:
        ValueError: Names what to leave out.
    """
    privacy, learning, adapter = spec.privacy, spec.learning, spec.adapter
    assert privacy is not None
    wrong = {
        "labelling": spec.labelling is not None,
        f"steps = {', '.join(spec.updates.steps)}": bool(spec.updates.steps),
    }
    if privacy.unit == "device":
        turns = "turns:rolora" in steps_of(adapter) and privacy.separation > 1
        wrong |= {
            f"mean = {learning.mean}": learning.mean != "fedavg",
            f"selection = {learning.selection}": learning.selection != "random",
            f"lora_mean = {learning.lora_mean}": learning.lora_mean != LORA_MEANS[0],
            "scaffold": spec.training.scaffold,
            f"norm_bound = {spec.norm_bound}": spec.norm_bound not in ("adaptive", 0.0),
            f"max_examples = {spec.max_examples}": spec.max_examples not in ("adaptive", 0),
            f"separation with adapter {adapter}": turns,
            "separation with secure_aggregation": bool(
                spec.updates.secured and privacy.separation > 1
            ),
        }
    else:  # what a coordinator makes of updates that have their noise costs nothing
        is_full = adapter.split("+")[0] == "full"
        has_net = not is_full and bool(parse_adapter(adapter).net)
        wrong |= {
            "adjusted": spec.training.adjusted,
            f"least_samples = {spec.training.least_samples}": bool(spec.training.least_samples),
            f"adapter = {adapter}": is_full or has_net or "turns:core" in steps_of(adapter),
        }
    found = [name for name, is_there in wrong.items() if is_there]
    demand(not found, f"privacy: epsilon would not hold: leave out {', '.join(found)}")
    known = spec.training.epochs, spec.updates.secure_aggregation
    account = Account(privacy, spec.rounds, *known)
    least = account.least * math.sqrt(account.releases)
    demand(
        account.most_participations > 0,
        f"privacy: noise_multiplier {account.multiplier:g} is too small for one round at epsilon "
        f"{privacy.epsilon:g}: {least:.4g} or more is expected",
    )


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


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """What is trained and how it is judged, said alike of runs and of experiments.

    Attributes:
        adapter: Adapter spec, such as `lora:8@q,v`; in a file that says none with a head where the
            task needs one.
        prompt_init: Text a soft prompt starts from; empty for random words.
        training: How a device trains in one round.
        learning: How the coordinator learns from a round.
        updates: In how many bytes updates and steps travel.
        labelling: How devices label their own texts; None if they do not.
        privacy: Differential privacy of each device; None: none.
        rounds: Server steps until the run is finished.
        evaluate_every: Rounds between evaluations; 0 for only before the first and after the last.
        evaluate_share: Share of its test texts that a device evaluates on, drawn in each round;
            after the last round it is all of them.
        patience: Evaluations in a row without an improvement that end the run; 0: none do.
        keep: Which adapter is the run's in the end: the `last`, or the `best` of those that were
            evaluated.
        norm_bound: Norm down to which longer updates are scaled; `adaptive` follows the rounds'
            medians, 0 lets in any.
        max_examples: Largest weight of a device in a mean; `adaptive` follows the rounds'
            medians, 0 lets in any.
        seed: Root seed of the run.
    """

    adapter: str = "lora:8@q,v"
    prompt_init: str = ""
    training: Training = field(default_factory=Training)
    learning: Learning = field(default_factory=Learning)
    updates: Updates = field(default_factory=Updates)
    labelling: Labelling | None = None
    privacy: Privacy | None = None
    rounds: int = 10
    evaluate_every: int = 1
    evaluate_share: float = 1.0
    patience: int = 0
    keep: Literal["best", "last"] = "last"
    norm_bound: float | Literal["adaptive"] = "adaptive"
    max_examples: int | Literal["adaptive"] = "adaptive"
    seed: int = 0

    def check_spec(self, kind: type[WrongInput]) -> None:
        """Refuse what neither a run nor an experiment may say.

        Raises:
            WrongInput: As the given kind; names the value.
        """
        demand(0 <= self.patience <= 1_000_000, "patience: 0 to 1000000", kind)
        demand(self.evaluate_every >= 0, "evaluate_every: 0 or more", kind)
        demand(0.0 < self.evaluate_share <= 1.0, "evaluate_share: above 0 to 1", kind)
        demand(self.keep in ("best", "last"), "keep: best or last", kind)
        demand(
            self.norm_bound == "adaptive" or 0.0 <= self.norm_bound < 1e38,
            "norm_bound: `adaptive`, a number above 0, or 0 for none",
            kind,
        )
        demand(
            self.max_examples == "adaptive" or 0 <= self.max_examples <= 10**9,
            "max_examples: `adaptive`, 1 to 10^9, or 0 for any",
            kind,
        )
        demand(0 <= self.seed < 2**63, "seed: 0 to 2^63 - 1", kind)
        demand(
            not (steps_of(self.adapter) and self.updates.down.startswith("topk")),
            f"updates: down = {self.updates.down}: adapter {self.adapter} is written anew after "
            "round 1, of which top-k would leave most out; int8 or int4 is expected",
            kind,
        )
        if RIDGE in self.adapter.split("+"):
            wrong = {
                f"mean = {self.learning.mean}": self.learning.mean != "fedavg",
                f"lora_mean = {self.learning.lora_mean}": self.learning.lora_mean != LORA_MEANS[0],
                "scaffold": self.training.scaffold,
                f"steps = {', '.join(self.updates.steps)}": bool(self.updates.steps),
                "privacy": self.privacy is not None,
            }
            found = [name for name, is_there in wrong.items() if is_there]
            said = f"adapter +{RIDGE}: its moments are averaged as they are"
            demand(not found, f"{said}: leave out {', '.join(found)}", kind)


@dataclass(frozen=True, kw_only=True)
class Schedule(RunSpec, ABC):
    """How the rounds of a run follow each other; what its state machine reads.

    Attributes:
        fraction: C of FedAvg, share of the devices asked per round, above 0 and at most 1.
        max_cohort: Most devices asked to train in a round; 0 for no cap.
        over_selection: How many times the cohort is asked to train, 1 or more: a round closes when
            as many as the cohort are done, and the others come too late.
        min_clients: Devices that must have asked for work before the first round.
        min_updates: Updates without which no round is closed.
        deadline_s: Seconds after which a step stops waiting for those who have not answered.
        adaptive_deadline: Whether a step waits no longer than a multiple of what the steps before
            it took nearly all devices that answered.
        evaluate_cohort: Devices asked to evaluate an adapter; 0 for all that are there.
        asynchronous: How rounds go on without waiting for all; None if they do not. It decides who
            is asked in the place of `fraction`, `max_cohort` and `over_selection`.
    """

    fraction: float = 1.0
    max_cohort: int = 0
    over_selection: float = 1.0
    min_clients: int = 2
    min_updates: int = 1
    deadline_s: float = 600.0
    adaptive_deadline: bool = True
    evaluate_cohort: int = 0
    asynchronous: Asynchronous | None = None

    @property
    @abstractmethod
    def labels(self) -> tuple[str, ...]:
        """The task's labels."""

    @property
    @abstractmethod
    def kind(self) -> str:
        """The kind of task, which says what adapters are judged by."""

    @property
    def account(self) -> Account | None:
        """What its rounds cost in epsilon; None without differential privacy."""
        if self.privacy is None:
            return None
        known = self.training.epochs, self.updates.secure_aggregation, self.min_updates
        return Account(self.privacy, self.rounds, *known)

    @property
    def update_steps(self) -> tuple[str, ...]:
        """What devices' updates go through, step by step."""
        account, updates = self.account, self.updates
        steps = (account.step,) if account else ()
        if account and account.is_distributed:  # one step clips, adds noise and masks
            updates = replace(updates, secure_aggregation="")
        return steps_of_run(self.training, updates, steps_of(self.adapter), steps)
