from pathlib import Path

import pytest

pytest.importorskip("transformers")
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

from smidgen.edge_client.bases.base import Base
from smidgen.profiling.peers.torch_peers import head_of, recompute
from tests.families import DECODERS, FAMILIES, write_family


@pytest.mark.few(4)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_head_where_it_is_asked_is_the_models_own(
    tiny_base: Base, tmp_path: Path, family: str
) -> None:
    kind = AutoModelForCausalLM if family in DECODERS else AutoModelForMaskedLM
    model = kind.from_pretrained(write_family(family, tiny_base, tmp_path).folder).eval()
    ids = torch.arange(5, 14)[None]
    with torch.no_grad():
        states = getattr(model, model.base_model_prefix)(input_ids=ids).last_hidden_state
        found, wanted = head_of(model)(states[:, 3]), model(input_ids=ids).logits[:, 3]
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(("kind", "can"), [("bert", True), ("albert", False)])
def test_activations_are_recomputed_where_the_library_can(kind: str, can: bool) -> None:
    config = AutoConfig.for_model(
        kind, hidden_size=16, embedding_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=16, vocab_size=32,
    )  # fmt: skip
    model = AutoModelForMaskedLM.from_config(config)
    recompute(model)
    assert (
        any(getattr(module, "gradient_checkpointing", False) for module in model.modules()) is can
    )
