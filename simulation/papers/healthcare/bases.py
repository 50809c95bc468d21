"""Bases that silos begin from: one that knows all their letters, and what earlier runs trained.

Each is a plain folder, so that whatever takes a base takes it, and its hash names its results.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save

from edge_client.bases.base import Base
from edge_client.files import write_atomically
from edge_client.wire.tensors import AdapterState

SCRIPTS = ((0x0430, 0x044F), (0x05D0, 0x05EA), (0x0621, 0x063A), (0x0641, 0x064A))
PUNCTUATION = "،؛؟"  # Arabic's own; a sign is a word of one letter
LETTERS = tuple(chr(code) for first, last in SCRIPTS for code in range(first, last + 1))
WORDPIECE, WITHIN = "WordPiece", "##"
CONFIG, TOKENIZER, WEIGHTS = "config.json", "tokenizer.json", "model.safetensors"


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
    return _written(out / f"{_plain(base.name)}-letters", config, tokenizer, tensors)


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


def trained(base: Base, state: AdapterState, out: Path, name: str) -> Path:
    """A folder of the base with every weight as a run that trained them all left it.

    Args:
        base: What the run trained, a Hugging Face folder.
        state: All its weights by their names.
        out: Folder that the new base's folder is made in.
        name: What the run is called, behind the base's name.
    """
    config = json.loads((base.folder / CONFIG).read_text(encoding="utf-8"))
    tokenizer = json.loads((base.folder / TOKENIZER).read_text(encoding="utf-8"))
    return _written(out / f"{_plain(base.name)}-{name}", config, tokenizer, state)


def _plain(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", Path(name).name)


def _written(
    folder: Path,
    config: Mapping[str, Any],
    tokenizer: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray],
) -> Path:
    """Write a base's files; equal ones are written equal, and a cut leaves whole ones."""
    folder.mkdir(parents=True, exist_ok=True)
    bodies = {
        CONFIG: json.dumps(config, indent=2, sort_keys=True).encode(),
        TOKENIZER: json.dumps(tokenizer, ensure_ascii=False).encode(),
        WEIGHTS: save(dict(tensors), {"format": "pt"}),
    }
    for name, body in bodies.items():
        path = folder / name
        if not path.is_file() or path.read_bytes() != body:
            write_atomically(path, body)
    return folder
