"""Makes a personal adapter: trains it, compares it with the shared one, and saves both results."""

import logging
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from smidgen.edge_client.adapters.banks import StackedAdapters, bank_spec
from smidgen.edge_client.adapters.initial import takes_net
from smidgen.edge_client.adapters.peft_folder import Exported, write_peft_folder
from smidgen.edge_client.adapters.spec import AdapterError, AdapterSpec, check_ranks, parse_adapter
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.bases.tokenizer import open_tokens
from smidgen.edge_client.engine.budgeted import check_budget, open_within
from smidgen.edge_client.engine.engine import Engine
from smidgen.edge_client.engine.scoring import evaluate
from smidgen.edge_client.errors import demand
from smidgen.edge_client.personal.methods import (
    BANKLESS,
    BY_NET,
    EVEN,
    FROM_SHARED,
    LARGEST_BANK,
    METHODS,
    UNRANKED,
    Given,
    Method,
    Way,
    own_adapter,
)
from smidgen.edge_client.personal.svd import initial_rank
from smidgen.edge_client.planning.plan import BudgetError
from smidgen.edge_client.tasks.encoder import Encoder, usable
from smidgen.edge_client.tasks.kind import kind_of
from smidgen.edge_client.tasks.scores import Evaluation
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.examples import ClientData, Example
from smidgen.edge_client.wire.tensors import encode_adapter
from smidgen.edge_client.wire.training import Training

log = logging.getLogger(__name__)

ALONE: Method = "bt-lora"  # by default, where nothing is given that a method goes by


@dataclass(frozen=True)
class Opening:
    """How engines are opened for it.

    Attributes:
        kind: `auto`, `torch` or `onnx`.
        base: The frozen base.
        task: Labels and patterns.
        training: Passes, batch, learning rate and longest input.
        budget_bytes: Memory this process may take; None: 60 % of what is available.
        device: `cpu` or `cuda`.
        on_texts: Heard between two steps.
    """

    kind: str
    base: Base
    task: Task
    training: Training
    budget_bytes: int | None
    device: str
    on_texts: Callable[[int], None] = lambda texts: None

    def engine(self, spec: AdapterSpec, *, is_whole: bool = False) -> Engine:
        """An engine for an adapter; whole: one that trains all layers."""
        engine = open_within(
            self.kind,
            self.base,
            self.task,
            spec,
            self.training,
            self.budget_bytes,
            device=self.device,
            is_whole=is_whole,
        )
        engine.on_texts = self.on_texts
        return engine

    def usable(self, texts: ClientData) -> ClientData:
        """The texts of which the base can be asked something; see `encoder.usable`."""
        if kind_of(self.task).may_refuse:
            limit = min(self.training.tokens, self.base.shape.positions)
            encoder = Encoder(open_tokens(self.base), self.task, False, limit)
            texts, told = usable(encoder, texts)
            for line in told:
                log.warning("%s", line)
        return texts

    def check(self, spec: AdapterSpec, *, is_whole: bool) -> None:
        """Refuse what `engine` could not open.

        Raises:
            AdapterError: The adapter does not fit the base.
            BudgetError: No such plan fits the budget.
        """
        check_budget(
            self.kind,
            self.base,
            spec,
            self.training,
            self.task,
            self.budget_bytes,
            self.device,
            is_whole=is_whole,
        )


@dataclass(frozen=True)
class Made:
    """An adapter of one's own.

    Attributes:
        method: How its ranks were chosen.
        adapter: Its name: LoRA with ranks by module, those of a shared one below it among them.
        ranks: Each module's own rank, by `layer.linear` such as `3.q`; 0: it is not made. None are
            told of a shared adapter's, nor of a head.
        alpha: Of `interpolated`: how far it is from the shared one, 0 to 1.
        num_examples: Texts that it was trained on.
        loss: Mean loss of the last pass, nats.
        accuracy: Share of right answers on the test texts; None without any.
        accuracy_shared: That of the shared adapter, or of the base alone.
        test_examples: Test texts.
        is_better: Whether it does better than the shared one; None without test texts, or where
            there is none to compare it with.
        predicted_peak_bytes: What its plan was estimated to take.
        measure: What it is compared by: of labels `accuracy`, of tags `f1`, of masked words
            `perplexity`.
        score: That figure on the test texts; None without any.
        score_shared: That of the shared adapter, or of the base alone, which tags nothing.
    """

    method: str
    adapter: str
    ranks: dict[str, int]
    alpha: float | None
    num_examples: int
    loss: float
    accuracy: float | None
    accuracy_shared: float | None
    test_examples: int
    is_better: bool | None
    predicted_peak_bytes: int
    measure: str
    score: float | None
    score_shared: float | None


