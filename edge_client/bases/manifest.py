"""Base packs on disk: the manifest, the pack's id, and the checks before it is read.

    NAME/manifest.json         what it is; SHA-256 of every other file
         weights.safetensors   the tensors, each layer's side by side
         tokenizer.json, tokenizer_config.json, config.json

A pack's id is the SHA-256 of its manifest's canonical JSON and thereby covers every byte. The
manifest is written last; a folder without one is not a pack.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from smidgen.edge_client.bases.header import TensorEntry, WeightsError, read_header
from smidgen.edge_client.bases.layout import (
    PackError,
    checked_shape,
    lay_out,
    pooler_of,
    tensors_of,
)
from smidgen.edge_client.files import file_sha256
from smidgen.edge_client.wire.fleet import PackFile

SCHEMA = 2
MANIFEST, WEIGHTS = "manifest.json", "weights.safetensors"
NEEDED = (WEIGHTS, "tokenizer.json", "config.json")
KNOWN = (*NEEDED, "tokenizer_config.json")
MAX_JSON_BYTES = 4 << 20
QUANTIZATIONS: dict[int, dict[str, Any]] = {
    4: {"bits": 4, "scheme": "nf4", "block": 64},
    8: {"bits": 8, "scheme": "int8", "axis": "row"},
    16: {"bits": 16, "scheme": "bfloat16"},
}
AGAIN = "copy it again, or pack the model again with `smidgen pack`"


@dataclass(frozen=True)
class Manifest:
    """What a pack is; `manifest.json` holds these fields and no other.

    Attributes:
        name: The model's hub name, its folder's name, or the name of a random shape.
        licence: The weights' licence, as the packer was told.
        architecture: Hugging Face's `model_type`.
        config: The model's Hugging Face configuration.
        quantization: One of `QUANTIZATIONS`.
        random_seed: What the weights were drawn from; None for a real model.
        layers: First byte, and the byte behind the last, of each stored layer in the weights.
        files: Every other file by name.
        schema: Version of this format.
    """

    name: str
    licence: str | None
    architecture: str
    config: dict[str, Any]
    quantization: dict[str, Any]
    random_seed: int | None
    layers: tuple[tuple[int, int], ...]
    files: dict[str, PackFile]
    schema: int = SCHEMA

    @property
    def bits(self) -> int:
        return int(self.quantization["bits"])

    @property
    def pack_id(self) -> str:
        return hashlib.sha256(canonical(asdict(self))).hexdigest()

    @property
    def total_bytes(self) -> int:
        return sum(facts.bytes for facts in self.files.values())


def canonical(document: Mapping[str, Any]) -> bytes:
    """The one JSON form of a document: sorted keys, no spaces, UTF-8.

    Raises:
        ValueError: It holds NaN, an infinity, or text that is not valid Unicode.
    """
    text = json.dumps(
        document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.encode()


def is_pack(folder: Path) -> bool:
    return (folder / MANIFEST).is_file()


def partial_folder(out: Path, process: int) -> Path:
    """Where a process writes a pack before it is whole."""
    place = Path(os.path.realpath(out))
    return place.with_name(f"{place.name}.partial-{process}")


def refuse_half_written(folder: Path) -> None:
    """Refuse what an interrupted `smidgen pack` left behind.

    Raises:
        PackError: The folder is such a rest.
    """
    is_partial = re.search(r"\.partial-\d+$", folder.resolve().name) is not None
    if is_partial or ((folder / WEIGHTS).exists() and not is_pack(folder)):
        raise PackError(
            f"{folder} is a half-written pack, left by an interrupted `smidgen pack`; delete it "
            "and pack the model again"
        )


def read_pack(folder: Path) -> Manifest:
    """Read a pack's manifest and check every file against it, byte by byte.

    Raises:
        PackError: Half-written, truncated, altered, or of a schema not known here.
        ArchitectureError: A model of a family that is not known here.
    """
    refuse_half_written(folder)
    manifest = read_manifest(folder / MANIFEST)
    _check_sizes(folder, manifest)
    _check_weights(folder / WEIGHTS, manifest)
    for name, facts in manifest.files.items():
        if file_sha256(folder / name) != facts.sha256:
            raise PackError(f"{folder / name} has another SHA-256 than its manifest; {AGAIN}")
    if read_json(folder / "config.json") != manifest.config:
        raise PackError(f"{folder / 'config.json'} says otherwise than the manifest; {AGAIN}")
    return manifest


def read_manifest(path: Path) -> Manifest:
    """Read a manifest alone; no file beside it is looked at.

    Raises:
        PackError: No manifest of a schema known here.
    """
    raw = read_json(path)
    schema = raw.get("schema")
    if type(schema) is int and schema != SCHEMA:
        newer = "update smidgen, or " if schema > SCHEMA else ""
        raise PackError(
            f"{path} is of schema {schema}, this smidgen reads {SCHEMA}, which tokenizes texts "
            f"otherwise; {newer}pack the model again with this one"
        )
    try:
        manifest = msgspec.convert(raw, Manifest)
        is_exact = schema == SCHEMA and canonical(asdict(manifest)) == canonical(raw)
    except (msgspec.ValidationError, ValueError, TypeError, RecursionError) as error:
        raise PackError(f"{path} is not a manifest of a pack: {error}; {AGAIN}") from error
    if not is_exact or manifest.quantization not in QUANTIZATIONS.values():
        raise PackError(
            f"{path} is not a manifest of schema {SCHEMA}: unknown fields or quantization; {AGAIN}"
        )
    if manifest.architecture != manifest.config.get("model_type"):
        raise PackError(f"{path}: architecture is not the configuration's model_type; {AGAIN}")
    return manifest


def read_json(path: Path) -> dict[str, Any]:
    """A small JSON object from a file.

    Raises:
        PackError: It cannot be read, or is something else.
    """
    try:
        with path.open("rb") as file:
            body = file.read(MAX_JSON_BYTES + 1)
    except OSError as error:
        raise PackError(f"cannot read {path}: {error.strerror}") from error
    if len(body) > MAX_JSON_BYTES:
        raise PackError(f"{path} has more than {MAX_JSON_BYTES} bytes")
    try:
        document = json.loads(body.decode())
    except RecursionError as error:
        raise PackError(f"{path} is nested too deeply") from error
    except ValueError as error:
        raise PackError(f"{path} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise PackError(f"{path} is not a JSON object")
    return document


def _check_sizes(folder: Path, manifest: Manifest) -> None:
    listed, present = set(manifest.files), {name for name in KNOWN if (folder / name).exists()}
    for name in sorted((present | set(NEEDED)) - listed):
        raise PackError(f"{folder / MANIFEST} does not list {name}; {AGAIN}")
    for name, facts in manifest.files.items():
        path = folder / name
        if Path(name).name != name or name in (MANIFEST, ".", ".."):
            raise PackError(f"{folder / MANIFEST} lists {name!r}, which is not a file of a pack")
        if not path.is_file():
            raise PackError(f"{folder} lacks {name}, which its manifest lists; {AGAIN}")
        if (size := path.stat().st_size) != facts.bytes:
            raise PackError(f"{path} has {size} bytes, its manifest says {facts.bytes}; {AGAIN}")


def _check_weights(path: Path, manifest: Manifest) -> None:
    try:
        with path.open("rb") as file:
            entries = read_header(file, path)
    except WeightsError as error:
        raise PackError(str(error)) from error
    shape = checked_shape(manifest.config)
    has_pooler = f"{pooler_of(shape.architecture)}.weight" in entries
    has_head = any(tensor.name in entries for tensor in tensors_of(manifest.config)[-1])
    layout = lay_out(manifest.config, manifest.bits, has_pooler=has_pooler, has_head=has_head)
    if (found := _difference(entries, layout.entries)) is not None:
        raise PackError(f"{path} does not hold what its manifest says: {found}; {AGAIN}")
    if manifest.layers != layout.layers:
        raise PackError(f"{path.with_name(MANIFEST)} places the layers wrongly; {AGAIN}")


def _difference(
    found: Mapping[str, TensorEntry], expected: Mapping[str, TensorEntry]
) -> str | None:
    """The first tensor in which two files differ, in words."""
    for name in sorted(set(found) ^ set(expected)):
        return f"tensor {name!r} is {'missing' if name in expected else 'too many'}"
    for name, entry in expected.items():
        if found[name] != entry:
            return f"tensor {name!r} is {found[name]}, {entry} expected"
    return None
