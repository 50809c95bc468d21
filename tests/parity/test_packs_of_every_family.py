"""A pack against transformers' own module of each family: the same names, the same values.

A pack of 16 bits is loaded back into the plain model, strictly but for the tied decoder; the
logits must be those of the model with its matrices rounded, bit by bit, since nothing else differs.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smidgen.edge_client.bases.base import Base, open_base
from smidgen.edge_client.bases.packing import pack_model
from smidgen.edge_client.bases.quantization import Stored, dequantize, quantize_int8, quantize_nf4
from tests.families import DECODERS, FAMILIES, write_family

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.few


def plain_model(folder: Path, family: str) -> Any:
    is_decoder = family in DECODERS
    kind = transformers.AutoModelForCausalLM if is_decoder else transformers.AutoModelForMaskedLM
    return kind.from_pretrained(folder, dtype=torch.float32).eval()


def quantized_names(base: Base) -> set[str]:
    with base.open_weights() as weights:
        matrices = [name for name in weights.names if len(weights.shape(name)) == 2]
        return {name for name in matrices if weights.stored(name).bits < 32}


@pytest.mark.few(7)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_pack_of_16_bits_is_the_model_with_rounded_matrices(
    tiny_base: Base, tmp_path: Path, family: str
) -> None:
    write_family(family, tiny_base, tmp_path / "model")
    pack_model(str(tmp_path / "model"), 16, tmp_path / "p")
    packed = open_base(str(tmp_path / "p"))
    model = plain_model(tmp_path / "model", family)
    rounded = quantized_names(packed)
    for name, tensor in model.state_dict().items():
        if name in rounded:
            tensor.copy_(tensor.to(torch.bfloat16).float())
    ids = torch.arange(24).reshape(2, 12) + 5
    with torch.no_grad():
        expected = model(input_ids=ids).logits
    with packed.open_weights() as weights:
        state = {
            name: torch.from_numpy(
                weights.rows(name, range(weights.shape(name)[0]))
                if name in rounded
                else weights.vector(name)
            )
            for name in weights.names
        }
    for parameter in model.parameters():
        parameter.data.zero_()
    missing, unexpected = model.load_state_dict(state, strict=False)
    tied = ("decoder.weight", "decoder.bias", "vocab_projector.weight", "lm_head.weight")
    assert not unexpected and all(name.endswith(tied) for name in missing)
    with torch.no_grad():
        assert torch.equal(model(input_ids=ids).logits, expected)


@pytest.mark.few(7)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_matrix_is_the_checkpoints_own_quantized(
    tiny_base: Base, tmp_path: Path, family: str, bits: int
) -> None:
    write_family(family, tiny_base, tmp_path / "model")
    pack_model(str(tmp_path / "model"), bits, tmp_path / "p")
    packed = open_base(str(tmp_path / "p"))
    parameters = dict(plain_model(tmp_path / "model", family).state_dict())
    matrices = quantized_names(packed)
    assert len(matrices) >= {"albert": 7, "modernbert": 3 * 4 + 1, "phi3": 3 * 4 + 2}.get(
        family, 3 * 6 + 1
    )
    with packed.open_weights() as weights:
        for name in weights.names:
            theirs = parameters[name].numpy()
            if name not in matrices:
                assert (weights.vector(name) == theirs).all(), name
                continue
            data, scale = (quantize_nf4 if bits == 4 else quantize_int8)(theirs)
            kind = "nf4" if bits == 4 else "int8"
            expected = dequantize(Stored(bits, kind, theirs.shape, data, scale))
            rows = np.arange(len(theirs))
            assert (weights.rows(name, rows) == expected).all(), name
