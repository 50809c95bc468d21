"""A base that knows all letters of the silos' texts, as a folder of its own."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from edge_client.bases.base import Base
from simulation.experiments.stage import CONFIG, TOKENIZER, write_base

SCRIPTS = ((0x0430, 0x044F), (0x05D0, 0x05EA), (0x0621, 0x063A), (0x0641, 0x064A))
PUNCTUATION = "،؛؟"  # Arabic's own; a sign is a word of one letter
LETTERS = tuple(chr(code) for first, last in SCRIPTS for code in range(first, last + 1))
WORDPIECE, WITHIN = "WordPiece", "##"


def lettered(base: Base, out: Path) -> Path:
    """A folder of the base that knows every Cyrillic, Hebrew and Arabic letter as a token.

    A base without them reads whole words of these scripts as unknown, and guesses that they are,
    which looks like knowledge of the language. A new token begins as what the base took it for: the
    unknown token's row, and an equal part of its probability; nothing else changes. Law: a base
    that knows all of them stays where it is, and so does one whose tokenizer is not WordPiece.

    Args:
        base: A pack, or a Hugging Face folder.
        out: Folder that the base's folder is made in, where one is needed.
    """
    if base.manifest is not None:
        return base.folder
    tokenizer: dict[str, Any] = json.loads((base.folder / TOKENIZER).read_text(encoding="utf-8"))
    model = tokenizer["model"]
    if model["type"] != WORDPIECE:
        return base.folder
    known: dict[str, int] = model["vocab"]
    wanted = (*LETTERS, *(f"{WITHIN}{letter}" for letter in LETTERS), *PUNCTUATION)
    new = [token for token in wanted if token not in known]
    if not new:
        return base.folder
    rows = len(known)
    model["vocab"] = known | {token: rows + place for place, token in enumerate(new)}
    config = json.loads((base.folder / CONFIG).read_text(encoding="utf-8"))
    config["vocab_size"] = rows + len(new)
    unknown = known[model["unk_token"]]
    tensors = {
        name: _longer(tensor, unknown, len(new)) if len(tensor) == rows else tensor
        for name, tensor in sorted(load_file(base.weights).items())
    }
    return write_base(out / f"{_plain(base.name)}-letters", config, tokenizer, tensors)


def _longer(tensor: np.ndarray, unknown: int, more: int) -> np.ndarray:
    """A table with more rows, or a bias with more numbers, all as the unknown token's.

    Of a bias all of them have what that token had of the probability, as they have one row.
    """
    row = tensor[unknown : unknown + 1]
    if tensor.ndim > 1:
        return np.concatenate([tensor, np.repeat(row, more, axis=0)])
    lower = (row - np.log(more + 1)).astype(tensor.dtype)
    found = np.concatenate([tensor, np.repeat(lower, more)])
    found[unknown] = lower[0]
    return found


def _plain(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", Path(name).name)
