"""Checkpoints whose config.json lacks keys, or whose keys and tensors are odd, in both engines.

transformers opens the very folder that is opened here: what it computes is what the file means.
Both compute in float32, some 1e-6 apart; a pack of 16 bits is held against the model with its
matrices rounded likewise.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import Base, open_base
from smidgen.edge_client.bases.families import family_of
from smidgen.edge_client.bases.packing import pack_model
from smidgen.edge_client.texts.batches import Batch
from tests.families import DECODERS
from tests.families import ENCODERS as EVERY_ENCODER

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")

ENCODERS = tuple(name for name in EVERY_ENCODER if name != "modernbert")  # has its own tests
PLAIN = tuple(name for name in DECODERS if name != "gemma3_text")
FAMILIES = (*ENCODERS, *PLAIN)
WORDS = 60
SIZES: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 40,
}
USUAL: dict[str, dict[str, Any]] = {  # whose defaults do not fit
    "qwen2": {"num_key_value_heads": 4},
    "qwen3": {"num_key_value_heads": 4, "head_dim": 32},
    "smollm3": {"pad_token_id": 0},
    "phi3": {"pad_token_id": 0, "original_max_position_embeddings": 16},
    "gemma3_text": {"num_key_value_heads": 2, "head_dim": 32, "query_pre_attn_scalar": 32},
}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 16.0, "rope_theta": 50.0}
LONG: dict[str, Any] = {"short_factor": [1.0, 1.2, 2.0, 3.0], "long_factor": [9.0] * 4}
LONG |= {"partial_rotary_factor": 0.5, "rope_theta": 50.0}
ANGLES = (("full_attention", 50.0), ("sliding_attention", 9.0))
LINEAR = {"rope_type": "linear", "factor": 8.0, "rope_theta": 50.0}
OWN_NAMES = {own: alias for alias, own in family_of("distilbert").aliases.items()}
# What a file may lack while the model stays small enough to be computed here.
LACKING = [
    *((f, k) for f in FAMILIES for k in ("intermediate_size", "max_position_embeddings")),
    *((f, k) for f in FAMILIES for k in ("vocab_size", "num_hidden_layers")),
    *((f, "hidden_act") for f in FAMILIES),
    *((f, "num_attention_heads") for f in FAMILIES if f not in ("albert", *PLAIN)),
    *((f, "hidden_size") for f in ("bert", "roberta", "distilbert")),
    *(("albert", k) for k in ("embedding_size", "num_hidden_groups")),
    ("electra", "embedding_size"),
    *(("llama", k) for k in ("num_key_value_heads", "head_dim")),
]
ODD: list[tuple[str, dict[str, Any]]] = [
    *((f, {"tie_word_embeddings": False}) for f in FAMILIES),
    *((f, {"tie_word_embeddings": True}) for f in PLAIN),
    *((f, {"pad_token_id": 7}) for f in FAMILIES),
    *((f, {"pad_token_id": None}) for f in ("bert", "albert", "distilbert", *PLAIN)),
    *((f, {"layer_norm_eps": 0.1}) for f in ENCODERS),
    *((f, {"rms_norm_eps": 0.1}) for f in PLAIN),
    *((f, {"type_vocab_size": 1}) for f in ("bert", "roberta", "albert")),
    *((f, {"hidden_act": act}) for f in ("bert", "roberta") for act in ("relu", "gelu_new")),
    *((f, {"hidden_act": "silu"}) for f in ("albert", "distilbert")),
    *((f, {"hidden_act": "gelu_pytorch_tanh"}) for f in ("xlm-roberta", "llama")),
    ("albert", {"num_hidden_groups": 2, "embedding_size": 16}),
    ("albert", {"embedding_size": 64}),
    *(("electra", {"embedding_size": size, "hidden_act": "relu"}) for size in (16, 64)),
    ("distilbert", {"sinusoidal_pos_embds": True}),
    ("bert", {"chunk_size_feed_forward": 11, "hidden_dropout_prob": 0.5}),
    ("llama", {"num_key_value_heads": 2, "rope_parameters": {"rope_theta": 50.0}}),
    ("qwen2", {"num_key_value_heads": 1, "rope_parameters": {"rope_theta": 50.0}}),
    ("qwen2", {"sliding_window": 2, "max_window_layers": 0}),
    ("llama", {"partial_rotary_factor": 0.5}),
    *((f, {"rope_parameters": LLAMA3 | {"rope_type": "llama3"}}) for f in PLAIN if f != "phi3"),
    *((f, {"rope_parameters": LINEAR}) for f in PLAIN if f != "phi3"),
    *(("phi3", {"rope_parameters": LONG | {"rope_type": kind}}) for kind in ("longrope", "yarn")),
    ("phi3", {"rope_parameters": LONG | {"rope_type": "longrope", "attention_factor": 1.5}}),
    ("phi3", {"rope_parameters": LONG | {"rope_type": "longrope", "factor": 7.0}}),
    ("phi3", {"rope_parameters": {"rope_theta": 50.0, "partial_rotary_factor": 0.75}}),
    *(("phi3", {"sliding_window": window, "num_key_value_heads": 1}) for window in (1, 5, 40)),
    *((f, {"num_key_value_heads": 2, "head_dim": 24}) for f in PLAIN),
    *(
        ("gemma3_text", {"sliding_window": window, "layer_types": [*types]})
        for window in (1, 2, 5, 40)
        for types in (("sliding_attention", "full_attention"), ("sliding_attention",) * 2)
    ),
    ("gemma3_text", {"tie_word_embeddings": False, "hidden_activation": "silu"}),
    ("gemma3_text", {"rope_parameters": {kind: {"rope_theta": theta} for kind, theta in ANGLES}}),
    *(
        (
            "gemma3_text",
            {
                "rope_parameters": {
                    "full_attention": LINEAR,
                    "sliding_attention": {"rope_theta": theta},
                },
                "layer_types": ["sliding_attention", "full_attention"],
                "sliding_window": 4,
            },
        )
        for theta in (9.0, 50.0)
    ),
    ("smollm3", {"no_rope_layers": [0, 1]}),
    ("smollm3", {"no_rope_layer_interval": 2}),
]


def kind_of(family: str) -> Any:
    is_decoder = family in DECODERS
    return transformers.AutoModelForCausalLM if is_decoder else transformers.AutoModelForMaskedLM


def write(folder: Path, family: str, change: Mapping[str, Any], lacks: str = "") -> dict[str, Any]:
    """A random model with biases and norms drawn too; its config.json as version 4 writes it."""
    settings = {**SIZES, **USUAL.get(family, {}), **change}
    settings.pop(lacks, None)
    settings |= {"hidden_size": 96} if lacks == "num_attention_heads" else {}  # of 12 heads
    torch.manual_seed(5)
    model = kind_of(family).from_config(transformers.AutoConfig.for_model(family, **settings))
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.1)
    model.float().save_pretrained(folder)
    write_tokenizer(folder, change.get("pad_token_id"), family)
    return rewrite(folder, family, lacks)


def rewrite(folder: Path, family: str, lacks: str = "", **change: Any) -> dict[str, Any]:
    """Keys equal to the class's default go, as in version 4; `rope_theta` and `dtype` move."""
    config = json.loads((folder / "config.json").read_text())
    default = type(transformers.AutoConfig.for_model(family))().to_dict()
    small = {k: v for k, v in config.items() if k not in default or v != default[k]}
    rope = small.pop("rope_parameters", None) or {}
    if "full_attention" in rope:
        small["rope_theta"] = rope["full_attention"]["rope_theta"]
        small["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        if rope["full_attention"].get("rope_type", "default") != "default":
            small["rope_scaling"] = rope["full_attention"]
    elif rope:
        theta, kind = rope.pop("rope_theta"), rope.get("rope_type", "default")
        small |= {"rope_theta": theta, "rope_scaling": None if kind == "default" else rope}
    small |= {"torch_dtype": small.pop("dtype", "float32"), "model_type": family} | change
    if family == "distilbert":
        small = {OWN_NAMES.get(key, key): value for key, value in small.items()}
    small.pop(lacks, None)
    (folder / "config.json").write_text(json.dumps(small))
    return small


def write_tokenizer(folder: Path, pad_id: int | None, family: str) -> None:
    from tokenizers import Tokenizer, models, processors

    behind = 1 if family in ("roberta", "xlm-roberta", "camembert") else 0
    names = [f"w{index}" for index in range(WORDS)]
    names[behind if pad_id is None else pad_id] = "[PAD]"
    names[20:24] = "[UNK]", "[CLS]", "[SEP]", "[MASK]"
    built = Tokenizer(models.WordLevel({n: i for i, n in enumerate(names)}, "[UNK]"))
    built.post_processor = processors.BertProcessing(("[SEP]", 22), ("[CLS]", 21))
    built.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def batch() -> Batch:
    """Two texts, the second padded; one answer is read from each."""
    ids = np.array([range(8, 19), range(24, 35)])
    attention = np.ones_like(ids)
    attention[1, 7:] = 0
    return Batch(ids, attention, np.array([3, 6]), np.zeros(2, np.int64))


def ours(base: Base, engine: str) -> tuple[list[np.ndarray], np.ndarray]:
    """States (tokens, hidden) after each layer, and all logits at the answers."""
    spec = parse_adapter("lora:1")  # its B is zero: the base itself
    state = initial_adapter(spec, base, 2, seed=0)
    inputs, words = batch(), [[word] for word in range(WORDS)]
    if engine == "torch":
        from smidgen.edge_client.engine.torch_backend.network import Network

        network = Network(base, spec, state, words)
        states = [x.numpy() for x in network.states(inputs, "float32")]
        return states, network.logits(inputs, "float32").detach().numpy()
    from smidgen.edge_client.engine.onnx_backend.network import Network as OnnxNetwork

    onnx = OnnxNetwork(base, spec, state, words, threads=1)
    return [x.copy() for x in onnx.states(inputs)], onnx.logits(inputs)


def theirs(model: Any) -> tuple[list[np.ndarray], np.ndarray]:
    inputs = batch()
    ids, attention = torch.from_numpy(inputs.ids), torch.from_numpy(inputs.attention)
    if (pad_id := model.config.pad_token_id) is not None:
        ids = torch.where(attention == 1, ids, pad_id)
    with torch.no_grad():
        found = model.eval()(input_ids=ids, attention_mask=attention, output_hidden_states=True)
    logits = found.logits[[0, 1], inputs.mask_positions][:, :WORDS]
    return [x.numpy() for x in found.hidden_states], logits.numpy()


def check(folder: Path, family: str, pack: Path) -> None:
    """The folder and its pack of 16 bits, in each engine, against transformers."""
    model = kind_of(family).from_pretrained(folder, dtype=torch.float32)
    pack_model(str(folder), 16, pack)
    for place in (folder, pack):
        base = open_base(str(place))
        if place == pack:
            with base.open_weights() as weights, torch.no_grad():
                tensors = dict(model.named_parameters(remove_duplicate=False))
                for name in weights.names:
                    if len(weights.shape(name)) == 2 and weights.stored(name).bits == 16:
                        tensors[name].copy_(tensors[name].to(torch.bfloat16).float())
        states, logits = theirs(model)
        for engine in ("torch", "onnx"):
            our_states, our_logits = ours(base, engine)
            real = batch().attention == 1
            for mine, plain in zip(our_states, states, strict=True):
                assert np.abs(mine - plain[real]).max() < 1e-4, (place.name, engine)
            assert np.abs(our_logits - logits).max() < 2e-4, (place.name, engine)


def slow(cases: list[Any], fast: Callable[[int], bool]) -> list[Any]:
    marks = ([] if fast(i) else [pytest.mark.slow] for i in range(len(cases)))
    return [pytest.param(*c, marks=m) for c, m in zip(cases, marks, strict=True)]


@pytest.mark.few(4)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_file_of_version_4_reads_as_in_transformers(tmp_path: Path, family: str) -> None:
    written = write(tmp_path / "model", family, {})
    # Whose default is no row here.
    assert "pad_token_id" not in written or family in ("smollm3", "phi3")
    assert "tie_word_embeddings" not in written
    check(tmp_path / "model", family, tmp_path / "pack")


@pytest.mark.slow
@pytest.mark.parametrize(("family", "key"), LACKING)
def test_a_lacking_key_reads_as_in_transformers(tmp_path: Path, family: str, key: str) -> None:
    written = write(tmp_path / "model", family, {}, lacks=key)
    assert key not in written
    check(tmp_path / "model", family, tmp_path / "pack")


@pytest.mark.few(4)
@pytest.mark.parametrize(("family", "change"), slow(ODD, lambda index: index % 9 == 0))
def test_an_odd_key_reads_as_in_transformers(
    tmp_path: Path, family: str, change: dict[str, Any]
) -> None:
    aliased = {"hidden_act": "activation"} if family == "distilbert" else {}
    write(tmp_path / "model", family, {aliased.get(k, k): v for k, v in change.items()})
    check(tmp_path / "model", family, tmp_path / "pack")


HEADS = {
    "bert": ("cls.predictions.decoder", "cls.predictions.bias", "bert.embeddings"),
    "roberta": ("lm_head.decoder", "lm_head.bias", "roberta.embeddings"),
    "albert": ("predictions.decoder", "predictions.bias", "albert.embeddings"),
    "electra": ("generator_lm_head", "", "electra.embeddings"),
    "mpnet": ("lm_head.decoder", "lm_head.bias", "mpnet.embeddings"),
    "distilbert": ("vocab_projector", "", "distilbert.embeddings"),
    **dict.fromkeys(PLAIN, ("lm_head", "", "model")),
}
PARTS = [
    (family, tied, parts)
    for family, (_, bias, _) in HEADS.items()
    for tied in (True, False)
    for parts in (
        ("weight", "bias"),
        ("weight", "bias", "tied bias"),
        ("bias", "tied bias"),
        ("weight", "tied bias"),
        ("tied bias",),
        ("weight",),
    )
    if (bias or "tied bias" not in parts)
    and (tied or "weight" in parts)
    and ("bias" in parts or (tied and "tied bias" in parts) or family in DECODERS)
    and not (family in DECODERS and "bias" in parts)
]


@pytest.mark.few(4)
@pytest.mark.parametrize(("family", "tied", "parts"), slow(PARTS, lambda index: index % 4 == 1))
def test_the_head_that_transformers_takes_is_taken(
    tmp_path: Path, family: str, tied: bool, parts: tuple[str, ...]
) -> None:
    folder = tmp_path / "model"
    write(folder, family, {"tie_word_embeddings": tied})
    rewrite(folder, family, tie_word_embeddings=tied)
    decoder, tied_bias, _ = HEADS[family]
    file = folder / "model.safetensors"
    held = {
        name: tensor
        for name, tensor in safetensors.load_file(file).items()
        if not name.startswith(f"{decoder}.") and name != tied_bias
    }
    drawn = {"weight": held[next(n for n in held if ("word_emb" in n or "embed_tok" in n))]}
    drawn = {"weight": torch.randn_like(drawn["weight"]), "bias": torch.randn(WORDS)}
    held |= {f"{decoder}.{part}": drawn[part] for part in parts if part in drawn}
    held |= {tied_bias: torch.randn(WORDS)} if "tied bias" in parts else {}
    safetensors.save_file(held, file, {"format": "pt"})
    check(folder, family, tmp_path / "pack")


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, pytest.param(torch.float64, marks=pytest.mark.slow)]
)
def test_tensors_of_another_type_are_packed_as_transformers_widens_them(
    tmp_path: Path, dtype: Any
) -> None:
    folder = tmp_path / "model"
    write(folder, "bert", {})
    file = folder / "model.safetensors"
    held = {name: tensor.to(dtype) for name, tensor in safetensors.load_file(file).items()}
    old = {".LayerNorm.weight": ".LayerNorm.gamma", ".LayerNorm.bias": ".LayerNorm.beta"}
    for new, name in old.items():
        held = {key.replace(new, name): tensor for key, tensor in held.items()}
    held["bert.embeddings.position_ids"] = torch.arange(40)[None]
    if dtype != torch.float64:
        safetensors.save_file(held, file, {"format": "pt"})
        check(folder, "bert", tmp_path / "pack")
        return
    safetensors.save_file(held, file, {"format": "pt"})
    model = kind_of("bert").from_pretrained(folder, dtype=torch.float32)
    pack_model(str(folder), 16, tmp_path / "pack")
    difference = ours(open_base(str(tmp_path / "pack")), "onnx")[1] - theirs(model)[1]
    assert np.abs(difference).max() < 0.1  # of matrices in bfloat16 against float32


@pytest.mark.parametrize("form", ["shards", "pickle"])
def test_shards_and_pickles_are_packed_alike(tmp_path: Path, form: str) -> None:
    folder = tmp_path / "model"
    write(folder, "roberta", {})
    whole = pack_model(str(folder), 16, tmp_path / "whole").manifest
    model = kind_of("roberta").from_pretrained(folder, dtype=torch.float32)
    (folder / "model.safetensors").unlink()
    config = (folder / "config.json").read_text()
    if form == "shards":
        model.save_pretrained(folder, max_shard_size="20KB")
        (folder / "config.json").write_text(config)
    else:  # as version 4 wrote it: tied tensors twice, a buffer beside them
        state = dict(model.state_dict()) | {"roberta.embeddings.position_ids": torch.arange(40)}
        torch.save(state, folder / "pytorch_model.bin")
    assert pack_model(str(folder), 16, tmp_path / "pack").manifest == whole
