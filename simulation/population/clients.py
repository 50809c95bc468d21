"""Virtual clients: who holds which texts of a data set, as indices alone.

Functions here partition the texts `0 .. len - 1` of one data set (and those of its test set) among
clients: no text twice, none lost, equal arguments equal clients. Example, AUG-FedPrompt's setting,
64 labelled texts on 32 of 1,000 clients:

    few_shot(labels, clients=1000, labelled_total=64, labelled_clients=32, gamma=inf, alpha=1.0,
             seed=0, tests=len(test_labels))
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from math import isinf

import numpy as np

from smidgen.edge_client.errors import WrongInput, demand
from smidgen.edge_client.wire.tensors import derive_seed


def dirichlet(
    concentration: float, parts: int, draws: int, generator: np.random.Generator
) -> np.ndarray:
    """Draw shares from a symmetric Dirichlet; an infinite concentration gives equal shares.

    Returns:
        (draws, parts); rows sum to 1. The first rows do not depend on the number of draws.
    """
    if isinf(concentration):
        return np.full((draws, parts), 1.0 / parts)
    return generator.dirichlet(np.full(parts, concentration), size=draws)


def apportion(weights: np.ndarray, total: int) -> np.ndarray:
    """Share a whole number out by weights (largest remainder, the first of equals first).

    Args:
        weights: Not negative, not all zero.
        total: What the result sums to, exactly.

    Returns:
        Each share is its exact value rounded down or up; int64.
    """
    exact = weights / weights.sum() * total
    counts: np.ndarray = np.floor(exact).astype(np.int64)
    missing = total - int(counts.sum())
    counts[np.argsort(counts - exact, kind="stable")[:missing]] += 1
    return counts


def deal(weights: np.ndarray, sizes: np.ndarray, piles: np.ndarray) -> np.ndarray:
    """Choose how many texts of each pile each hand receives.

    Laws: row k sums to `sizes[k]`, no column takes more than its pile. Where no pile runs short,
    each count is the exact `sizes[k] * weights[k] / sum(weights[k])` rounded down or up, and the
    roundings of a pile cancel from hand to hand: equal rows give columns that differ by at most 1.

    Args:
        weights: (hands, piles), float, not negative; only ratios within a row matter. A hand gets
            from a pile of weight 0 only when its others have run out.
        sizes: (hands,), summing to no more than the piles.
        piles: (piles,), texts in each.
    """
    exact = _fitted(weights, sizes, piles)
    counts = np.zeros(exact.shape, np.int64)
    left = piles.astype(np.int64)
    owed = np.zeros(len(piles))
    for hand, wanted in enumerate(exact):
        taken = np.minimum(np.floor(wanted + 1e-9).astype(np.int64), left)
        owed += wanted
        partly = np.flatnonzero((wanted - taken > 1e-9) & (left > taken))
        most_owed = partly[np.argsort(taken[partly] - owed[partly], kind="stable")]
        taken[most_owed[: sizes[hand] - taken.sum()]] += 1
        if missing := int(sizes[hand] - taken.sum()):
            taken += _from_any(weights[hand], left - taken, missing)
        counts[hand] = taken
        left -= taken
        owed -= taken
    return counts


def _fitted(weights: np.ndarray, sizes: np.ndarray, piles: np.ndarray) -> np.ndarray:
    """Scale rows to the hands' sizes and columns down to the piles, in turn (Sinkhorn)."""
    exact = _scaled(weights, sizes)
    for _ in range(100):
        asked = exact.sum(axis=0)
        if np.all(asked <= piles * (1 + 1e-9)):
            break
        exact = _scaled(exact * np.minimum(1.0, piles / np.maximum(asked, 1e-300)), sizes)
    return exact


