"""An adapter of this device's own: the ranks that its texts need, trained on them."""

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from edge_client.adapters.peft_folder import (
    Exported,
    check_adapter_folder,
    read_peft_folder,
    write_peft_folder,
)
from edge_client.adapters.spec import AdapterError, AdapterSpec, parse_adapter
from edge_client.api.given import Asked, Place, place, task_for, training_of
from edge_client.api.train import labelled_texts
from edge_client.bases.base import EMBEDDED, Base, open_base
from edge_client.engine.budgeted import open_within, ready_engine
from edge_client.engine.engine import Engine
from edge_client.engine.trainer import evaluate
from edge_client.errors import WrongInput, demand
from edge_client.metering.memory import PeakSpan
from edge_client.personal.methods import BY_NET, FROM_SHARED, METHODS, Given, Way, own_adapter
from edge_client.planning.cuda.accelerator import CPU
from edge_client.planning.sizes import AUTO, parse_budget
from edge_client.texts.dialect import Dialect
from edge_client.texts.examples import Example
from edge_client.texts.tasks import Task
from edge_client.wire.tensors import encode_adapter
from edge_client.wire.training import Training

ALONE = "bt-lora"  # by default, where there is no generator


@dataclass(frozen=True)
class PersonalAdapter:
    """An adapter of one's own.

    Attributes:
        folder: The PEFT folder it was written to.
        method: How its ranks were chosen.
        adapter: Its name: LoRA with ranks by module.
        ranks: Each module's rank, by `layer.linear` such as `3.q`; 0: it is not made. None are
            told of a shared adapter's.
        alpha: Of `interpolated`: how far it is from the shared one, 0 to 1.
        num_examples: Texts that it was trained on.
        loss: Mean loss of the last pass, nats.
        accuracy: Share of right labels of the test texts; None without any.
        accuracy_shared: That of the shared adapter, or of the base alone.
        test_examples: Test texts.
        is_better: Whether it is right more often than the shared one; None without test texts.
        predicted_peak_bytes: What its plan was estimated to take.
        peak_rss_bytes: Most memory of this process during the whole call, measured.
    """

    folder: Path
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
    peak_rss_bytes: int


@dataclass(frozen=True)
class _Opening:
    """How engines are opened here."""

    kind: str
    base: Base
    task: Task
    training: Training
    budget_bytes: int | None
    device: str

    def engine(self, spec: AdapterSpec) -> Engine:
        """An engine for an adapter."""
        known = (self.kind, self.base, self.task, spec, self.training, self.budget_bytes)
        return open_within(*known, device=self.device)


def personalize(
    data: Place,
    out: Place,
    *,
    task: Asked | None = None,
    base: Place = EMBEDDED,
    engine: str = AUTO,
    device: str = CPU,
    memory_budget: str = AUTO,
    generator: Place | None = None,
    method: str = "",
    rank_budget: int = Way.rank_budget,
    shared: Place | None = None,
    epochs: int = Way.epochs,
    batch: int = Way.batch,
    lr: float = Way.lr,
    tokens: int = Training.tokens,
    seed: int = 0,
    text_column: str = "",
    label_column: str = "",
    delimiter: str = "",
    encoding: str = "",
) -> PersonalAdapter:
    """Make an adapter of this device's own, and compare it with the shared one.

        own = smidgen.personalize("texts", "own", generator="generator", rank_budget=2)

    Args:
        data: Folder with labelled.csv, unlabelled.csv, test.csv ..., or one file.
        out: PEFT adapter folder to write.
        task: Labels and patterns; by default the task.toml beside the texts.
        base: Folder, hub name or `embedded`.
        engine: `auto`, `torch` or `onnx`.
        device: `cpu`, or `cuda` for the torch engine on a CUDA device.
        memory_budget: Such as `512M`; `auto`: 60 % of what is available now.
        generator: Folder of the net that a +generator or +rates run gave.
        method: How ranks are chosen: `fedp2eft` (by the generator), `bt-lora`, `adalora`, `lora`,
            `uniform`, `random`; by default the first with a generator, and the second without.
            `fedl2p` goes by learned rates, what a +rates run gave.
            `tuned` trains the shared adapter on, and `interpolated` goes back some of that way.
        rank_budget: R: as many ranks as R times the modules there are, wherever they are needed.
        shared: Folder of the shared adapter to compare with; by default the base alone.
        epochs: Passes over the texts.
        batch: Texts per optimizer step.
        lr: AdamW's learning rate.
        tokens: Longest input in tokens.
        seed: Root seed; equal arguments give equal adapters.
        text_column: Column with the text, or two of a pair, `a,b`; `text` by default.
        label_column: Column with the label; `label` by default.
        delimiter: Between the columns of CSV and TSV.
        encoding: Of the texts' files; UTF-8 by default.

    Raises:
        WrongInput: Texts, task, base, generator or shared adapter do not fit, no plan fits the
            budget, or `out` cannot be written to; found out before training.
        Failed: Training went wrong.
    """
    span = PeakSpan()
    folder, texts_in = place(out), place(data)
    check_adapter_folder("--out", folder)
    demand(0 <= seed < 2**63, f"--seed {seed}: 0 to 2^63 - 1 is expected")
    engine = ready_engine(engine, device)
    training = training_of(epochs=epochs, batch=batch, lr=lr, tokens=tokens)
    chosen = task_for(task, texts_in)
    texts = labelled_texts(
        texts_in, chosen, Dialect(text_column, label_column, delimiter, encoding)
    )
    opened = open_base(str(base))
    net, other = _generator(generator, opened), _shared(shared, opened, chosen)
    how = _method(method, net)
    is_on = how in FROM_SHARED
    demand(other is not None or not is_on, f"--method {how} goes on from --shared FOLDER; give it")
    way = _way(how, rank_budget, net, training)
    at = _Opening(engine, opened, chosen, training, parse_budget(memory_budget), device)
    before = _score(at, other, texts.test)
    given = other if is_on else net
    with own_adapter(way, opened.shape, at.engine, texts, seed, given) as own:
        after = evaluate(own.engine, texts.test).accuracy if texts.test else None
        name = str(own.spec)
        origin = Exported(name, opened.peft_name, opened.base_id, opened.architecture, chosen)
        write_peft_folder(folder, origin, encode_adapter(own.engine.adapter()))
        return PersonalAdapter(
            folder=folder,
            method=how,
            adapter=name,
            ranks=own.ranks,
            alpha=own.alpha,
            num_examples=len(texts.labelled),
            loss=own.loss,
            accuracy=after,
            accuracy_shared=before,
            test_examples=len(texts.test),
            is_better=None if after is None or before is None else after > before,
            predicted_peak_bytes=own.engine.option.predicted_peak_bytes,
            peak_rss_bytes=span.peak_bytes(),
        )


