"""Gradients at prompts of real tasks, masked words and tags, against plain PyTorch + PEFT."""

from pathlib import Path

import pytest

from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import Base, open_base
from smidgen.edge_client.bases.packing import pack_model
from smidgen.edge_client.tasks.encoder import Encoder
from smidgen.edge_client.tasks.task import Masking, Task
from smidgen.edge_client.texts.batches import Batch
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.texts.tokens import Tokens
from tests.breadth import covering
from tests.families import ENCODERS, write_family

pytest.importorskip("torch")
pytest.importorskip("peft")
gradients = pytest.importorskip("smidgen.profiling.benchmarks.gradients")

pytestmark = pytest.mark.few

ENGINES = ["torch", "onnx"]
ADAPTERS = ["lora:4", "lora:2@q,k,v,o,up,down", "prompt:5", "bias", "lora:4/top1"]
HEADS = ["lora:4+head", "bias+head", "prompt:5+head", "head", "lora:2@q,k,v,o,up,down/top2+head"]
LIMIT = 24
MASKINGS = [Masking(0.4), Masking(0.4, whole_words=True)]
TAGGING = Task("drugs", ("Drug", "Disease", "Dose", "Organ"), kind="tagging")
# Of 1, 3, 9, 20 and 6 words, so that no two micro-batches have as many answers.
LINES = [
    "storm",
    "the front door",
    "somebody saw the camera at noon on the way",
    "please take the pills at seven and bring the cake to grandma this is for the family news",
    "rain , wind and thunder today",
]


def tagged(line: str, first: int) -> Example:
    words = tuple(line.split())
    tags = tuple(TAGGING.tags[(first + 2 * place) % 9] for place in range(len(words)))
    return Example(line, words=words, tags=tags)


def batch_of(base: Base, adapter: str, task: Task) -> Batch:
    texts = [Example(line) for line in LINES]
    if task.kind == "tagging":
        texts = [tagged(line, row) for row, line in enumerate(LINES)]
    soft = parse_adapter(adapter).prompt_tokens
    encoder = Encoder(Tokens(base.folder), task, False, LIMIT, soft)
    return encoder.batch(encoder.prompts(texts, draw=7))


def check(base: Base, adapter: str, engine: str, task: Task) -> None:
    spec, batch = parse_adapter(adapter), batch_of(base, adapter, task)
    assert batch.texts is not None and len(set(map(list(batch.texts).count, range(5)))) > 3
    plans = gradients.every_plan(base, spec, batch=len(LINES), tokens=LIMIT)
    tags = len(task.tags) if task.kind == "tagging" else 0
    for error in gradients.gradient_errors(base, spec, plans, batch, None, engine, tags=tags):
        assert error.worst_error <= 1e-5, error
        assert error.loss_error <= 1e-5 and not error.zero_tensors, error


@pytest.mark.few(5)
@pytest.mark.parametrize(("family", "adapter"), covering(ENCODERS, ADAPTERS))
@pytest.mark.parametrize("masking", MASKINGS, ids=["tokens", "whole-words"])
@pytest.mark.parametrize("engine", ENGINES)
def test_masked_words_have_the_gradients_of_plain_peft(
    tiny_base: Base, tmp_path: Path, engine: str, masking: Masking, family: str, adapter: str
) -> None:
    if family == "albert" and "/top" in adapter:
        adapter = "lora:4"  # its layers are one
    base = write_family(family, tiny_base, tmp_path)
    check(base, adapter, engine, Task("notes", kind="mlm", masking=masking))


@pytest.mark.few(5)
@pytest.mark.parametrize(("family", "adapter"), covering(ENCODERS, HEADS))
@pytest.mark.parametrize("engine", ENGINES)
def test_tags_of_words_have_the_gradients_of_a_token_classifier(
    tiny_base: Base, tmp_path: Path, engine: str, family: str, adapter: str
) -> None:
    if family == "albert" and "/top" in adapter:
        adapter = "lora:4+head"
    check(write_family(family, tiny_base, tmp_path), adapter, engine, TAGGING)


@pytest.mark.parametrize("bits", [4, 8, 16])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_pack_has_the_gradients_of_plain_peft(
    tiny_base: Base, tmp_path: Path, engine: str, bits: int
) -> None:
    source = write_family("roberta", tiny_base, tmp_path / "hf")
    pack_model(str(source.folder), bits, tmp_path / "pack")
    base = open_base(str(tmp_path / "pack"))
    check(base, "lora:4+head", engine, TAGGING)
    check(base, "lora:4", engine, Task("notes", kind="mlm", masking=MASKINGS[0]))
