"""The engine computes only what is asked; here against the whole model computing everything."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.peft_folder import Exported, write_peft_folder
from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import Base, open_base
from smidgen.edge_client.engine.opening import open_engine
from smidgen.edge_client.engine.trainer import train
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.texts.tokens import Tokens
from smidgen.edge_client.wire.tensors import encode_adapter
from smidgen.edge_client.wire.training import Training
from tests.breadth import covering
from tests.edge_client.engine.engines import KINDS

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.few

TEXTS = [
    Example("the door camera saw somebody", label="security"),
    Example("rain at nine", label="weather"),
    Example("your parcel is on the way and will be there at noon", label="mail"),
]
FAMILIES = ["roberta", "distilbert", "albert", "electra", "mpnet"]


def full_model_rows(model: object, base: Base, task: Task, virtual: int) -> np.ndarray:
    """Log-probabilities of the label words from the full logits at all positions.

    A word's is the mean of its tokens' among the whole vocabulary.
    """
    tokens = Tokens(base.folder)
    words, rows = tokens.label_word_ids(task), []
    for example in TEXTS:
        prompt = tokens.cloze(task.patterns[0], example, 128)
        ids = torch.tensor([prompt.ids])
        with torch.no_grad():
            logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits  # type: ignore[operator]
        at_mask = torch.log_softmax(logits[0, prompt.mask_position + virtual], -1)
        means = torch.stack([at_mask[word].mean() for word in words])
        rows.append(torch.log_softmax(means, -1).numpy())
    return np.stack(rows)


@pytest.mark.parametrize("name", ["lora:4", "lora:4@q,k,v,o,up,down", "prompt:6"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_exported_adapter_predicts_the_same_in_plain_peft(
    real_base: Base, hub_task: Task, tmp_path: Path, kind: str, name: str
) -> None:
    spec = parse_adapter(name)
    engine = open_engine(kind, real_base, hub_task, spec, Training(lr=0.02))
    engine.load_adapter(initial_adapter(spec, real_base, 6, seed=1))
    train(engine, TEXTS, Training(epochs=4), seed=1)
    origin = Exported(name, str(real_base.folder), real_base.base_id, "bert", hub_task)
    write_peft_folder(tmp_path, origin, encode_adapter(engine.adapter()))
    plain = transformers.AutoModelForMaskedLM.from_pretrained(real_base.folder, dtype=torch.float32)
    adapted = peft.PeftModel.from_pretrained(plain, str(tmp_path)).eval()
    theirs = full_model_rows(adapted, real_base, hub_task, spec.prompt_tokens)
    # Same weights, same kernels; only padding and the head's row subset differ.
    np.testing.assert_allclose(engine.predict(TEXTS), theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_word_of_several_tokens_answers_by_their_mean_log_probability(
    real_base: Base, hub_task: Task, kind: str
) -> None:
    words = hub_task.verbalizer | {
        "mail": "counterintuitive mail",
        "power": "electric power outage",
    }
    asked = replace(hub_task, verbalizer=words)
    counts = [len(word) for word in Tokens(real_base.folder).label_word_ids(asked)]
    assert counts[0] == 1 and min(counts[1:3]) > 2
    engine = open_engine(kind, real_base, asked, parse_adapter("lora:1"), Training())
    plain = transformers.AutoModelForMaskedLM.from_pretrained(real_base.folder, dtype=torch.float32)
    theirs = full_model_rows(plain.eval(), real_base, asked, 0)  # LoRA's B is zero
    np.testing.assert_allclose(engine.predict(TEXTS), theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_an_exported_classification_head_predicts_the_same_in_plain_peft(
    real_base: Base, hub_task: Task, tmp_path: Path, kind: str
) -> None:
    spec = parse_adapter("lora:4+head")
    engine = open_engine(kind, real_base, hub_task, spec, Training(lr=0.01))
    engine.load_adapter(initial_adapter(spec, real_base, 6, seed=1))
    train(engine, TEXTS, Training(epochs=4), seed=1)
    origin = Exported(str(spec), str(real_base.folder), real_base.base_id, "bert", hub_task)
    write_peft_folder(tmp_path, origin, encode_adapter(engine.adapter()))
    plain = transformers.AutoModelForSequenceClassification.from_pretrained(
        real_base.folder, num_labels=6, dtype=torch.float32
    )
    adapted = peft.PeftModel.from_pretrained(plain, str(tmp_path)).eval()
    ids = torch.tensor([engine.encoder.prompts(TEXTS[:1])[0].ids])
    with torch.no_grad():
        logits = adapted(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
    theirs = torch.log_softmax(logits, -1).numpy()
    np.testing.assert_allclose(engine.predict(TEXTS[:1]), theirs, rtol=1e-4, atol=1e-5)


def other_family(name: str, tiny_base: Base, folder: Path) -> Base:
    """A random model of another architecture with the tiny base's tokenizer."""
    sizes = {"vocab_size": Tokens(tiny_base.folder).size, "pad_token_id": 0}
    if name == "distilbert":
        sizes |= {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32}
    else:
        sizes |= {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
        sizes |= {"intermediate_size": 32}
    if name in ("albert", "electra"):
        sizes |= {"embedding_size": 8}
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(name, **sizes)
    transformers.AutoModelForMaskedLM.from_config(config).save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        if (tiny_base.folder / file).is_file():
            (folder / file).write_bytes((tiny_base.folder / file).read_bytes())
    return open_base(str(folder))


@pytest.mark.parametrize(
    ("name", "family"), covering(["lora:2", "prompt:3", "lora:2+head"], FAMILIES)
)
@pytest.mark.parametrize("kind", KINDS)
def test_other_families_train_and_keep_their_names(
    tiny_base: Base, hub_task: Task, tmp_path: Path, kind: str, family: str, name: str
) -> None:
    base, spec = other_family(family, tiny_base, tmp_path), parse_adapter(name)
    state = initial_adapter(spec, base, 6, seed=1)
    engine = open_engine(kind, base, hub_task, spec, Training(lr=0.02))
    engine.load_adapter(state)
    if not spec.head and not spec.prompt_tokens:
        plain = transformers.AutoModelForMaskedLM.from_pretrained(base.folder).eval()
        theirs = full_model_rows(plain, base, hub_task, 0)  # LoRA's B is zero: the base itself
        np.testing.assert_allclose(engine.predict(TEXTS), theirs, rtol=1e-4, atol=1e-5)
    delta = train(engine, TEXTS, Training(epochs=2, batch=2), seed=1).delta
    assert all(tensor.any() for tensor in delta.values())


@pytest.mark.parametrize("kind", KINDS)
def test_the_spread_of_states_is_that_of_the_whole_model_in_float64(
    real_base: Base, hub_task: Task, kind: str
) -> None:
    spec = parse_adapter("lora:4")
    engine = open_engine(kind, real_base, hub_task, spec, Training(tokens=64))
    engine.load_adapter(initial_adapter(spec, real_base, 6, seed=1))  # B is zero: the base itself
    found = engine.spread(TEXTS)
    engine.close()
    model = transformers.AutoModel.from_pretrained(real_base.folder).double().eval()
    tokens, states = Tokens(real_base.folder), list[list[np.ndarray]]()
    for example in TEXTS:
        ids = torch.tensor([tokens.cloze(hub_task.patterns[0], example, 64).ids])
        with torch.no_grad():
            hidden = model(input_ids=ids, output_hidden_states=True).hidden_states
        states.append([one[0].numpy().ravel() for one in hidden[:-1]])
    layers = [np.concatenate(parts) for parts in zip(*states, strict=True)]
    expected = np.array([[layer.mean(), layer.std()] for layer in layers])
    assert np.allclose(found, expected, rtol=1e-5, atol=1e-6)
