"""Pairs of texts: segments and separators as transformers has them, on both engines."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, processors

from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.peft_folder import Exported, write_peft_folder
from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import Base, open_base
from smidgen.edge_client.engine.activation_cache import ActivationCache
from smidgen.edge_client.engine.opening import open_engine
from smidgen.edge_client.engine.trainer import train
from smidgen.edge_client.tasks.encoder import Encoder
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.batches import Batch
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.texts.tokens import Tokens
from smidgen.edge_client.wire.tensors import encode_adapter
from smidgen.edge_client.wire.training import Training
from tests.edge_client.engine.engines import KINDS
from tests.families import write_family

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")
gradients = pytest.importorskip("smidgen.profiling.benchmarks.gradients")

pytestmark = pytest.mark.few

LIMIT = 24
PAIRS = [
    Example("the door camera saw somebody", "rain at nine", "yes"),
    Example("your parcel is on the way and will be there at noon", "storm " * 30, "no"),
    Example("home", "", "maybe"),
    Example("twelve units of insulin today", "take pills", "yes"),
]
TASK = Task(
    "pairs",
    ("yes", "maybe", "no"),
    ("{text_a} ? [MASK] , {text_b}",),
    {"yes": "good", "maybe": "about", "no": "bad"},
)
TEMPLATES = {
    "bert": "[CLS] $A [SEP] $B:1 [SEP]:1",
    "albert": "[CLS] $A [SEP] $B:1 [SEP]:1",
    "distilbert": "[CLS] $A [SEP] $B:1 [SEP]:1",
    "roberta": "[CLS] $A [SEP] [SEP] $B [SEP]",
}


def base_of(family: str, tiny_base: Base, folder: Path) -> Base:
    """A random base whose tokenizer joins pairs as its family's does."""
    base = write_family(family, tiny_base, folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    specials = [(name, tokenizer.token_to_id(name) or 0) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair=TEMPLATES[family], special_tokens=specials
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    return open_base(str(base.folder))


@pytest.mark.parametrize("family", sorted(TEMPLATES))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_kept", [False, True], ids=["", "from a cache"])
def test_a_classifier_of_pairs_answers_as_in_plain_peft(
    tiny_base: Base, tmp_path: Path, kind: str, family: str, is_kept: bool
) -> None:
    base = base_of(family, tiny_base, tmp_path / "base")
    name = "lora:4/top2+head" if is_kept and family != "albert" else "lora:4+head"
    spec = parse_adapter(name)
    engine = open_engine(kind, base, TASK, spec, Training(lr=0.02, tokens=LIMIT))
    engine.load_adapter(initial_adapter(spec, base, 3, seed=1))
    if is_kept:
        engine.remember(ActivationCache(tmp_path / "cache", 1 << 20, base.base_id))
    train(engine, PAIRS, Training(epochs=4, tokens=LIMIT), seed=1)
    origin = Exported(name, str(base.folder), base.base_id, family, TASK)
    write_peft_folder(tmp_path / "adapter", origin, encode_adapter(engine.adapter()))
    auto = transformers.AutoModelForSequenceClassification
    plain = auto.from_pretrained(base.folder, num_labels=3, dtype=torch.float32)
    model = peft.PeftModel.from_pretrained(plain, str(tmp_path / "adapter")).eval()
    file = str(base.folder / "tokenizer.json")
    reads = transformers.PreTrainedTokenizerFast(tokenizer_file=file, pad_token="[PAD]")
    rows = []
    for one in PAIRS:
        asked = reads(
            one.text,
            one.text_b or None,
            truncation="longest_first",
            max_length=LIMIT,
            return_tensors="pt",
            return_token_type_ids=family != "distilbert",
        )
        with torch.no_grad():
            rows.append(torch.log_softmax(model(**asked).logits, -1).numpy()[0])
    # Same weights; only padding differs, and, of what a cache keeps, a rounding to float16.
    tolerance = 3e-3 if is_kept else 1e-4
    np.testing.assert_allclose(engine.predict(PAIRS), rows, rtol=tolerance, atol=tolerance)


def pairs_batch(base: Base) -> Batch:
    """Pairs of a classifier, asked for words at some of their places."""
    encoder = Encoder(Tokens(base.folder), TASK, False, LIMIT)
    batch = encoder.batch(encoder.prompts(PAIRS))
    assert batch.segments is not None and batch.segments[0].any() and not batch.segments[2].any()
    return replace(batch, mask_positions=np.array([2, 3, 1, 4]))


@pytest.mark.parametrize("family", ["bert", "albert"])
@pytest.mark.parametrize("adapter", ["lora:2@q,k,v,o,up,down", "prompt:3"])
@pytest.mark.parametrize("engine", ["torch", "onnx"])
def test_pairs_have_the_gradients_of_plain_peft(
    tiny_base: Base, tmp_path: Path, engine: str, adapter: str, family: str
) -> None:
    base, spec = base_of(family, tiny_base, tmp_path), parse_adapter(adapter)
    batch = pairs_batch(base)
    if spec.prompt_tokens:  # PEFT drops segments there, which a cloze prompt has none of
        batch = replace(batch, segments=None)
    words = [word for [word] in Tokens(base.folder).label_word_ids(TASK)]
    plans = gradients.every_plan(base, spec, batch=len(PAIRS), tokens=LIMIT)
    for error in gradients.gradient_errors(base, spec, plans, batch, words, engine):
        assert error.worst_error <= 1e-5 and error.loss_error <= 1e-5, error


@pytest.mark.parametrize("kind", KINDS)
def test_a_base_of_one_segment_has_all_texts_in_it(
    tiny_base: Base, tmp_path: Path, kind: str
) -> None:
    base = base_of("bert", tiny_base, tmp_path)
    model = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path)
    model.config.type_vocab_size = 1
    table = model.bert.embeddings.token_type_embeddings
    table.weight = torch.nn.Parameter(table.weight[:1].clone())
    model.save_pretrained(tmp_path)
    base = open_base(str(tmp_path))
    engine = open_engine(kind, base, TASK, parse_adapter("head"), Training(tokens=LIMIT))
    with torch.no_grad():
        for row, prompt in enumerate(engine.encoder.prompts(PAIRS)):
            states = model.bert(torch.tensor([prompt.ids]))[0].mean(1).numpy()
            ours = engine.features(PAIRS, base.layers)[[row]]
            np.testing.assert_allclose(ours, states, rtol=1e-4, atol=1e-4)


def test_a_tokenizer_that_counts_more_segments_than_the_base_has_is_named(
    tiny_base: Base, tmp_path: Path
) -> None:
    base = base_of("bert", tiny_base, tmp_path)
    document = json.loads((tmp_path / "tokenizer.json").read_text())
    for piece in document["post_processor"]["pair"]:
        for part in piece.values():
            part["type_id"] *= 2
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    engine = open_engine("onnx", base, TASK, parse_adapter("head"), Training(tokens=LIMIT))
    with pytest.raises(ValueError, match="counts 3 segments, its weights hold 2; pack or copy"):
        engine.predict(PAIRS)
