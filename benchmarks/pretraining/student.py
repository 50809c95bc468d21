"""Training of the embedded base, a small masked language model, from scratch or by distillation.

    course = build_course(...)
    student = new_student(len(vocabulary))
    run = train(student, course, teacher, Limits(steps=5000), seed=0, checkpoint=path)

Equal seed, course, steps and machine give equal weights bit for bit, interrupted or not; with a
limit in minutes each step's learning rate goes by the clock.

The teacher's output is stored as the state that its output layer sees (384 numbers per mask for a
MiniLM), not as a distribution (20,000): the distribution over the shared tokens is exact and one
small matrix product away.
"""

import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn
from torch.nn import functional
from transformers import AutoModelForMaskedLM, BertConfig, BertForMaskedLM

from benchmarks.pretraining.checkpoint import Checkpoint, Limits, PretrainError, Progress
from benchmarks.pretraining.course import NOT_SCORED, CourseBatch, Masked
from benchmarks.pretraining.vocabulary import read_tokenizer
from smidgen.edge_client.wire.tensors import derive_seed


@dataclass(frozen=True)
class Answer:
    """What the teacher says to one batch; bf16, on the CPU.

    Attributes:
        states: What its output layer sees at each mask, shape (masks, teacher hidden).
        layers: The teacher's middle and last layer where both read the same word, on the axes that
            matter most, unit variance; shape (2, common, axes).
    """

    states: torch.Tensor
    layers: torch.Tensor


class Teacher:
    """A frozen masked language model of the BERT family, asked about masks.

    Args:
        folder: A Hugging Face folder.
        shared: Tokens that the student has too; the student's first ids, in its order.
        device: Where it computes.

    Attributes:
        identity: Of its weights: another teacher's is another number.

    Raises:
        PretrainError: The folder holds no such model.
    """

    def __init__(self, folder: Path, shared: Sequence[str], device: torch.device) -> None:
        ids = read_tokenizer(folder).get_vocab()
        rows = torch.tensor([ids[token] for token in shared])
        try:
            model = AutoModelForMaskedLM.from_pretrained(folder, dtype=torch.float32).eval()
        except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
            raise PretrainError(
                f"{folder} is no masked language model that can be read; --teacher wants a BERT "
                "folder"
            ) from error
        self.identity = _identity(model)
        embeddings = model.get_input_embeddings().weight.detach()
        self.embeddings: torch.Tensor = embeddings[rows].clone()  # (shared, teacher hidden)
        self.bias: torch.Tensor = model.get_output_embeddings().bias.detach()[rows].clone()
        self._out = self.embeddings.to(device, torch.bfloat16)
        self._out_bias = self.bias.to(device)
        self._encoder: nn.Module = model.base_model.to(device, torch.bfloat16)
        self._transform: nn.Module = model.cls.predictions.transform.to(device, torch.bfloat16)
        self._device = device
        self._axes: list[torch.Tensor] = []

    @torch.no_grad()
    def learn_axes(self, readings: Sequence[Masked], axes: int) -> None:
        """Find each layer's principal axes, once, on a few readings."""
        hidden = [self._hidden(reading)[1] for reading in readings]
        for layer in range(2):
            states = torch.cat([layers[layer] for layers in hidden]).float()
            found = _axes(states, axes)
            self._axes.append((found / (states @ found).std()).to(torch.bfloat16))

    @torch.no_grad()
    def ask(self, reading: Masked) -> Answer:
        """Read a batch; `learn_axes` comes first."""
        last, layers = self._hidden(reading)
        at_masks = last[reading.rows.to(self._device), reading.columns.to(self._device)]
        projected = [states @ axes for states, axes in zip(layers, self._axes, strict=True)]
        return Answer(self._transform(at_masks).cpu(), torch.stack(projected).cpu())

    @torch.no_grad()
    def probabilities(self, states: torch.Tensor) -> torch.Tensor:
        """Distribution over the shared tokens, fp32, shape (masks, shared)."""
        logits = states.to(self._device) @ self._out.T
        return torch.softmax(logits.float() + self._out_bias, dim=-1)

    def _hidden(self, reading: Masked) -> tuple[torch.Tensor, list[torch.Tensor]]:
        states = self._encoder(
            input_ids=reading.ids.to(self._device),
            attention_mask=reading.attention.to(self._device),
            output_hidden_states=True,
        ).hidden_states
        common = reading.common.to(self._device)
        chosen = (states[len(states) // 2], states[-1])
        return states[-1], [layer.flatten(0, 1)[common] for layer in chosen]


def principal_embeddings(embeddings: torch.Tensor, hidden: int, spread: float) -> torch.Tensor:
    """Project word embeddings on their first principal axes.

    Args:
        embeddings: shape (tokens, teacher hidden).
        hidden: Axes to keep.
        spread: Standard deviation of the result.

    Returns:
        Shape (tokens, hidden), mean zero; inner products are kept as well as `hidden` axes can.
    """
    centred = embeddings.double() - embeddings.double().mean(0)
    projected = centred @ _axes(centred, hidden)
    # a random rotation shares the variance out, so that no axis rules the layer norm
    mix, _ = torch.linalg.qr(
        torch.randn(hidden, hidden, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    )
    mixed: torch.Tensor = projected @ mix
    return (mixed * (spread / mixed.std())).float()


def _axes(states: torch.Tensor, count: int) -> torch.Tensor:
    centred = states - states.mean(0)
    axes: torch.Tensor = torch.linalg.eigh(centred.T @ centred)[1]  # (hidden, hidden), ascending
    return axes[:, -count:]


def _identity(model: nn.Module) -> int:
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    return int.from_bytes(digest.digest()[:7], "big")


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
