"""An adapter of this device's own: the ranks that its texts need, trained on them."""

from dataclasses import dataclass
from pathlib import Path

from smidgen.edge_client.adapters.peft_folder import (
    check_adapter_folder,
    read_peft_folder,
)
from smidgen.edge_client.adapters.spec import AdapterError, parse_adapter
from smidgen.edge_client.api.labeller import Asked, Place, place, task_file, task_for, training_of
from smidgen.edge_client.api.train import labelled_texts
from smidgen.edge_client.bases.base import EMBEDDED, Base, BaseName, open_base
from smidgen.edge_client.engine.budgeted import ready_engine
from smidgen.edge_client.errors import demand
from smidgen.edge_client.formats.source import Dialect
from smidgen.edge_client.metering.memory import PeakSpan
from smidgen.edge_client.personal.making import Made, Opening, make, method_for, way_for
from smidgen.edge_client.personal.methods import FROM_SHARED, Given, Way
from smidgen.edge_client.planning.cuda_memory import CPU
from smidgen.edge_client.planning.plan import AUTO, parse_budget
from smidgen.edge_client.tasks.kind import check_same
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.tensors import Seed
from smidgen.edge_client.wire.training import Training


@dataclass(frozen=True)
class PersonalAdapter(Made):
    """An adapter of one's own, and where it lies.

    Attributes:
        folder: The PEFT folder it was written to.
        peak_rss_bytes: Most memory of this process during the whole call, measured.
    """

    folder: Path
    peak_rss_bytes: int


def personalize(
    data: Place,
    out: Place,
    *,
    task: Asked | None = None,
    base: BaseName = EMBEDDED,
    engine: str = AUTO,
    device: str = CPU,
    memory_budget: str = AUTO,
    generator: Place | None = None,
    method: str = "",
    rank_budget: int | None = None,
    shared: Place | None = None,
    above: bool = False,
    epochs: int = Way.epochs,
    batch: int = Way.batch,
    lr: float = Way.lr,
    tokens: int = Training.tokens,
    seed: Seed = 0,
    text_column: str = "",
    label_column: str = "",
    delimiter: str = "",
    encoding: str = "",
) -> PersonalAdapter:
    """Make a personal adapter from this device's texts, and compare it with the shared one.

    Nothing leaves the device, and the shared adapter stays as it is.

        own = smidgen.personalize("texts", "own", generator="generator", rank_budget=2)

    Args:
        data: Folder with labelled.csv, unlabelled.csv, test.csv ..., or one file.
        out: PEFT adapter folder to write.
        task: A task.toml or the name of a ready-made task; default: the task.toml next to the
            texts, else the task of the shared adapter or of the generator.
        base: Base model: folder, GGUF file, hub name or `embedded`.
        engine: `torch`, `onnx`, or `auto`: torch if it is installed.
        device: `cpu`, or `cuda` with the torch engine.
        memory_budget: Such as `512M` or `1.5G`; `auto`: 60 % of what is available, with `cuda` on a
            discrete card of its memory.
        generator: Folder of the network that a +generator or +rates run trained.
        method: How ranks are chosen: `fedp2eft` (by the generator), `bt-lora`, `adalora`, `lora`,
            `uniform`, `random`; default: `fedp2eft` with a generator, else `bt-lora`. `fedl2p` uses
            the rates that a +rates run learned; `head` trains a classification head instead;
            `tuned` continues to train the shared adapter, and `interpolated` goes part of the way
            back.
        rank_budget: Total rank, as R times the number of modules, spread as needed; default: half
            the bank's, or less if `memory_budget` requires it.
        shared: Folder of the shared adapter to compare with; default: the base alone.
        above: Train on top of the shared adapter, which stays unchanged; `out` then holds both.
        epochs: Passes over the texts.
        batch: Texts per optimizer step.
        lr: Learning rate of AdamW.
        tokens: Longest input in tokens.
        seed: Random seed; equal arguments give equal adapters.
        text_column: Column with the text, or two for pairs, `a,b`; default `text`. In CoNLL, the
            column of the words, by name or number.
        label_column: Column with the label; default `label`. In CoNLL, the column of the tags, by
            name or number.
        delimiter: Separator of CSV and TSV columns, such as `;` or `tab`.
        encoding: Encoding of the text files, such as `latin-1`; default UTF-8.

    Raises:
        WrongInput: Texts, task, base, generator or shared adapter do not fit, no plan fits the
            budget, or `out` cannot be written to; found out before training.
        Failed: Training went wrong.
    """
    span = PeakSpan()
    folder, texts_in = place(out), place(data)
    check_adapter_folder("--out", folder)
    for option, given in (("--shared", shared), ("--generator", generator)):
        is_other = given is None or place(given).resolve() != folder.resolve()
        demand(is_other, f"--out {folder} is the {option} folder; give another, it stays as it is")
    demand(0 <= seed < 2**63, f"--seed {seed}: 0 to 2^63 - 1 is expected")
    engine = ready_engine(engine, device)
    training = training_of(epochs=epochs, batch=batch, lr=lr, tokens=tokens)
    opened = open_base(str(base))
    chosen = _task(task, texts_in, opened, shared, generator)
    texts = labelled_texts(
        texts_in, chosen, Dialect(text_column, label_column, delimiter, encoding)
    )
    net, other = _generator(generator, opened), _shared(shared, opened, chosen)
    how = method_for(method, net)
    is_on = how in FROM_SHARED
    demand(other is not None or not is_on, f"--method {how} goes on from --shared FOLDER; give it")
    demand(other is not None or not above, "--above goes above --shared FOLDER; give it")
    at = Opening(engine, opened, chosen, training, parse_budget(memory_budget), device)
    way = way_for(how, at, net, rank_budget, other if above else None)
    made = make(at, way, texts, seed, folder, other if is_on else net, other, above)
    return PersonalAdapter(**vars(made), folder=folder, peak_rss_bytes=span.peak_bytes())


def _task(given: Asked | None, texts: Path, base: Base, *folders: Place | None) -> Task:
    """The task that is named, or else that of the texts' folder, or of the first of these."""
    known = [place(folder) for folder in folders if folder is not None]
    if given or task_file(texts).is_file() or not known:
        return task_for(given, texts)
    origin, _ = read_peft_folder(known[0], base)
    return origin.task


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
    said = f"--shared {folder} is for a task of kind {origin.task.kind}, this one is of kind "
    check_same(origin.task, task, f"{said}{task.kind}; give one of that")
    demand(
        origin.task.labels == task.labels,
        f"--shared {folder} is of labels {', '.join(origin.task.labels)}; the task has "
        f"{', '.join(task.labels)}",
    )
    return Given(spec, state)
