"""ModernBERT of small random shapes and odd keys against transformers, on both engines."""

import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.peft_folder import Exported, write_peft_folder
from smidgen.edge_client.adapters.peft_import import read_peft_adapter
from smidgen.edge_client.adapters.spec import AdapterError, AdapterSpec, parse_adapter
from smidgen.edge_client.bases.architectures import ArchitectureError
from smidgen.edge_client.bases.base import Base, open_base
from smidgen.edge_client.bases.configurations import shape_of
from smidgen.edge_client.engine.activation_cache import ActivationCache
from smidgen.edge_client.planning.layer_cost import LONG_TEXT
from smidgen.edge_client.planning.plan import Workload
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.tokens import Tokens
from smidgen.edge_client.wire.tensors import AdapterState, encode_adapter
from tests.edge_client.engine.engines import TEXTS, engine_of
from tests.edge_client.engine.test_watch import Recorder

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("peft")
gradients = pytest.importorskip("smidgen.profiling.benchmarks.gradients")
plain = pytest.importorskip("smidgen.profiling.benchmarks.gradients")._plain

pytestmark = pytest.mark.few

WORDS = [1010, 1020, 1030]
NOTHING = parse_adapter("lora:1")  # its B is zero
LAYERS = 3
KINDS = st.lists(
    st.sampled_from(("full_attention", "sliding_attention")), min_size=LAYERS, max_size=LAYERS
)
ODD = st.fixed_dictionaries(
    {},
    optional={
        "local_attention": st.sampled_from((2, 5, 8, 40, 400)),
        "layer_types": KINDS,
        "global_attn_every_n_layers": st.integers(1, 4),
        "rope_parameters": st.just(
            {
                "full_attention": {"rope_type": "default", "rope_theta": 3000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 200.0},
            }
        ),
        **dict.fromkeys(("norm_bias", "attention_bias", "mlp_bias"), st.booleans()),
        **dict.fromkeys(("decoder_bias", "classifier_bias"), st.booleans()),
        "tie_word_embeddings": st.booleans(),
        "norm_eps": st.sampled_from((1e-5, 1e-3)),
        "hidden_activation": st.sampled_from(("gelu", "gelu_new", "silu", "relu")),
        "classifier_activation": st.sampled_from(("gelu", "silu")),
        "num_attention_heads": st.sampled_from((1, 2, 8)),
    },
)


def written(tiny: Base, folder: Path, keys: dict[str, Any]) -> tuple[Any, Base]:
    """A random model, as transformers saves it, and ours of it."""
    sizes = {"hidden_size": 64, "num_hidden_layers": LAYERS, "num_attention_heads": 4}
    sizes |= {"intermediate_size": 128, "max_position_embeddings": 320, "pad_token_id": 0}
    sizes |= {"vocab_size": Tokens(tiny.folder).size}
    special = dict.fromkeys(("bos_token_id", "cls_token_id", "eos_token_id", "sep_token_id"), 1)
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model("modernbert", **sizes | special | keys)
    model = transformers.AutoModelForMaskedLM.from_config(config, dtype=torch.float32)
    for parameter in model.parameters():
        spread = 0.1 if parameter.dim() == 1 else 0.05
        parameter.data.add_(torch.randn_like(parameter) * spread)
    model.save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (folder / file).write_bytes((tiny.folder / file).read_bytes())
    return model.eval(), open_base(str(folder))


def logits(
    base: Base,
    batch: Any,
    spec: AdapterSpec = NOTHING,
    state: AdapterState | None = None,
) -> dict[str, np.ndarray]:
    from smidgen.edge_client.engine.onnx_backend.network import Network as Light
    from smidgen.edge_client.engine.torch_backend.network import Network

    words = [[word] for word in WORDS]
    state = initial_adapter(spec, base, len(WORDS), seed=1) if state is None else state
    whole, light = Network(base, spec, state, words), Light(base, spec, state, words, threads=2)
    found = {"torch": whole.logits(batch, "float32").numpy(), "onnx": light.logits(batch)}
    whole.close()
    light.close()
    return found


