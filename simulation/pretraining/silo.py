"""A silo: one language's texts, which train the model for a while and give back what changed."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from transformers import BertForMaskedLM

from edge_client.wire.seeds import derive_seed
from simulation.pretraining.course import CourseBatch
from simulation.pretraining.server_adam import State
from simulation.pretraining.student import batch_loss

CLIENT_LR = 0.5
LEAST_SAMPLES = 500
SHARE_OF_SAMPLES = 0.8e-4


@dataclass(frozen=True)
class Silo:
    """The texts of one language.

    Attributes:
        language: Its name.
        course: Its batches.
    """

    language: str
    course: Sequence[CourseBatch]

    @property
    def num_examples(self) -> int:
        """Samples of its course: the silo's weight."""
        return sum(len(batch.student.ids) for batch in self.course)

    def batches_of(self, round_index: int, seed: int) -> list[CourseBatch]:
        """What it learns from in a round: at least max(500, 0.8e-4 N) samples, or all it has.

        Whole batches in an order of the round's own, without repetition. Depends on nothing but
        the language, the round and the seed: a silo keeps no state.
        """
        wanted = max(LEAST_SAMPLES, SHARE_OF_SAMPLES * self.num_examples)
        derived = derive_seed(seed, "silo", self.language, round_index)
        order = torch.randperm(len(self.course), generator=torch.Generator().manual_seed(derived))
        chosen: list[CourseBatch] = []
        for index in order.tolist():
            if sum(len(batch.student.ids) for batch in chosen) >= wanted:
                break
            chosen.append(self.course[index])
        return chosen


def train_silo(
    student: BertForMaskedLM, weights: State, batches: Sequence[CourseBatch]
) -> tuple[dict[str, torch.Tensor], float]:
    """Plain SGD, without momentum, from the weights that came.

    Args:
        student: Its parameters are overwritten.
        weights: The server's, by parameter name.
        batches: What to learn from, one step each.

    Returns:
        The delta (trained minus received weights) and the mean loss before each step, nats a mask.
    """
    student.train()
    load_weights(student, weights)
    trained = dict(student.named_parameters())
    optimizer = torch.optim.SGD(trained.values(), CLIENT_LR)
    losses = [_learn(student, optimizer, batch) for batch in batches]
    delta = {name: (trained[name].detach() - weight) for name, weight in weights.items()}
    return delta, sum(losses) / len(losses)


@torch.no_grad()
def load_weights(student: BertForMaskedLM, weights: State) -> None:
    """Overwrite the parameters; a matrix that is used twice has one name."""
    for name, parameter in student.named_parameters():
        parameter.copy_(weights[name])


def _learn(student: BertForMaskedLM, optimizer: torch.optim.Optimizer, batch: CourseBatch) -> float:
    device = student.device
    with torch.autocast(device.type, torch.bfloat16):
        loss = batch_loss(student, nn.ModuleList(), batch.to(device), None, None)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
    optimizer.step()
    return float(loss.detach())
