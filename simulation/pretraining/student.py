"""Train the embedded base: a small masked language model, from scratch or after a teacher.

    course = build_course(...)
    student = new_student(len(vocabulary))
    run = train(student, course, teacher, Limits(steps=5000), seed=0, checkpoint=path)

The same seed, course, steps and machine give the same weights bit for bit, interrupted or not; by
minutes each step's rate goes by the clock.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import BertConfig, BertForMaskedLM

from edge_client.wire.seeds import derive_seed
from simulation.pretraining.checkpoint import Checkpoint, Limits, Progress
from simulation.pretraining.course import NOT_SCORED, CourseBatch
from simulation.pretraining.teacher import Answer, Teacher, principal_embeddings

PEAK_LR = 2e-3
PEAK_LR_ALONE = 7e-4  # without a teacher
WARM_UP = 0.05
WEIGHT_DECAY = 0.01
TEACHER_SHARE = 0.7  # of the loss where both the text and the teacher know an answer
CLOZE_WEIGHT = 3.0  # a prompt has one mask, a plain text about eight
LAYERS_WEIGHT = 4.0
SPREAD = 0.06  # of random weights; about 1 / sqrt(hidden)


def new_student(
    vocabulary: int, hidden: int = 192, layers: int = 4, seed: int = 0
) -> BertForMaskedLM:
    """A small BERT with random weights."""
    torch.manual_seed(derive_seed(seed, "student"))
    return BertForMaskedLM(
        BertConfig(
            vocab_size=vocabulary,
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=max(hidden // 32, 1),
            intermediate_size=4 * hidden,
            max_position_embeddings=256,
            initializer_range=SPREAD,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            attn_implementation="eager",  # faster than sdpa's backward at these lengths
        )
    )


@torch.no_grad()
def start_from_teacher(student: BertForMaskedLM, teacher: Teacher, seed: int = 0) -> None:
    """Give the shared tokens the teacher's embeddings (their principal axes) and output bias."""
    table = student.get_input_embeddings().weight
    shared = principal_embeddings(teacher.embeddings, table.shape[1], SPREAD)
    generator = torch.Generator().manual_seed(derive_seed(seed, "embeddings"))
    table.normal_(0.0, SPREAD, generator=generator)
    table[: len(shared)] = shared
    bias = student.get_output_embeddings().bias
    bias.fill_(float(teacher.bias.min()))
    bias[: len(shared)] = teacher.bias


