"""The same training, federated: one silo per language, Adam on the server.

The recipe is that of multilingual federated masked-language training over silos of health texts,
the preset `silos` of a run: every round every silo trains from the server's weights by SGD, without
state of its own, and the server takes the mean of what changed, weighted by samples, for a
gradient. Draws, mean and server step are the runs' own code; rates are for weights that start from
random numbers.

The same seed, silos, rounds and machine give the same weights bit for bit, interrupted or not; by
minutes each round's rate goes by the clock.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn
from transformers import BertForMaskedLM

from coordinator.presets import SILOS
from coordinator.rounds.learning.adaptive import MEAN, SQUARE, STEPS, Adaptive, adam
from coordinator.rounds.learning.mean import weighted_mean
from coordinator.rounds.learning.memory import Memory
from coordinator.rounds.learning.settings import Learning
from edge_client.wire.tensors import AdapterState
from simulation.pretraining.checkpoint import Checkpoint, Limits, Progress
from simulation.pretraining.course import CourseBatch
from simulation.pretraining.silo import RECIPE, Silo
from simulation.pretraining.student import batch_loss, identity_of

SERVER_LR = 2e-3
CLIENT_LR = 0.5
# The rate falls with the time where that is what the run is limited by, so not by rounds.
RATES = replace(Learning(**SILOS["learning"]).rates, lr=SERVER_LR, decay="none")

State = Mapping[str, torch.Tensor]


def train_federated(
    student: BertForMaskedLM,
    silos: Sequence[Silo],
    limits: Limits,
    seed: int,
    checkpoint: Path,
    on_round: Callable[[Progress], None] = lambda run: None,
    stop_after: int | None = None,
) -> Progress:
    """Train round by round until the limit, from the checkpoint if there is one.

    Args:
        student: Trained in place.
        silos: All of them take part in every round.
        limits: When to end, in rounds or seconds; the server's learning rate falls to zero there.
        seed: Root of what the silos read in each round.
        checkpoint: File to go on from and to write to, every two minutes and at the end.
        on_round: Called after each round.
        stop_after: Leave after this many rounds of this call, as an interruption would.

    Raises:
        PretrainError: The checkpoint is of another run.
    """
    texts = (number for silo in silos for number in identity_of(silo.course))
    size = student.config.vocab_size, student.config.hidden_size
    how = limits.steps or 0, RECIPE.least_samples
    kept = Checkpoint(checkpoint, [seed, *how, *size, *texts])
    weights = {name: p.detach().clone() for name, p in student.named_parameters()}
    memory: Memory = {}
    run = Progress(0, 0.0, 0.0, math.nan)
    if before := kept.read():
        run, state = before
        run = replace(run, progress=limits.progress(run.step, run.elapsed_s))
        weights = _on(student.device, state["weights"])
        memory = _memory(state, run.step) if run.step else {}
    start, first = time.monotonic() - run.elapsed_s, run.step
    while run.progress < 1.0 and (stop_after is None or run.step - first < stop_after):
        mean_delta, loss = _round(student, silos, weights, run.step + 1, seed)
        server_lr = SERVER_LR * (1.0 - run.progress)
        weights, memory = server_step(weights, mean_delta, memory, server_lr)
        elapsed_s = time.monotonic() - start
        run = Progress(run.step + 1, elapsed_s, limits.progress(run.step + 1, elapsed_s), loss)
        on_round(run)
        if kept.is_due:
            kept.write(run, _parts(weights, memory))
    kept.write(run, _parts(weights, memory))
    load_weights(student, weights)
    return run


def samples_of_rounds(silos: Sequence[Silo], rounds: int) -> int:
    """How many samples all silos draw together."""
    return rounds * sum(RECIPE.samples_of(silo.num_examples) for silo in silos)


def _round(
    student: BertForMaskedLM, silos: Sequence[Silo], weights: State, round_index: int, seed: int
) -> tuple[AdapterState, float]:
    """The mean of the deltas and of the losses, weighted by N_i / sum N."""
    losses: list[float] = []

    def deltas() -> Iterator[tuple[AdapterState, float]]:
        for silo in silos:
            delta, loss = train_silo(student, weights, silo.batches_of(round_index, seed))
            losses.append(loss)
            yield _arrays(delta), float(silo.num_examples)

    mean_delta = weighted_mean(deltas())
    examples = [silo.num_examples for silo in silos]
    weighed = sum(loss * many for loss, many in zip(losses, examples, strict=True))
    return mean_delta, weighed / sum(examples)


def _on(device: torch.device, state: State) -> dict[str, torch.Tensor]:
    return {name: tensor.to(device) for name, tensor in state.items()}


def train_silo(
    student: BertForMaskedLM, weights: State, batches: Sequence[CourseBatch]
) -> tuple[dict[str, torch.Tensor], float]:
    """Plain SGD, without momentum, from the weights that came.

    Args:
        student: The model; its parameters are overwritten.
        weights: The server's, by parameter name.
        batches: What to learn from, one step each.

    Returns:
        The delta (trained minus received weights) and the mean loss before each step, in nats per
        mask.
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


def server_step(
    weights: State, mean_delta: AdapterState, memory: Memory, server_lr: float
) -> tuple[dict[str, torch.Tensor], Memory]:
    """One step of Adam on the server, the coordinator's (`rounds.learning.adaptive`).

    Args:
        weights: The server's, by name.
        mean_delta: Where the silos went on the mean; the same names and shapes.
        memory: What the step before left; empty before the first.
        server_lr: Learning rate of this step.
    """
    optimizer = Adaptive(replace(RATES, lr=server_lr), adam)
    after, kept = optimizer.step(_arrays(weights), mean_delta, memory, 1, 1)
    return {name: torch.from_numpy(one).to(weights[name]) for name, one in after.items()}, kept


def _arrays(state: State) -> AdapterState:
    return {name: tensor.detach().cpu().numpy() for name, tensor in state.items()}


def _parts(weights: State, memory: Memory) -> dict[str, State]:
    """What a checkpoint holds beside where the run stands."""
    kept = {name: torch.from_numpy(one) for name, one in memory.items() if name != STEPS}
    of = {
        part: {k.removeprefix(part): v for k, v in kept.items() if k.startswith(part)}
        for part in (MEAN, SQUARE)
    }
    return {"weights": dict(weights), "means": of[MEAN], "squares": of[SQUARE]}


def _memory(state: Mapping[str, State], step: int) -> Memory:
    """What the server remembered when a checkpoint was written, after so many steps."""
    means = {f"{MEAN}{name}": one for name, one in _arrays(state["means"]).items()}
    squares = {f"{SQUARE}{name}": one for name, one in _arrays(state["squares"]).items()}
    return means | squares | {STEPS: np.array([step], np.int64)}
