"""Dequantizes a base into a Hugging Face folder, once, for peers to load.

python -m smidgen.profiling.peers.torch_checkpoint BASE OUT nf4
"""

import sys
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

from smidgen.edge_client.bases.base import Base, open_base
from smidgen.edge_client.bases.quantization import dequantize

TIED = ("decoder.weight", "decoder.bias", "projector.weight", "position_ids", "lm_head.weight")


def prepare(base_name: str, out: Path, kind: str) -> None:
    """Write our base's dequantized weights as a Hugging Face folder.

    Args:
        base_name: A base, as `open_base` takes it.
        out: Folder to make; it must not be there.
        kind: `float32` or `nf4`.
    """
    with tempfile.TemporaryDirectory(prefix=f"{out.name}.partial-", dir=out.parent) as folder:
        plain, made = Path(folder) / "float32", Path(folder) / kind
        _save_float32(base_name, plain)
        if kind == "nf4":
            _save_nf4(plain, made)
        made.rename(out)


def _save_float32(base_name: str, out: Path) -> None:
    base = open_base(base_name)
    config = AutoConfig.from_pretrained(base.folder, local_files_only=True)
    for name in list(config.to_dict()):
        if "dropout" in name:
            setattr(config, name, 0.0 if getattr(config, name) is not None else None)
    kind = AutoModelForCausalLM if base.shape.is_decoder else AutoModelForMaskedLM
    model = kind.from_config(config, dtype=torch.float32)
    fill(model, base)
    model.save_pretrained(out)


def fill(model: Any, base: Base, own: Collection[str] = ()) -> None:
    """Put the base's weights, dequantized, into a Hugging Face model; poolers have none.

    Args:
        model: Filled in place.
        base: Has the weights.
        own: Modules that the model has and the base has not.
    """
    state = {}
    with base.open_weights() as weights:
        for name in model.state_dict():
            if name in weights:
                is_matrix = len(weights.shape(name)) == 2
                array = dequantize(weights.stored(name)) if is_matrix else weights.vector(name)
                state[name] = torch.from_numpy(np.array(array, np.float32))
    missing = model.load_state_dict(state, strict=False).missing_keys
    model.tie_weights()
    spared = ("pooler", *own)
    left = [n for n in missing if not n.endswith(TIED) and not any(part in n for part in spared)]
    assert not left, f"the base has no {left}"


def _save_nf4(plain: Path, out: Path) -> None:
    from transformers import BitsAndBytesConfig

    chosen = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
    )
    kind = getattr(transformers, AutoConfig.from_pretrained(plain).architectures[0])
    model = kind.from_pretrained(plain, quantization_config=chosen, dtype=torch.float32)
    model.save_pretrained(out)


if __name__ == "__main__":
    prepare(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
