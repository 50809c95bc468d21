"""The frozen base: where it lies, what it is, and the hash by which everybody names it.

A base is a Hugging Face folder of a masked language model. Its identity is a SHA-256 over its
configuration, tokenizer and weights, so a base that differs by one byte has another name and no
round is spent on it.
"""

import hashlib
import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

EMBEDDED = "embedded"
IDENTITY_FILES = ("config.json", "tokenizer.json", "model.safetensors")


class BaseError(ValueError):
    """A base that is not there or is not one."""


@dataclass(frozen=True)
class Base:
    """A frozen masked language model on disk.

    Attributes:
        name: As the user typed it.
        folder: Where its files lie.
        base_id: SHA-256 of the base, see `base_identity`.
        architecture: Hugging Face's `model_type`, such as `bert`.
        hidden: Width of a token's state.
        layers: Encoder layers.
    """

    name: str
    folder: Path
    base_id: str
    architecture: str
    hidden: int
    layers: int

    @property
    def weights(self) -> Path:
        """The safetensors file."""
        return self.folder / "model.safetensors"

    @property
    def peft_name(self) -> str:
        """What `from_pretrained` finds it by: the hub's name, else the folder's whole path."""
        is_local = self.name == EMBEDDED or Path(self.name).is_dir()
        return str(self.folder.resolve()) if is_local else self.name


def base_identity(folder: Path) -> str:
    """SHA-256 over name and SHA-256 of config, tokenizer and weights, in this order."""
    total = hashlib.sha256()
    for name in IDENTITY_FILES:
        digest = hashlib.sha256()
        with (folder / name).open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
        total.update(f"{name} {digest.hexdigest()}\n".encode())
    return total.hexdigest()


def open_base(name: str) -> Base:
    """Find a base by folder, hub name or `embedded`, and hash it.

    Args:
        name: `embedded`, a folder, or a name on the Hugging Face hub (downloaded once, by
            huggingface_hub, into its own cache).

    Raises:
        BaseError: Nothing there, or a file of a base is missing or broken.
    """
    folder = _folder_of(name)
    missing = [file for file in IDENTITY_FILES if not (folder / file).is_file()]
    if missing:
        raise BaseError(
            f"base {name} lacks {missing[0]}; a folder with {', '.join(IDENTITY_FILES)} is "
            "expected (save the model and its fast tokenizer with save_pretrained)"
        )
    config = _config(folder / "config.json", name)
    return Base(
        name=name,
        folder=folder,
        base_id=base_identity(folder),
        architecture=str(config["model_type"]),
        hidden=int(config.get("hidden_size", config.get("dim", 0))),
        layers=int(config.get("num_hidden_layers", config.get("n_layers", 0))),
    )


def _folder_of(name: str) -> Path:
    if name == EMBEDDED:
        return Path(str(files("edge_client") / "embedded" / "base"))
    if Path(name).is_dir():
        return Path(name)
    if name.count("/") > 1 or name.startswith((".", "/", "~")):
        raise BaseError(f"no base at {name}; give a folder, a hub name or `{EMBEDDED}`")
    from huggingface_hub import snapshot_download  # heavy, and only for bases from the hub
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(
            snapshot_download(name, allow_patterns=[*IDENTITY_FILES, "tokenizer_config.json"])
        )
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise BaseError(
            f"no folder {name}, and the hub did not give such a base: {error}"
        ) from error


def _config(path: Path, name: str) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        config["model_type"] + ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BaseError(f"base {name}: config.json is no Hugging Face configuration") from error
    return dict(config)
