"""A base's tokenizer: its properties, and disagreements among its files or with the model.

Here `tokenizer.json` counts as it is. transformers 5 takes only its vocabulary where the class in
tokenizer_config.json builds the rest itself (BertTokenizer, CamembertTokenizer and their kin):
lower case, spaces and the special tokens around a text. Where the two differ, a base gets other ids
here than there.
"""

import json
import mmap
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from smidgen.edge_client.bases.architectures import Shape
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.bases.families import family_of
from smidgen.edge_client.bases.gguf.header import GgufFile, is_gguf
from smidgen.edge_client.bases.gguf.tokenizer import PIECES, gguf_tokenizer, splitting_of
from smidgen.edge_client.texts.tokens import Tokens

# Classes that build lower-casing and special tokens by themselves, without a final `Fast`.
BUILDING = ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MPNetTokenizer")
SPLITTING = ("CamembertTokenizer", "XLMRobertaTokenizer")  # at white space, into SentencePiece's
AGAIN = "save it again: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"


def open_tokens(base: Base) -> Tokens:
    """The tokenizer of a base, which asks for words as its kind of language model does.

    Raises:
        TokenizerError: It is damaged, or gone.
        WeightsError: A GGUF's, whose fields do not fit each other.
    """
    held = _converted_once(base.folder) if base.is_gguf else None
    return Tokens(base.folder, held, is_causal=base.shape.is_decoder)


def _converted_once(path: Path) -> Callable[[], tuple[str, dict[str, Any]]]:
    """A GGUF's tokenizer, kept compressed once it was converted.

    Converting it anew in each round leaves twice as much in Python's heap, up to 13 MiB more for
    49,152 words, and takes as long again.
    """
    kept: list[tuple[bytes, dict[str, Any]]] = []

    def read() -> tuple[str, dict[str, Any]]:
        if not kept:
            text, config = gguf_tokenizer(path)
            kept.append((zlib.compress(text.encode(), 1), config))
        body, config = kept[0]
        return zlib.decompress(body).decode(), config

    return read


class TokenizerBytes(NamedTuple):
    """What each entry of a vocabulary takes in memory.

    Attributes:
        held: Resident bytes once it is read and free memory has gone back.
        loading: The most while its file is read and control words are set apart.
    """

    held: int
    loading: int


# Measured by tests/edge_client/planning/test_tokenizer_memory.py; see docs/memory.md.
TOKENIZERS = {
    "WordLevel": TokenizerBytes(320, 380),
    "WordPiece": TokenizerBytes(320, 380),
    "BPE": TokenizerBytes(410, 480),
    "BPE in GGUF": TokenizerBytes(480, 700),
    "SentencePiece BPE": TokenizerBytes(420, 1600),
    "SentencePiece BPE in GGUF": TokenizerBytes(520, 1600),
    "Unigram": TokenizerBytes(700, 750),
}
LEFT_BYTES = {False: 8 << 20, True: 11 << 20}  # of one that is let go, by whether it is a GGUF's
_KEYS = (  # in what stands before a model's vocabulary, where old files do not name its kind
    (rb'"unk_id"', "Unigram"),
    (rb'"max_input_chars_per_word"', "WordPiece"),
    (rb'"byte_fallback"\s*:\s*true', "SentencePiece BPE"),
    (rb'"fuse_unk"', "BPE"),
)


def tokenizer_kind(folder: Path) -> str:
    """Which of `TOKENIZERS` a base's `tokenizer.json` is; nothing of its vocabulary is read."""
    if is_gguf(folder):
        with GgufFile(folder) as held:
            return "SentencePiece BPE in GGUF" if splitting_of(held) is PIECES else "BPE in GGUF"
    with (
        (folder / "tokenizer.json").open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as body,
    ):
        model = re.search(rb'"model"\s*:\s*\{(.{0,600})', body, flags=re.DOTALL)
        head = model[1].partition(b'"vocab"')[0] if model else b""
    return next((kind for key, kind in _KEYS if re.search(key, head)), "WordLevel")