def _scaled(weights: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    sums = weights.sum(axis=1, keepdims=True)
    shares = np.divide(weights, sums, out=np.zeros_like(weights), where=sums > 0)
    scaled: np.ndarray = shares * sizes[:, None]
    return scaled


def _from_any(weights: np.ndarray, left: np.ndarray, missing: int) -> np.ndarray:
    """Fill a hand from what is left, the pile it likes best first."""
    order = np.lexsort((-left, -weights))
    filled = np.minimum(np.cumsum(left[order]), missing)
    taken = np.zeros(len(left), np.int64)
    taken[order] = np.diff(filled, prepend=0)
    return taken


def hand_out(piles: Sequence[np.ndarray], counts: np.ndarray) -> list[np.ndarray]:
    """Give each hand its number of texts of each pile, from the top.

    Args:
        piles: Indices of texts.
        counts: (hands, piles), columns summing to no more than the piles.

    Returns:
        One array a hand, ascending.
    """
    hands = np.arange(len(counts))
    owners = np.concatenate([np.repeat(hands, column) for column in counts.T])
    dealt = zip(piles, counts.sum(axis=0), strict=True)
    texts = np.concatenate([pile[:used] for pile, used in dealt])
    order = np.lexsort((texts, owners))
    return np.split(texts[order], np.cumsum(counts.sum(axis=1))[:-1])


class PopulationError(WrongInput):
    """Clients that cannot be made of the texts; says what was expected and what came."""


@dataclass(frozen=True, eq=False, slots=True)
class Client:
    """One virtual client; equal to another of the same name and indices.

    Attributes:
        name: `client-0001` ..., or the field's value (`swa`) where a client is a silo.
        labelled: Training texts whose label it knows; int32, ascending, read-only.
        unlabelled: Training texts whose label it does not know; as above, disjoint from them.
        test: Texts of the test set it is judged by; as above.
    """

    name: str
    labelled: np.ndarray
    unlabelled: np.ndarray
    test: np.ndarray

    def __post_init__(self) -> None:
        for part in ("labelled", "unlabelled", "test"):
            indices = np.sort(np.asarray(getattr(self, part), np.int32))  # a copy, owned
            indices.flags.writeable = False
            object.__setattr__(self, part, indices)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Client) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[str, bytes, bytes, bytes]:
        return (
            self.name,
            self.labelled.tobytes(),
            self.unlabelled.tobytes(),
            self.test.tobytes(),
        )


Population = tuple[Client, ...]


def few_shot(
    labels: Sequence[str],
    *,
    clients: int,
    labelled_total: int,
    labelled_clients: int,
    gamma: float,
    alpha: float,
    seed: int,
    tests: int = 0,
) -> Population:
    """Deal a data set out as AUG-FedPrompt does: few labels, on few clients, the rest unlabelled.

    1. Each client draws a mix of labels, p ~ Dir(alpha / L, ...) over the L labels (the Dirichlet
       of Hsu et al. 2019, arXiv:1909.06335, and FedNLP, with equal priors).
    2. The first `labelled_clients` clients share `labelled_total` labelled texts by
       z ~ Dir(gamma, ...); counts are n * z by largest remainder, so they sum to n and may be 0.
       A client's labelled texts follow its own p. Its fractions of texts are rounded so that the
       labels of all clients together stay near what their mixes ask for: with alpha = inf no two
       labels differ by more than one text (while no label runs out).
    3. All other texts are unlabelled and dealt out over all clients, equally many each (up to one),
       as near to p times what there is of each label as the texts allow.
    4. Test texts are dealt out evenly at random.

    The paper is silent on the rounding, on labels that run out (here the client's other labels
    take their place) and on whether labelled texts come on top of the equal share (here they do:
    its skewed client would need more labelled texts than its share holds). Draws of different
    steps have seeds of their own: another gamma leaves mixes and order of texts as they were.

    Args:
        labels: Label of every training text.
        clients: Number of clients.
        labelled_total: Labelled texts on all clients together (n); exact.
        labelled_clients: Clients that may have labelled texts (xi); the others have none.
        gamma: Evenness of the labelled counts; inf is equal, 0.001 puts nearly all on one client.
        alpha: Evenness of each client's labels; inf is IID, the paper has 1.
        seed: Root seed.
        tests: Size of the test set.

    Raises:
        PopulationError: More labelled texts than texts, more labelled clients than clients, or a
            number that is not positive.
    """
    _check(len(labels), clients, labelled_total, tests)
    _check_at_most("labelled_clients", labelled_clients, clients, "clients")
    piles = _piles(labels, seed)
    kinds = len(piles)
    mixes = dirichlet(_positive("alpha", alpha) / kinds, kinds, clients, _draws(seed, "mixes"))
    z = dirichlet(_positive("gamma", gamma), labelled_clients, 1, _draws(seed, "labelled"))[0]
    known = deal(mixes[:labelled_clients], apportion(z, labelled_total), _heights(piles))
    labelled = hand_out(piles, known)
    rest = [pile[used:] for pile, used in zip(piles, known.sum(axis=0), strict=True)]
    shares = apportion(np.ones(clients), len(labels) - labelled_total)
    unlabelled = hand_out(rest, deal(mixes * _heights(rest), shares, _heights(rest)))
    labelled += repeat(np.empty(0), clients - labelled_clients)
    held = zip(_names(clients), labelled, unlabelled, _even(tests, clients, seed), strict=True)
    return tuple(Client(*parts) for parts in held)