@pytest.mark.slow
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(keys=ODD, tokens=st.sampled_from((8, 24, 140, 300)), data=st.data())
def test_logits_and_gradients_of_any_shape_are_those_of_transformers_and_peft(
    tiny_base: Base, keys: dict[str, Any], tokens: int, data: st.DataObject
) -> None:
    with TemporaryDirectory() as place:
        model, base = written(tiny_base, Path(place), keys)
        batch = gradients.random_batch(base, 3, tokens, len(WORDS), seed=2)
        ids, attention = (torch.from_numpy(part) for part in (batch.ids, batch.attention))
        with torch.no_grad():
            exact = model(input_ids=ids, attention_mask=attention).logits
        wanted = exact[range(3), batch.mask_positions][:, WORDS].numpy()
        for engine, ours in logits(base, batch).items():
            assert np.abs(ours - wanted).max() <= 1e-4, engine
        spec = parse_adapter(data.draw(st.sampled_from(("lora:2", "lora:3@q,k,v,o,up,down"))))
        plan = data.draw(st.sampled_from(gradients.every_plan(base, spec, 3, tokens)))
        for engine in ("torch", "onnx"):
            for error in gradients.gradient_errors(base, spec, [plan], batch, WORDS, engine):
                assert error.worst_error <= 1e-5 and error.loss_error <= 1e-5, (engine, error)


def test_keys_of_version_4_say_the_same_as_todays() -> None:
    old = {"global_attn_every_n_layers": 2, "global_rope_theta": 5e4, "local_rope_theta": 3e3}
    kinds = ["full_attention", "sliding_attention"] * 11
    rope = {"full_attention": {"rope_theta": 5e4}, "sliding_attention": {"rope_theta": 3e3}}
    found = [
        shape_of({"model_type": "modernbert", **keys})
        for keys in (old, {"layer_types": kinds, "rope_parameters": rope})
    ]
    assert found[0] == found[1]
    theirs = transformers.AutoConfig.for_model("modernbert", **old)
    assert theirs.layer_types == kinds
    assert [found[0].window_of(layer) for layer in (0, 1)] == [None, theirs.sliding_window]


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"layer_types": ["chunked_attention"] * 22}, "layer_types"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "rope_parameters"),
        ({"hidden_activation": "quick_gelu"}, "hidden_activation"),
    ],
)
def test_what_is_not_computed_is_named(keys: dict[str, Any], named: str) -> None:
    with pytest.raises(ArchitectureError, match=named) as caught:
        shape_of({"model_type": "modernbert", **keys})
    assert "\n" not in str(caught.value)


def test_a_fused_module_has_one_rank(tiny_base: Base, tmp_path: Path) -> None:
    _, base = written(tiny_base, tmp_path, {})
    with pytest.raises(AdapterError, match=r"1\.v lies in attn\.Wqkv with q; give both the same"):
        Workload(base.shape, 32, parse_adapter("lora:4/1.v=2"), 4, 32)
    Workload(base.shape, 32, parse_adapter("lora:4/1.q=2/1.v=2"), 4, 32)


def test_a_cut_config_is_read_as_it_is_written(tiny_base: Base, tmp_path: Path) -> None:
    _, base = written(tiny_base, tmp_path, {"local_attention": 6})
    config = json.loads((tmp_path / "config.json").read_text())
    assert shape_of(config) == base.shape and base.shape.window == 3


@pytest.mark.parametrize("targets", [["Wqkv"], ["Wqkv", "Wi", "Wo"], r".*\.1\.mlp\.W[io]"])
def test_an_adapter_that_peft_made_has_pefts_logits(
    tiny_base: Base, hub_task: Task, tmp_path: Path, targets: list[str] | str
) -> None:
    import peft

    model, base = written(tiny_base, tmp_path / "base", {})
    config = peft.LoraConfig(r=3, lora_alpha=5, target_modules=targets)
    adapted = peft.get_peft_model(model, config).eval()
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            parameter.data.normal_(0, 0.1)
    adapted.save_pretrained(tmp_path / "adapter")
    spec, state = read_peft_adapter(tmp_path / "adapter", base, hub_task)
    batch = gradients.random_batch(base, 3, 40, len(WORDS), seed=2)
    ids, attention = (torch.from_numpy(part) for part in (batch.ids, batch.attention))
    with torch.no_grad():
        exact = adapted(input_ids=ids, attention_mask=attention).logits
    wanted = exact[range(3), batch.mask_positions][:, WORDS].numpy()
    for engine, ours in logits(base, batch, spec, state).items():
        assert np.abs(ours - wanted).max() <= 1e-4, engine