def _method(method: str, net: Given | None) -> str:
    """The method that is asked for, or the one that fits what was given.

    Raises:
        WrongInput: It does not fit that.
    """
    fitting = BY_NET[net.spec.net] if net else ALONE
    chosen = method or fitting
    wants = next((one for one, by in BY_NET.items() if by == chosen), "")
    said = f"--generator is for --method {fitting}; leave --method out"
    if net is None:
        said = f"it goes by what a +{wants} run gave; give that folder as --generator"
    demand(chosen == fitting or not (net or wants), f"--method {chosen}: {said}")
    return chosen


def _way(method: str, rank_budget: int, net: Given | None, training: Training) -> Way:
    known = next((one for one in METHODS if one == method), None)
    if known is None:
        raise WrongInput(f"--method {method}: one of {', '.join(METHODS)} is expected")
    bank = net.spec.rank if net and net.spec.net == "generator" else Way.bank
    demand(
        1 <= rank_budget <= bank,
        f"--rank-budget {rank_budget}: 1 to {bank}, the bank's ranks, is expected",
    )
    targets = net.spec.targets if net else Way.targets
    return Way(known, rank_budget, bank, targets, training.epochs, training.batch, training.lr)


def _generator(folder: Place | None, base: Base) -> Given | None:
    """A net for adapters.

    Raises:
        AdapterError: No such folder, or an adapter, or a net of another base.
    """
    if folder is None:
        return None
    origin, state = read_peft_folder(place(folder), base)
    spec = parse_adapter(origin.adapter)
    demand(
        bool(spec.net),
        f"--generator {folder} is an adapter, {spec}; a run of adapter lora:16+generator gives "
        "a generator (it may stand as --shared)",
        AdapterError,
    )
    return Given(spec, state)


def _shared(folder: Place | None, base: Base, task: Task) -> Given | None:
    """The shared adapter.

    Raises:
        AdapterError: No such folder, or a net for adapters, or an adapter of another base.
        WrongInput: It is of other labels.
    """
    if folder is None:
        return None
    origin, state = read_peft_folder(place(folder), base)
    spec = parse_adapter(origin.adapter)
    demand(
        not spec.net,
        f"--shared {folder} is a net for adapters, which answers no text; give it as --generator",
        AdapterError,
    )
    demand(
        origin.task.labels == task.labels,
        f"--shared {folder} is of labels {', '.join(origin.task.labels)}; the task has "
        f"{', '.join(task.labels)}",
    )
    return Given(spec, state)


def _score(at: _Opening, shared: Given | None, tests: tuple[Example, ...]) -> float | None:
    """How often the shared adapter is right, or the base alone."""
    if not tests:
        return None
    spec = shared.spec if shared else parse_adapter("lora:1")  # whose first values change nothing
    with closing(at.engine(spec)) as engine:
        if shared is not None:
            engine.load_adapter(shared.numbers)
        return evaluate(engine, tests).accuracy
