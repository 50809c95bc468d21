"""The frozen base: its location, configuration, and the hash that identifies it.

A base is a pack made by `smidgen pack`, a Hugging Face folder, or a GGUF file; `Weights` reads all.
Its id is a SHA-256 over configuration, tokenizer and weights, so a base that differs by one byte
has another id and no round is spent on it.
"""

import hashlib
import json
import math
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from smidgen.edge_client.bases.architectures import ArchitectureError, Shape
from smidgen.edge_client.bases.checkpoints import check_layers, has_own_decoder, open_checkpoint
from smidgen.edge_client.bases.families import family_of
from smidgen.edge_client.bases.gguf.header import GgufFile, is_gguf
from smidgen.edge_client.bases.gguf.model import config_of, entries_of
from smidgen.edge_client.bases.gguf.tokenizer import splitting_of
from smidgen.edge_client.bases.header import WeightsError
from smidgen.edge_client.bases.layout import PackError, checked_shape, tensors_of
from smidgen.edge_client.bases.manifest import (
    WEIGHTS,
    Manifest,
    is_pack,
    read_json,
    read_pack,
    refuse_half_written,
)
from smidgen.edge_client.bases.weights import Weights
from smidgen.edge_client.errors import Failed, WrongInput
from smidgen.edge_client.files import file_sha256
from smidgen.edge_client.proxies import named_proxies
from smidgen.edge_client.texts.tokens import TEMPLATE

EMBEDDED = "embedded"
BaseName: TypeAlias = Annotated[str | Path, str]  # a folder, a GGUF file, a hub name, `embedded`
IDENTITY_FILES = ("config.json", "tokenizer.json", "model.safetensors")
HUB_FILES = (*IDENTITY_FILES, "tokenizer_config.json", TEMPLATE)
HEADLESS = "the checkpoint has no language-model head: only adapters with a head can be trained"


class BaseError(WrongInput):
    """A base that does not exist, or a folder that is not a base."""


@dataclass(frozen=True)
class Base:
    """A frozen language model on disk.

    Attributes:
        name: The base's name, as the user typed it.
        folder: Where its files lie; of a GGUF the file.
        base_id: SHA-256 of the base: a pack's `pack_id`, a GGUF's `identity`, else see
            `base_identity`.
        shape: Its sizes.
        bits: Bits of a weight: 4, 8 or 16 of a pack, 16 or 32 of a Hugging Face folder; of a GGUF
            the one of these next to what its matrices take on average.
        manifest: A pack's; None for a Hugging Face folder.
    """

    name: str
    folder: Path
    base_id: str
    shape: Shape
    bits: int
    manifest: Manifest | None = None

    @property
    def architecture(self) -> str:
        """Hugging Face's `model_type`, such as `bert`."""
        return self.shape.architecture

    @property
    def hidden(self) -> int:
        """Width of a token's state."""
        return self.shape.hidden

    @property
    def layers(self) -> int:
        return self.shape.layers

    @property
    def is_gguf(self) -> bool:
        """Whether it is one file, which holds its configuration and its tokenizer too."""
        return is_gguf(self.folder)

    @property
    def weights(self) -> Path:
        if self.is_gguf:
            return self.folder
        return self.folder / (WEIGHTS if self.manifest else "model.safetensors")

    @property
    def peft_name(self) -> str:
        """The hub's name, `embedded`, or `./NAME` of a folder or file, whose place is its own.

        A pack goes by the model that it was made of, which is what PEFT loads.
        """
        if self.manifest and ("/" in self.manifest.name or self.manifest.name == EMBEDDED):
            return self.manifest.name
        if self.name == EMBEDDED or not (self.is_gguf or Path(self.name).is_dir()):
            return self.name
        return f"./{self.manifest.name if self.manifest else self.folder.resolve().name}"

    @property
    def has_head(self) -> bool:
        """Whether it has its language-model head, without which it answers for no words."""
        dense = family_of(self.architecture).head_dense
        with self.open_weights() as weights:
            return not dense or f"{dense}.weight" in weights

    def open_weights(self) -> Weights:
        """Map the weights; the caller closes them.

        Raises:
            WeightsError: The file is no longer what it was.
        """
        return Weights(self.weights, family_of(self.architecture))


def base_identity(folder: Path) -> str:
    """SHA-256 over name and SHA-256 of config, tokenizer and weights, in this order.

    Behind them, where there is one, of the chat template: another writes other texts.
    """
    total = hashlib.sha256()
    names = (*IDENTITY_FILES, *(name for name in (TEMPLATE,) if (folder / name).is_file()))
    for name in names:
        total.update(f"{name} {file_sha256(folder / name)}\n".encode())
    with suppress(PackError):  # not there, or damaged, which whoever reads it says
        held = read_json(folder / "tokenizer_config.json").get("chat_template")
        said = "" if held is None else f"chat_template {json.dumps(held, sort_keys=True)}\n"
        total.update(said.encode())
    return total.hexdigest()


def open_base(name: str) -> Base:
    """Find a base by folder, file, hub name or `embedded`, and hash it.

    Args:
        name: `embedded`, the folder of a pack or of a Hugging Face model, a GGUF file, or a name
            on the Hugging Face hub (downloaded once, by huggingface_hub, into its own cache).

    Raises:
        BaseError: Nothing there, or a file of a base is missing, broken or altered.
    """
    try:
        if is_gguf(name) and not Path(name).is_dir():
            return _open_gguf(name, Path(name))
        folder = find_folder(name, HUB_FILES)
        refuse_half_written(folder)
        return _open_pack(name, folder) if is_pack(folder) else _open_checkpoint(name, folder)
    except (PackError, ArchitectureError, WeightsError) as error:
        raise BaseError(f"base {name}: {error}") from error


