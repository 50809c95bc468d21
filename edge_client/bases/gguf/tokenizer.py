"""The tokenizer in a GGUF's own fields, as tokenizer.json and tokenizer_config.json would have it.

Byte-level BPE (`tokenizer.ggml.model` gpt2) with llama.cpp's pre-tokenizers, whose ids it gives:
transformers' own conversion leaves the pre-tokenizer's name unread, and splits digits and spaces
otherwise. And SentencePiece's BPE (`llama`), which joins neighbours into the piece of the highest
score; what is no piece falls apart into bytes.
"""

import json
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from smidgen.edge_client.bases.gguf.header import TOKENS, GgufFile
from smidgen.edge_client.bases.header import WeightsError

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5  # types of tokens
# What llama.cpp takes for control words, whatever their type; measured with xllamacpp
# 2026.10.11549.
ENDS = frozenset(
    [
        "<|eot_id|>",
        "<|im_end|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<EOT>",
        "_<EOT>",
        "</s>",
        "[EOT]",
        "<｜end▁of▁sentence｜>",
        "<end_of_utterance>",
        "<|return|>",
        "<|call|>",
        "<|eom_id|>",
        "<|flush|>",
        "<|calls|>",
        "<fim-prefix>",
        "<|repo_name|>",
        "<|file_sep|>",
        "<|fim_pad|>",
        "<turn|>",
    ]
)
SPACE = "\u2581"  # what SentencePiece writes for one
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_LLAMA3 = (
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+"
    r"|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class Splitting(NamedTuple):
    """A pre-tokenizer of llama.cpp.

    Attributes:
        patterns: One after the other, each within the pieces of the one before; what lies between
            two matches is a piece, too. None for SentencePiece, which splits nothing.
        is_whole_first: Whether a piece that is a token is not built by merges.
        adds_bos: Whether the first special stands before a text where the file does not say.
    """

    patterns: tuple[str, ...]
    is_whole_first: bool = False
    adds_bos: bool = False


SPLITTINGS = {
    "gpt-2": Splitting((_GPT2,)),
    "smollm": Splitting((r"\p{N}", _GPT2)),
    "llama-bpe": Splitting((_LLAMA3 % r"\p{N}{1,3}",), True, True),
    "qwen2": Splitting((_LLAMA3 % r"\p{N}",)),
    # Capitals and small letters are ASCII's; every other letter is both.
    "gpt-4o": Splitting(
        (
            r"[^\r\n\p{L}\p{N}]?(?:[\p{L}&&[^a-z]]*[\p{L}&&[^A-Z]]+|[\p{L}&&[^a-z]]+[\p{L}&&[^A-Z]]*)"
            r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?"
            r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        )
    ),
    "default": Splitting((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
}
PIECES = Splitting((), adds_bos=True)  # SentencePiece's


def gguf_tokenizer(path: Path) -> tuple[str, dict[str, Any]]:
    """A GGUF's tokenizer: tokenizer.json's text, and what tokenizer_config.json says.

    Law: the ids that llama.cpp gives the same text, where both find control words or neither does,
    and no user-defined word begins inside another.

    Args:
        path: The file.

    Returns:
        JSON for `tokenizers.Tokenizer.from_str`; and of bos_token, eos_token, unk_token,
        pad_token, chat_template and add_bos_token what the file has.

    Raises:
        WeightsError: A tokenizer that is not read here, or fields that do not fit each other.
    """
    with GgufFile(path) as file:
        splitting, tokens = splitting_of(file), file.value(TOKENS)
        kinds, is_pieces = _value(file, "token_type"), splitting is PIECES
        if not _is_list(tokens, str) or len({*tokens}) < len(tokens):
            raise WeightsError(f"{path}: {TOKENS} is not a list of different words")
        if not _is_list(kinds, int) or len(kinds) != len(tokens):
            raise WeightsError(f"{path}: tokenizer.ggml.token_type does not name each word's type")
        kinds = [
            CONTROL if kind == USER_DEFINED and token in ENDS else kind
            for token, kind in zip(tokens, kinds, strict=True)
        ]
        merges = _joins(file, tokens, kinds) if is_pieces else _merges(file)
        front = is_pieces and _truth(file, "add_space_prefix", True)
        usual = _USUAL if is_pieces else {}
        specials = {
            key: tokens[id_]
            for key, field in _SPECIALS.items()
            if (id_ := _id(file, field, len(tokens), usual.get(key))) is not None
        }
        config: dict[str, Any] = dict(specials)
        adds = {
            "bos": _truth(file, "add_bos_token", splitting.adds_bos),
            "eos": _truth(file, "add_eos_token", False),
        }
        config["add_bos_token"] = adds["bos"]
        if isinstance(template := file.value("tokenizer.chat_template"), str):
            config["chat_template"] = template
    around = {
        side: {"id": tokens.index(token), "content": token}
        for side in ("bos", "eos")
        if adds[side] and (token := specials.get(f"{side}_token")) is not None
    }
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            _added(id_, token, kind == CONTROL)
            for id_, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
            if kind in (CONTROL, USER_DEFINED) and token
        ],
        "normalizer": _spelling(front) if is_pieces else None,
        "pre_tokenizer": None if is_pieces else _pre_tokenizer(splitting),
        "post_processor": _post_processor(around),
        "decoder": _reading(front) if is_pieces else {"type": "ByteLevel", **_BYTES},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": is_pieces,
            "ignore_merges": splitting.is_whole_first,
            "vocab": {token: id_ for id_, token in enumerate(tokens)},
            "merges": merges,
        },
    }
    return json.dumps(document, ensure_ascii=False), config


