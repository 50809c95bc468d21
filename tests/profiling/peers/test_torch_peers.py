import pytest

pytest.importorskip("transformers")
from transformers import AutoConfig, AutoModelForMaskedLM

from smidgen.profiling.peers.torch_peers import recompute


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
