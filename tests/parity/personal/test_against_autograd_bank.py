"""BayesTune-LoRA's whole loss by both engines against torch's autograd in float64.

The reference is transformers' own model; every linear of the bank gets 2 B diag(lambda) A beside it
by a hook, and the two terms are the paper's, written out.
"""

from collections.abc import Callable

import numpy as np
import pytest

from smidgen.edge_client.adapters.banks import LAMBDA, bank_spec
from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.spec import PREFIX, parse_adapter
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.engine.opening import open_engine
from smidgen.edge_client.personal.bank import Bank, bank_numbers, modules_of
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.tokens import Tokens
from smidgen.edge_client.updates.forms import LORA_A, LORA_B
from smidgen.edge_client.wire.tensors import AdapterState
from smidgen.edge_client.wire.training import Training
from tests.edge_client.engine.engines import KINDS, batch_of

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

EXAMPLES = 40  # N


def drawn(adapter: AdapterState, rank: int, with_ends: bool) -> AdapterState:
    """A bank in the middle of training; a factor below the range where that is asked for."""
    draw = np.random.Generator(np.random.PCG64(1))
    for module in modules_of(adapter):
        shape = adapter[module + LORA_B].shape
        adapter[module + LORA_B] = draw.normal(0.0, 0.1, shape).astype(np.float32)
    lambdas = {module: draw.uniform(0.3, 2.0, rank) for module in modules_of(adapter)}
    if with_ends:
        lambdas[modules_of(adapter)[0]][0] = -0.5
    return bank_numbers(adapter, lambdas)


class Straight(torch.autograd.Function):  # type: ignore[name-defined]
    """Clamped forward, as it is backward."""

    @staticmethod
    def forward(ctx: object, x: object) -> object:
        return x.clamp(1e-4, 1000.0)  # type: ignore[attr-defined]

    @staticmethod
    def backward(ctx: object, g: object) -> object:
        return g


@pytest.mark.parametrize("with_ends", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_both_engines_are_autograds(
    tiny_base: Base, hub_task: Task, kind: str, with_ends: bool
) -> None:
    spec = bank_spec(parse_adapter("lora:3@q,k,v,o,up,down"), tiny_base.shape)
    engine = open_engine(kind, tiny_base, hub_task, spec, Training(tokens=48))
    numbers = drawn(initial_adapter(spec, tiny_base, 6, seed=3), 3, with_ends)
    form, batch = Bank(), batch_of(engine)
    engine.put(form.adapter(numbers))
    loss, gradients = engine.gradients(batch)
    found = form.pull(numbers, gradients, EXAMPLES)

    model = transformers.AutoModelForMaskedLM.from_pretrained(tiny_base.folder).double().eval()
    leaves = {name: torch.tensor(one).double().requires_grad_() for name, one in numbers.items()}

    def beside(name: str) -> Callable[..., object]:
        a, b, factors = (leaves[name + part] for part in (LORA_A, LORA_B, LAMBDA))
        return lambda _, x, y: y + 2.0 * (x[0] @ a.T * Straight.apply(factors)) @ b.T

    for module in modules_of(numbers):
        model.get_submodule(module.removeprefix(PREFIX)).register_forward_hook(beside(module))
    ids, seen = torch.from_numpy(batch.ids), torch.from_numpy(batch.attention)
    logits = model(input_ids=ids, attention_mask=seen).logits
    at_mask = logits[torch.arange(len(ids)), torch.from_numpy(batch.mask_positions)]
    words = Tokens(tiny_base.folder).label_word_ids(hub_task)
    asked = torch.stack([at_mask[:, word].mean(dim=1) for word in words], dim=1)
    expected = torch.nn.functional.cross_entropy(asked, torch.from_numpy(batch.labels))
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    for module in modules_of(numbers):
        b, factors = leaves[module + LORA_B], Straight.apply(leaves[module + LAMBDA])
        expected = expected + 100.0 / EXAMPLES * (b.abs().sum(dim=0) / factors).sum()
        expected = expected + 0.01 / EXAMPLES * (factors.log() + 100.0 * factors).sum()
    expected.backward()
    for name, leaf in leaves.items():
        exact = leaf.grad.numpy()
        error = np.linalg.norm(found[name] - exact) / np.linalg.norm(exact)
        assert error <= 1e-5, (name, error)
