"""Personalization methods by name: selecting ranks for this device's texts, then training them.

    with own_adapter(way, base, texts, seed, generator) as own:
        own.engine.predict(...)

Ranks are selected from a bank whose first A is the same for every device. Every method then trains
its ranks for equally long, from that A and B = 0 with fixed lambdas, dropping the search's weights.
Finally lambdas are multiplied into B, so the result is LoRA with ranks by module.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from smidgen.edge_client.adapters.banks import (
    FIRST_LAMBDA,
    LAMBDA,
    StackedAdapters,
    bank_spec,
    generator_of,
    head_of,
    rates_of,
)
from smidgen.edge_client.adapters.spec import IN_EVERY_BASE, AdapterSpec, Net, lora_modules
from smidgen.edge_client.bases.architectures import Shape
from smidgen.edge_client.engine.engine import Engine
from smidgen.edge_client.errors import demand
from smidgen.edge_client.personal.bank import (
    Bank,
    Kept,
    at_random,
    bank_like,
    bank_numbers,
    chosen,
    cut,
    drawn_bank,
    lambdas_of,
    modules_of,
    uniform,
)
from smidgen.edge_client.personal.fitting import Above, Fitted, FitTerms, Form, Rated, fit
from smidgen.edge_client.personal.generator import factors, features_of
from smidgen.edge_client.personal.interpolation import along, kept_aside, mixed, nearest
from smidgen.edge_client.personal.svd import Svd, initial_rank, schedule_of, svd_numbers
from smidgen.edge_client.texts.examples import ClientData
from smidgen.edge_client.wire.tensors import AdapterState, derive_seed

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
            (`smidgen.edge_client.personal.interpolation`).
        rank_budget: R: ranks kept are R x modules.
        bank: Ranks of a module to choose from.
        targets: Short names of the linears that have any.
        epochs: Passes over the texts with the ranks that were kept.
        batch: Texts per step.
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
    targets: tuple[str, ...] = IN_EVERY_BASE
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
    def terms(self) -> FitTerms:
        return FitTerms(0, self.epochs, self.batch, self.lr, self.scale_lr)

    @property
    def searching(self) -> FitTerms:
        return FitTerms(self.search_steps, 0, self.batch, self.search_lr, self.scale_lr)


Opened = Callable[[AdapterSpec], Engine]


@dataclass(frozen=True)
class Given:
    """What many devices have trained: a net for adapters, or the shared adapter.

    Attributes:
        spec: Its form.
        numbers: Its numbers.
    """

    spec: AdapterSpec
    numbers: AdapterState


@dataclass(frozen=True)
class Own:
    """An adapter of one's own.

    Attributes:
        engine: Has it in place; closed behind the `with` block.
        spec: Its form: LoRA with ranks by module, those of a shared one below it among them.
        loss: Mean loss of the last pass, nats.
        layer_forwards: All that it took, choosing its ranks included.
        ranks: Each module's own rank, by `layer.linear`; 0: none. None are told of the shared
            adapter's.
        num_examples: Texts that it was trained on.
        alpha: Of `interpolated`: how far it is from the shared one.
        end: Of `interpolated`: the end of the way, where alpha is 1.
    """

    engine: Engine
    spec: AdapterSpec
    loss: float
    layer_forwards: int
    ranks: dict[str, int]
    num_examples: int
    alpha: float | None = None
    end: AdapterState | None = None


@contextmanager
def own_adapter(
    way: Way,
    shape: Shape,
    opened: Opened,
    data: ClientData,
    seed: int,
    given: Given | None = None,
    first: AdapterState | None = None,
    beneath: Sequence[Given] = (),
) -> Iterator[Own]:
    """Train an adapter on a device's own texts. Equal arguments give equal bytes.

    Args:
        way: How.
        shape: The base's.
        opened: Opens an engine for an adapter of the base.
        data: The device's texts; those with a label are trained on, and a net reads all.
        seed: Of draws, and of the order of the texts.
        given: What many devices have trained, for the methods that go by that.
        first: With a shared adapter: what is trained on; None: that adapter itself. An earlier
            one lets one's own begin before the rounds are over.
        beneath: The shared adapter that one's own is trained above and that stays as it is, LoRA
            alone; where it changes meanwhile each of them in turn, of one form (see `Above`). Ranks
            are chosen by the base alone. Empty: there is none.

    Raises:
        AdapterError: A net of another base, bank or adapter.
        WrongInput: Nothing of the kind that the method goes by is given.
        TrainingError: Too few texts, or the loss is no longer finite.
    """
    net: Net = given.spec.net if given is not None else ""
    for one, method in BY_NET.items():
        demand(
            (way.method == method) == (net == one),
            f"method {method} goes by what a +{one} run gave, and nothing else does",
        )
    is_shared = given is not None and not net
    needed = " and ".join(FROM_SHARED)
    demand(is_shared == (way.method in FROM_SHARED), f"a shared adapter goes with {needed} alone")
    demand(
        not (beneath and is_shared),
        f"method {way.method} trains the shared adapter itself, and nothing above it",
    )
    if way.method == "head":
        yield from _by_head(way, shape, opened, data, seed, beneath)
        return
    if way.method == "adalora":
        yield from _by_svd(way, shape, opened, data, seed, beneath)
        return
    if given is not None and is_shared:
        yield from _from_shared(way, opened, data, seed, given, first or given.numbers)
        return
    if given is not None and net == "rates":
        yield from _by_rates(way, shape, opened, data, seed, given, beneath)
        return
    rank = way.rank_budget if way.method == "lora" else way.bank
    bank, spent = bank_spec(_lora(way, rank), shape), 0
    if net or way.method == "bt-lora":
        with closing(opened(bank)) as engine:
            drawn = engine.adapter()
            first = drawn_bank(drawn) | head_of(drawn)
            lambdas = _searched(way, shape, bank, engine, first, data, seed, given)
            kept, spent = chosen(lambdas, way.rank_budget), engine.layer_forwards
            if way.level:
                lambdas = {name: np.full_like(one, FIRST_LAMBDA) for name, one in lambdas.items()}
        spec, numbers = cut(bank, shape, bank_numbers(first, lambdas), kept)
    else:
        first = drawn_bank(bank_like(bank, shape))
        ones = np.full(rank, FIRST_LAMBDA, np.float32)
        lambdas = dict.fromkeys(modules_of(first), ones)
        spec, numbers = cut(bank, shape, bank_numbers(first, lambdas), _even(way, lambdas, seed))
    form, whole = _laid(Bank(0.0, 0.0), spec, shape, beneath)
    with closing(opened(whole)) as engine:
        numbers |= head_of(engine.adapter())
        frozen = [name for name in numbers if name.endswith(LAMBDA)]
        order = derive_seed(seed, "own")
        found = fit(engine, form, numbers, data.labelled, way.terms, order, frozen)
        yield _own(way, engine, spec, whole, shape, found, spent)


def _lora(way: Way, rank: int) -> AdapterSpec:
    """LoRA of a rank in each module, and a head beside it where the way has one."""
    return AdapterSpec(rank=rank, targets=way.targets, head=way.has_head)


def _laid(
    form: Form, spec: AdapterSpec, shape: Shape, beneath: Sequence[Given]
) -> tuple[Form, AdapterSpec]:
    """A form above what lies beneath it, and the adapter that the two make."""
    if not beneath:
        return form, spec
    stack = StackedAdapters(spec, beneath[0].spec, shape)
    return Above(form, stack, [one.numbers for one in beneath]), stack.spec


def _searched(
    way: Way,
    shape: Shape,
    bank: AdapterSpec,
    engine: Engine,
    first: AdapterState,
    data: ClientData,
    seed: int,
    given: Given | None,
) -> dict[str, np.ndarray]:
    """Lambdas to choose by: told by a generator, or trained on the device's texts."""
    if given is None:
        ones = np.full(bank.largest_rank, FIRST_LAMBDA, np.float32)
        start = bank_numbers(first, dict.fromkeys(modules_of(first), ones))
        order = derive_seed(seed, "search")
        form = Bank(by_output=way.by_output)
        return lambdas_of(fit(engine, form, start, data.labelled, way.searching, order).numbers)
    generator = generator_of(bank, shape)
    generator.check(given.numbers)
    texts = [*data.labelled, *data.unlabelled]
    features = features_of(engine, first, texts)
    return factors(generator, given.numbers, features)


