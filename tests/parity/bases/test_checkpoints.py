"""Checkpoints as people have them against transformers' masked language model of the same folder.

Each starts from a random model that transformers saved: keys of its config.json go, or tensors
come, go and change; the answers must be those that transformers gives then.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import Base, open_base
from smidgen.edge_client.bases.families import FAMILIES
from smidgen.edge_client.bases.packing import pack_model
from smidgen.edge_client.engine.opening import open_engine
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.training import Training
from tests.edge_client.engine.engines import KINDS
from tests.families import DECODERS, write_family
from tests.parity.test_against_transformers import TEXTS, full_model_rows

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.few

ENCODERS = [family for family in FAMILIES if family not in DECODERS]
HEADED = ["bert", "roberta", "albert"]
Tensors = dict[str, np.ndarray]


def configure(folder: Path, drop: str = "", **change: object) -> None:
    """Change keys of a folder's config.json, and drop one."""
    config = json.loads((folder / "config.json").read_text()) | change
    config.pop(drop, None)
    (folder / "config.json").write_text(json.dumps(config))


def rewrite(folder: Path, change: Callable[[Tensors], Tensors]) -> None:
    tensors = change(load_file(folder / "model.safetensors"))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).normal(0, 1, shape).astype(np.float32)


def check(folder: Path, task: Task, kind: str) -> None:
    """The answers of a folder, and of its pack of 16 bits, against transformers'."""
    plain = transformers.AutoModelForMaskedLM.from_pretrained(folder, dtype=torch.float32)
    base = open_base(str(folder))
    theirs = full_model_rows(plain.eval(), base, task, 0)
    ours = answers(base, task, kind)
    np.testing.assert_allclose(ours, theirs, atol=1e-4)  # the same numbers in another order
    pack_model(str(folder), 16, folder / "pack")
    packed = answers(open_base(str(folder / "pack")), task, kind)
    for name, tensor in plain.named_parameters():
        if tensor.dim() == 2 and not name.endswith(
            ("position_embeddings.weight", "type_embeddings.weight")
        ):
            tensor.data = tensor.data.to(torch.bfloat16).float()
    np.testing.assert_allclose(packed, full_model_rows(plain, base, task, 0), atol=1e-4)


def answers(base: Base, task: Task, kind: str) -> np.ndarray:
    spec = parse_adapter("lora:1")
    engine = open_engine(kind, base, task, spec, Training())
    engine.load_adapter(initial_adapter(spec, base, len(task.labels), seed=1))  # B is zero
    found = engine.predict(TEXTS)
    engine.close()
    return found


def modules(family: str) -> Iterator[str]:
    """Word table, decoder, decoder's own bias, head's bias."""
    of = FAMILIES[family]
    yield from (f"{of.words}.weight", f"{of.decoder}.weight", *of.decoder_bias)


def slow_but(fast: str, values: list[str]) -> list[object]:
    return [v if v == fast else pytest.param(v, marks=pytest.mark.slow) for v in values]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", slow_but("roberta", ["roberta", "xlm-roberta", "camembert"]))
def test_a_missing_pad_token_id_is_the_familys(
    tiny_base: Base, hub_task: Task, tmp_path: Path, family: str, kind: str
) -> None:
    write_family(family, tiny_base, tmp_path / "m")
    configure(tmp_path / "m", drop="pad_token_id")
    check(tmp_path / "m", hub_task, kind)


@pytest.mark.slow
@pytest.mark.parametrize("family", ENCODERS)
def test_any_key_but_a_size_may_be_missing(
    tiny_base: Base, hub_task: Task, tmp_path: Path, family: str
) -> None:
    write_family(family, tiny_base, tmp_path / "m")
    keys = json.loads((tmp_path / "m/config.json").read_text())
    for key in sorted(set(keys) - {"model_type", "architectures"}):
        default = getattr(transformers.AutoConfig.for_model(family), key, None)
        if isinstance(keys[key], int) and keys[key] != default and key != "pad_token_id":
            continue  # a size
        if key == "pad_token_id" and default is not None and default >= keys["vocab_size"]:
            continue  # which transformers takes of no such vocabulary
        configure(tmp_path / "m", drop=key)
        check(tmp_path / "m", hub_task, "torch")
        (tmp_path / "m/config.json").write_text(json.dumps(keys))
        for file in (tmp_path / "m/pack").iterdir():
            file.unlink()
        (tmp_path / "m/pack").rmdir()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("family", slow_but("bert", HEADED))
def test_of_two_biases_the_decoders_own_counts(
    tiny_base: Base, hub_task: Task, tmp_path: Path, family: str, is_tied: bool, kind: str
) -> None:
    words, decoder, own, other = modules(family)
    write_family(family, tiny_base, tmp_path / "m")
    configure(tmp_path / "m", tie_word_embeddings=is_tied)

    def change(tensors: Tensors) -> Tensors:
        size = tensors[words].shape
        biases = {own: noise(size[0]), other: -noise(size[0])}
        return tensors | biases | ({} if is_tied else {decoder: noise(*size)})

    rewrite(tmp_path / "m", change)
    check(tmp_path / "m", hub_task, kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", slow_but("roberta", [*HEADED, "distilbert"]))
def test_a_decoder_of_its_own_counts_whatever_the_configuration_says(
    tiny_base: Base, hub_task: Task, tmp_path: Path, family: str, kind: str
) -> None:
    words, decoder, *_ = modules(family)
    write_family(family, tiny_base, tmp_path / "m")
    rewrite(tmp_path / "m", lambda held: held | {decoder: noise(*held[words].shape)})
    assert not open_base(str(tmp_path / "m")).shape.is_tied
    check(tmp_path / "m", hub_task, kind)
    packed = json.loads((tmp_path / "m/pack/config.json").read_text())
    assert packed["tie_word_embeddings"] is False


@pytest.mark.parametrize("family", slow_but("bert", [*HEADED, "distilbert"]))
def test_a_decoder_that_is_the_word_table_stays_tied(
    tiny_base: Base, hub_task: Task, tmp_path: Path, family: str
) -> None:
    words, decoder, *_ = modules(family)
    write_family(family, tiny_base, tmp_path / "m")
    rewrite(tmp_path / "m", lambda held: held | {decoder: held[words]})
    assert open_base(str(tmp_path / "m")).shape.is_tied
    check(tmp_path / "m", hub_task, "torch")


@pytest.mark.parametrize("family", slow_but("distilbert", ENCODERS))
def test_names_without_the_prefix_and_old_ones_of_norms(
    tiny_base: Base, hub_task: Task, tmp_path: Path, family: str
) -> None:
    def old(name: str) -> str:
        name = name.removeprefix(f"{FAMILIES[family].prefix}.")
        if "LayerNorm" in name:
            name = name.replace(".weight", ".gamma").replace(".bias", ".beta")
        return name

    write_family(family, tiny_base, tmp_path / "m")
    rewrite(tmp_path / "m", lambda held: {old(name): held[name] for name in held})
    check(tmp_path / "m", hub_task, "torch")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float16", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_checkpoints_of_half_precision(
    tiny_base: Base, hub_task: Task, tmp_path: Path, dtype: str, kind: str
) -> None:
    write_family("roberta", tiny_base, tmp_path / "m")
    model = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "m")
    model.to(getattr(torch, dtype)).save_pretrained(tmp_path / "m")
    check(tmp_path / "m", hub_task, kind)