def splitting_of(file: GgufFile) -> Splitting:
    """A GGUF's pre-tokenizer; nothing of its vocabulary is read.

    Raises:
        WeightsError: A tokenizer that is not read here.
    """
    model, name = _value(file, "model"), _value(file, "pre", "default")
    if model == "llama":
        return PIECES
    if model != "gpt2" or not isinstance(name, str) or name not in SPLITTINGS:
        raise WeightsError(
            f"{file.path} has a tokenizer of model {str(model)[:40]!r} with the pre-tokenizer "
            f"{str(name)[:40]!r}; gpt2 with one of {', '.join(SPLITTINGS)}, or llama, is read here"
        )
    return SPLITTINGS[name]


def _merges(file: GgufFile) -> list[list[str]]:
    merges = _value(file, "merges")
    if not _is_list(merges, str) or not all(" " in merge for merge in merges):
        raise WeightsError(f"{file.path}: tokenizer.ggml.merges is not a list of pairs")
    return [merge.split(" ", 1) for merge in merges]


def _joins(file: GgufFile, tokens: list[str], kinds: list[int]) -> list[list[str]]:
    """The pairs of pieces that make another, as merges: those of the highest score first.

    User-defined and control words are cut out of a text before anything is joined.

    Raises:
        WeightsError: Fields that do not fit each other; or two pieces of one score, of which
            llama.cpp joins the leftmost, and merges the one that comes first; or a piece with a
            character that is none, which llama.cpp joins and merges do not.
    """
    scores = _value(file, "scores")
    if not _is_list(scores, float) or len(scores) != len(tokens) or not all(map(isfinite, scores)):
        raise WeightsError(f"{file.path}: tokenizer.ggml.scores does not give each word a number")
    missing = {f"<0x{byte:02X}>" for byte in range(256)} - {*tokens}
    if missing:
        raise WeightsError(f"{file.path}: its vocabulary lacks {min(missing)}, one of 256 bytes")
    score_of = {
        token: score
        for token, score, kind in zip(tokens, scores, kinds, strict=True)
        if kind in (NORMAL, UNUSED)
    }
    pairs = {
        token: cuts
        for token in sorted(score_of, key=score_of.__getitem__, reverse=True)
        if len(token) > 1
        and (
            cuts := [
                [token[:cut], token[cut:]]
                for cut in range(1, len(token))
                if token[:cut] in score_of and token[cut:] in score_of
            ]
        )
    }
    single = {letter for token in score_of if len(token) > 1 for letter in token} - {*tokens}
    said = "pack the model from its Hugging Face folder"
    if single:
        raise WeightsError(
            f"{file.path}: {min(single)!a} of its words is no word by itself, which is read "
            f"otherwise here than in llama.cpp; {said}"
        )
    if len({score_of[token] for token in pairs}) < len(pairs):
        raise WeightsError(
            f"{file.path}: tokenizer.ggml.scores gives two words one score, which are joined "
            f"otherwise here than in llama.cpp; {said}"
        )
    return [pair for cuts in pairs.values() for pair in cuts]


