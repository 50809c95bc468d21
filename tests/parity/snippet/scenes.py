"""Exported adapters of every kind, with texts to ask them."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.peft_folder import Exported, write_peft_folder
from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import Base, open_base
from smidgen.edge_client.tasks.kind import kind_of
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.tensors import encode_adapter
from tests.families import DECODERS

LABELS = ("security", "delivery", "power")
ONE_SEGMENT = {"type_vocab_size": 1}
WORDS = {"security": "the door is open", "delivery": "parcel", "power": "storm today"}
ONE = Task("one", LABELS, ("{text} . this is about [MASK] .",), WORDS)
MANY = Task(
    "many",
    LABELS,
    ("{text} . it is [MASK] .", "about [MASK] : {text}", "({text}) [MASK] ."),
    WORDS,
    ensemble=True,
)
PAIR = Task("pair", LABELS, ("{text_a} , and is it [MASK] ? {text_b} .",), WORDS)
TIGHT = Task("tight", LABELS, ("({text})! It was [MASK], they say.",), WORDS)
FIRST = Task("first", LABELS, ("[MASK]: {text}",), WORDS)
ENDING = Task("ending", LABELS, ("{text} . this is about [MASK]",), WORDS)
ENDINGS = Task("endings", LABELS, ("{text} : [MASK]", "({text})\n is [MASK]"), WORDS, ensemble=True)
PAIR_ENDING = Task("pair ending", LABELS, ("{text_a} , and {text_b} is it [MASK]",), WORDS)
DRUGS = Task("drugs", ("Chemical", "Disease"), kind="tagging")
NOTES = Task("notes", kind="mlm")
TEXTS = [
    "the door camera saw somebody",
    "Rain at nine -- on the WAY!",
    "a b c d e f g",
    "it's (really) 12:30, isn't it? \u00e9\u00e0",
    "  spaces   around  ",
]
PAIRS = [
    ("the door camera saw somebody", "rain at nine"),
    ("your parcel", "it will be there at noon, please"),
    ("no", "good bad great terrible news " * 3),
]
TYPED = [
    "a [MASK] in a text",
    "[SEP] two [SEP] of them",
    "[CLS] and [PAD] and [UNK]",
    "<mask> <s> </s>",
]
LONG = ["good bad great terrible news " * 60, "counterintuitively " * 99, "z" * 3000]
LONG_PAIRS = [("good news " * 99, "bad"), ("bad", "good news " * 99), ("good " * 99, "bad " * 99)]


@dataclass(frozen=True)
class Scene:
    """One export and what it is asked.

    Attributes:
        adapter: Its name.
        task: What it is for.
        texts: Texts, or pairs of them.
        base: `words` (WordPiece), `segments` (the same) `bytes` (byte-level BPE), `pieces`
            (Unigram) or `causal` (byte-level BPE of a decoder).
        knows_base: Whether the export was written beside its base.
    """

    adapter: str
    task: Task
    texts: list[Any] = field(default_factory=lambda: TEXTS)
    base: str = "words"
    knows_base: bool = True


SCENES = {
    "words of several tokens": Scene("lora:4", ONE),
    "words that the tokenizer is asked for": Scene("lora:4", ONE, knows_base=False),
    "several patterns": Scene("lora:4", MANY),
    "ridge regression": Scene("lora:4+ridge", ONE),
    "signs beside the mask": Scene("lora:4", TIGHT),
    "a pair in a pattern": Scene("lora:4", PAIR, PAIRS),
    "a soft prompt": Scene("prompt:5", ONE),
    "biases": Scene("bias", ONE),
    "long texts": Scene("lora:4", ONE, LONG),
    "long pairs": Scene("lora:4", PAIR, LONG_PAIRS),
    "a head": Scene("lora:4+head", ONE),
    "a head, long texts": Scene("lora:4+head", ONE, LONG),
    "tags": Scene("lora:4+head", DRUGS),
    "tags behind a soft prompt": Scene("prompt:5+head", DRUGS),
    "masked words": Scene(
        "lora:4", NOTES, ["rain at [MASK] .", "[MASK] [MASK] door", "the [MASK]"]
    ),
}
PROMPTS = {  # as prompts are since they have the ids of the written sentence
    "a head, pairs": Scene("lora:4+head", ONE, PAIRS, "segments"),
    "a head, long pairs": Scene("lora:4+head", ONE, LONG_PAIRS, "segments"),
    "ridge regression, a head, pairs": Scene("lora:4+head+ridge", ONE, PAIRS, "segments"),
    "ridge regression, a decoder": Scene("lora:4+ridge", ENDING, TEXTS, "causal"),
    "typed control words": Scene("lora:4", ONE, TYPED),
    "typed control words, a head": Scene("lora:4+head", ONE, TYPED),
    "typed control words, tags": Scene("lora:4+head", DRUGS, TYPED),
    **{
        f"bytes, {task.name}": Scene("lora:4", task, TEXTS + TYPED + LONG, "bytes")
        for task in (ONE, TIGHT, FIRST)
    },
    "bytes, a pair": Scene("lora:4", PAIR, PAIRS + LONG_PAIRS, "bytes"),
    "bytes, a head": Scene("lora:4+head", ONE, TEXTS + TYPED, "bytes"),
    "bytes, a head, pairs": Scene("lora:4+head", ONE, PAIRS + LONG_PAIRS, "bytes"),
    "bytes, tags": Scene("lora:4+head", DRUGS, TEXTS + TYPED, "bytes"),
    **{
        f"pieces, {task.name}": Scene("lora:4", task, TEXTS + TYPED + LONG, "pieces")
        for task in (ONE, TIGHT, FIRST)
    },
    "pieces, a head, pairs": Scene("lora:4+head", ONE, PAIRS + LONG_PAIRS, "pieces"),
    "pieces, tags": Scene("lora:4+head", DRUGS, TEXTS + TYPED, "pieces"),
    "pieces, masked words": Scene("lora:4", NOTES, ["rain at [MASK].", "[MASK] door"], "pieces"),
    **{
        f"a decoder, {task.name}": Scene("lora:4", task, TEXTS + TYPED + LONG, "causal")
        for task in (ENDING, ENDINGS)
    },
    "a decoder, a pair": Scene("lora:4", PAIR_ENDING, PAIRS + LONG_PAIRS, "causal"),
    "a decoder, a soft prompt": Scene("prompt:5", ENDINGS, TEXTS + LONG, "causal"),
    "a decoder that is asked for its tokens": Scene("lora:4", ENDING, TEXTS, "causal", False),
    "bytes, masked words": Scene("lora:4", NOTES, ["rain at [MASK].", "[MASK] door"], "bytes"),
}


def with_segments(base: Base, folder: Path) -> Base:
    """The same base with a tokenizer that gives the second text of a pair segment 1, as BERT's."""
    folder.mkdir(parents=True)
    for path in base.folder.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = [(word, tokenizer.token_to_id(word)) for word in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ids
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    return open_base(str(folder))


def piece_base(folder: Path) -> Base:
    """A random XLM-R of width 16 with a Unigram tokenizer, which knows control words as pieces."""
    words = [word for text in [*WORDS.values(), *TEXTS] for word in text.split()]
    letters = sorted({letter for text in [*words, *map(chr, range(33, 127))] for letter in text})
    pieces = [*(f"\u2581{word}" for word in dict.fromkeys(words)), "\u2581", *letters]
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    vocabulary = [(one, 0.0) for one in specials] + [
        (one, -float(n)) for n, one in enumerate(pieces)
    ]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=3))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(specials)
    return _random(tokenizer, "xlm-roberta", folder)


