"""Weighted losses and their gradients on both engines, against plain torch in double precision.

The loss is the mean over the texts of weight times cross-entropy: over texts, not over weights. An
adjusted loss adds offsets to the labels' logits before that.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.planning.plan import Plan
from smidgen.edge_client.texts.batches import Batch
from smidgen.edge_client.wire.tensors import AdapterState
from tests.families import write_family

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
gradients = pytest.importorskip("smidgen.profiling.benchmarks.gradients")
reference = pytest.importorskip("smidgen.profiling.benchmarks.gradients")

pytestmark = pytest.mark.few

WORDS = [1010, 1020, 1030, 1040]
ADAPTERS = ["lora:4", "prompt:4", "bias"]
WEIGHTS = (0.25, 1.0, 0.0, 0.6, 0.05)
OFFSETS = np.log(np.array([0.7, 0.1, 0.15, 0.05], np.float32))
WHOLE, SPLIT = Plan("float32", 5, (), 2, 24), Plan("float32", 2, (0,), 2, 24)
Step = Callable[[Batch, Plan], tuple[float, AdapterState]]


def batch_of(base: Base, weights: tuple[float, ...] | None = WEIGHTS) -> Batch:
    plain = gradients.random_batch(base, len(WEIGHTS), 24, labels=4, seed=3)
    weighed = None if weights is None else np.array(weights, np.float32)
    batch: Batch = replace(plain, weights=weighed)
    return batch


def stepping(base: Base, name: str, kind: str) -> tuple[Step, AdapterState]:
    spec = parse_adapter(name)
    state: AdapterState = gradients.random_adapter(spec, base, labels=4, seed=1)
    words = [] if spec.head else WORDS

    def step(batch: Batch, plan: Plan) -> tuple[float, AdapterState]:
        with gradients.our_gradients(base, spec, state, words, kind) as compute:
            found: tuple[float, AdapterState] = compute(batch, plan)
        return found

    return step, state


def expected(
    base: Base, name: str, batch: Batch, state: AdapterState
) -> tuple[float, AdapterState]:
    """The mean over texts of weight times cross-entropy, by Hugging Face and PEFT in float64."""
    spec = parse_adapter(name)
    model = reference.reference_model(base, spec, state)
    ids, attention = torch.from_numpy(batch.ids), torch.from_numpy(batch.attention)
    logits = model(input_ids=ids, attention_mask=attention).logits
    places = torch.from_numpy(batch.mask_positions) + spec.prompt_tokens
    words = logits[torch.arange(len(ids)), places][:, WORDS]
    if batch.offsets is not None:
        words = words + torch.from_numpy(batch.offsets).double()
    answers = words.log_softmax(dim=1)
    labels = torch.from_numpy(batch.labels)
    losses = -answers[torch.arange(len(ids)), labels]
    assert batch.weights is not None
    loss = (losses * torch.from_numpy(batch.weights).double()).sum() / len(ids)
    loss.backward()
    return float(loss.detach()), {
        reference._plain(place): tensor.grad.numpy()
        for place, tensor in model.named_parameters()
        if tensor.grad is not None
    }


def distance(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))


@pytest.mark.parametrize("is_adjusted", [False, True])
@pytest.mark.parametrize("kind", ["torch", "onnx"])
@pytest.mark.parametrize("name", ADAPTERS)
def test_weighted_loss_and_gradients_are_those_of_plain_torch(
    tiny_base: Base, name: str, kind: str, is_adjusted: bool
) -> None:
    batch = replace(batch_of(tiny_base), offsets=OFFSETS if is_adjusted else None)
    step, state = stepping(tiny_base, name, kind)
    wanted_loss, wanted = expected(tiny_base, name, batch, state)
    for plan in (WHOLE, SPLIT) if name != "prompt:4" else (WHOLE, replace(SPLIT, recompute=())):
        loss, found = step(batch, plan)
        assert loss == pytest.approx(wanted_loss, rel=1e-5) and set(found) <= set(wanted)
        for place, gradient in found.items():
            assert distance(gradient, wanted[place]) <= 1e-5, place


@pytest.mark.parametrize("kind", ["torch", "onnx"])
def test_offsets_are_what_a_classifiers_bias_would_be(tiny_base: Base, kind: str) -> None:
    batch, words = batch_of(tiny_base), list[int]()
    spec = parse_adapter("head")
    state = gradients.random_adapter(spec, tiny_base, labels=4, seed=1)
    [bias] = [name for name, tensor in state.items() if tensor.shape == OFFSETS.shape]
    moved = state | {bias: state[bias] + OFFSETS}
    with gradients.our_gradients(tiny_base, spec, state, words, kind) as compute:
        loss, found = compute(replace(batch, offsets=OFFSETS), WHOLE)
    with gradients.our_gradients(tiny_base, spec, moved, words, kind) as compute:
        wanted_loss, wanted = compute(batch, WHOLE)
    assert loss == pytest.approx(wanted_loss, rel=1e-5)
    assert max(distance(found[place], wanted[place]) for place in wanted) <= 1e-5


@pytest.mark.parametrize("micro_batch", [1, 2, len(WEIGHTS)])
def test_offsets_of_a_decoders_label_words_are_the_same_with_both_engines(
    tiny_base: Base, tmp_path: Path, micro_batch: int
) -> None:
    base = write_family("llama", tiny_base, tmp_path / "llama")
    spec = parse_adapter("lora:4")
    state = gradients.random_adapter(spec, base, labels=4, seed=1)
    batch = gradients.random_batch(base, len(WEIGHTS), 24, labels=4, seed=3)
    batch = replace(batch, offsets=OFFSETS)
    plan, answers = Plan("float32", micro_batch, (), base.shape.layers, 24), []
    for kind in ("torch", "onnx"):
        with gradients.our_gradients(base, spec, state, [10, 20, 30, 40], kind) as compute:
            answers.append(compute(batch, plan))
    (loss, wanted), (found_loss, found) = answers
    assert found_loss == pytest.approx(loss, rel=1e-5)
    assert max(distance(found[place], wanted[place]) for place in wanted) <= 1e-4


@pytest.mark.parametrize("kind", ["torch", "onnx"])
@pytest.mark.parametrize("name", [*ADAPTERS, "head", "lora:2+head"])
def test_weights_of_one_are_no_weights_bit_by_bit(tiny_base: Base, name: str, kind: str) -> None:
    """Gradients agree in every bit; the loss in all but the last: torch adds in another order."""
    step, _ = stepping(tiny_base, name, kind)
    plain_loss, plain = step(batch_of(tiny_base, None), WHOLE)
    loss, found = step(batch_of(tiny_base, (1.0,) * len(WEIGHTS)), WHOLE)
    assert loss == (plain_loss if kind == "onnx" else pytest.approx(plain_loss, rel=2e-7))
    assert all((found[place] == gradient).all() for place, gradient in plain.items())


@pytest.mark.parametrize("kind", ["torch", "onnx"])
@pytest.mark.parametrize("name", ["lora:4", "head", "bias/top1+head"])
def test_a_text_without_weight_changes_nothing(tiny_base: Base, name: str, kind: str) -> None:
    step, _ = stepping(tiny_base, name, kind)
    batch, other = batch_of(tiny_base), batch_of(tiny_base)
    other.ids[2, 5:9] += 7
    other.labels[2] = 3 - other.labels[2]
    loss, found = step(batch, WHOLE)
    assert step(other, WHOLE)[0] == loss
    for place, gradient in step(other, WHOLE)[1].items():
        np.testing.assert_allclose(gradient, found[place], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("kind", ["torch", "onnx"])
@pytest.mark.parametrize("name", ["head", "lora:2+head"])
def test_weights_are_linear_in_the_gradient_of_a_classifier(
    tiny_base: Base, name: str, kind: str
) -> None:
    """No reference has this classifier: each text's own gradient, times its weight, adds up."""
    step, _ = stepping(tiny_base, name, kind)
    total, sums = 0.0, dict[str, np.ndarray]()
    for row, weight in enumerate(WEIGHTS):
        alone = tuple(float(other == row) for other in range(len(WEIGHTS)))
        loss, found = step(batch_of(tiny_base, alone), WHOLE)
        total += weight * loss
        for place, gradient in found.items():
            sums[place] = sums.get(place, 0.0) + weight * gradient.astype(np.float64)
    loss, found = step(batch_of(tiny_base), WHOLE)
    assert loss == pytest.approx(total, rel=1e-5)
    assert max(distance(found[place], sums[place]) for place in sums) <= 1e-5
