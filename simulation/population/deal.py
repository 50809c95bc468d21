"""`Deal`: settings of a partition of texts among clients, carrying it out, writing it as folders.

deal = Deal(clients=1000, labelled=64, labelled_clients=32, gamma=0.001)
population = population_of(deal, train, test, seed=0)
write_clients(Path("clients"), train, test, population, task)
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from smidgen.edge_client.errors import demand
from smidgen.edge_client.formats.source import DataError
from smidgen.edge_client.tasks.kind import kind_of
from smidgen.edge_client.tasks.task import Task, task_toml
from smidgen.edge_client.texts.examples import Example, read_file
from smidgen.edge_client.texts.written import write_csv, write_tagged
from smidgen.edge_client.wire.tensors import derive_seed
from smidgen.simulation.population.clients import (
    Client,
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


Like: TypeAlias = Callable[[Example], str]


def write_clients(
    out: Path,
    texts: Sequence[Example],
    tests: Sequence[Example],
    population: Population,
    task: Task | None,
) -> list[Path]:
    """Write each client's texts to a folder of its name.

    `labelled.csv`, `unlabelled.csv` (without a label) and `test.csv` read back as the same
    examples, those with tagged words as `.jsonl`; a part without texts has no file. Without the
    first and the last of them a client takes part only in a run in which devices label.

    Args:
        out: Parent of the folders.
        texts: What the clients' labelled and unlabelled indices count.
        tests: What their test indices count.
        population: The clients.
        task: Written as `task.toml` into each folder; None writes none.

    Raises:
        DataError: A client's name is not a plain folder name; nothing is written.
        FileExistsError: There is such a folder already.
    """
    check_names(population)
    return [_write_client(out / c.name, texts, tests, c, task) for c in population]


def check_names(population: Population) -> None:
    """Refuse clients whose names name no folder.

    Raises:
        DataError: Names one.
    """
    for client in population:
        if (
            Path(client.name).name != client.name
            or client.name in ("", "..")
            or "\0" in client.name
        ):
            raise DataError(f"{client.name!r} cannot name a folder; rename it in the texts")


@dataclass(frozen=True)
class Split:
    """Texts as they are dealt out, to be written.

    Attributes:
        texts: What labelled indices count.
        tests: What test indices count.
        population: The clients.
        task: Written into each folder.
        left_out: Test texts that some client trains on: nobody is tested on them.
    """

    texts: Sequence[Example]
    tests: Sequence[Example]
    population: Population
    task: Task
    left_out: int

    def write(self, out: Path) -> list[Path]:
        """Write folders `client-0001`, `client-0002` ... below one; theirs."""
        return write_clients(out, self.texts, self.tests, self.population, self.task)


def split_of(
    data: Path,
    test: Path | None,
    task: Task,
    clients: int,
    labels: int,
    seed: int,
    most_tests: int = 0,
    like: Like = lambda example: example.text,
) -> Split:
    """Deal labelled texts out evenly: the demo's split of one's own data. Nothing is written.

    Args:
        data: Labelled file to draw from.
        test: Labelled file to test on; None takes what is left of `data`.
        task: The labels, and the `task.toml` of every folder.
        clients: Number of clients.
        labels: Labelled texts in total, as equal over the labels as can be.
        seed: Seed of the draws; equal arguments give equal splits.
        most_tests: Test texts in total, spread evenly over the clients and each one's; 0: all.
        like: See `tested_apart`.

    Raises:
        DataError: Fewer texts of a label than are to be dealt out, or none left to test on.
    """
    demand(
        kind_of(task).is_one_label,
        f"task {task.name!r} of kind {task.kind} cannot be dealt out by labels; one of labels can",
        DataError,
    )
    texts = read_file(data, task, labelled=True)
    found = Counter(example.label for example in texts)
    share = labels // len(task.labels)
    if short := [label for label in task.labels if found[label] < share]:
        raise DataError(f"{data} holds {found[short[0]]} texts of {short[0]!r}, {share} needed")
    tests = [] if test is None else read_file(test, task, labelled=True)
    try:
        population = population_of(Deal(clients=clients, labelled=labels), texts, tests, seed)
    except PopulationError as error:
        raise DataError(f"{data} cannot be dealt out: {error}") from error
    nothing = np.empty(0, np.int32)
    if test is None:
        population = tuple(replace(c, unlabelled=nothing, test=c.unlabelled) for c in population)
        tests = texts
    population = tuple(replace(client, unlabelled=nothing) for client in population)
    population, left_out = tested_apart(population, texts, tests, like)
    if not any(len(client.test) for client in population):
        todo = "lower the number of labels, or give texts to test on (--test)"
        raise DataError(f"{data}: {labels} labels leave no text to test on; {todo}")
    if most_tests:
        shares = [len(part) for part in np.array_split(np.arange(most_tests), clients)]
        population = tuple(
            replace(client, test=_spread(client.test, most))
            for client, most in zip(population, shares, strict=True)
        )
    return Split(texts, tests, population, task, left_out)


def tested_apart(
    population: Population, texts: Sequence[Example], tests: Sequence[Example], like: Like
) -> tuple[Population, int]:
    """Clients without test texts that one of them trains on, and how many those were.

    Args:
        population: The clients.
        texts: What their labelled indices count.
        tests: What their test indices count.
        like: Gives equal words for two texts that count as one.
    """
    trained = {like(texts[index]) for client in population for index in client.labelled}
    known = np.array([like(one) in trained for one in tests], bool)
    kept = tuple(replace(client, test=client.test[~known[client.test]]) for client in population)
    before, after = (sum(len(client.test) for client in clients) for clients in (population, kept))
    return kept, before - after


def _spread(indices: np.ndarray, most: int) -> np.ndarray:
    """At most so many of some indices, at equal distances."""
    if len(indices) <= most:
        return indices
    return indices[np.arange(most) * len(indices) // max(1, most)]


def _write_client(
    folder: Path,
    texts: Sequence[Example],
    tests: Sequence[Example],
    client: Client,
    task: Task | None,
) -> Path:
    parts = {
        "labelled": [texts[index] for index in client.labelled],
        "unlabelled": [replace(texts[i], label=None, tags=()) for i in client.unlabelled],
        "test": [tests[index] for index in client.test],
    }
    folder.mkdir(parents=True)
    is_tagged = task is not None and task.files.wants == "tags"
    for part, examples in parts.items():
        if examples and is_tagged and part != "unlabelled":
            write_tagged(folder / f"{part}.jsonl", examples)
        elif examples:
            write_csv(folder / f"{part}.csv", examples)
    if task is not None:
        (folder / "task.toml").write_text(task_toml(task), encoding="utf-8")
    return folder
