"""Settings of personalization, after the rounds or without any: which ranks, how many steps."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from smidgen.edge_client.adapters.banks import check_beneath
from smidgen.edge_client.adapters.spec import AdapterSpec, Net, parse_adapter
from smidgen.edge_client.errors import WrongInput, demand
from smidgen.edge_client.personal.interpolation import FEWEST
from smidgen.edge_client.personal.methods import BY_NET, FROM_SHARED, METHODS, UNRANKED, Method, Way
from smidgen.edge_client.tasks.kind import kind_of
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.tensors import derive_seed

GUIDED: tuple[Method, ...] = (*BY_NET.values(), *FROM_SHARED)  # by what rounds have trained


@dataclass(frozen=True)
class Personal:
    """How every client trains an adapter of its own, by which its own test texts are judged.

    Attributes:
        method: As `smidgen.edge_client.personal.methods.Way` has it.
        rank_budget: R: ranks kept are R x modules (`tuned` and `interpolated` keep the shared
            ones).
        bank: Ranks of a module to choose from.
        lr: Learning rate of A and B.
        scale_lr: That of lambda, where it is trained.
        search_steps: Steps on the whole bank before its ranks are chosen (`bt-lora`).
        search_lr: Learning rate of A and B in those.
        by_output: Whether B's columns count in those by their mean over outputs.
        level: Whether lambdas only choose ranks, and all that are kept count alike.
        epochs: Passes over a client's texts with the ranks that were kept.
        batch: Texts per step.
        start: Rounds after which a client's own begins, while the others go on together (`tuned`,
            `interpolated`); None: after all.
        above: A shared adapter, such as `lora:8`, that all train together in the experiment's
            rounds, and that each trains its own above (FedDPA); empty: none.
        stages: With it: one's own is trained in so many equal parts, above the shared one as it
            then was (FedDPA-T); 0: above what all rounds gave.
        groups: Languages are dealt to so many groups; each is left out of rounds once, and its
            clients are told by what the others trained. 0: nobody is left out.

    Raises:
        WrongInput: A value outside its range; names it.
    """

    method: Method = "lora"
    rank_budget: int = Way.rank_budget
    bank: int = Way.bank
    lr: float = Way.lr
    scale_lr: float = Way.scale_lr
    search_steps: int = Way.search_steps
    search_lr: float = Way.search_lr
    by_output: bool = Way.by_output
    level: bool = Way.level
    epochs: int = Way.epochs
    batch: int = Way.batch
    start: int | None = None
    above: str = ""
    stages: int = 0
    groups: int = 0

    def __post_init__(self) -> None:
        known = ", ".join(METHODS)
        demand(self.method in METHODS, f"personal.method {self.method!r} is not one of {known}")
        is_late = self.start is None or self.method in FROM_SHARED
        demand(
            is_late and (self.start or 0) >= 0,
            f"personal.start = {self.start}: 0 or more rounds, with {' or '.join(FROM_SHARED)}",
        )
        is_all = self.start is None and not self.above
        demand(is_all or not self.groups, "personal.start and personal.above: go without groups")
        is_own = bool(self.above) and self.method not in FROM_SHARED
        demand(not self.above or is_own, f"personal.above: {self.method} has nothing above it")
        demand(0 <= self.stages <= 1000 * is_own, "personal.stages: 0; 1 to 1000 with above")
        if self.above:
            check_beneath(parse_adapter(self.above))
        demand(0 <= self.groups <= 1000 and self.groups != 1, "personal.groups: 0, or 2 to 1000")
        try:
            _ = self.way()
        except WrongInput as error:
            raise WrongInput(f"personal.{error}") from None

    @property
    def fewest(self) -> int:
        return FEWEST if self.method == "interpolated" else 1

    def way(self, task: Task | None = None) -> Way:
        """As a device does it.

        Args:
            task: What is asked, which may need a head; None: it needs none.
        """
        has_head = task is not None and kind_of(task).head(task).answers is None
        said = {one.name: getattr(self, one.name) for one in fields(Way) if hasattr(self, one.name)}
        return Way(**said, has_head=has_head)

    def __str__(self) -> str:
        kept = "" if self.method in UNRANKED else f" of {self.rank_budget} ranks per module"
        kept += ", all of them alike" if self.level else ""
        kept += ", columns by their mean" if self.by_output else ""
        kept += "" if self.start is None else f" from round {self.start}"
        kept += f" above {self.above}" if self.above else ""
        return self.method + kept


def misfit(personal: Personal, spec: AdapterSpec, is_plain: bool, rounds: int, silos: int) -> str:
    """What an experiment lacks for its personal phase, as the end of a line; empty: nothing.

    Args:
        personal: The phase.
        spec: What the rounds before it train.
        is_plain: Whether clients train one adapter together, without labelling or hostile ones.
        rounds: Federated rounds before it.
        silos: Named languages that are a client each; 0 where clients are not languages.
    """
    if not is_plain:
        return (
            ": paradigm `federated` of an adapter, without labelling and hostile clients, is "
            "expected"
        )
    if personal.method in GUIDED and not rounds:
        return f".method {personal.method}: rounds = 0; it goes by what 1 or more have trained"
    if (personal.start or 0) > rounds:
        return f".start = {personal.start}: 0 to {rounds}, the rounds before it, is expected"
    if personal.above and rounds < max(1, personal.stages):
        return f".above: {rounds} rounds; 1 or more, and as many as stages, are expected"
    if personal.method not in GUIDED and rounds and not personal.above:
        return f".method {personal.method}: rounds = {rounds}; 0 is expected, for it knows of none"
    net: Net = next((net for net, method in BY_NET.items() if method == personal.method), "")
    rank = personal.bank if net == "generator" else personal.rank_budget
    expected = AdapterSpec(rank=rank, targets=Way.targets, net=net)
    if net and spec != expected:
        return f".method {personal.method}: adapter {spec}; {expected} is expected"
    if spec.net != net:
        return f".method {personal.method}: adapter {spec}; only {BY_NET[spec.net]} goes by that"
    if personal.groups and (personal.method not in GUIDED or silos < personal.groups):
        return (
            ".groups: a method with rounds, deal.by `language` with clients = 0, and as many named "
            f"languages as groups, or more, are expected; groups = {personal.groups}"
        )
    return ""


def left_out(languages: Sequence[str], groups: int) -> tuple[tuple[str, ...], ...]:
    """Languages in groups, drawn by a fixed seed, alike in size up to one.

    Law: each language is in exactly one group; the order in which they are named does not matter.

    Args:
        languages: All of them.
        groups: How many groups; at most as many as languages.
    """
    names = sorted(languages)
    seed = derive_seed(0, "left out", *names)
    order = np.random.Generator(np.random.PCG64(seed)).permutation(len(names))
    return tuple(
        tuple(sorted(names[row] for row in order[first::groups])) for first in range(groups)
    )
