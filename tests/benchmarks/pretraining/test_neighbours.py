import random

import torch

from benchmarks.pretraining.corpus import Passage
from benchmarks.pretraining.course import CourseBatch, build_course
from benchmarks.pretraining.neighbours import (
    WINDOW,
    Counts,
    count,
    count_embeddings,
    start_from_counts,
)
from benchmarks.pretraining.student import new_student
from benchmarks.pretraining.vocabulary import build_vocabulary, wordpiece

DAY, NIGHT = ("sun", "noon", "bright", "warm", "light"), ("moon", "stars", "dark", "cold", "owl")


def lesson() -> tuple[list[str], list[str], list[CourseBatch]]:
    rng = random.Random(0)
    texts = [" ".join(rng.choices(rng.choice((DAY, NIGHT)), k=8)) for _ in range(200)]
    tokens, _ = build_vocabulary(texts, [True] * len(texts), 300)
    passages = [Passage(text, "en", "made_up") for text in texts]
    return texts, tokens, build_course(passages, wordpiece(tokens), None, 256, 1, seed=0)


def as_table(counts: Counts) -> dict[int, float]:
    return dict(zip(counts.pairs.tolist(), counts.times.tolist(), strict=True))


def test_pairs_are_counted_with_the_words_behind_the_masks() -> None:
    texts, tokens, course = lesson()
    expected: dict[int, float] = {}
    for text in texts:
        ids = [tokens.index(word) for word in text.split()]
        for at, one in enumerate(ids):
            for other in ids[at + 1 : at + 1 + WINDOW]:
                pair = min(one, other) * len(tokens) + max(one, other)
                expected[pair] = expected.get(pair, 0) + 1
    assert as_table(count(course, len(tokens))) == expected


def test_counts_of_silos_add_up_to_the_whole_s() -> None:
    _, tokens, course = lesson()
    whole = count(course, len(tokens))
    parts = [count(course[:4], len(tokens)), count(course[4:], len(tokens))]
    both = {pair: 0.0 for part in parts for pair in as_table(part)}
    for part in parts:
        for pair, times in as_table(part).items():
            both[pair] += times
    assert both == as_table(whole)
    torch.testing.assert_close(parts[0].tokens + parts[1].tokens, whole.tokens)


def test_words_of_the_same_company_lie_close() -> None:
    _, tokens, course = lesson()
    rows = count_embeddings(count(course, len(tokens)), 2, seed=0)
    sun, noon, moon = (rows[tokens.index(word)] for word in ("sun", "noon", "moon"))
    assert sun @ noon > 0.8 > 0.2 > sun @ moon


def test_a_start_from_counts_is_the_same_twice_and_keeps_unseen_tokens() -> None:
    _, tokens, course = lesson()
    random_table = new_student(len(tokens), hidden=32, layers=1).get_input_embeddings().weight
    students = [new_student(len(tokens), hidden=32, layers=1) for _ in range(2)]
    for student in students:
        start_from_counts(student, course, spread=0.06, seed=1)
    one, other = (student.get_input_embeddings().weight for student in students)
    assert torch.equal(one, other) and torch.equal(one[:5], random_table[:5])
    assert not torch.equal(one[tokens.index("sun")], random_table[tokens.index("sun")])
