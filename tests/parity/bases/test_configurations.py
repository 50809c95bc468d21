"""What is read of a config.json against transformers' own configuration classes.

Every attribute of every class is in one table here, so a release of transformers that adds one
fails these tests until somebody has looked what it changes.
"""

from typing import Any

import pytest
from huggingface_hub.errors import StrictDataclassFieldValidationError

from smidgen.edge_client.bases.architectures import ArchitectureError
from smidgen.edge_client.bases.configurations import (
    ACTIVATIONS,
    IDLE,
    NULLABLE,
    read_values,
    shape_of,
)
from smidgen.edge_client.bases.families import FAMILIES, ROPE_THETA

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_attribute_of_transformers_class_is_in_a_table(family: str) -> None:
    attributes = set(transformers.AutoConfig.for_model(family).to_dict())
    assert (
        attributes - set(FAMILIES[family].defaults) - set(FAMILIES[family].fixed)
        == attributes & IDLE
    )
    assert not IDLE & (set(FAMILIES[family].defaults) | set(FAMILIES[family].fixed))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_missing_key_has_transformers_default(family: str) -> None:
    theirs = transformers.AutoConfig.for_model(family)
    fields = type(theirs).__dataclass_fields__
    for key, default in FAMILIES[family].defaults.items():
        if key == "head_dim" and family in ("qwen2", "smollm3", "phi3"):  # read by the layers alone
            continue
        assert default == fields[key].default, key
    for key, only in FAMILIES[family].fixed.items():
        if key in fields:
            assert only == fields[key].default, key
    assert FAMILIES[family].aliases == theirs.attribute_map


@pytest.mark.parametrize("family", FAMILIES)
def test_the_sizes_of_a_bare_model_type_are_those_of_transformers(family: str) -> None:
    ours, theirs = shape_of({"model_type": family}), transformers.AutoConfig.for_model(family)
    assert (ours.layers, ours.hidden) == (theirs.num_hidden_layers, theirs.hidden_size)
    assert (ours.heads, ours.is_tied) == (theirs.num_attention_heads, theirs.tie_word_embeddings)
    if ours.is_decoder:
        rope = theirs.rope_parameters.get("full_attention", theirs.rope_parameters)["rope_theta"]
        assert (ours.rope_theta, ours.kv_heads) == (rope, theirs.num_key_value_heads)
        assert rope == {"smollm3": 2e6, "gemma3_text": 1e6}.get(family, ROPE_THETA)


@pytest.mark.parametrize("family", FAMILIES)
def test_null_is_refused_where_transformers_refuses_it(family: str) -> None:
    for key in FAMILIES[family].defaults:
        config = {"model_type": family, key: None}
        if key in NULLABLE:
            read_values(family, config)
            continue
        with pytest.raises(StrictDataclassFieldValidationError, match=key):
            transformers.AutoConfig.for_model(**config)
        with pytest.raises(ArchitectureError, match=f"{key} null, which transformers"):
            shape_of(config)


def test_an_alias_counts_more_than_the_key_itself() -> None:
    keys: dict[str, Any] = {"dim": 32, "hidden_size": 64, "n_heads": 2, "n_layers": 3}
    theirs = transformers.AutoConfig.for_model("distilbert", **keys)
    ours = shape_of({"model_type": "distilbert", **keys})
    assert (ours.hidden, ours.layers) == (theirs.dim, theirs.n_layers) == (64, 3)


