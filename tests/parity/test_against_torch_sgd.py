"""Both engines' SGD, and the proximal term, against torch's own optimizers on the same gradients.

torch's SGD adds the weight decay to the gradient, and begins its velocity with the first gradient;
ours does, too. A proximal term of theirs is autograd's of mu/2 ||w - received||^2.
"""

from typing import Any

import numpy as np
import pytest

from smidgen.edge_client.engine.onnx_backend import optimizers as numpy_optimizer
from smidgen.edge_client.updates.step import Correction
from smidgen.edge_client.wire.tensors import AdapterState
from smidgen.edge_client.wire.training import Training
from tests.parity.test_against_torch_adamw import SHAPES, STEPS, gradient

torch = pytest.importorskip("torch")
torch_optimizer = pytest.importorskip("smidgen.edge_client.engine.torch_backend.optimizers")

WAYS = [
    Training(lr=0.1, optimizer="sgd"),
    Training(lr=0.1, optimizer="sgd", momentum=0.9),
    Training(lr=0.1, optimizer="sgd", momentum=0.5, weight_decay=0.1),
    Training(lr=0.1, optimizer="sgd", proximal=0.7),
    Training(lr=0.1, optimizer="sgd", momentum=0.9, weight_decay=0.1, proximal=0.7),
    Training(lr=0.01, weight_decay=0.1, proximal=0.7),
]
# Gradients as of training: AdamW's would make the pull of 0.7 nothing beside 1e3.
ways = pytest.mark.parametrize("training", WAYS, ids=lambda way: f"{way.optimizer}-{way.momentum}")


def little(name: str, step: int) -> np.ndarray:
    """A gradient of about the size that training has."""
    found = gradient(name, step)
    small: np.ndarray = (found / np.abs(found).max()).astype(np.float32)
    return small


def moving(step: int) -> list[str]:
    """The tensors that have a gradient: the second rests in every third step."""
    return [name for name in SHAPES if name != "b" or step % 3 != 2]


def theirs(training: Training, tensors: dict[str, Any]) -> Any:
    decay = {"lr": training.lr, "weight_decay": training.weight_decay}
    if training.optimizer == "sgd":
        return torch.optim.SGD(tensors.values(), momentum=training.momentum, **decay)
    return torch.optim.AdamW(tensors.values(), **decay)


def references(training: Training, start: AdapterState) -> list[AdapterState]:
    """The tensors after each step by torch and autograd."""
    tensors = {n: torch.from_numpy(array.copy()).requires_grad_() for n, array in start.items()}
    received = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    reference, found = theirs(training, tensors), []
    for step in range(STEPS):
        reference.zero_grad(set_to_none=True)
        for name in moving(step):
            loss = (tensors[name] * torch.from_numpy(little(name, step))).sum()
            apart = (tensors[name] - received[name]).square().sum()
            (loss + training.proximal / 2 * apart).backward()
        reference.step()
        found.append({name: tensor.detach().numpy().copy() for name, tensor in tensors.items()})
    return found


@ways
def test_twenty_steps_of_numpy_are_torchs(training: Training) -> None:
    start = {name: little(name, 99) for name in SHAPES}
    correction = Correction(
        {name: array.copy() for name, array in start.items()}, training.proximal
    )
    ours = {name: array.copy() for name, array in start.items()}
    optimizer = numpy_optimizer.open_optimizer(ours, training)
    for step, expected in enumerate(references(training, start)):
        gradients = {name: little(name, step) for name in moving(step)}
        numpy_optimizer.add_correction(gradients, ours, correction)
        optimizer.step(gradients)
        for name, tensor in ours.items():  # the last places of float32, gathered over the steps
            np.testing.assert_allclose(tensor, expected[name], rtol=5e-6, atol=5e-7)


@ways
def test_twenty_steps_of_torch_are_torchs(training: Training) -> None:
    start = {name: little(name, 99) for name in SHAPES}
    correction = Correction(
        {name: array.copy() for name, array in start.items()}, training.proximal
    )
    ours = {n: torch.from_numpy(array.copy()).requires_grad_() for n, array in start.items()}
    optimizer = torch_optimizer.open_optimizer(ours, training)
    for step, expected in enumerate(references(training, start)):
        for name, tensor in ours.items():
            is_moving = name in moving(step)
            tensor.grad = torch.from_numpy(little(name, step)) if is_moving else None
        torch_optimizer.add_correction(ours, correction)
        optimizer.step()
        for name, tensor in ours.items():
            np.testing.assert_allclose(
                tensor.detach().numpy(), expected[name], rtol=5e-6, atol=5e-7
            )


def test_plain_sgd_is_torchs_bit_by_bit() -> None:
    (training,) = WAYS[:1]
    start = {name: little(name, 99) for name in SHAPES}
    ours = {n: torch.from_numpy(array.copy()).requires_grad_() for n, array in start.items()}
    optimizer = torch_optimizer.open_optimizer(ours, training)
    for step, expected in enumerate(references(training, start)):
        for name, tensor in ours.items():
            is_moving = name in moving(step)
            tensor.grad = torch.from_numpy(little(name, step)) if is_moving else None
        optimizer.step()
        for name, tensor in ours.items():
            assert tensor.detach().numpy().tobytes() == expected[name].tobytes()
