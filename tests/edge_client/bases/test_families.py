"""A family of another package, found by its entry point, and what is wrong with one named."""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases import families
from smidgen.edge_client.bases.architectures import ArchitectureError, Family, Linears, Norm
from smidgen.edge_client.bases.base import Base, BaseError, open_base
from smidgen.edge_client.bases.families import FAMILIES, check_block, family_of, is_known
from smidgen.edge_client.bases.layout import PackError
from smidgen.edge_client.bases.packing import pack_model
from smidgen.edge_client.texts.batches import Batch
from tests.families import write_family

TOY = """
from dataclasses import replace
from smidgen.edge_client.bases.families import FAMILIES

BERT = FAMILIES["bert"]
FAMILY = replace(
    BERT,
    prefix="toy",
    words="toy.words",
    layer="toy.blocks.{layer}.",
    linears={"q": "q", "k": "k", "v": "v", "o": "o", "up": "up", "down": "down"},
    attention_norm="first_norm",
    output_norm="second_norm",
)
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of installed packages."""
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("toys", None)
    families._theirs.cache_clear()
    families._loaded.cache_clear()


def installed(site: Path, body: str) -> None:
    """A package with a family, as pip leaves it."""
    (site / "toys.py").write_text(body)
    info = site / "toys-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toys\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[smidgen.families]\ntoy = toys:FAMILY\n")
    families._theirs.cache_clear()


def renamed(bert: Base, folder: Path) -> Base:
    """A BERT's numbers under the toy's names."""
    source, toy = FAMILIES["bert"], family_of("toy")
    names = {f"{source.words}.weight": f"{toy.words}.weight"}
    for layer in range(bert.layers):
        old, new = (family.layer.format(layer=layer) for family in (source, toy))
        modules = {source.linears[name]: toy.linears[name] for name in toy.linears}
        modules |= {source.attention_norm: toy.attention_norm, source.output_norm: toy.output_norm}
        for a, b in modules.items():
            names |= {f"{old}{a}.{part}": f"{new}{b}.{part}" for part in ("weight", "bias")}
    tensors = load_file(bert.weights)
    folder.mkdir()
    save_file({names.get(k, k): v for k, v in tensors.items()}, folder / "model.safetensors")
    config = json.loads((bert.folder / "config.json").read_text()) | {"model_type": "toy"}
    (folder / "config.json").write_text(json.dumps(config))
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (folder / file).write_bytes((bert.folder / file).read_bytes())
    return open_base(str(folder))


@pytest.mark.parametrize("engine", ["torch", "onnx"])
def test_a_family_of_another_package_is_packed_and_trained_like_ours(
    tiny_base: Base, site: Path, engine: str
) -> None:
    pytest.importorskip("torch")
    from smidgen.profiling.benchmarks import gradients  # imports torch

    installed(site, TOY)
    assert is_known("toy")
    bert = write_family("bert", tiny_base, site / "bert")
    toy = renamed(bert, site / "toy")
    packed = pack_model(str(toy.folder), 8, site / "pack")
    assert packed.manifest.architecture == "toy"
    batch = gradients.random_batch(bert, batch=3, tokens=12, labels=2, seed=1)
    found = [trained(base, batch, engine) for base in (bert, toy)]
    assert found[0] == found[1]


def trained(base: Base, batch: Batch, engine: str) -> tuple[float, list[bytes]]:
    from smidgen.profiling.benchmarks import gradients  # imports torch

    spec = parse_adapter("lora:2@q,v,up")
    first = initial_adapter(spec, base, 2, 0)
    state = {  # whatever its tensors are called
        name: np.linspace(-0.2, 0.3, tensor.size, dtype=np.float32).reshape(tensor.shape)
        for name, tensor in first.items()
    }
    plan = gradients.every_plan(base, spec, 3, 12)[1]
    with gradients.our_gradients(base, spec, state, [1010, 1020], engine) as ours:
        loss, tensors = ours(batch, plan)
    return loss, sorted(tensors[name].tobytes() for name in first)


def test_what_is_no_family_or_cannot_be_loaded_is_named(site: Path) -> None:
    installed(site, "FAMILY = 'a toy'")
    with pytest.raises(ArchitectureError, match="family toy of package toys is a str; a Family"):
        family_of("toy")
    (site / "toys.py").write_text("raise ValueError('no such dial')")
    sys.modules.pop("toys")
    with pytest.raises(ArchitectureError, match="cannot be loaded: ValueError: no such dial"):
        family_of("toy")


BLOCK = FAMILIES["bert"].block


@pytest.mark.parametrize(
    ("block", "named"),
    [
        ((*BLOCK, "convolve"), "operation 11, str, is not known; expected one of Norm, Linears"),
        ((Linears(("q",), "h"), *BLOCK), "operation 1, Linears, reads 'h', which nothing before"),
        ((*BLOCK, Linears(("gate",), "m")), "operation 11, Linears, is of 'gate', which its row"),
        ((Norm("first_norm", "x", "h"), *BLOCK), "operation 1, Norm, is of 'first_norm'"),
        (BLOCK[:-1], "no operation gives 'out'"),
    ],
)
def test_a_layer_that_no_engine_could_interpret_is_named(
    block: tuple[object, ...], named: str
) -> None:
    family: Family = replace(FAMILIES["bert"], block=block)  # type: ignore[arg-type]
    with pytest.raises(ArchitectureError, match=named) as caught:
        check_block("family toy", family)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [("gate", "'gate', which no operation reads"), ("extra", "'extra', which is none of q, k, v")],
)
def test_a_linear_that_would_lie_unread_is_named(name: str, said: str) -> None:
    bert = FAMILIES["bert"]
    family = replace(bert, linears={**bert.linears, name: name})
    with pytest.raises(ArchitectureError, match=f"family toy: its row names {said}"):
        check_block("family toy", family)


def test_a_layer_that_does_not_match_the_checkpoint_is_named(tiny_base: Base, site: Path) -> None:
    pytest.importorskip("torch")  # writes the family's checkpoint
    installed(site, TOY)
    toy = renamed(write_family("bert", tiny_base, site / "bert"), site / "toy")
    tensors = load_file(toy.weights)
    tensors["toy.blocks.1.gate.weight"] = tensors["toy.blocks.1.up.weight"]
    save_file(tensors, toy.weights)
    named = "toy.blocks.1.gate.weight, which no operation of a toy's layers reads"
    with pytest.raises(PackError, match=named):
        pack_model(str(toy.folder), 8, site / "pack")
    with pytest.raises(BaseError, match=named):
        open_base(str(toy.folder))
    del tensors["toy.blocks.1.gate.weight"], tensors["toy.blocks.0.o.bias"]
    save_file(tensors, toy.weights)
    with pytest.raises(PackError, match=r"lacks toy\.blocks\.0\.o\.bias"):
        pack_model(str(toy.folder), 8, site / "pack")
    with pytest.raises(BaseError, match=r"lacks toy\.blocks\.0\.o\.bias"):
        open_base(str(toy.folder))
