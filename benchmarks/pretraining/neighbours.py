"""Initial word embeddings from co-occurrence counts, for a base without a teacher.

Starting at random, a small masked language model spends thousands of steps predicting by frequency
alone (Devlin et al. 2019 could afford that). Counting co-occurrences takes seconds and skips them:
the principal axes of the positive pointwise mutual information (Levy and Goldberg 2014, Neural Word
Embedding as Implicit Matrix Factorization; contexts to the power 3/4, Levy, Goldberg and Dagan
2015). Counts are sums: silos can add theirs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional
from transformers import BertForMaskedLM

from benchmarks.pretraining.course import CourseBatch
from benchmarks.pretraining.vocabulary import SPECIALS
from smidgen.edge_client.wire.tensors import derive_seed

WINDOW = 5
CONTEXT_POWER = 0.75
PAIRS_AT_ONCE = 4_000_000
ITERATIONS = 4


@dataclass(frozen=True)
class Counts:
    """Tokens, and pairs of them at most `WINDOW` apart.

    Attributes:
        tokens: How often each occurs, float64, shape (vocabulary,).
        pairs: smaller id x vocabulary + larger id, ascending; int64, shape (pairs,).
        times: How often each pair occurs, float64, shape (pairs,).
    """

    tokens: torch.Tensor
    pairs: torch.Tensor
    times: torch.Tensor


def count(course: Sequence[CourseBatch], vocabulary: int) -> Counts:
    """Count a course's tokens and pairs, the words behind the masks too; specials do not count."""
    tokens = torch.zeros(vocabulary, dtype=torch.float64)
    pairs, times = torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.float64)
    waiting: list[torch.Tensor] = []
    for batch in course:
        ids = batch.student.ids.clone()
        known = batch.gold >= 0
        ids[batch.student.rows[known], batch.student.columns[known]] = batch.gold[known]
        words = ids[ids >= len(SPECIALS)]
        tokens += torch.bincount(words, minlength=vocabulary)
        waiting += _pairs_of(ids, vocabulary)
        if sum(len(part) for part in waiting) > PAIRS_AT_ONCE:
            pairs, times = _added(pairs, times, torch.cat(waiting))
            waiting = []
    if waiting:
        pairs, times = _added(pairs, times, torch.cat(waiting))
    return Counts(tokens, pairs, times)


def count_embeddings(counts: Counts, width: int, seed: int) -> torch.Tensor:
    """Unit rows whose inner products follow the tokens' common neighbours.

    Returns:
        float32, shape (vocabulary, width); zero where a token has no neighbour.
    """
    size = len(counts.tokens)
    one, other = counts.pairs // size, counts.pairs % size
    rows, columns = torch.cat([one, other]), torch.cat([other, one])
    times = counts.times.repeat(2)
    totals = torch.zeros(size, dtype=torch.float64).index_add_(0, rows, times)
    contexts = totals**CONTEXT_POWER
    information = (times * contexts.sum() / (totals[rows] * contexts[columns])).log()
    kept = information > 0
    matrix = torch.sparse_coo_tensor(
        torch.stack([rows[kept], columns[kept]]),
        information[kept].float(),
        (size, size),
        check_invariants=False,
    ).coalesce()
    axes = functional.normalize(_principal(matrix, min(width, size), seed), dim=1)
    axes = axes * (totals > 0).unsqueeze(1)  # an empty row's axes are rounding errors
    return functional.pad(axes, (0, width - axes.shape[1]))


@torch.no_grad()
def start_from_counts(
    student: BertForMaskedLM, course: Sequence[CourseBatch], spread: float, seed: int
) -> None:
    """Give the student embeddings from counted neighbours and output biases from frequencies.

    Args:
        student: Changed in place, on the CPU. Tokens without neighbours keep what they have.
        course: What is counted.
        spread: Root mean square of an embedding's numbers.
        seed: Root of the search for the principal axes.
    """
    table = student.get_input_embeddings().weight
    counts = count(course, len(table))
    rows = count_embeddings(counts, table.shape[1], seed) * spread * table.shape[1] ** 0.5
    table.copy_(torch.where(rows.any(1, keepdim=True), rows, table))
    shares = (counts.tokens + 0.5) / (counts.tokens + 0.5).sum()
    student.get_output_embeddings().bias.copy_(shares.log())


def _pairs_of(ids: torch.Tensor, vocabulary: int) -> Iterator[torch.Tensor]:
    for distance in range(1, min(WINDOW + 1, ids.shape[1])):
        left, right = ids[:, :-distance], ids[:, distance:]
        are_words = (left >= len(SPECIALS)) & (right >= len(SPECIALS))
        one, other = left[are_words], right[are_words]
        yield torch.minimum(one, other) * vocabulary + torch.maximum(one, other)


def _added(
    pairs: torch.Tensor, times: torch.Tensor, new: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    found, often = new.unique(return_counts=True)
    merged, where = torch.cat([pairs, found]).unique(return_inverse=True)
    both = torch.cat([times, often.double()])
    return merged, torch.zeros(len(merged), dtype=torch.float64).index_add_(0, where, both)


def _principal(matrix: torch.Tensor, width: int, seed: int) -> torch.Tensor:
    """A symmetric matrix's first axes times the root of their weight, by subspace iteration."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "axes"))
    basis = torch.linalg.qr(torch.randn(matrix.shape[0], width, generator=generator))[0]
    for _ in range(ITERATIONS):
        basis = torch.linalg.qr(matrix @ basis)[0]
    _, weights, right = torch.linalg.svd((matrix @ basis).T, full_matrices=False)
    axes: torch.Tensor = right.T * weights.sqrt()
    return axes