@pytest.mark.parametrize(
    ("family", "change"),
    [
        ("bert", {"is_decoder": True}),
        ("roberta", {"add_cross_attention": True}),
        ("bert", {"position_embedding_type": "relative_key_query"}),
        ("bert", {"hidden_act": "quick_gelu"}),
        ("albert", {"inner_group_num": 2}),
        ("electra", {"position_embedding_type": "relative_key"}),
        ("mpnet", {"relative_attention_num_buckets": 64}),
        ("mpnet", {"pad_token_id": None}),
        ("bert", {"quantization_config": {"load_in_4bit": True}}),
        ("bert", {"pruned_heads": {"0": [1]}}),
        ("bert", {"per_layer_config": {"0": {"intermediate_size": 8}}}),
        ("llama", {"attention_bias": True}),
        ("llama", {"mlp_bias": True}),
        ("bert", {"num_attention_heads": 7}),
        ("llama", {"rope_scaling": {"type": "linear", "factor": 0.0}}),
        ("llama", {"rope_scaling": {"type": "linear", "factor": float("inf")}}),
        ("llama", {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5}}),
        ("llama", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}),
        ("qwen3", {"attention_bias": True}),
        ("gemma3_text", {"query_pre_attn_scalar": 128}),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}),
        ("gemma3_text", {"final_logit_softcapping": 30.0}),
        ("gemma3_text", {"use_bidirectional_attention": True}),
        ("gemma3_text", {"rope_scaling": {"rope_type": "yarn", "factor": 8.0}}),
        ("gemma3_text", {"rope_parameters": {"sliding_attention": {"rope_type": "linear"}}}),
        ("gemma3_text", {"sliding_window": None}),
        ("smollm3", {"no_rope_layers": [1, 0]}),
        ("phi3", {"rope_scaling": {"type": "linear", "factor": 2.0}}),
        ("phi3", {"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 47}}),
        ("phi3", {"rope_scaling": {"type": "longrope", "short_factor": [0.0] * 48}}),
        ("phi3", {"rope_scaling": {"type": "longrope", "long_factor": [1.0] * 48}}),
        ("phi3", {"rope_scaling": ["longrope"]}),
        ("phi3", {"rope_parameters": {"partial_rotary_factor": 1.5}}),
        ("phi3", {"sliding_window": 0}),
        ("phi3", {"auto_map": {"AutoModelForCausalLM": "modeling_own.Phi3ForCausalLM"}}),
        ("smollm3", {"no_rope_layer_interval": 0}),
        ("llama", {"rope_parameters": {"full_attention": {"rope_theta": 5e5}}}),
        ("llama", {"is_causal": False}),
        ("qwen2", {"is_causal": False}),
        ("bert", {"auto_map": {"AutoModelForMaskedLM": "own.py--Own"}}),
        ("qwen2", {"use_sliding_window": True}),
        ("qwen2", {"layer_types": ["full_attention", "sliding_attention"]}),
        ("roberta", {"pad_token_id": None}),
    ],
)
def test_what_changes_the_numbers_and_is_not_computed_is_named(
    family: str, change: dict[str, Any]
) -> None:
    key = next(iter(change))
    named = {"num_attention_heads": "7 heads", "no_rope_layer_interval": "no_rope_layers"}.get(
        key, key
    )
    with pytest.raises(ArchitectureError, match=named) as caught:
        shape_of({"model_type": family, **change})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("family", "change"),
    [
        ("bert", {"is_decoder": False, "pruned_heads": {}, "quantization_config": None}),
        ("bert", {"gradient_checkpointing": True, "attention_bias": True, "use_cache": False}),
        ("llama", {"rope_scaling": None, "pretraining_tp": 2}),
        ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}),
        ("qwen2", {"sliding_window": 4096, "layer_types": ["full_attention"] * 32}),
        ("distilbert", {"sinusoidal_pos_embds": True}),
        ("phi3", {"sliding_window": None, "resid_pdrop": 0.1, "lm_head_bias": False}),
        ("phi3", {"auto_map": {"AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"}}),
    ],
)
def test_what_changes_nothing_is_read(family: str, change: dict[str, Any]) -> None:
    assert shape_of({"model_type": family, **change}).architecture == family


def test_longrope_ends_at_the_original_length() -> None:
    """Phi-4-mini's configuration: three quarters of each head turn, a window beyond all texts."""
    long = {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [2.0] * 48}
    keys = {"max_position_embeddings": 131072, "partial_rotary_factor": 0.75}
    keys |= {"num_attention_heads": 24, "num_key_value_heads": 8, "sliding_window": 262144}
    shape = shape_of({"model_type": "phi3", "rope_scaling": long, **keys})
    assert (shape.positions, shape.turned, shape.local_layers) == (4096, 96, ())
    config = transformers.AutoConfig.for_model("phi3", rope_scaling=dict(long), **keys)
    functions = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS
    assert functions["longrope"](config)[1] == pytest.approx(shape.rope_magnitude, rel=1e-12)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_is_the_one_of_its_name(name: str) -> None:
    from smidgen.edge_client.engine.torch_backend.layers import ACTIVATIONS as OURS

    x = torch.linspace(-6, 6, 601)
    theirs = transformers.activations.ACT2FN[name](x)
    torch.testing.assert_close(OURS[ACTIVATIONS[name]](x), theirs, rtol=1e-5, atol=1e-6)
