"""Classification by label words on a causal language model: how it is asked, end to end."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, processors

import smidgen
from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.peft_folder import Exported, write_peft_folder
from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import Base, open_base
from smidgen.edge_client.bases.tokenizer import open_tokens
from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.personal.methods import METHODS
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.texts.prompts.patterns import TaskError, before_mask
from smidgen.edge_client.texts.tokens import Tokens
from smidgen.edge_client.wire.tensors import encode_adapter
from tests.edge_client.tasks.tiny_decoder import write_tiny_decoder

WORDS = {"good": "yes", "bad": "no"}
TASK = Task("mood", ("good", "bad"), ("{text}:[MASK]",), WORDS)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    """It reads bytes, of which a space is one: so words stand right behind a colon."""
    return open_base(str(write_tiny_decoder(tmp_path_factory.mktemp("decoder") / "base")))


@pytest.fixture(scope="module")
def tokens(base: Base) -> Tokens:
    return open_tokens(base)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40), st.integers(6, 60))
def test_it_is_asked_by_the_ids_before_the_mask_and_answers_at_the_last(
    tokens: Tokens, text: str, limit: int
) -> None:
    asked = tokens.cloze("I say {text}:  [MASK] ", Example(text), limit + 8)
    assert len(asked.ids) <= limit + 8 and asked.places == [len(asked.ids) - 1]
    whole = tokens.encode(f"I say {text}:")
    if len(whole) <= limit + 8:
        assert asked.ids == whole
    else:
        assert asked.ids[:6] == whole[:6] and asked.ids[-1] == whole[-1]


def test_a_word_answers_by_its_first_token(tokens: Tokens) -> None:
    first = [tokens.encode(word)[:1] for word in WORDS.values()]
    assert tokens.label_word_ids(TASK) == first


@pytest.mark.parametrize(
    ("pattern", "words", "said"),
    [
        ("{text}:[MASK] .", WORDS, r"goes on behind \[MASK\]; a causal language model answers"),
        ("[MASK] : {text}", WORDS, r"end the pattern with \[MASK\], such as '\{text\} Topic"),
        ("{text}:[MASK]", {"good": "yes", "bad": "yellow"}, "same first token .* word of 'good'"),
        ("{text}: [MASK]", WORDS, "or none where that is a token by itself"),
        ("it: {text}[MASK]", WORDS, r"put a space before \[MASK\], or none"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    base: Base, tmp_path: Path, pattern: str, words: dict[str, str], said: str
) -> None:
    task = Task("mood", ("good", "bad"), (pattern,), words)
    with pytest.raises(TaskError, match=said):
        smidgen.predict(["fine"], base=base.folder, task=task)


def test_a_pattern_for_masked_models_may_stand_before_the_one_that_is_asked(
    base: Base,
) -> None:
    both = Task("mood", ("good", "bad"), ("[MASK] : {text}", *TASK.patterns), WORDS)
    found = [smidgen.predict(["fine"], base=base.folder, task=task) for task in (TASK, both)]
    assert found[0] == found[1]


def test_white_space_behind_a_mask_counts_for_nothing() -> None:
    assert before_mask("{text}\n[MASK] \n") == "{text}\n"


@pytest.mark.parametrize(
    ("adapter", "task", "said"),
    [
        ("lora:4+head", TASK, "no classifier here and answers by label words; take lora:4@q,v$"),
        ("head", TASK, "take lora:8$"),
        ("lora:2+head+ffa", TASK, r"take lora:2@q,v\+ffa$"),
        ("lora:4", Task("t", kind="mlm"), "of kind mlm is asked of a masked one, such as roberta"),
        ("lora:4+head", Task("t", ("A",), kind="tagging"), "asked of a masked one"),
    ],
)
def test_what_a_decoder_does_not_answer_is_refused(
    base: Base, tmp_path: Path, adapter: str, task: Task, said: str
) -> None:
    row = {"text": "fine", "label": "good", "tokens": ["a"], "tags": ["O"]}
    (tmp_path / "labelled.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(WrongInput, match=said):
        smidgen.train(
            tmp_path, tmp_path / "out", task=task, base=base.folder, adapter=adapter, engine="onnx"
        )


@pytest.mark.parametrize("engine", ["onnx", pytest.param("torch", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["labels", "multilabel"])
def test_it_learns_labels_and_its_export_is_read_again(
    base: Base, tmp_path: Path, engine: str, kind: str
) -> None:
    texts = [(f"{word} {number}", label) for number in range(8) for word, label in MOODS]
    rows: list[dict[str, Any]] = [
        {"text": text, "label": label} if kind == "labels" else {"text": text, "labels": [label]}
        for text, label in texts
    ]
    for name in ("labelled", "test"):
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    task = Task("mood", TASK.labels, TASK.patterns, WORDS, kind=kind)
    known: Any = {"base": base.folder, "engine": engine}
    how: Any = {"adapter": "lora:8@q,k,v,o", "epochs": 6, "batch": 4, "lr": 0.02, "tokens": 32}
    done = smidgen.train(tmp_path, tmp_path / "out", task=task, **how, **known)
    before, after = done.score_before, done.score_after
    assert before is not None and after is not None and after > 0.9 > before
    scores = smidgen.evaluate(tmp_path, tmp_path / "out", **known)
    assert scores.accuracy == after
    origin = json.loads((tmp_path / "out" / "smidgen.json").read_text())
    assert origin["words"] == {label: [ord(word[0]) - 30] for label, word in WORDS.items()}
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert config["task_type"] == "CAUSAL_LM" and (tmp_path / "out" / "adapter.gguf").is_file()
    card = (tmp_path / "out" / "README.md").read_text()
    assert "smidgen client predict --adapter ." in card and "AutoPeftModelForCausalLM" in card


MOODS = [("sunny", "good"), ("grey", "bad"), ("warm", "good"), ("wet", "bad")]


@pytest.mark.few(3)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_but_a_head_personalizes_it(base: Base, tmp_path: Path, method: str) -> None:
    rows = [
        f"{json.dumps({'text': f'{w} {n}', 'label': one})}\n" for n in range(3) for w, one in MOODS
    ]
    (tmp_path / "labelled.jsonl").write_text("".join(rows))
    net = {"fedp2eft": "lora:4@q,v+generator", "fedl2p": "lora:2@q,v+rates"}.get(method)
    for name in ("lora:4", *([net] if net else [])):
        state = initial_adapter(parse_adapter(name), base, 2, seed=1)
        origin = Exported(name, base.peft_name, base.base_id, base.architecture, TASK)
        write_peft_folder(tmp_path / name, origin, encode_adapter(state))
    known: Any = {"task": TASK, "base": base.folder, "engine": "onnx", "method": method}
    known |= {"shared": tmp_path / "lora:4", "generator": tmp_path / net if net else None}
    known |= {"rank_budget": 2, "epochs": 2, "tokens": 32}
    if method == "head":
        with pytest.raises(WrongInput, match=r"causal language model .* take lora:8"):
            smidgen.personalize(tmp_path, tmp_path / "own", **known)
        return
    made = smidgen.personalize(tmp_path, tmp_path / "own", **known)
    assert made.num_examples >= 10
    (said,) = smidgen.predict(["sunny 1"], tmp_path / "own", base=base.folder, engine="onnx")
    assert said.label in TASK.labels


def test_what_stands_behind_a_text_is_left_out(base: Base, tmp_path: Path) -> None:
    folder = tmp_path / "base"
    shutil.copytree(base.folder, folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    known = [("<|im_start|>", 1), ("<|im_end|>", 2)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A <|im_end|>", special_tokens=known
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    tokens = open_tokens(open_base(str(folder)))
    (first, *ids) = tokens.cloze("{text}:[MASK]", Example("ab"), 20).ids
    assert first == 1 and ids == tokens.encode("ab:")


def test_an_adapter_that_peft_saved_is_read(base: Base, tmp_path: Path) -> None:
    state = initial_adapter(parse_adapter("lora:4"), base, 2, seed=1)
    origin = Exported("lora:4", base.peft_name, base.base_id, base.architecture, TASK)
    write_peft_folder(tmp_path / "own", origin, encode_adapter(state))
    (tmp_path / "own" / "smidgen.json").unlink()
    known: Any = {"base": base.folder, "engine": "onnx", "task": TASK}
    (ours,) = smidgen.predict(["fine"], tmp_path / "own", **known)
    (plain,) = smidgen.predict(["fine"], **known)
    assert ours.probabilities == plain.probabilities  # its B is zero
