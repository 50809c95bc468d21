"""Every plan's gradients against plain PyTorch + PEFT holding the dequantized weights."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import Base, open_base
from smidgen.edge_client.bases.packing import pack_model
from tests.breadth import covering
from tests.families import DECODERS, ENCODERS, write_family

pytest.importorskip("torch")
pytest.importorskip("peft")
gradients = pytest.importorskip("smidgen.profiling.benchmarks.gradients")

pytestmark = pytest.mark.few

ADAPTERS = ["lora:4", "lora:2@q,k,v,o,up,down", "prompt:5", "bias"]
WORDS = [1010, 1020, 1030, 1040]


ENGINES = ["torch", "onnx"]


def errors_of(base: Base, adapter: str, engine: str = "torch") -> list[Any]:
    spec = parse_adapter(adapter)
    batch = gradients.random_batch(base, batch=5, tokens=24, labels=4, seed=3)
    plans = gradients.every_plan(base, spec, batch=5, tokens=24)
    return list(gradients.gradient_errors(base, spec, plans, batch, WORDS, engine))


@pytest.mark.parametrize(("adapter", "bits"), covering(ADAPTERS, [4, 8, 16]))
@pytest.mark.parametrize("engine", ENGINES)
def test_every_plan_gives_the_gradients_of_plain_peft_on_a_pack(
    tiny_base: Base, tmp_path: Path, engine: str, adapter: str, bits: int
) -> None:
    source = write_family("roberta", tiny_base, tmp_path / "hf")
    pack_model(str(source.folder), bits, tmp_path / "pack")
    for error in errors_of(open_base(str(tmp_path / "pack")), adapter, engine):
        assert error.worst_error <= 1e-5, error
        assert error.loss_error <= 1e-5 and not error.zero_tensors, error


@pytest.mark.parametrize(("adapter", "family"), covering(ADAPTERS, ENCODERS))
@pytest.mark.parametrize("engine", ENGINES)
def test_every_family_gives_the_gradients_of_plain_peft(
    tiny_base: Base, tmp_path: Path, engine: str, adapter: str, family: str
) -> None:
    base = write_family(family, tiny_base, tmp_path)
    for error in errors_of(base, adapter, engine):
        assert error.worst_error <= 1e-5, error
        assert error.loss_error <= 1e-5 and not error.zero_tensors, error


def test_so_they_are_with_two_threads_of_torch(tiny_base: Base, tmp_path: Path) -> None:
    """`make test` gives each of its processes one."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        base = write_family("roberta", tiny_base, tmp_path)
        for error in errors_of(base, "lora:4"):
            assert error.worst_error <= 1e-5 and error.loss_error <= 1e-5, error
    finally:
        torch.set_num_threads(before)


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("family", "adapter"),
    [
        ("roberta", "lora:2@q,k,v,o,up,down/top2"),
        ("distilbert", "lora:4/top1"),
        ("bert", "bias/top2"),
        ("bert", "lora:4/0.v=2/1.down=3:32"),
        ("roberta", "lora:4@q,v,up/0=0/1.v=1"),
        ("distilbert", "lora:4/1=0/0.k=2"),
    ],
)
@pytest.mark.parametrize("engine", ENGINES)
def test_adapters_of_top_layers_have_the_gradients_of_plain_peft(
    tiny_base: Base, tmp_path: Path, engine: str, family: str, adapter: str
) -> None:
    base = write_family(family, tiny_base, tmp_path)
    for error in errors_of(base, adapter, engine):
        assert error.worst_error <= 1e-5, error
        assert error.loss_error <= 1e-5 and not error.zero_tensors, error


@pytest.mark.few(3)
@pytest.mark.parametrize("tokens", [24, 150])  # of one block of queries, and of two
@pytest.mark.parametrize(
    ("adapter", "family"),
    covering([*ADAPTERS[:3], "lora:2@q,k,v,o,up,down,gate", "lora:3@gate,o/top2"], DECODERS),
)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_decoder_gives_the_gradients_of_plain_peft_at_the_answers(
    tiny_base: Base,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    engine: str,
    adapter: str,
    family: str,
    tokens: int,
) -> None:
    monkeypatch.setattr("smidgen.edge_client.planning.layer_cost.WORD_ROWS", 300)
    base, spec = write_family(family, tiny_base, tmp_path), parse_adapter(adapter)
    batch = gradients.random_batch(base, batch=5, tokens=tokens, labels=4, seed=3)
    batch = gradients.random_places(base, batch, seed=4)
    plans = gradients.every_plan(base, spec, batch=5, tokens=tokens)
    for error in gradients.gradient_errors(base, spec, plans, batch, None, engine):
        assert error.worst_error <= 1e-5, error
        assert error.loss_error <= 1e-5 and not error.zero_tensors, error


