"""Packing a model for devices: `Pack` is what lies in the folder afterwards."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from smidgen.edge_client.api.labeller import Place, place
from smidgen.edge_client.bases.base import HEADLESS, Base, BaseName
from smidgen.edge_client.bases.layout import checked_shape
from smidgen.edge_client.bases.packing import Packed, Progress, pack_model, pack_random
from smidgen.edge_client.bases.tokenizer import disagreements
from smidgen.edge_client.errors import demand
from smidgen.edge_client.outputs import check_out_parent
from smidgen.edge_client.wire.tensors import Seed


@dataclass(frozen=True)
class Pack:
    """A base pack, which devices map instead of loading.

    Attributes:
        folder: Where it lies.
        pack_id: SHA-256 of its manifest.
        name: The model's.
        architecture: Such as `bert`.
        bits: 4 (nf4), 8 (int8 by rows) or 16 (bfloat16).
        parameters: Weights it stands for.
        total_bytes: Of all its files.
        is_new: False if the very same pack lay there before.
        warnings: Where the tokenizer disagrees with itself or with the model, and that there is no
            language-model head, a line each.
    """

    folder: Path
    pack_id: str
    name: str
    architecture: str
    bits: int
    parameters: int
    total_bytes: int
    is_new: bool
    warnings: tuple[str, ...] = ()


def pack(
    model: BaseName,
    bits: int,
    out: Place,
    *,
    random: bool = False,
    seed: Seed = 0,
    licence: str | None = None,
    progress: Progress = lambda done, total: None,
) -> Pack:
    """Pack a model: quantized, each layer's weights side by side, checked by SHA-256.

        smidgen.pack("embedded", 8, "packs/embedded-8")

    Args:
        model: Folder, hub name or `embedded`; with `random`, the name of a shape.
        bits: 4 (nf4), 8 (int8 by rows) or 16 (bfloat16).
        out: Folder to write the pack to.
        random: Random weights of the model's shape, for benchmarks.
        seed: Of the random weights.
        licence: Of the weights, for the manifest, such as `mit`.
        progress: Told parameters done and parameters in all.

    Raises:
        WrongInput: A model that cannot be packed so, or a place that cannot be written to.
        Failed: It could not be finished; nothing is left of the attempt.
    """
    demand(licence is None or not random, "--licence is of real weights; random ones need none")
    folder = place(out)
    check_out_parent("--out", folder)
    if random:
        packed = pack_random(str(model), bits, folder, seed, progress)
    else:
        packed = pack_model(str(model), bits, folder, licence, progress)
    manifest = packed.manifest
    return Pack(
        folder=packed.folder,
        pack_id=manifest.pack_id,
        name=manifest.name,
        architecture=manifest.architecture,
        bits=manifest.bits,
        parameters=packed.parameters,
        total_bytes=manifest.total_bytes,
        is_new=packed.is_new,
        warnings=() if random else tuple(_warnings(packed)),
    )


def _warnings(packed: Packed) -> Iterator[str]:
    manifest, shape = packed.manifest, checked_shape(packed.manifest.config)
    base = Base(manifest.name, packed.folder, manifest.pack_id, shape, manifest.bits, manifest)
    if not base.has_head:
        yield HEADLESS
    try:
        yield from disagreements(packed.folder, shape)
    except ValueError as error:
        yield f"the tokenizer cannot be checked: {error}"
