"""A device's answer in a run that trains a strategy generator: what it taught it in this round."""

from edge_client.adapters.generators import Generator
from edge_client.engine.engine import Engine
from edge_client.labelling.own_texts import OwnTexts
from edge_client.personal.bank import LORA_A, drawn_bank, modules_of
from edge_client.personal.fitting import Terms
from edge_client.personal.ground import ground_of
from edge_client.personal.lesson import Teaching, lesson
from edge_client.wire.messages import Report, Work
from edge_client.wire.seeds import derive_seed
from edge_client.wire.tensors import AdapterState, Update


def teach(
    engine: Engine, start: AdapterState, own: OwnTexts, work: Work, device_id: str
) -> tuple[Update, Report]:
    """A round's work for the generator; nothing but its numbers leaves the device.

    Args:
        engine: Of the bank; it holds another one afterwards.
        start: The generator.
        own: The device's texts.
        work: What is asked.
        device_id: The device.

    Raises:
        AdapterError: A generator of another base or bank.
        ConstantBase: The base reads all texts alike.
        TrainingError: Too few texts, or the loss is no longer finite.
    """
    said, data = work.training, own.data
    terms = Terms(epochs=said.epochs, batch=said.batch, lr=said.lr, weight_decay=said.weight_decay)
    bank = drawn_bank(engine.adapter())
    modules = modules_of(bank)
    generator = Generator(tuple(modules), len(bank[modules[0] + LORA_A]), engine.layers)
    generator.check(start)
    ground = ground_of(engine, bank)
    seed = derive_seed(work.seed, "train", device_id, work.round_index)
    texts = (data.labelled, data.unlabelled)
    done = lesson(engine, generator, start, bank, ground, *texts, terms, Teaching(), seed)
    delta = {name: done.numbers[name] - start[name] for name in start}
    num_examples = len(data.labelled)
    report = Report(work.work_id, "done", num_examples, done.fitted.loss)
    return Update(work.work_id, num_examples, delta), report
