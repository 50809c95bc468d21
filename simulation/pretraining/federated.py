"""The same training, federated: a silo a language, Adam on the server.

The recipe is that of multilingual federated masked-language training over silos of health texts:
every round every silo trains from the server's weights by SGD, without state of its own, and the
server takes the mean of what changed, weighted by samples, for a gradient.

The same seed, silos and machine give the same weights bit for bit, interrupted or not.
"""

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from transformers import BertForMaskedLM

from simulation.pretraining.checkpoint import Checkpoint, Limits, Progress
from simulation.pretraining.server_adam import Moments, State, pseudo_gradient, server_adam
from simulation.pretraining.silo import Silo, load_weights, train_silo
from simulation.pretraining.student import identity_of

SERVER_LR = 2e-3


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
        seed: Of what the silos read in each round.
        checkpoint: File to go on from and to write to, every two minutes and at the end.
        on_round: Called after each round.
        stop_after: Leave after this many rounds of this call, as an interruption would.

    Raises:
        PretrainError: The checkpoint is of another run.
    """
    texts = (number for silo in silos for number in identity_of(silo.course))
    size = student.config.vocab_size, student.config.hidden_size
    kept = Checkpoint(checkpoint, [seed, *size, *texts])
    weights = {name: p.detach().clone() for name, p in student.named_parameters()}
    moments, run = Moments.zero(weights), Progress(0, 0.0, 0.0, math.nan)
    if before := kept.read():
        run, state = before
        weights = _on(student.device, state["weights"])
        means, squares = (_on(student.device, state[part]) for part in ("means", "squares"))
        moments = Moments(run.step, means, squares)
    start, first = time.monotonic() - run.elapsed_s, run.step
    while run.progress < 1.0 and (stop_after is None or run.step - first < stop_after):
        mean_delta, loss = _round(student, silos, weights, run.step + 1, seed)
        server_lr = SERVER_LR * (1.0 - run.progress)
        weights, moments = server_adam(weights, pseudo_gradient(mean_delta), moments, server_lr)
        elapsed_s = time.monotonic() - start
        run = Progress(run.step + 1, elapsed_s, limits.progress(run.step + 1, elapsed_s), loss)
        on_round(run)
        if kept.is_due:
            kept.write(run, _parts(weights, moments))
    kept.write(run, _parts(weights, moments))
    load_weights(student, weights)
    return run


def samples_of_rounds(silos: Sequence[Silo], rounds: int, seed: int) -> int:
    """How many samples all silos read together."""
    return sum(
        len(batch.student.ids)
        for round_index in range(1, rounds + 1)
        for silo in silos
        for batch in silo.batches_of(round_index, seed)
    )


def _round(
    student: BertForMaskedLM, silos: Sequence[Silo], weights: State, round_index: int, seed: int
) -> tuple[dict[str, torch.Tensor], float]:
    """The mean of the deltas and of the losses, weighted by N_i / sum N."""
    examples = sum(silo.num_examples for silo in silos)
    mean_delta = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    mean_loss = 0.0
    for silo in silos:
        share = silo.num_examples / examples
        delta, loss = train_silo(student, weights, silo.batches_of(round_index, seed))
        for name, change in delta.items():
            mean_delta[name].add_(change, alpha=share)
        mean_loss += share * loss
    return mean_delta, mean_loss


def _parts(weights: State, moments: Moments) -> dict[str, State]:
    return {"weights": dict(weights), "means": moments.means, "squares": moments.squares}


def _on(device: torch.device, state: State) -> dict[str, torch.Tensor]:
    return {name: tensor.to(device) for name, tensor in state.items()}
