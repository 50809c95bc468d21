"""The torch engine on a card: refused where there is none, run on one that stands in, and on one.

What is marked `gpu` needs a CUDA device.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import EMBEDDED, Base, find_folder, open_base
from smidgen.edge_client.bases.packing import pack_model
from smidgen.edge_client.engine.engine import Engine, EngineError
from smidgen.edge_client.engine.trainer import Trained, train
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.training import Training
from tests.command_line import smidgen
from tests.edge_client.engine.engines import TEXTS
from tests.families import write_family

torch = pytest.importorskip("torch")
card = pytest.importorskip("smidgen.edge_client.engine.torch_backend.card")
matrices = pytest.importorskip("smidgen.edge_client.engine.torch_backend.matrices")
budgeted = pytest.importorskip("smidgen.edge_client.engine.budgeted")

STAND_IN = "tests.edge_client.engine.torch_backend.stand_in_card"
TRAINING = Training(lr=0.01, tokens=48, batch=4, epochs=2)
HAS_CARD = torch.cuda.is_available()
needs_card = pytest.mark.skipif(not HAS_CARD, reason="no CUDA device here")
without_card = pytest.mark.skipif(HAS_CARD, reason="a CUDA device is here")


# Refused


@without_card
@pytest.mark.parametrize(
    "command",
    [
        ["predict", "a door", "--task", "agnews"],
        ["plan"],
        ["run", "--coordinator", "http://127.0.0.1:9", "--data", "."],
        ["patterns", "--data", ".", "--task", "agnews"],
        ["train", "--data", ".", "--task", "agnews", "--out", "out"],
        ["evaluate", "--data", "texts.csv", "--task", "agnews"],
    ],
    ids=lambda words: words[0],
)
def test_without_a_card_a_command_says_so_in_one_line(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.csv").write_text("text,label\nrain,world\n")
    done = smidgen("client", *command, "--device", "cuda")
    assert done.exit_code == 2 and not done.stdout
    (line,) = done.stderr.splitlines()
    assert "--device cuda: torch sees no CUDA device here" in line
    assert torch.__version__ in line and line.endswith("use --device cpu")


@pytest.mark.parametrize(
    "command", [["client", "plan"], ["profile", "train", "--base", "embedded"]]
)
def test_the_onnx_engine_computes_on_the_processor(command: list[str]) -> None:
    done = smidgen(*command, "--engine", "onnx", "--device", "cuda")
    assert done.exit_code == 2
    assert "--engine onnx --device cuda: the onnx engine computes on the processor" in done.stderr


def test_another_device_is_refused() -> None:
    done = smidgen("client", "plan", "--device", "tpu")
    assert done.exit_code == 2 and "--device 'tpu' is not known; cpu or cuda" in done.stderr


def test_peers_are_not_run_beside_a_card() -> None:
    done = smidgen("profile", "train", "--base", "embedded", "--device", "cuda", "--peers")
    assert done.exit_code == 2 and "peers compute on the processor" in done.stderr


def test_a_build_without_cuda_is_named_with_what_to_install() -> None:
    told = card.refusal("2.13.0+cpu", None, "x86_64")
    assert "torch 2.13.0+cpu is a build without CUDA" in told and "'.[gpu]'" in told


@pytest.mark.parametrize("built_for", [None, "13.0"])
def test_on_an_arm_board_it_is_said_which_boards_have_no_cuda_for_pytorch(
    built_for: str | None,
) -> None:
    assert "TX2 and Nano have no CUDA" in card.refusal("2.9.1", built_for, "aarch64")
    assert "TX2" not in card.refusal("2.9.1", built_for, "x86_64")


def test_what_torch_warned_of_is_passed_on() -> None:
    told = card.refusal("2.13.0", "13.0", "x86_64", "the driver is too old")
    assert "built for CUDA 13.0" in told and "the driver is too old" in told


BUSY = "CUDA error: CUDA-capable device(s) is/are busy or unavailable\nCompile with TORCH_USE_CUDA"


def fails(error: Exception) -> Callable[..., Any]:
    def call(*_arguments: object, **_more: object) -> Any:
        raise error

    return call


@pytest.mark.parametrize("error", [RuntimeError(BUSY), torch.cuda.DeferredCudaCallError(BUSY)])
def test_a_card_that_another_keeps_for_itself_is_told_in_one_line(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", fails(error))
    with pytest.raises(
        EngineError, match=r"cannot be used: CUDA error: .*unavailable; use --dev"
    ) as e:
        card.find_card(8)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 MiB."),
            "A card is full: ",
        ),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"), "A card is full: "),
        (RuntimeError("CUDA error: no kernel image is available"), "does not compute on A card: "),
    ],
)
def test_a_full_card_is_not_called_one_that_does_not_compute(
    error: Exception, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = SimpleNamespace(name="A card")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _index: properties)
    monkeypatch.setattr(torch, "ones", fails(error))
    with pytest.raises(EngineError, match=told):
        card.find_card(8)


def test_a_card_that_does_not_tell_its_memory_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ones, properties = torch.ones(16, 16), SimpleNamespace(name="A card")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _index: properties)
    monkeypatch.setattr(torch, "ones", lambda *_size, **_more: ones)
    monkeypatch.setattr(torch.cuda, "mem_get_info", fails(RuntimeError(BUSY)))
    with pytest.raises(EngineError, match="the memory of A card is unknown: CUDA error"):
        card.find_card(8)


# On a card that stands in: see `stand_in_card`


def stood_in(*arguments: object) -> Any:
    pytest.importorskip("bitsandbytes")
    backends = pytest.importorskip("torch.utils.backend_registration")
    if not hasattr(backends, "_setup_privateuseone_for_python_backend"):
        pytest.skip("this torch has no backends in Python")
    command = [sys.executable, "-m", STAND_IN, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_the_stand_in_refuses_to_mix_memories() -> None:
    assert stood_in()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bits", "adapter"), [(4, "lora:4"), (8, "bias"), (16, "prompt:4"), (8, "lora:2+head")]
)
def test_on_a_card_every_plan_gives_the_processors_numbers(
    tiny_base: Base, tmp_path: Path, bits: int, adapter: str
) -> None:
    source = write_family("roberta", tiny_base, tmp_path / "hf")
    pack_model(str(source.folder), bits, tmp_path / "pack")
    rows = stood_in(tmp_path / "pack", adapter, 4, 32)
    assert len(rows) == 6 and all(row["is_equal"] for row in rows)
    assert all(row["left"] == 0 for row in rows)  # a closed backend holds nothing of the card


@pytest.mark.slow
def test_what_tensors_take_on_a_card_is_what_the_formula_says() -> None:
    rows = stood_in(find_folder(EMBEDDED, ()), "lora:4", 4, 64)
    for row in rows:
        parts = dict(row["parts"])
        parts.pop("slack")  # of the allocator and of libraries, which the stand-in has not
        assert 0.98 < sum(parts.values()) / row["measured"] < 1.25, row


# On a card


def packed(tiny_base: Base, folder: Path, bits: int) -> Base:
    source = write_family("roberta", tiny_base, folder / "hf")
    pack_model(str(source.folder), bits, folder / "pack")
    return open_base(str(folder / "pack"))


def trained(
    base: Base, task: Task, device: str, budget: int | None = None
) -> tuple[Engine, Trained]:
    """An engine in float32 that has trained two epochs; the adapter's first values are equal."""
    spec = parse_adapter("lora:4")
    engine = budgeted.open_within(
        "torch", base, task, spec, TRAINING, budget, dtypes=("float32",), device=device
    )
    return engine, train(engine, TEXTS, TRAINING, seed=1)


