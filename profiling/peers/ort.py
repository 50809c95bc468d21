"""onnxruntime-training as seen from here: its environment and its artefacts.

The package brings an import package `onnxruntime` of its own, so it cannot be installed beside
the device's; `scripts/ort_training_env` makes an environment for it. What runs there is
`ort_graph` (once per base and adapter) and `ort_child` (the peer). They read our base's own
weights.
"""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from safetensors.numpy import save_file

from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.spec import AdapterSpec
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.bases.families import family_of
from smidgen.edge_client.wire.tensors import AdapterState
from smidgen.profiling.instruments.environment import (
    BenchmarkError,
    cache_folder,
    command_in,
    folder_of,
    make,
    why_missing,
)

ORT_TRAINING = "ort-training"
VARIABLE = "SMIDGEN_ORT_TRAINING"


def environment() -> Path:
    return folder_of(ORT_TRAINING, VARIABLE)


def missing() -> str | None:
    return why_missing(environment(), "scripts/ort_training_env")


def command(module: str, *arguments: str) -> list[str]:
    """A module of ours, run by the environment's interpreter.

    Raises:
        BenchmarkError: There is no such environment.
    """
    _demand_environment()
    return command_in(environment(), module, *arguments)


def _demand_environment() -> None:
    if reason := missing():
        raise BenchmarkError(f"--peer {ORT_TRAINING}: {reason}")


def find_artifacts(base: Base, spec: AdapterSpec, words: Sequence[int]) -> Path:
    """Training artefacts of a base and an untrained LoRA; made first where the cache has none.

    Args:
        base: An encoder with a table of positions.
        spec: LoRA alone.
        words: Token ids of the label words.

    Raises:
        BenchmarkError: No environment, another block than BERT's, or they cannot be made.
    """
    _demand_environment()  # before anything is made, or found that could not be used
    folder = cache_folder() / "peers" / f"{base.base_id[:16]}-{ORT_TRAINING}-{spec}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        state = initial_adapter(spec, base, len(words), seed=0)  # as our engine's
        with tempfile.TemporaryDirectory(prefix="partial-", dir=folder.parent) as partial:
            made = Path(partial) / "artifacts"
            write_artifacts(base, spec, state, words, made)
            made.rename(folder)
    return folder


def write_artifacts(
    base: Base, spec: AdapterSpec, state: AdapterState, words: Sequence[int], out: Path
) -> None:
    """Have training artefacts made.

    Args:
        base: An encoder with a table of positions.
        spec: LoRA alone.
        state: The adapter's tensors.
        words: Token ids of the label words.
        out: Folder to make; it must not be there.

    Raises:
        BenchmarkError: No environment, another block than BERT's, or they cannot be made.
    """
    family = family_of(base.architecture)
    if base.shape.is_decoder or family.relative_bias or not family.positions:
        raise BenchmarkError(
            f"--peer {ORT_TRAINING} trains encoders with a table of positions; {base.name} is "
            f"a {base.architecture}: leave the peer out"
        )
    out.mkdir()
    adapter = out / "adapter.safetensors"
    save_file(state, adapter)
    request = {
        "weights": str(base.weights.resolve()),
        "shape": asdict(base.shape),
        "adapter": str(adapter.resolve()),
        "scaling": spec.scaling,
        "words": [int(word) for word in words],
        "out": str(out.resolve()),
    }
    make(command("smidgen.profiling.peers.ort_graph", json.dumps(request)), {})
