"""What only the torch engine does; what every engine does is in `test_engines`."""

from typing import Any

import pytest

from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.engine.trainer import train
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.training import Training
from tests.edge_client.engine.engines import TEXTS, engine_of

torch = pytest.importorskip("torch")
AdamW = pytest.importorskip("smidgen.edge_client.engine.torch_backend.optimizers").AdamW


def frozen_tensors(network: Any) -> list[Any]:
    """All numbers of the base that the network holds, or sees through the map."""
    linears = [linear for layer in network._layers for linear in layer.linears.values()]
    norms = [norm for layer in network._layers for norm in layer.norms.values()]
    biases = [part.bias for part in (*linears, *norms) if not part.bias.requires_grad]
    return [
        *(linear.matrix.mapped.values for linear in linears),
        *(n.weight for n in norms),
        *biases,
    ]


@pytest.mark.parametrize("name", ["lora:2@q,k,v,o,up,down", "bias"])
def test_no_tensor_of_the_base_is_written_to(tiny_base: Base, hub_task: Task, name: str) -> None:
    engine = engine_of("torch", tiny_base, hub_task, name)
    network = engine._backend.network  # type: ignore[attr-defined]
    frozen = [p.clone() for p in frozen_tensors(network)]
    train(engine, TEXTS, Training(epochs=2, batch=3), seed=1)
    assert len(frozen) > 16 and all(map(torch.equal, frozen_tensors(network), frozen))


def test_the_optimizer_is_torchs_own_adamw() -> None:
    ours, theirs = (torch.linspace(-1, 1, 12).view(3, 4).requires_grad_() for _ in range(2))
    resting = torch.ones(2, requires_grad=True)
    optimizer = AdamW({"a": ours, "b": resting}, lr=0.01, weight_decay=0.1)
    reference = torch.optim.AdamW([theirs], lr=0.01, weight_decay=0.1)
    for step in range(20):
        gradient = torch.sin(torch.arange(12.0) + step).view(3, 4)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        optimizer.step()
        reference.step()
    # The fused kernel divides by sqrt(v) in another order: a few units of the last place.
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)
    assert bool((resting == 1).all())