@pytest.mark.gpu
@needs_card
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_bitsandbytes_kernel_gives_what_our_table_gives(dtype: str) -> None:
    pytest.importorskip("bitsandbytes")
    generator = torch.Generator().manual_seed(0)
    data = torch.randint(0, 256, (64, 96), dtype=torch.uint8, generator=generator)
    scale = torch.rand(64, 3, generator=generator) + 0.01
    asked = getattr(torch, dtype)
    ours = matrices.nf4_dense(data, scale, asked, matrices.Scratch())
    theirs = matrices.nf4_dense_by_bitsandbytes(data.cuda(), scale.cuda(), asked)
    assert theirs.is_cuda and theirs.dtype == asked
    # In float32 both multiply the same two numbers once: at most a unit of the last place. In 16
    # bits ours rounds the code, the scale and their product, the kernel the product alone: up to
    # four half units.
    within = {"float32": 2**-23, "bfloat16": 3 * 2**-8, "float16": 3 * 2**-11}[dtype]
    torch.testing.assert_close(theirs.cpu(), ours, rtol=within, atol=1e-7)


@pytest.mark.gpu
@needs_card
@pytest.mark.parametrize("bits", [4, 8, 16])
def test_training_on_a_card_is_the_processors_training(
    tiny_base: Base, hub_task: Task, tmp_path: Path, bits: int
) -> None:
    base = packed(tiny_base, tmp_path, bits)
    on_card, there = trained(base, hub_task, "cuda")
    on_processor, here = trained(base, hub_task, "cpu")
    assert there.loss == pytest.approx(here.loss, rel=1e-3)
    for name, delta in here.delta.items():
        # AdamW divides by a gradient's size: where a gradient is nearly 0 its sign is chance.
        near = np.isclose(there.delta[name], delta, rtol=1e-2, atol=1e-4).mean()
        assert near > 0.95, (name, near)
    peak = on_card.device_peak()
    assert peak is not None and 0 < peak.allocated_bytes <= peak.reserved_bytes
    assert on_processor.device_peak() is None
    on_card.close()
    on_processor.close()