def method_for(method: str, net: Given | None) -> Method:
    """The method that is asked for, or the one that fits what was given.

    Args:
        method: Its name; empty for the one that fits.
        net: A net for adapters.

    Raises:
        WrongInput: It does not fit that, or there is no such method.
    """
    fitting = BY_NET[net.spec.net] if net else ALONE
    chosen = next((one for one in METHODS if one == (method or fitting)), None)
    known = ", ".join(METHODS)
    demand(chosen is not None, f"--method {method}: one of {known} is expected")
    assert chosen is not None
    wants = next((one for one, by in BY_NET.items() if by == chosen), "")
    said = f"--generator is for --method {fitting}; leave --method out"
    if net is None:
        said = f"it goes by what a +{wants} run gave; give that folder as --generator"
    demand(chosen == fitting or not (net or wants), f"--method {chosen}: {said}")
    return chosen


def way_for(
    method: Method,
    at: Opening,
    net: Given | None,
    rank_budget: int | None,
    beneath: Given | None = None,
) -> Way:
    """How an adapter is made by a method, within the memory there is; nothing is opened yet.

    Args:
        method: The method.
        at: How engines are opened.
        net: A net for adapters; its bank and its linears count.
        rank_budget: R; None: half a bank, or as much less as the memory budget wants.
        beneath: The shared adapter that it is trained above; None: there is none.

    Raises:
        AdapterError: Nothing can be trained above that adapter.
        BudgetError: Not even one rank fits.
        WrongInput: The method does not go with such a task, or R is not of that bank, or not what
            the net has learned.
    """
    _check_kind(method, at.task, net)
    demand(
        beneath is None or method not in FROM_SHARED,
        f"--above: method {method} trains the shared adapter itself; leave one of the two out",
    )
    kind = net.spec.net if net else ""
    bank = net.spec.rank if net and kind == "generator" else Way.bank
    if net and kind == "rates":
        demand(
            rank_budget in (None, net.spec.rank),
            f"--rank-budget {rank_budget}: the rates are of rank {net.spec.rank}; leave it out",
        )
        rank_budget = net.spec.rank
    rank = max(1, bank // 2) if rank_budget is None else rank_budget
    if method in BANKLESS:
        bank = max(bank, min(rank, LARGEST_BANK))
    demand(1 <= rank <= bank, f"--rank-budget {rank}: 1 to {bank}, the bank's ranks, is expected")
    by_output = method == "bt-lora"  # all ranks would go to `up` otherwise
    terms = at.training
    targets = net.spec.targets if net else Way.targets
    way = Way(
        method,
        rank,
        bank,
        targets,
        terms.epochs,
        terms.batch,
        terms.lr,
        by_output=by_output,
        has_head=kind_of(at.task).head(at.task).answers is None,
    )
    while True:
        try:
            _check(at, way, beneath)
            return way
        except BudgetError:
            if rank_budget is not None or way.rank_budget == 1 or method in UNRANKED:
                raise
            way = replace(way, rank_budget=way.rank_budget // 2)


def _check_kind(method: Method, task: Task, net: Given | None) -> None:
    """Refuse a method that cannot give an adapter for a kind of task."""
    said = f"--generator is no net for task {task.name!r}, which is of kind {task.kind}"
    kind = kind_of(task)
    demand(net is None or takes_net(net.spec, kind), f"{said}: leave it out")
    demand(
        method != "head" or kind.head(task).can_train,
        f"--method head: task {task.name!r} asks for masked words, which the base's own head "
        f"answers; take lora, or tuned",
    )


def _check(at: Opening, way: Way, beneath: Given | None) -> None:
    """Refuse what no engine could be opened for, now or once ranks are chosen.

    Raises:
        AdapterError: Nothing can be trained above that adapter, or no rank is left above it.
        BudgetError: Some engine that the method opens does not fit.
    """
    shape, below = at.base.shape, beneath.spec if beneath else None

    def above(spec: AdapterSpec) -> AdapterSpec:
        return StackedAdapters(spec, below, shape).spec if below else spec

    if way.method in FROM_SHARED:
        return
    if way.method == "head":
        at.check(above(AdapterSpec(head=True)), is_whole=False)
        return
    plain = AdapterSpec(rank=way.bank, targets=way.targets, head=way.has_head)
    bank = bank_spec(plain, shape)
    most = initial_rank(way.rank_budget) if way.method == "adalora" else way.rank_budget
    own = bank_spec(replace(plain, rank=most), shape)
    check_ranks(own, shape)
    if below and way.method not in EVEN:  # any module may get all ranks of the bank
        fullest = above(bank)
        try:
            check_ranks(fullest, shape)
        except AdapterError as error:
            raise AdapterError(
                f"--above: the shared adapter {below} leaves no room for {way.bank} ranks more in "
                "a matrix of this base; leave --above out, or take --method lora"
            ) from error
    if way.method in ("fedp2eft", "bt-lora"):  # open the whole bank to choose from it
        at.check(bank, is_whole=True)
    at.check(above(own), is_whole=True)


def make(
    at: Opening,
    way: Way,
    texts: ClientData,
    seed: int,
    out: Path,
    given: Given | None = None,
    shared: Given | None = None,
    is_above: bool = False,
) -> Made:
    """Train an adapter of one's own, compare it with the shared one and write it down.

    Args:
        at: How engines are opened.
        way: How it comes to be.
        texts: The device's; those with a label are trained on, test texts tell which is better.
        seed: Random seed; equal arguments give equal adapters.
        out: PEFT folder to write.
        given: What its method goes by.
        shared: The adapter to compare it with; None: the base alone.
        is_above: Whether it is trained above that, which stays as it is.

    Raises:
        AdapterError: Nothing can be trained above that adapter.
        WrongInput: Nothing of the kind that the method goes by is given, or it does not fit.
        Failed: Training went wrong, or nothing can be written.
    """
    texts = at.usable(texts)
    base, before = at.base, _score(at, shared, texts.test)
    beneath = [shared] if shared and is_above else []
    # Where ranks are chosen all layers count, and what is chosen is trained.
    opened = partial(at.engine, is_whole=way.method not in UNRANKED)
    with own_adapter(way, base.shape, opened, texts, seed, given, beneath=beneath) as own:
        after, kind = evaluate(own.engine, texts.test) if texts.test else None, kind_of(at.task)
        score, score_shared = (None if one is None else kind.figure(one) for one in (after, before))
        name = str(own.spec)
        origin = Exported(name, base.peft_name, base.base_id, base.architecture, at.task)
        write_peft_folder(out, origin, encode_adapter(own.engine.adapter()), base=base)
        return Made(
            method=way.method,
            adapter=name,
            ranks=own.ranks,
            alpha=own.alpha,
            num_examples=own.num_examples,
            loss=own.loss,
            accuracy=None if after is None else after.accuracy,
            accuracy_shared=None if before is None else before.accuracy,
            test_examples=len(texts.test),
            is_better=None
            if score is None or score_shared is None
            else kind.measure.is_better(score, score_shared),
            predicted_peak_bytes=own.engine.option.predicted_peak_bytes,
            measure=kind.measure.own_key,
            score=score,
            score_shared=score_shared,
        )


def _score(at: Opening, shared: Given | None, tests: tuple[Example, ...]) -> Evaluation | None:
    """How the shared adapter does, or the base alone, which tags nothing."""
    if not tests or (shared is None and kind_of(at.task).head(at.task).answers is None):
        return None
    spec = shared.spec if shared else parse_adapter("lora:1")  # whose first values change nothing
    with closing(at.engine(spec)) as engine:
        if shared is not None:
            engine.load_adapter(shared.numbers)
        return evaluate(engine, tests)