def batch_loss(
    student: BertForMaskedLM,
    bridges: nn.ModuleList,
    batch: CourseBatch,
    answer: Answer | None,
    probabilities: torch.Tensor | None,
) -> torch.Tensor:
    """Cross-entropy with the text and the teacher, plus the distance of layers (TinyBERT).

    Args:
        student: The model.
        bridges: Maps from the student's middle and last layer to the teacher's axes.
        batch: What it reads.
        answer: The teacher's.
        probabilities: The teacher's at the masks it answers, shape (taught masks, shared tokens).

    Returns:
        Mean over masks, nats, plus the mean square of the distance.
    """
    reading = batch.student
    layers = student.bert(
        input_ids=reading.ids, attention_mask=reading.attention, output_hidden_states=True
    ).hidden_states
    at_masks = reading.rows * reading.ids.shape[1] + reading.columns
    logits = student.cls(_rows(layers[-1], at_masks))  # (masks, vocabulary)
    log_q = functional.log_softmax(logits.float(), dim=-1)
    loss = _mask_loss(log_q, batch, probabilities)
    if answer is None or not len(reading.common):
        return loss
    for bridge, own, other in zip(
        bridges, (layers[len(layers) // 2], layers[-1]), answer.layers.to(log_q.device), strict=True
    ):
        distance = bridge(_rows(own, reading.common)).float() - other.float()
        loss = loss + LAYERS_WEIGHT * distance.square().mean()
    return loss


def _rows(states: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    # not states[index]: the gradient of that adds up in any order where there are threads
    return states.flatten(0, 1).index_select(0, index)


def _mask_loss(
    log_q: torch.Tensor, batch: CourseBatch, probabilities: torch.Tensor | None
) -> torch.Tensor:
    known = batch.gold != NOT_SCORED
    losses = functional.nll_loss(log_q, batch.gold.clamp(min=0), reduction="none") * known
    if probabilities is None:
        return losses.sum() / known.sum().clamp(min=1)
    where = batch.is_taught.nonzero().flatten()
    taught = -(probabilities * log_q.index_select(0, where)[:, : probabilities.shape[1]]).sum(-1)
    own_share = torch.where(batch.is_taught, 1.0 - TEACHER_SHARE, 1.0)
    taught_share = torch.where(known[where], TEACHER_SHARE, 1.0)
    losses = (own_share * losses).index_add(0, where, taught_share * taught)
    weights = torch.where(known, 1.0, CLOZE_WEIGHT) * (known | batch.is_taught)
    return (losses * weights).sum() / weights.sum()


def train(
    student: BertForMaskedLM,
    course: Sequence[CourseBatch],
    teacher: Teacher | None,
    limits: Limits,
    seed: int,
    checkpoint: Path,
    on_step: Callable[[Progress], None] = lambda run: None,
    stop_after: int | None = None,
) -> Progress:
    """Train until the limit, from the checkpoint if there is one.

    AdamW, linear warm-up and decay. Each epoch walks the course in an order of its own.

    Args:
        student: Trained in place.
        course: Batches, on the CPU.
        teacher: What answers the masks too; None: only the text teaches.
        limits: When to end; the learning rate falls to zero there.
        seed: Root of the batches' order.
        checkpoint: File to go on from and to write to, every two minutes and at the end.
        on_step: Called after each step.
        stop_after: Leave after this many steps of this call, as an interruption would.

    Raises:
        PretrainError: The checkpoint is of another run.
    """
    pupil = _Pupil(student, seed, is_taught=teacher is not None)
    size = student.config.vocab_size, student.config.hidden_size
    of_teacher = teacher.identity if teacher else 0
    identity = [seed, limits.steps or 0, of_teacher, *size, *identity_of(course)]
    kept, run = Checkpoint(checkpoint, identity), Progress(0, 0.0, 0.0, math.nan)
    if before := kept.read():
        run, parts = before
        run = replace(run, progress=limits.progress(run.step, run.elapsed_s))
        pupil.load(parts)
    answers: dict[int, Answer] = {}
    start, first = time.monotonic() - run.elapsed_s, run.step
    while run.progress < 1.0 and (stop_after is None or run.step - first < stop_after):
        index = _order(len(course), run.step // len(course), seed)[run.step % len(course)]
        reading = course[index].teacher
        if teacher and reading is not None and index not in answers:
            answers[index] = teacher.ask(reading)
        loss = pupil.step(course[index], teacher, answers.get(index), run.progress)
        elapsed_s = time.monotonic() - start
        run = Progress(run.step + 1, elapsed_s, limits.progress(run.step + 1, elapsed_s), loss)
        on_step(run)
        if kept.is_due:
            kept.write(run, pupil.parts())
    kept.write(run, pupil.parts())
    return run


class _Pupil:
    """The student with what is needed to train it and gone afterwards."""

    def __init__(self, student: BertForMaskedLM, seed: int, is_taught: bool) -> None:
        torch.manual_seed(derive_seed(seed, "bridges"))
        hidden, device = student.config.hidden_size, student.device
        self.student = student.train()
        self.bridges = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(2)).to(device)
        self.optimizer = torch.optim.AdamW(
            [*student.parameters(), *self.bridges.parameters()],
            PEAK_LR,
            (0.9, 0.98),
            weight_decay=WEIGHT_DECAY,
            fused=not is_taught,  # a tenth of a step; but the embedded base was made without
        )

    def step(
        self, batch: CourseBatch, teacher: Teacher | None, answer: Answer | None, progress: float
    ) -> float:
        """One optimizer step; the loss before it."""
        for group in self.optimizer.param_groups:
            group["lr"] = (PEAK_LR if teacher else PEAK_LR_ALONE) * lr_factor(progress)
        probabilities = teacher.probabilities(answer.states) if teacher and answer else None
        device = self.student.device
        with torch.autocast(device.type, torch.bfloat16):
            loss = batch_loss(self.student, self.bridges, batch.to(device), answer, probabilities)
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.student.parameters(), 1.0)
        self.optimizer.step()
        return float(loss.detach())

    def parts(self) -> dict[str, Any]:
        return {
            "model": self.student.state_dict(),
            "bridges": self.bridges.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def load(self, parts: Mapping[str, Any]) -> None:
        self.student.load_state_dict(parts["model"])
        self.bridges.load_state_dict(parts["bridges"])
        self.optimizer.load_state_dict(parts["optimizer"])


def identity_of(course: Sequence[CourseBatch]) -> tuple[int, int]:
    """What tells a course from another: its batches, and the sum of the tokens behind masks."""
    return len(course), sum(int(batch.gold.sum()) for batch in course)


def samples_seen(course: Sequence[CourseBatch], steps: int, seed: int) -> int:
    rows = [len(batch.student.ids) for batch in course]
    epochs, rest = divmod(steps, len(rows))
    return epochs * sum(rows) + sum(rows[i] for i in _order(len(rows), epochs, seed)[:rest])


def lr_factor(progress: float) -> float:
    """Share of the peak learning rate: linear warm-up, then linear to zero."""
    factor = min((progress + 1e-4) / WARM_UP, (1.0 - progress) / (1.0 - WARM_UP), 1.0)
    return max(factor, 0.0)


def _order(length: int, epoch: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(derive_seed(seed, "order", epoch))
    return [int(index) for index in torch.randperm(length, generator=generator)]
