"""Tokenizers of every kind that bases have, small and trained on the spot, with all their oddities.

Kinds: WordPiece; byte-level BPE as RoBERTa's, with a space before a text or without; Unigram and
BPE with Metaspace, `always`, `first` and `never`; BPE behind normalizers alone, as Llama's was.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

SPECIALS = {"pad": "<pad>", "unk": "<unk>", "cls": "<s>", "sep": "</s>", "mask": "<mask>"}
CORPUS = [
    "The match was great. It was (really) great: good! Bad news, world sports and business.",
    'Rain at nine? "Terrible", she said; it was not good, it was bad. Technology is in the news.',
    "日本 の 天気 は 良い 。 好 很好 天气 ! été naïve STRASSE ﬁne 1/2 don't 24 U.S.A. a b c",
    "world world sports sports business business great great good good bad bad terrible news :",
] * 4
POST: dict[str, tuple[str, str]] = {
    "both sides": ("<s> $A </s>", "<s> $A </s> $B:1 </s>:1"),
    "as RoBERTa": ("<s> $A </s>", "<s> $A </s> </s> $B </s>"),
    "one at the end": ("$A </s>", "$A </s> $B:1 </s>:1"),
    "two at the end": ("<s> $A </s> </s>", "<s> $A </s> </s> $B:1 </s>:1"),
    "none": ("$A", "$A $B:1"),
}
OWN_POST: dict[str, Callable[[tuple[str, int], tuple[str, int]], Any]] = {
    "BertProcessing": processors.BertProcessing,
    "RobertaProcessing": processors.RobertaProcessing,
}


@dataclass(frozen=True)
class Kind:
    """One tokenizer.

    Attributes:
        model: See `MODELS`.
        post: One of `POST` or `OWN_POST`.
        lstrip: Whether the mask takes in spaces before it, as RoBERTa's does.
        rstrip: Whether it takes in those behind it.
        normalizer: One of `NORMALIZERS`.
    """

    model: str
    post: str = "both sides"
    lstrip: bool = True
    rstrip: bool = False
    normalizer: str = "none"


NORMALIZERS: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "lowercase": normalizers.Lowercase,
    "strip": lambda: normalizers.Strip(left=True, right=True),
    "NFKC": normalizers.NFKC,
    "all": lambda: normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()]),
}


def _metaspace(scheme: str) -> Callable[[], Any]:
    return lambda: pre_tokenizers.Metaspace(prepend_scheme=scheme)


def _bytes(has_space: bool) -> Callable[[], Any]:
    return lambda: pre_tokenizers.ByteLevel(add_prefix_space=has_space)


# Name -> the model, what trains it, and how words are told apart.
MODELS: dict[str, tuple[Callable[[], Any], str, Callable[[], Any]]] = {
    "wordpiece": (
        lambda: models.WordPiece(unk_token="<unk>"),
        "wordpiece",
        pre_tokenizers.BertPreTokenizer,
    ),
    "wordpiece by spaces": (
        lambda: models.WordPiece(unk_token="<unk>"),
        "wordpiece",
        pre_tokenizers.WhitespaceSplit,
    ),
    "bytes": (models.BPE, "bytes", _bytes(False)),
    "bytes, a space first": (models.BPE, "bytes", _bytes(True)),
    **{
        f"{name} {scheme}": (make, name, _metaspace(scheme))
        for name, make in (("unigram", models.Unigram), ("bpe", models.BPE))
        for scheme in ("always", "first", "never")
    },
    "bpe prepended": (lambda: models.BPE(unk_token="<unk>"), "prepended", lambda: None),
}


@lru_cache
def _trained(model: str, normalizer: str) -> str:
    make, training, split = MODELS[model]
    tokenizer = Tokenizer(make())
    found = NORMALIZERS[normalizer]()
    if training == "prepended":
        own = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        found = normalizers.Sequence([*([found] if found else []), *own])
    tokenizer.normalizer = found
    tokenizer.pre_tokenizer = split()
    names = list(SPECIALS.values())
    known: dict[str, Any] = {"special_tokens": names, "show_progress": False}
    if training == "unigram":
        trainer: Any = trainers.UnigramTrainer(vocab_size=160, unk_token="<unk>", **known)
    elif training == "wordpiece":
        trainer = trainers.WordPieceTrainer(vocab_size=220, **known)
    else:
        letters = pre_tokenizers.ByteLevel.alphabet() if training == "bytes" else []
        size = 420 if training == "bytes" else 240
        trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=letters, **known)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer.to_str()


def tokenizer_of(kind: Kind) -> Tokenizer:
    """A new tokenizer of a kind."""
    document = json.loads(_trained(kind.model, kind.normalizer))
    for token in document["added_tokens"]:
        if token["content"] == SPECIALS["mask"]:
            token |= {"lstrip": kind.lstrip, "rstrip": kind.rstrip}
    tokenizer = Tokenizer.from_str(json.dumps(document))
    ids = [(name, tokenizer.token_to_id(name) or 0) for name in SPECIALS.values()]
    if kind.post in OWN_POST:
        by_name = dict(ids)
        sep, cls = (SPECIALS[name] for name in ("sep", "cls"))
        own = OWN_POST[kind.post]((sep, by_name[sep]), (cls, by_name[cls]))
        tokenizer.post_processor = own
    else:
        single, pair = POST[kind.post]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=single, pair=pair, special_tokens=ids
        )
    tokenizer.decoder = decoders.ByteLevel() if kind.model.startswith("bytes") else None
    return tokenizer


def write_tokenizer(kind: Kind, folder: Path) -> Path:
    """Write a kind's `tokenizer.json` and `tokenizer_config.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer_of(kind).save(str(folder / "tokenizer.json"))
    named = {f"{name}_token": word for name, word in SPECIALS.items()}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    return folder


def theirs(kind: Kind, **more: Any) -> Any:
    """The same tokenizer as transformers reads it."""
    import transformers

    named = {f"{name}_token": word for name, word in SPECIALS.items()}
    whole = {**named, "model_max_length": 10_000, **more}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer_of(kind), **whole)