@pytest.mark.parametrize(("adapter", "family"), covering(ADAPTERS[:3], DECODERS))
@pytest.mark.parametrize("engine", ENGINES)
def test_a_decoder_gives_the_gradients_of_plain_peft_at_label_words(
    tiny_base: Base, tmp_path: Path, engine: str, adapter: str, family: str
) -> None:
    for error in errors_of(write_family(family, tiny_base, tmp_path), adapter, engine):
        assert error.worst_error <= 1e-5, error
        assert error.loss_error <= 1e-5 and not error.zero_tensors, error


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("family", "adapter", "bits"),
    [
        ("roberta", "lora:4", 4),
        ("bert", "lora:2@q,k,v,o,up,down", 32),
        ("distilbert", "bias", 8),
        ("albert", "lora:2@q,k,v,o,up,down", 16),
        ("xlm-roberta", "prompt:5", 8),
        ("roberta", "lora:4/top1", 32),
    ],
)
@pytest.mark.parametrize("engine", ENGINES)
def test_all_words_asked_at_many_places_give_the_gradients_of_plain_peft(
    tiny_base: Base,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    engine: str,
    family: str,
    adapter: str,
    bits: int,
) -> None:
    base = write_family(family, tiny_base, tmp_path / "hf")
    if bits != 32:
        pack_model(str(base.folder), bits, tmp_path / "pack")
        base = open_base(str(tmp_path / "pack"))
    # Several slices, and an uneven last one.
    monkeypatch.setattr("smidgen.edge_client.planning.layer_cost.WORD_ROWS", 300)
    spec = parse_adapter(adapter)
    batch = gradients.random_batch(base, batch=5, tokens=24, labels=4, seed=3)
    batch = gradients.random_places(base, batch, seed=4)
    plans = gradients.every_plan(base, spec, batch=5, tokens=24)
    for error in gradients.gradient_errors(base, spec, plans, batch, None, engine):
        assert error.worst_error <= 1e-5, error
        assert error.loss_error <= 1e-5 and not error.zero_tensors, error


@pytest.mark.gpu
@pytest.mark.parametrize("bits", [4, 8, 16])
def test_a_cuda_device_gives_the_same_gradients(tiny_base: Base, tmp_path: Path, bits: int) -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    source = write_family("roberta", tiny_base, tmp_path / "hf")
    pack_model(str(source.folder), bits, tmp_path / "pack")
    base = open_base(str(tmp_path / "pack"))
    batch = gradients.random_batch(base, batch=5, tokens=24, labels=4, seed=3)
    spec = parse_adapter("lora:4")
    plans = gradients.every_plan(base, spec, batch=5, tokens=24)
    for error in gradients.gradient_errors(base, spec, plans, batch, WORDS, device="cuda"):
        assert error.worst_error <= 1e-4 and not error.zero_tensors, error


@pytest.mark.gpu
@pytest.mark.parametrize("bits", [4, 8, 16])
@pytest.mark.parametrize("adapter", ["lora:4", "prompt:5", "bias"])
def test_a_cuda_device_gives_the_processors_gradients(
    tiny_base: Base, tmp_path: Path, bits: int, adapter: str
) -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    source = write_family("roberta", tiny_base, tmp_path / "hf")
    pack_model(str(source.folder), bits, tmp_path / "pack")
    base, spec = open_base(str(tmp_path / "pack")), parse_adapter(adapter)
    state = gradients.random_adapter(spec, base, len(WORDS), seed=1)
    batch = gradients.random_batch(base, batch=5, tokens=24, labels=4, seed=3)
    given = base, spec, state, WORDS
    whole = gradients.every_plan(base, spec, batch=5, tokens=24)[0]
    with gradients.our_gradients(*given) as processor:
        loss, wanted = processor(batch, whole)
    for plan in (whole, replace(whole, recompute=tuple(range(base.shape.layers)))):
        with gradients.our_gradients(*given, device="cuda") as card:
            found, ours = card(batch, plan)
        assert abs(found - loss) <= 1e-4 * loss and ours.keys() == wanted.keys()
        for name, exact in wanted.items():
            # Both round in float32, in another order: 1e-5 each from the exact gradient.
            assert gradients._distance(ours[name], exact) <= 1e-4, name


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_stays_near(tiny_base: Base, tmp_path: Path, dtype: str) -> None:
    base = write_family("roberta", tiny_base, tmp_path)
    batch = gradients.random_batch(base, batch=4, tokens=24, labels=4, seed=3)
    spec = parse_adapter("lora:4")
    plans = [replace(plan, dtype=dtype) for plan in gradients.every_plan(base, spec, 4, 24)[:2]]
    for error in gradients.gradient_errors(base, spec, plans, batch, WORDS):
        assert error.worst_error <= 0.1 and not error.zero_tensors, error