def _open_gguf(name: str, path: Path) -> Base:
    with GgufFile(path) as file:
        config = config_of(file)
        shape = checked_shape(config)
        entries, _ = entries_of(file, config)
        splitting_of(file)
        matrices = [entry for entry in entries.values() if len(entry.shape) == 2]
        weights = sum(math.prod(entry.shape) for entry in matrices)
        mean = 8 * sum(entry.end - entry.start for entry in matrices) / weights
        bits = min((4, 8, 16, 32), key=lambda bits: abs(bits - mean))
        return Base(name, path, file.identity(), shape, bits)


def find_folder(name: str, hub_files: Sequence[str]) -> Path:
    """The folder of a model; one from the hub is downloaded.

    Args:
        name: `embedded`, a folder, or a hub name.
        hub_files: Names or patterns of the files to take from the hub.

    Raises:
        BaseError: Nothing there.
        ProxyError: A proxy of the environment cannot be used.
    """
    if name == EMBEDDED:
        return Path(str(files("smidgen.edge_client") / "embedded" / "base"))
    if Path(name).is_dir():
        return Path(name)
    if is_gguf(name):
        raise BaseError(f"{name} is a GGUF file, which is used as it lies: --base {name}")
    if name.count("/") > 1 or name.startswith((".", "/", "~")):
        raise BaseError(f"no base at {name}; give a folder, a hub name or `{EMBEDDED}`")
    return _from_hub(name, hub_files)


def _from_hub(name: str, hub_files: Sequence[str]) -> Path:
    try:  # heavy, and only for bases from the hub
        from huggingface_hub import constants, snapshot_download
        from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
        from huggingface_hub.utils import get_session
    except ValueError as error:  # the library reads the address that is set when it is loaded
        raise _no_base(name, _no_answer(error)) from error
    try:
        if not constants.HF_HUB_OFFLINE:
            with named_proxies():
                get_session()
        return Path(snapshot_download(name, allow_patterns=list(hub_files)))
    except (WrongInput, Failed, MemoryError):
        raise
    except HFValidationError as error:
        raise BaseError(f"no folder {name}, and not a name on the hub: {error}") from error
    except LocalEntryNotFoundError as error:  # neither there nor in its cache
        if constants.HF_HUB_OFFLINE:
            said = "nor is it in the hub's cache, and HF_HUB_OFFLINE is set"
            raise BaseError(f"no folder {name}, {said}; unset it, or give a folder") from error
        raise _no_base(name, _refusal(error.__cause__ or error)) from error
    except Exception as error:  # a disk's, or whatever an answer of no hub leads to
        if isinstance(error, OSError) and error.strerror:
            raise BaseError(f"no folder {name}, and it cannot be fetched: {error}") from error
        raise _no_base(name, _refusal(error)) from error


def _no_base(name: str, why: str) -> BaseError:
    where = "; look at HF_ENDPOINT, which is set" if "HF_ENDPOINT" in os.environ else ""
    return BaseError(f"no folder {name}, and {why}; give a folder, or another name{where}")


def _refusal(error: BaseException) -> str:
    """The status or the kind; what a server says and an address may hold are anybody's secrets."""
    from huggingface_hub.errors import HTTPError

    if (answer := getattr(error, "response", None)) is not None:
        return f"the hub did not give such a base: it answered {answer.status_code}"
    if isinstance(error, HTTPError):
        return f"the hub did not give such a base: {type(error).__name__}"
    return _no_answer(error)


def _no_answer(error: BaseException) -> str:
    return f"what was asked for it gave no answer of a hub ({type(error).__name__})"


def _open_pack(name: str, folder: Path) -> Base:
    manifest = read_pack(folder)
    shape = checked_shape(manifest.config)
    return Base(name, folder, manifest.pack_id, shape, manifest.bits, manifest)


def _open_checkpoint(name: str, folder: Path) -> Base:
    missing = [file for file in IDENTITY_FILES if not (folder / file).is_file()]
    if missing:
        raise BaseError(
            f"base {name} lacks {missing[0]}; a pack made by `smidgen pack`, or a folder with "
            f"{', '.join(IDENTITY_FILES)} is expected (save the model and its fast tokenizer "
            "with save_pretrained)"
        )
    config = read_config(folder)
    shape = checked_shape(config)
    family = family_of(shape.architecture)
    checkpoint = open_checkpoint(folder, family)
    if shape.is_tied and has_own_decoder(checkpoint, family):
        shape = replace(shape, is_tied=False)
        config["tie_word_embeddings"] = False
    for tensor in (tensor for group in tensors_of(config) for tensor in group):
        for stored in (tensor.name, *tensor.aliases):
            if checkpoint.shape(stored) not in (None, tensor.shape):
                raise BaseError(
                    f"base {name}: {stored} has shape {checkpoint.shape(stored)}, its config.json "
                    f"says {tensor.shape}"
                )
    check_layers(folder, checkpoint, config)
    with Weights(folder / "model.safetensors", family) as weights:
        bits = weights.stored(f"{family.words}.weight").bits
    return Base(name, folder, base_identity(folder), shape, bits)


def read_config(folder: Path) -> dict[str, Any]:
    """A model's `config.json`.

    Raises:
        PackError: It is missing, or not a Hugging Face configuration.
    """
    config = read_json(folder / "config.json")
    if not isinstance(config.get("model_type"), str):
        raise PackError(f"{folder / 'config.json'} is not a Hugging Face configuration")
    return config
