"""The ways to an adapter of one's own, by name, and all that is said of one."""

from dataclasses import dataclass
from typing import Literal, get_args

from edge_client.adapters.spec import TARGETS, Net
from edge_client.errors import demand
from edge_client.personal.fitting import Terms

Method = Literal[
    "fedp2eft",
    "fedl2p",
    "bt-lora",
    "adalora",
    "lora",
    "uniform",
    "random",
    "head",
    "tuned",
    "interpolated",
]
METHODS: tuple[Method, ...] = get_args(Method)
BY_NET: dict[Net, Method] = {"generator": "fedp2eft", "rates": "fedl2p"}
FROM_SHARED: tuple[Method, ...] = ("tuned", "interpolated")
UNRANKED: tuple[Method, ...] = ("head", *FROM_SHARED)  # a rank budget says nothing to these
SEARCHING: tuple[Method, ...] = ("fedp2eft", "bt-lora")  # open the whole bank for that
BANKLESS: tuple[Method, ...] = ("lora", "fedl2p")
EVEN: tuple[Method, ...] = ("uniform", *BANKLESS)  # as many ranks in each module
LARGEST_BANK = 256


@dataclass(frozen=True)
class Way:
    """How an adapter of one's own comes to be.

    Attributes:
        method: `fedp2eft`, the ranks that a generator tells from the texts; `fedl2p`, a plain one
            whose tensors are trained as fast as learned rates tell from them; `bt-lora`, the ranks
            whose lambda is largest once the whole bank has been trained for some steps;
            `adalora`, those that are not masked while an SVD is trained; `lora`, a plain one of
            that rank; `uniform` and `random`, as many of the bank, evenly or drawn; `head`, no
            ranks at all but a classification head; `tuned`, the shared adapter trained on;
            `interpolated`, what lies between the two ends of that
            (`edge_client.personal.interpolation`).
        rank_budget: R: ranks kept are R x modules.
        bank: Ranks of a module to choose from.
        targets: Short names of the linears that have any.
        epochs: Passes over the texts with the ranks that were kept.
        batch: Texts in one step.
        lr: Learning rate of A and B.
        scale_lr: That of lambda, where it is trained.
        search_steps: Steps of `bt-lora` on the whole bank.
        search_lr: Learning rate of A and B there. With larger ones all lambdas rise alike, and
            those most whose module has most outputs.
        by_output: Whether B's columns count there by their mean over outputs (`Bank`).
        level: Whether lambdas only choose ranks, and all that are kept count alike.
        has_head: Whether a head is trained beside the ranks, as tags need one.

    Raises:
        WrongInput: A value outside its range; names it.
    """

    method: Method = "fedp2eft"
    rank_budget: int = 2
    bank: int = 16
    targets: tuple[str, ...] = TARGETS
    epochs: int = 8
    batch: int = 8
    lr: float = 5e-3
    scale_lr: float = 1e-2
    search_steps: int = 10
    search_lr: float = 1e-4
    by_output: bool = False
    level: bool = False
    has_head: bool = False

    def __post_init__(self) -> None:
        known = ", ".join(METHODS)
        demand(self.method in METHODS, f"method {self.method!r} is not one of {known}")
        demand(1 <= self.bank <= LARGEST_BANK, f"bank: 1 to {LARGEST_BANK}")
        demand(
            1 <= self.rank_budget <= self.bank,
            f"rank budget {self.rank_budget}: 1 to {self.bank}, the bank's ranks, is expected",
        )
        demand(1 <= self.search_steps <= 100_000, "search_steps: 1 to 100000")
        demand(1 <= self.epochs <= 10_000, "epochs: 1 to 10000")
        _ = self.terms, self.searching  # which refuse what they refuse

    @property
    def terms(self) -> Terms:
        """Of the training with the ranks that were kept."""
        return Terms(0, self.epochs, self.batch, self.lr, self.scale_lr)

    @property
    def searching(self) -> Terms:
        """Of the search for them."""
        return Terms(self.search_steps, 0, self.batch, self.search_lr, self.scale_lr)