@pytest.mark.few(1)
@pytest.mark.parametrize("engine", ["torch", "onnx"])
@pytest.mark.parametrize("tokens", [24, 150])
def test_a_head_of_tags_has_the_gradients_of_plain_peft(
    tiny_base: Base, tmp_path: Path, engine: str, tokens: int
) -> None:
    _, base = written(tiny_base, tmp_path, {})
    spec = parse_adapter("lora:2@q,up+head")
    batch = gradients.random_tags(gradients.random_batch(base, 3, tokens, 4, seed=3), seed=4)
    plans = gradients.every_plan(base, spec, 3, tokens)
    for error in gradients.gradient_errors(
        base, spec, plans, batch, None, engine, tags=gradients.TAGS
    ):
        assert error.worst_error <= 1e-5 and not error.zero_tensors, error


@pytest.mark.few(1)
@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("name", ["head", "lora:2@q,up+head", "lora:2@q,o/top1+head"])
def test_a_head_of_texts_is_that_of_transformers_and_peft_and_exported_as_such(
    tiny_base: Base,
    hub_task: Task,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pooling: str,
    name: str,
) -> None:
    import peft

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    _, base = written(tiny_base, tmp_path / "base", {"classifier_pooling": pooling})
    spec, labels = parse_adapter(name), len(hub_task.labels)
    state = gradients.random_adapter(spec, base, labels, seed=1)
    origin = Exported(name, str(base.folder), base.base_id, base.architecture, hub_task)
    body = encode_adapter(state)
    write_peft_folder(tmp_path / "adapter", origin, body, base=base, with_base="copied")
    model = peft.AutoPeftModelForSequenceClassification.from_pretrained(
        str(tmp_path / "adapter"), num_labels=labels, dtype=torch.float64, is_trainable=True
    ).eval()
    batch = gradients.random_batch(base, 3, 150, labels, seed=3)  # two texts are padded
    batch = replace(batch, mask_positions=np.zeros(3, np.int64))
    ids, attention, gold = map(torch.from_numpy, (batch.ids, batch.attention, batch.labels))
    exact = model(input_ids=ids, attention_mask=attention, labels=gold)
    exact.loss.backward()
    wanted = {plain(n): p.grad.numpy() for n, p in model.named_parameters() if p.requires_grad}
    for engine, ours in logits(base, batch, spec, state).items():
        assert np.abs(ours - exact.logits.detach().numpy()).max() <= 1e-5, engine
        with gradients.our_gradients(base, spec, state, [], engine) as gradient:
            for plan in gradients.every_plan(base, spec, 3, 150):
                for tensor, found in gradient(batch, plan)[1].items():
                    error = np.linalg.norm(found - wanted[tensor]) / np.linalg.norm(wanted[tensor])
                    assert error <= 1e-5, (engine, plan, tensor)


@pytest.mark.parametrize("engine", ["torch", "onnx"])
@pytest.mark.parametrize("name", ["head", "lora:2+head", "lora:2/top1+head"])
def test_a_head_that_reads_the_mean_lets_texts_leave_and_reads_what_is_cached(
    tiny_base: Base, hub_task: Task, tmp_path: Path, engine: str, name: str
) -> None:
    _, base = written(tiny_base, tmp_path / "base", {"classifier_pooling": "mean"})
    ours = engine_of(engine, base, hub_task, name)
    whole, some = ours.predict(TEXTS), ours.read(TEXTS, Recorder(done={1, 4}))
    left = [row for row in range(len(TEXTS)) if row not in (1, 4)]
    np.testing.assert_allclose(some[left], whole[left], rtol=1e-4, atol=1e-5)
    ours.remember(ActivationCache(tmp_path / "cache", 1 << 20, base.base_id))
    computed, cached = ours.predict(TEXTS), ours.predict(TEXTS)
    assert (computed == cached).all()
    np.testing.assert_allclose(computed, whole, atol=1e-3)  # states are kept in float16


@pytest.mark.few(1)
@pytest.mark.parametrize("engine", ["torch", "onnx"])
def test_a_long_text_whose_attention_is_in_parts_has_plain_pefts_gradients(
    tiny_base: Base, tmp_path: Path, engine: str
) -> None:
    keys = {"max_position_embeddings": 700, "local_attention": 40}
    _, base = written(tiny_base, tmp_path, keys)
    spec = parse_adapter("lora:2@q,k,v,o")
    batch = gradients.random_batch(base, 2, LONG_TEXT + 45, len(WORDS), seed=2)
    plans = gradients.every_plan(base, spec, 2, LONG_TEXT + 45)[:2]
    for error in gradients.gradient_errors(base, spec, plans, batch, WORDS, engine):
        assert error.worst_error <= 1e-5 and not error.zero_tensors, error