def quantity_skewed(
    labels: Sequence[str],
    *,
    clients: int,
    beta: float,
    seed: int,
    labelled_total: int | None = None,
    tests: int = 0,
) -> Population:
    """Deal a data set out in unequal amounts: client sizes by Dir(beta), every client the same mix.

    Args:
        labels: Label of every training text.
        clients: Number of clients; with a small `beta` many of them hold nothing.
        beta: Evenness of the sizes; inf is equal.
        seed: Root seed.
        labelled_total: Labelled texts on all clients together, shared in proportion to their
            sizes; the rest is unlabelled. None labels all.
        tests: Size of the test set, dealt out evenly.

    Raises:
        PopulationError: See `few_shot`.
    """
    _check(len(labels), clients, labelled_total, tests)
    piles = _piles(labels, seed)
    shares = dirichlet(_positive("beta", beta), clients, 1, _draws(seed, "sizes"))[0]
    sizes = apportion(shares, len(labels))
    alike = np.tile(_heights(piles) / len(labels), (clients, 1))
    held = hand_out(piles, deal(alike, sizes, _heights(piles)))
    test = _even(tests, clients, seed)
    return _labelled_in_part(_names(clients), held, test, labelled_total, seed)


def mixed(
    values: Sequence[str],
    test_values: Sequence[str],
    *,
    clients: int,
    mixture: float,
    seed: int,
    labelled_total: int | None = None,
) -> Population:
    """Deal texts of several languages out, between one language per client and all on each.

    Multilingual Federated Prompt Tuning's alpha. Client k owns language k mod L (with fewer clients
    than languages, language l is owned by client l mod clients) and asks for
    (1 - mixture) * own + mixture * uniform. Each language's texts are dealt out in proportion to
    what the clients ask of it: at 0 a language lies on its owners alone, evenly; at 1 evenly on all
    clients. Test texts are dealt out in the same proportions, so a client is judged by its mixture.

    Args:
        values: Language (or any other field) of every training text.
        test_values: The same of every test text.
        clients: Number of clients.
        mixture: 0 to 1.
        seed: Root seed.
        labelled_total: See `quantity_skewed`.

    Raises:
        PopulationError: `mixture` is outside 0 to 1, a test language has no training text, or as
            for `few_shot`.
    """
    return _mixture(_names(clients), values, test_values, mixture, labelled_total, seed)


def by_field(
    values: Sequence[str],
    test_values: Sequence[str],
    *,
    seed: int,
    mixture: float = 0.0,
    labelled_total: int | None = None,
) -> Population:
    """Make one client per value of a field, named by it, in sorted order: one silo per language.

    `mixture` above 0 lets the silos' languages flow together, as in `mixed`; the silo keeps the
    name of the language it owns. Arguments and errors are those of `mixed`.
    """
    return _mixture(sorted(set(values)), values, test_values, mixture, labelled_total, seed)


