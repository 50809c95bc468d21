"""What MPNet adds to its scores by distance, against transformers' own."""

from pathlib import Path

import numpy as np
import pytest

from smidgen.edge_client.bases.base import Base, open_base
from smidgen.edge_client.bases.packing import pack_model
from smidgen.edge_client.engine.frozen_base import FrozenBase
from tests.families import write_family

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("bits", [None, 4, 8, 16])
def test_every_distance_has_the_bias_that_transformers_gives_it(
    tiny_base: Base, tmp_path: Path, bits: int | None
) -> None:
    base = write_family("mpnet", tiny_base, tmp_path / "model")
    model = transformers.AutoModelForMaskedLM.from_pretrained(base.folder)
    if bits:
        pack_model(str(base.folder), bits, tmp_path / "pack")
        base = open_base(str(tmp_path / "pack"))
    frozen = FrozenBase(base)
    for tokens in (1, 2, 9, 40, 512):
        with torch.no_grad():
            theirs = model.mpnet.encoder.compute_position_bias(torch.zeros(1, tokens, 1))[0]
        np.testing.assert_array_equal(frozen.score_bias(tokens), theirs.numpy())
    frozen.close()