def byte_base(folder: Path, family: str = "roberta") -> Base:
    """A random base of width 16 with a byte-level tokenizer; a mask takes in a space before it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=specials, initial_alphabet=alphabet
    )
    words = " ".join([*WORDS.values(), *TEXTS, "good bad great news It was about this is they say"])
    tokenizer.train_from_iterator([words] * 3, trainer)
    return _random(tokenizer, family, folder)


def _random(tokenizer: Tokenizer, family: str, folder: Path) -> Base:
    import torch
    import transformers

    names = {"bos": "<s>", "eos": "</s>", "unk": "<unk>"}
    is_causal = family in DECODERS
    if is_causal:
        front = {"single": "<s> $A", "pair": "<s> $A $B", "special_tokens": [("<s>", 0)]}
        tokenizer.post_processor = processors.TemplateProcessing(**front)
    else:
        tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, normalized=False)])
        tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
        names |= {"cls": "<s>", "sep": "</s>", "pad": "<pad>", "mask": "<mask>"}
    folder.mkdir(parents=True)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_input_names=["input_ids", "attention_mask"],
        **{f"{name}_token": word for name, word in names.items()},
    )
    fast.save_pretrained(folder)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 32, "max_position_embeddings": 66}
    sizes |= {"vocab_size": len(fast), "pad_token_id": 1} | ({} if is_causal else ONE_SEGMENT)
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **sizes)
    kind = transformers.AutoModelForCausalLM if is_causal else transformers.AutoModelForMaskedLM
    model = kind.from_config(config)
    for parameter in model.parameters():
        parameter.data.mul_(8 if parameter.dim() > 1 else 1)
    model.save_pretrained(folder)
    return open_base(str(folder))


def export(scene: Scene, base: Base, folder: Path) -> None:
    """An adapter of random values, so that no answer is one that the base alone would give."""
    spec, task = parse_adapter(scene.adapter), scene.task
    is_of_words = task.kind == "tagging"
    state = initial_adapter(spec, base, kind_of(task).head(task).rows, 1, is_of_words=is_of_words)
    draw = np.random.default_rng(7)
    state = {
        name: one + draw.normal(0, 0.3, one.shape).astype(np.float32) for name, one in state.items()
    }
    origin = Exported(scene.adapter, base.peft_name, base.base_id, base.architecture, task)
    known = base if scene.knows_base else None
    write_peft_folder(
        folder, origin, encode_adapter(state), base=known, with_base="copied" if known else None
    )
    if not known:
        (folder / base.folder.name).symlink_to(base.folder)
