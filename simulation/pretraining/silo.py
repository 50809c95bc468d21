"""A silo: the texts of one language, and what it learns from in one round.

What a round draws is what a device draws (`edge_client.labelling.drawn_texts`), by the numbers of
the preset `silos`: samples uniformly and with replacement. They come from the batches of a course
that is masked once and for all, and are grouped by length anew.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from coordinator.presets import SILOS
from edge_client.labelling.drawn_texts import sampled
from edge_client.wire.seeds import derive_seed
from edge_client.wire.training import Training
from simulation.pretraining.course import CourseBatch, Masked, groups_of

RECIPE = Training(**SILOS["training"])


@dataclass(frozen=True)
class Silo:
    """The texts of one language.

    Attributes:
        language: The name of the language.
        course: The silo's batches, none of which a teacher answers.
    """

    language: str
    course: Sequence[CourseBatch]

    @property
    def num_examples(self) -> int:
        """Samples of its course: the silo's weight."""
        return sum(len(batch.student.ids) for batch in self.course)

    def batches_of(self, round_index: int, seed: int) -> list[CourseBatch]:
        """What it learns from in a round: max(500, 0.8e-4 N) of its N samples, drawn.

        In batches about as large as the course's, in an order of the round's own. Depends on
        nothing but the language, the round and the seed: a silo keeps no state.
        """
        derived = derive_seed(seed, "train", self.language, round_index)
        rows = sampled(self.num_examples, RECIPE, derived)
        most = max(batch.student.ids.numel() for batch in self.course)
        batches = regrouped(self.course, rows, most)
        generator = np.random.Generator(np.random.PCG64(derived))
        return [batches[index] for index in generator.permutation(len(batches))]


@dataclass(frozen=True)
class _Sample:
    """One text as the student reads it: ids without padding, its masks, and what is behind them."""

    ids: torch.Tensor
    columns: torch.Tensor
    gold: torch.Tensor


def regrouped(
    course: Sequence[CourseBatch], rows: Sequence[int], batch_tokens: int
) -> list[CourseBatch]:
    """Batches of some of a course's samples, grouped by length as the course's own are.

    A batch that has nothing to answer is left out, as it is in a course.

    Args:
        course: Batches without a teacher.
        rows: Numbers of samples, counted through the course; one may come several times.
        batch_tokens: Tokens in a batch, padding included, at most.
    """
    ends = np.cumsum([len(batch.student.ids) for batch in course])
    samples = sorted((_sample(course, ends, row) for row in rows), key=lambda one: len(one.ids))
    groups = groups_of([len(one.ids) for one in samples], batch_tokens)
    batches = [_joined(samples[group.start : group.stop]) for group in groups]
    return [batch for batch in batches if len(batch.gold)]


def _sample(course: Sequence[CourseBatch], ends: np.ndarray, row: int) -> _Sample:
    index = int(np.searchsorted(ends, row, side="right"))
    batch, reading = course[index], course[index].student
    own = row - int(ends[index]) + len(reading.ids)
    is_own = reading.rows == own
    ids = reading.ids[own, : int(reading.attention[own].sum())]
    return _Sample(ids, reading.columns[is_own], batch.gold[is_own])


def _joined(samples: Sequence[_Sample]) -> CourseBatch:
    lengths = torch.tensor([len(one.ids) for one in samples])
    masks = torch.tensor([len(one.columns) for one in samples])
    gold = torch.cat([one.gold for one in samples])
    ids = pad_sequence([one.ids for one in samples], batch_first=True)  # what pads is not read
    reading = Masked(
        ids=ids,
        attention=(torch.arange(ids.shape[1]) < lengths[:, None]).long(),
        rows=torch.repeat_interleave(torch.arange(len(samples)), masks),
        columns=torch.cat([one.columns for one in samples]),
        common=torch.empty(0, dtype=torch.int64),
    )
    return CourseBatch(reading, gold, torch.zeros(len(gold), dtype=torch.bool), None)