def disagreements(folder: Path, shape: Shape) -> list[str]:
    """What of a base's tokenizer does not fit, each in one line with its repair.

    Args:
        folder: With `tokenizer.json` and, if there, `tokenizer_config.json`.
        shape: The sizes of the base.

    Raises:
        ValueError: A file is not JSON, or not a tokenizer.
    """
    from tokenizers import Tokenizer  # only where a tokenizer is read, so that `--help` is quick

    body = (folder / "tokenizer.json").read_text(encoding="utf-8")
    try:
        tokenizer = Tokenizer.from_str(body)
    except Exception as error:  # the library raises nothing else
        raise ValueError("tokenizer.json cannot be read; copy the base again") from error
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    found = [*_table(tokenizer, shape), *_pad(tokenizer, config, shape)]
    if not shape.is_decoder:
        found += _frame(tokenizer, config)
    name = str(config.get("tokenizer_class") or family_of(shape.architecture).tokenizer)
    document = json.loads(body)
    return [*found, *_case(document, config, name), *_spaces(document, name)]


def _table(tokenizer: Any, shape: Shape) -> Iterator[str]:
    largest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=0)
    if largest >= shape.vocabulary:
        yield (
            f"tokenizer.json has ids up to {largest}, the word table {shape.vocabulary} rows; "
            "resize the model (resize_token_embeddings) or take the model's own tokenizer"
        )


def _pad(tokenizer: Any, config: Mapping[str, Any], shape: Shape) -> Iterator[str]:
    """Where positions are counted behind the pad id, another one shifts them."""
    token = _token(config.get("pad_token")) or "<pad>"
    pad_id = tokenizer.token_to_id(token)
    is_counted = family_of(shape.architecture).is_counted_behind_pad
    if is_counted and pad_id is not None and pad_id != shape.pad_id:
        yield (
            f"{token} is {pad_id} in tokenizer.json, but config.json's pad_token_id is "
            f"{shape.pad_id}, and positions are counted from it; correct pad_token_id"
        )


def _frame(tokenizer: Any, config: Mapping[str, Any]) -> Iterator[str]:
    """The special tokens around a text: none, or others than the configured ones."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    ids = tokenizer.encode("", add_special_tokens=True).ids
    frame = [tokenizer.id_to_token(id_) for id_ in ids]
    names = (("cls_token", "bos_token"), ("sep_token", "eos_token"))
    expected = [_token(config.get(first)) or _token(config.get(second)) for first, second in names]
    if not frame:
        usual = "[CLS] and [SEP]" if None in expected else " and ".join(map(str, expected))
        yield (
            f"tokenizer.json has no post-processor, so no {usual} stand around a text, though "
            f"models like this one are trained with them; {AGAIN}"
        )
    elif None not in expected and [frame[0], frame[-1]] != expected:
        yield (
            f"tokenizer.json puts {frame[0]} and {frame[-1]} around a text, tokenizer_config.json "
            f"names {expected[0]} and {expected[1]}; {AGAIN}"
        )


def _case(document: Mapping[str, Any], config: Mapping[str, Any], name: str) -> Iterator[str]:
    """Lower case, where the class decides it in transformers and tokenizer.json here."""
    normalizer = document.get("normalizer") or {}
    if name.removesuffix("Fast") not in BUILDING or normalizer.get("type") != "BertNormalizer":
        return
    here, there = bool(normalizer.get("lowercase")), bool(config.get("do_lower_case", True))
    if here != there:
        yield (
            f"tokenizer.json {'lowers' if here else 'keeps'} upper case, but {name} with "
            f"do_lower_case {json.dumps(there)} does otherwise in transformers; correct "
            "do_lower_case in tokenizer_config.json"
        )


def _spaces(document: Mapping[str, Any], name: str) -> Iterator[str]:
    """Normalization and white space, which SentencePiece's classes build too."""
    if name.removesuffix("Fast") not in SPLITTING:
        return
    splitting = document.get("pre_tokenizer") or {}
    steps = [step.get("type") for step in splitting.get("pretokenizers", ())]
    normalizer = document.get("normalizer") or {"normalizers": ()}
    changes = {step.get("type") for step in normalizer.get("normalizers", (normalizer,))}
    if steps != ["WhitespaceSplit", "Metaspace"] or changes - {"Precompiled", "Strip", "Replace"}:
        yield (
            f"tokenizer.json normalizes or splits at spaces otherwise than {name} does in "
            f"transformers; {AGAIN}"
        )


def _token(configured: object) -> str | None:
    if isinstance(configured, Mapping):  # older files keep a whole AddedToken here
        configured = configured.get("content")
    return configured if isinstance(configured, str) else None