def _even(way: Way, lambdas: dict[str, np.ndarray], seed: int) -> Kept:
    """Ranks that nothing is asked for."""
    if way.method == "random":
        return at_random(lambdas, way.rank_budget, derive_seed(seed, "ranks"))
    return uniform(lambdas, way.rank_budget)


def _by_svd(
    way: Way,
    shape: Shape,
    opened: Opened,
    data: ClientData,
    seed: int,
    beneath: Sequence[Given],
) -> Iterator[Own]:
    """AdaLoRA: one training, in which ranks are masked; at the end it is written as LoRA.

    It begins with half as many ranks again as are left, and trains all at one rate, as FedP2EFT's
    baseline does.
    """
    spec = _lora(way, initial_rank(way.rank_budget))
    bank, terms = bank_spec(spec, shape), replace(way.terms, scale_lr=way.lr)
    steps = way.epochs * max(1, -(-len(data.labelled) // way.batch))
    demand(steps > 1, "method adalora: one step weighs no rank; raise epochs to 2 or more")
    form = Svd(schedule_of(way.rank_budget, steps))
    above, whole = _laid(form, bank, shape, beneath)
    with closing(opened(whole)) as engine:
        joined, order = engine.adapter(), derive_seed(seed, "own")
        like = StackedAdapters(bank, beneath[0].spec, shape).own(joined) if beneath else joined
        numbers = svd_numbers(like, derive_seed(seed, "svd"))
        found = fit(engine, above, numbers, data.labelled, terms, order)
        spec, state = form.plain(bank, shape, found.numbers)
        spent = engine.layer_forwards
    plain, whole = _laid(Form(), spec, shape, beneath[-1:])
    with closing(opened(whole)) as engine:
        engine.put(plain.adapter(state))
        yield _own(way, engine, spec, whole, shape, found, spent)


def _by_head(
    way: Way,
    shape: Shape,
    opened: Opened,
    data: ClientData,
    seed: int,
    beneath: Sequence[Given],
) -> Iterator[Own]:
    """A classification head alone; what lies beneath it stays as it is."""
    spec = AdapterSpec(head=True)
    form, whole = _laid(Form(), spec, shape, beneath)
    with closing(opened(whole)) as engine:
        numbers = head_of(engine.adapter())
        order = derive_seed(seed, "own")
        found = fit(engine, form, numbers, data.labelled, way.terms, order)
        yield Own(engine, whole, found.loss, engine.layer_forwards, {}, found.num_examples)


def _by_rates(
    way: Way,
    shape: Shape,
    opened: Opened,
    data: ClientData,
    seed: int,
    given: Given,
    beneath: Sequence[Given],
) -> Iterator[Own]:
    """Plain LoRA whose tensors are trained at rates of their own."""
    spec = bank_spec(AdapterSpec(rank=way.rank_budget, targets=way.targets), shape)
    with closing(opened(spec)) as engine:
        adapter = drawn_bank(engine.adapter())
        rates = rates_of(adapter, engine.layers)
        rates.check(given.numbers)
        texts = [*data.labelled, *data.unlabelled]
        features = features_of(engine, adapter, texts)
        spent = engine.layer_forwards
    form = Rated(adapter, rates.factors(given.numbers, features))
    above, whole = _laid(form, spec, shape, beneath)
    zeros = {name: np.zeros_like(one) for name, one in adapter.items()}
    with closing(opened(whole)) as engine:
        order = derive_seed(seed, "own")
        found = fit(engine, above, zeros, data.labelled, way.terms, order)
        yield _own(way, engine, spec, whole, shape, found, spent)


def _from_shared(
    way: Way, opened: Opened, data: ClientData, seed: int, given: Given, first: AdapterState
) -> Iterator[Own]:
    """The shared adapter trained on, and a way back to it where that is asked for."""
    is_between = way.method == "interpolated"
    texts, aside = kept_aside(data.labelled, seed) if is_between else (data.labelled, ())
    with closing(opened(given.spec)) as engine:
        terms, order = way.terms, derive_seed(seed, "own")
        found = fit(engine, Form(), first, texts, terms, order)
        end, alpha = found.numbers, None
        if is_between:
            task = engine.encoder.task
            alpha = nearest(along(engine, end, given.numbers, aside), task)
            engine.put(mixed(end, given.numbers, alpha))
        spent = engine.layer_forwards
        kept = end if is_between else None
        yield Own(engine, given.spec, found.loss, spent, {}, found.num_examples, alpha, kept)


def _own(
    way: Way,
    engine: Engine,
    spec: AdapterSpec,
    whole: AdapterSpec,
    shape: Shape,
    found: Fitted,
    spent: int,
) -> Own:
    made = lora_modules(spec, shape)
    every = lora_modules(AdapterSpec(rank=1, targets=way.targets), shape)
    ranks = {
        f"{one.layer}.{one.target}": made[name].rank if name in made else 0
        for name, one in every.items()
    }
    spent += engine.layer_forwards
    return Own(engine, whole, found.loss, spent, ranks, found.num_examples)