def _spelling(front: bool) -> dict[str, Any]:
    """How SentencePiece writes a text: with its own sign for spaces, and maybe one before it."""
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    steps = [{"type": "Prepend", "prepend": SPACE}] if front else []
    return {"type": "Sequence", "normalizers": [*steps, spaces]}


def _reading(front: bool) -> dict[str, Any]:
    """How its pieces become a text again."""
    spaces = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if front else []
    return {
        "type": "Sequence",
        "decoders": [spaces, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip],
    }


_BYTES = {"add_prefix_space": False, "trim_offsets": True, "use_regex": False}
_SPECIALS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


_USUAL = {"bos_token": 1, "eos_token": 2, "unk_token": 0}  # llama.cpp's, of SentencePiece


def _value(file: GgufFile, name: str, default: Any = None) -> Any:
    return file.value(f"tokenizer.ggml.{name}", default)


def _truth(file: GgufFile, name: str, default: bool) -> bool:
    found = _value(file, name, default)
    if type(found) is not bool:
        raise WeightsError(
            f"{file.path}: tokenizer.ggml.{name} is {str(found)[:40]!r}; true or false is expected"
        )
    return found


def _id(file: GgufFile, name: str, tokens: int, default: int | None = None) -> int | None:
    id_ = _value(file, name, default)
    if id_ is not None and (type(id_) is not int or not 0 <= id_ < tokens):
        raise WeightsError(
            f"{file.path}: tokenizer.ggml.{name} is {str(id_)[:40]!r}, which is none of its "
            f"{tokens} words"
        )
    return id_


def _is_list(found: object, kind: type) -> bool:
    return isinstance(found, list) and all(type(item) is kind for item in found)


def _added(id_: int, token: str, is_control: bool) -> dict[str, Any]:
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": id_, "content": token, **plain, "special": is_control}


def _pre_tokenizer(splitting: Splitting) -> dict[str, Any]:
    steps = [
        {"type": "Split", "pattern": {"Regex": one}, "behavior": "Isolated", "invert": False}
        for one in splitting.patterns
    ]
    return {"type": "Sequence", "pretokenizers": [*steps, {"type": "ByteLevel", **_BYTES}]}


def _post_processor(around: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The specials before and after a text; a second text has its own."""

    def framed(sequence: str, type_id: int) -> list[dict[str, Any]]:
        text = {"Sequence": {"id": sequence, "type_id": type_id}}
        sides = {
            side: {"SpecialToken": {"id": one["content"], "type_id": type_id}}
            for side, one in around.items()
        }
        return [sides.get(s, text) for s in ("bos", "", "eos") if not s or s in sides]

    return {
        "type": "TemplateProcessing",
        "single": framed("A", 0),
        "pair": [*framed("A", 0), *framed("B", 1)],
        "special_tokens": {
            one["content"]: {"id": one["content"], "ids": [one["id"]], "tokens": [one["content"]]}
            for one in around.values()
        },
    }
