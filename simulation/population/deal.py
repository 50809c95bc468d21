"""`Deal`: settings of a partition of texts among clients, and carrying it out.

deal = Deal(clients=1000, labelled=64, labelled_clients=32, gamma=0.001)
population = population_of(deal, train, test, seed=0)
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from smidgen.edge_client.errors import demand
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.wire.seeds import derive_seed
from smidgen.simulation.population.clients import (
    Population,
    PopulationError,
    by_field,
    few_shot,
    mixed,
    quantity_skewed,
)


@dataclass(frozen=True)
class Deal:
    """How texts are dealt to clients; see `smidgen.simulation.population.clients`.

    Attributes:
        by: `language`: clients own languages; empty deals by labels and numbers.
        clients: How many; 0, with `by`, makes every language a client (a silo).
        labelled: Labelled texts in all; 0 for all there are.
        labelled_clients: xi, clients that hold them; 0 for all.
        gamma: Dirichlet parameter of how many each of those gets; small is skewed, inf is even.
        alpha: Dirichlet parameter of the classes on a client; small is skewed, inf is IID.
        beta: Dirichlet parameter of the clients' sizes; inf is even. Not with the other two.
        mixture: With `by`: 0 keeps each language apart, 1 mixes all evenly.

    Raises:
        PopulationError: A value outside its range; names it.
    """

    by: Literal["", "language"] = ""
    clients: int = 10
    labelled: int = 0
    labelled_clients: int = 0
    gamma: float = math.inf
    alpha: float = math.inf
    beta: float = math.inf
    mixture: float = 0.0

    def __post_init__(self) -> None:
        fewest = 0 if self.by else 1
        demand(
            fewest <= self.clients <= 1_000_000,
            f"deal.clients: {fewest} to 1000000",
            PopulationError,
        )
        demand(self.labelled >= 0, "deal.labelled: 0 (all) or more", PopulationError)
        demand(
            0 <= self.labelled_clients <= self.clients,
            f"deal.labelled_clients: 0 (all) to the {self.clients} clients",
            PopulationError,
        )
        for name in ("gamma", "alpha", "beta", "mixture"):
            object.__setattr__(self, name, float(getattr(self, name)))
        for name in ("gamma", "alpha", "beta"):
            value = getattr(self, name)
            demand(value > 0.0, f"deal.{name} is {value:g}; above 0, or inf", PopulationError)
        demand(0.0 <= self.mixture <= 1.0, "deal.mixture: 0 to 1", PopulationError)
        skewed = [name for name in ("gamma", "alpha") if getattr(self, name) < math.inf]
        demand(
            math.isinf(self.beta) or not skewed,
            "deal.beta: not together with gamma or alpha",
            PopulationError,
        )
        self._check_used()

    def _check_used(self) -> None:
        """Refuse what this way to deal would not go by."""
        way, unused = "a deal without `by`", ["mixture"]
        if self.by:
            way, unused = f"deal.by = {self.by}", ["labelled_clients", "gamma", "alpha", "beta"]
        elif self.beta < math.inf:
            way, unused = "deal.beta", ["labelled_clients", "mixture"]
        said = [name for name in unused if getattr(self, name) != getattr(Deal, name)]
        demand(not said, f"{way}: deal.{(said or [''])[0]} means nothing there", PopulationError)


def population_of(
    deal: Deal,
    texts: Sequence[Example],
    tests: Sequence[Example],
    seed: int,
    fields: tuple[Sequence[str], Sequence[str]] | None = None,
) -> Population:
    """Deal texts out as an experiment says; an experiment with this seed deals equally.

    Args:
        deal: Who gets which texts.
        texts: Labelled texts to train on.
        tests: Texts to be judged by.
        seed: The experiment's root seed.
        fields: What `deal.by` goes by, of the texts and of the tests; None: their languages.

    Raises:
        PopulationError: The texts cannot be dealt out so.
    """
    seed = derive_seed(seed, "deal")
    known = deal.labelled or None
    if deal.by:
        if fields is None:
            fields = [text.language for text in texts], [text.language for text in tests]
        if not deal.clients:
            return by_field(*fields, seed=seed, mixture=deal.mixture, labelled_total=known)
        return mixed(
            *fields, clients=deal.clients, mixture=deal.mixture, seed=seed, labelled_total=known
        )
    labels = [text.label or "" for text in texts]
    size = {"clients": deal.clients, "seed": seed, "tests": len(tests)}
    if deal.beta < math.inf:
        return quantity_skewed(labels, beta=deal.beta, labelled_total=known, **size)
    return few_shot(
        labels,
        labelled_total=known or len(labels),
        labelled_clients=deal.labelled_clients or deal.clients,
        gamma=deal.gamma,
        alpha=deal.alpha,
        **size,
    )
