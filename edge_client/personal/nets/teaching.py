"""A device's answer in a run that trains a net for adapters: what it taught it in this round."""

from edge_client.adapters.banks import LORA_A
from edge_client.adapters.nets import Generator, rates_of
from edge_client.adapters.spec import net_in
from edge_client.engine.engine import Engine
from edge_client.labelling.own_texts import OwnTexts
from edge_client.personal.bank import drawn_bank, modules_of
from edge_client.personal.fitting import Terms
from edge_client.personal.interpolation import kept_aside
from edge_client.personal.nets.generator import Teaching, features_of, ground_of, lesson
from edge_client.personal.nets.rates import Learning, learned
from edge_client.wire.messages import Report, Work
from edge_client.wire.seeds import derive_seed
from edge_client.wire.tensors import AdapterState, Update


def teach(
    engine: Engine, start: AdapterState, own: OwnTexts, work: Work, device_id: str
) -> tuple[Update, Report]:
    """A round's work for a net; nothing but its numbers leaves the device.

    Args:
        engine: Of the LoRA that the net is for; it holds another one afterwards.
        start: The net.
        own: The device's texts.
        work: What is asked.
        device_id: The device.

    Raises:
        AdapterError: A net of another base, bank or adapter.
        ConstantBase: The base reads all texts alike.
        TrainingError: Too few texts, or the loss is no longer finite.
    """
    said = work.training
    terms = Terms(epochs=said.epochs, batch=said.batch, lr=said.lr, weight_decay=said.weight_decay)
    seed = derive_seed(work.seed, "train", device_id, work.round_index)
    by = _rates if net_in(work.adapter_spec) == "rates" else _generator
    numbers, loss = by(engine, start, own, terms, seed)
    delta = {name: numbers[name] - start[name] for name in start}
    num_examples = len(own.data.labelled)
    return (
        Update(work.work_id, num_examples, delta),
        Report(work.work_id, "done", num_examples, loss),
    )


def _generator(
    engine: Engine, start: AdapterState, own: OwnTexts, terms: Terms, seed: int
) -> tuple[AdapterState, float]:
    bank = drawn_bank(engine.adapter())
    modules, texts = modules_of(bank), (own.data.labelled, own.data.unlabelled)
    generator = Generator(tuple(modules), len(bank[modules[0] + LORA_A]), engine.layers)
    generator.check(start)
    ground = ground_of(engine, bank)
    done = lesson(engine, generator, start, bank, ground, *texts, terms, Teaching(), seed)
    return done.numbers, done.fitted.loss


def _rates(
    engine: Engine, start: AdapterState, own: OwnTexts, terms: Terms, seed: int
) -> tuple[AdapterState, float]:
    """A fifth of the labelled texts is held out: by their loss the net learns."""
    adapter = drawn_bank(engine.adapter())
    rates = rates_of(adapter, engine.layers)
    rates.check(start)
    every = [*own.data.labelled, *own.data.unlabelled]
    features = features_of(engine, ground_of(engine, adapter), adapter, every)
    texts, aside = kept_aside(own.data.labelled, seed)
    known = (features, adapter, texts, aside, terms, Learning(), seed)
    done = learned(engine, rates, start, *known)
    return done.numbers, done.losses[-1]
