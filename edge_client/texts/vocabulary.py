"""Tokenizers read in little memory.

From JSON, `tokenizers` (0.23.3) holds the whole document beside the model that it makes of it: of
byte-level BPE 870 bytes an entry. From files of its vocabulary and merges it takes 360.
"""

import mmap
import os
import re
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from tokenizers import Tokenizer

LASTING = Path("/var/tmp")
NO_LINE = re.compile(r"\s|^#version")  # in a half of a merge: its file could not hold it
ADDED = {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}
VOCABULARY, MERGES = "vocab.json", "merges.txt"
OPTIONS = (
    "dropout",
    "unk_token",
    "continuing_subword_prefix",
    "end_of_word_suffix",
    "fuse_unk",
    "byte_fallback",
    "ignore_merges",
)


def disk_folder() -> str:
    """Where files lie that would be as large in memory.

    `TMPDIR`; where that is not set, where temporary files outlast a restart: others may be memory.
    """
    return os.environ.get("TMPDIR") or (str(LASTING) if LASTING.is_dir() else gettempdir())


def read_tokenizer(source: Path | str) -> "Tokenizer":
    """A tokenizer from a file as tokenizer.json, or from such a text.

    Law: in the same state as the library's own reading leaves it in.

    Raises:
        Exception: The library's, which raises nothing else: it is none.
    """
    from tokenizers import Tokenizer

    try:
        with TemporaryDirectory(dir=disk_folder()) as name:
            if (parts := _taken_apart(source, Path(name))) is not None:
                return _put_together(*parts, Path(name))
    except OSError:  # no room for files
        pass
    return (
        Tokenizer.from_str(source) if isinstance(source, str) else Tokenizer.from_file(str(source))
    )


def _taken_apart(source: Path | str, folder: Path) -> tuple[bytes, list[dict[str, Any]]] | None:
    """Write the vocabulary and the merges of BPE to files.

    Returns:
        The document without these and without added tokens, and the latter; None where it is no
        BPE, or one with bytes for what it lacks, as SentencePiece's, whose merges may hold line
        ends; or nothing that the library would write.
    """
    if isinstance(source, str):
        return _written(source.encode(), folder)
    with source.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as body:
        return _written(body, folder)


def _written(
    document: bytes | mmap.mmap, folder: Path
) -> tuple[bytes, list[dict[str, Any]]] | None:
    try:
        parts = msgspec.json.decode(document, type=dict[str, msgspec.Raw])
        model = msgspec.json.decode(parts["model"], type=dict[str, msgspec.Raw])
        if bytes(model["type"]) != b'"BPE"' or bytes(model["byte_fallback"]) != b"false":
            return None
        added = msgspec.json.decode(parts["added_tokens"], type=list[dict[str, Any]])
        merges = msgspec.json.decode(model["merges"], type=list[str | tuple[str, str]])
        if len({*map(type, merges)}) > 1 or any(one.keys() != ADDED for one in added):
            return None
    except (msgspec.MsgspecError, KeyError):
        return None
    with (folder / MERGES).open("w", encoding="utf-8", newline="\n") as file:
        for merge in merges:
            halves = merge.split(" ") if isinstance(merge, str) else merge
            if len(halves) != 2 or not all(halves) or any(map(NO_LINE.search, halves)):
                return None
            file.write(f"{halves[0]} {halves[1]}\n")
    (folder / VOCABULARY).write_bytes(memoryview(model["vocab"]))
    empty = model | {"vocab": msgspec.Raw(b"{}"), "merges": msgspec.Raw(b"[]")}
    return msgspec.json.encode(parts | {"added_tokens": [], "model": empty}), added


def _put_together(document: bytes, added: list[dict[str, Any]], folder: Path) -> "Tokenizer":
    from tokenizers import AddedToken, Tokenizer
    from tokenizers.models import BPE

    tokenizer = Tokenizer.from_buffer(document)
    options = {name: getattr(tokenizer.model, name) for name in OPTIONS}
    given = {name: value for name, value in options.items() if value is not None}
    tokenizer.model = BPE.from_file(str(folder / VOCABULARY), str(folder / MERGES), **given)
    for token in added:
        del token["id"]
        add = tokenizer.add_special_tokens if token["special"] else tokenizer.add_tokens
        add([AddedToken(**token)])
    return tokenizer