def merged(population: Population) -> Client:
    """Everything on one client, named `all`: the centralised run's data."""
    parts = ("labelled", "unlabelled", "test")
    return Client(
        "all", *(np.concatenate([getattr(client, part) for client in population]) for part in parts)
    )


def _mixture(
    names: Sequence[str],
    values: Sequence[str],
    test_values: Sequence[str],
    mixture: float,
    labelled_total: int | None,
    seed: int,
) -> Population:
    _check(len(values), len(names), labelled_total, len(test_values))
    if not 0 <= mixture <= 1:
        raise PopulationError(f"mixture is {mixture:g}; 0 (one language per client) to 1 expected")
    languages = sorted(set(values))
    if strange := sorted(set(test_values) - set(languages)):
        raise PopulationError(f"test texts of {strange[0]!r}, but no training text is of it")
    own = np.zeros((len(names), len(languages)))
    for number in range(max(own.shape)):
        own[number % len(names), number % len(languages)] = 1
    own /= own.sum(axis=1, keepdims=True)
    asked = (1 - mixture) * own + mixture / len(languages)
    held = _by_language(asked, _piles(values, seed, languages))
    test = _by_language(asked, _piles(test_values, seed, languages, "test"))
    return _labelled_in_part(names, held, test, labelled_total, seed)


def _by_language(asked: np.ndarray, piles: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Deal every pile out whole: here the languages are the hands of `deal`, clients the piles."""
    heights = _heights(piles)
    return hand_out(piles, deal(asked.T, heights, np.full(len(asked), heights.sum())).T)


def _labelled_in_part(
    names: Sequence[str],
    held: Sequence[np.ndarray],
    test: Sequence[np.ndarray],
    labelled_total: int | None,
    seed: int,
) -> Population:
    sizes = _heights(held)
    known = sizes if labelled_total is None else apportion(sizes, labelled_total)
    draws = _draws(seed, "known")
    orders = [draws.permutation(texts) for texts in held]
    parts = zip(names, orders, known, test, strict=True)
    return tuple(Client(name, order[:n], order[n:], tests) for name, order, n, tests in parts)


def _piles(
    values: Sequence[str], seed: int, kinds: Sequence[str] | None = None, purpose: str = "order"
) -> list[np.ndarray]:
    """Shuffled indices of each kind of text, in the order of `kinds` (or sorted)."""
    kinds = sorted(set(values)) if kinds is None else kinds
    number = {kind: number for number, kind in enumerate(kinds)}
    codes = np.array([number[value] for value in values], np.int64)
    order = _draws(seed, purpose).permutation(len(codes))
    return [order[codes[order] == code] for code in range(len(kinds))]


def _heights(piles: Sequence[np.ndarray]) -> np.ndarray:
    return np.array([len(pile) for pile in piles], np.int64)


def _even(tests: int, clients: int, seed: int) -> list[np.ndarray]:
    order = _draws(seed, "test").permutation(tests)
    return [order[client::clients] for client in range(clients)]


def _draws(seed: int, purpose: str) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(derive_seed(seed, "population", purpose)))


def _names(clients: int) -> list[str]:
    return [f"client-{number:04d}" for number in range(1, clients + 1)]


def _check(texts: int, clients: int, labelled_total: int | None, tests: int) -> None:
    demand(texts >= 1, "no training texts to deal out", PopulationError)
    demand(clients >= 1, f"clients is {clients}; at least 1 expected", PopulationError)
    demand(tests >= 0, f"tests is {tests}; 0 or more expected", PopulationError)
    if labelled_total is not None:
        _check_at_most("labelled_total", labelled_total, texts, "training texts")


def _check_at_most(name: str, count: int, most: int, things: str) -> None:
    if not 1 <= count <= most:
        raise PopulationError(f"{name} is {count}; 1 to {most} expected, there are {most} {things}")


def _positive(name: str, value: float) -> float:
    if not value > 0:
        raise PopulationError(f"{name} is {value:g}; a number above 0 expected (inf is even)")
    return value
