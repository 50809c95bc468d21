"""Bases as folders that experiments begin from: written whole, each named by its hash as others."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from edge_client.bases.base import Base
from edge_client.files import write_atomically
from edge_client.wire.tensors import AdapterState

CONFIG, TOKENIZER, WEIGHTS = "config.json", "tokenizer.json", "model.safetensors"


def trained(base: Base, state: AdapterState, folder: Path) -> Path:
    """A folder of the base with every weight as a run that trained them all left it.

    Args:
        base: What the run trained, a Hugging Face folder.
        state: All its weights by their names.
        folder: Where the new base is to be; made where it is not there.
    """
    config = json.loads((base.folder / CONFIG).read_text(encoding="utf-8"))
    tokenizer = json.loads((base.folder / TOKENIZER).read_text(encoding="utf-8"))
    return write_base(folder, config, tokenizer, state)


def write_base(
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