@pytest.mark.gpu
@needs_card
@pytest.mark.parametrize("is_streamed", [False, True])
def test_weights_that_are_streamed_give_the_same_answers(
    tiny_base: Base, hub_task: Task, tmp_path: Path, is_streamed: bool
) -> None:
    engine, _ = trained(packed(tiny_base, tmp_path, 8), hub_task, "cuda")
    expected = engine.predict(TEXTS)
    option = next(
        option.plan
        for option in engine.budget._found  # type: ignore[union-attr]
        if option.plan.is_streamed == is_streamed and option.plan.depth == engine.plan.depth
    )
    engine.use(option)
    np.testing.assert_allclose(engine.predict(TEXTS), expected, atol=1e-4)
    engine.close()


@pytest.mark.gpu
@needs_card
def test_what_is_reserved_stays_within_the_prediction(
    tiny_base: Base, hub_task: Task, tmp_path: Path
) -> None:
    engine, _ = trained(packed(tiny_base, tmp_path, 8), hub_task, "cuda", budget=1 << 30)
    peak = engine.device_peak()
    assert peak is not None
    measured = peak.reserved_bytes + (card.Guard(0).peak_bytes() or 0) * peak.is_unified
    predicted = engine.option.predicted_peak_bytes
    assert measured <= predicted, f"{measured} bytes reserved, {predicted} predicted"
    engine.close()


@pytest.mark.gpu
@needs_card
def test_a_command_trains_on_the_card(tmp_path: Path) -> None:
    rows = ["text,label", *(f"{text.text},{'ab'[i % 2]}" for i, text in enumerate(TEXTS))]
    (tmp_path / "labelled.csv").write_text("\n".join(row.replace(", ", " ") for row in rows) + "\n")
    (tmp_path / "task.toml").write_text(
        'name = "ab"\nlabels = ["a", "b"]\npatterns = ["{text} [MASK]"]\n'
        'verbalizer = { a = "good", b = "bad" }\n'
    )
    words = ["--data", str(tmp_path), "--out", str(tmp_path / "out"), "--tokens", "32"]
    done = smidgen("client", "train", *words, "--device", "cuda", "--json")
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["device"] == "cuda" and answer["device_peak"]["reserved_bytes"] > 0
    told = smidgen(
        "client", "predict", "a door", "--adapter", str(tmp_path / "out"), "--device", "cuda"
    )
    assert told.exit_code == 0, told.output
