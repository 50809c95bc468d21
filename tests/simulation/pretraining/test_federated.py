import gzip
import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import BertForMaskedLM

from coordinator.rounds.learning.memory import Memory
from edge_client.bases.base import open_base
from simulation.pretraining.checkpoint import Limits, PretrainError
from simulation.pretraining.corpus import Passage
from simulation.pretraining.course import CourseBatch, build_course
from simulation.pretraining.federated import (
    samples_of_rounds,
    server_step,
    train_federated,
    train_silo,
)
from simulation.pretraining.held_out import masked_score
from simulation.pretraining.silo import RECIPE, Silo, regrouped
from simulation.pretraining.student import new_student
from simulation.pretraining.vocabulary import build_vocabulary, wordpiece
from tests.breadth import first_fast
from tests.command_line import Done, smidgen

WORDS = {"en": ("the", "old", "river", "town", "wins"), "es": ("el", "viejo", "rio", "gana", "y")}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def passages(language: str, number: int) -> list[Passage]:
    rng = random.Random(number)
    texts = (" ".join(rng.choices(WORDS[language], k=8)) for _ in range(number))
    return [Passage(text, language, "made_up") for text in texts]


@pytest.fixture(scope="module")
def federation() -> tuple[Tokenizer, list[Silo]]:
    texts = {"en": passages("en", 90), "es": passages("es", 30)}
    tokens, _ = build_vocabulary([p.text for t in texts.values() for p in t], [False] * 120, 300)
    tokenizer = wordpiece(tokens)
    return tokenizer, [
        Silo(language, build_course(own, tokenizer, None, 128, 1, seed=0))
        for language, own in texts.items()
    ]


def tiny_student(tokenizer: Tokenizer) -> BertForMaskedLM:
    return new_student(tokenizer.get_vocab_size(), hidden=32, layers=1, seed=3)


def test_the_server_s_adam_is_torch_s() -> None:
    torch.manual_seed(0)
    theirs = torch.nn.Parameter(torch.randn(5, 3))
    ours = {"w": theirs.detach().clone()}
    memory: Memory = {}
    optimizer = torch.optim.Adam([theirs], lr=1.0)
    for server_lr in (3e-4, 2e-4, 1e-4, 5e-5):
        delta = torch.randn(5, 3)
        theirs.grad = -delta  # the pseudo-gradient's sign
        optimizer.param_groups[0]["lr"] = server_lr
        optimizer.step()
        ours, memory = server_step(ours, {"w": delta.numpy()}, memory, server_lr)
        # the same operations in another order: the last bits
        torch.testing.assert_close(ours["w"], theirs.detach(), rtol=1e-6, atol=1e-7)


def ids_of(batches: Sequence[CourseBatch]) -> list[list[list[int]]]:
    return [batch.student.ids.tolist() for batch in batches]


@pytest.mark.parametrize("times", [1, 20])
def test_a_round_draws_as_many_samples_of_a_small_silo_as_of_a_large_one(
    federation: tuple[Tokenizer, list[Silo]], times: int
) -> None:
    silo = Silo("es", [batch for _ in range(times) for batch in federation[1][1].course])
    assert silo.num_examples == 30 * times
    drawn = silo.batches_of(1, seed=0)
    assert sum(len(batch.student.ids) for batch in drawn) == RECIPE.least_samples == 500
    assert max(batch.student.ids.numel() for batch in drawn) <= 128  # the course's batches
    assert ids_of(drawn) == ids_of(silo.batches_of(1, seed=0))
    assert ids_of(drawn) != ids_of(silo.batches_of(2, seed=0))


def test_samples_that_are_grouped_anew_are_the_samples_that_they_were(
    federation: tuple[Tokenizer, list[Silo]],
) -> None:
    course = federation[1][0].course
    samples = sum(len(batch.student.ids) for batch in course)
    again = regrouped(course, [*range(samples), 0, 0], 128)
    expected = Counter(sample for batch in course for sample in samples_in(batch))
    [first] = samples_in(regrouped(course, [0], 128)[0])
    expected[first] += 2
    assert Counter(sample for batch in again for sample in samples_in(batch)) == expected


def samples_in(batch: CourseBatch) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Each sample's ids, the columns of its masks and the tokens behind them."""
    reading = batch.student
    for row, length in enumerate(reading.attention.sum(dim=1).tolist()):
        own = reading.rows == row
        parts = reading.ids[row, :length], reading.columns[own], batch.gold[own]
        yield tuple(tuple(part.tolist()) for part in parts)


def test_a_delta_is_trained_minus_received(federation: tuple[Tokenizer, list[Silo]]) -> None:
    tokenizer, silos = federation
    student = tiny_student(tokenizer)
    weights = {name: p.detach().clone() for name, p in student.named_parameters()}
    delta, _ = train_silo(student, weights, silos[0].course[:2])
    for name, parameter in student.named_parameters():
        torch.testing.assert_close(weights[name] + delta[name], parameter.detach())
        assert bool(delta[name].any())


@pytest.mark.slow
def test_federation_lowers_the_perplexity_in_every_silo(
    federation: tuple[Tokenizer, list[Silo]], tmp_path: Path
) -> None:
    tokenizer, silos = federation
    student = tiny_student(tokenizer)
    judged = {language: passages(language, 25) for language in WORDS}
    before = {k: masked_score(student, tokenizer, p).perplexity for k, p in judged.items()}
    train_federated(student, silos, Limits(steps=10), 0, tmp_path / "c.pt")
    after = {k: masked_score(student, tokenizer, p).perplexity for k, p in judged.items()}
    assert all(after[language] < 0.8 * before[language] for language in WORDS)


@pytest.mark.slow
def test_a_resumed_federation_ends_in_the_same_weights(
    federation: tuple[Tokenizer, list[Silo]], tmp_path: Path
) -> None:
    tokenizer, silos = federation
    whole, parts, again = (tiny_student(tokenizer) for _ in range(3))
    limits = Limits(steps=4)
    train_federated(whole, silos, limits, 0, tmp_path / "whole.pt")
    train_federated(parts, silos, limits, 0, tmp_path / "parts.pt", stop_after=2)
    run = train_federated(again, silos, limits, 0, tmp_path / "parts.pt")
    assert run.step == 4 and samples_of_rounds(silos, 4) == 4 * 2 * 500
    assert all(
        torch.equal(a, b) for a, b in zip(whole.parameters(), again.parameters(), strict=True)
    )


def test_a_checkpoint_of_other_silos_is_refused(
    federation: tuple[Tokenizer, list[Silo]], tmp_path: Path
) -> None:
    tokenizer, silos = federation
    limits = Limits(steps=1)
    train_federated(tiny_student(tokenizer), silos, limits, 0, tmp_path / "c.pt")
    with pytest.raises(PretrainError, match="delete it or choose another --out"):
        train_federated(tiny_student(tokenizer), silos[:1], limits, 0, tmp_path / "c.pt")


def write_news(data: Path) -> None:
    folder = data / "text_wiki_news_parallel"
    folder.mkdir(parents=True)
    for language in WORDS:
        with gzip.open(folder / f"{language}.txt.gz", "wt", encoding="utf-8") as file:
            file.writelines(f"{passage.text}\n" for passage in passages(language, 80))


def call(data: Path, out: Path, *more: str) -> Done:
    typed = ["--data", str(data), "--out", str(out), "--steps", "2", "--threads", "1", "--json"]
    return smidgen("simulate", "pretrain", *typed, *more)


@pytest.mark.parametrize("more", first_fast([(), ("--federated",)]))
def test_the_command_writes_a_multilingual_base_that_opens(
    more: tuple[str, ...], tmp_path: Path
) -> None:
    write_news(tmp_path / "data")
    out = tmp_path / "base"
    done = call(tmp_path / "data", out, "--languages", "en,es", *more)
    assert done.exit_code == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["steps"] == 2 and bool(report["silos"]) == bool(more)
    assert report["samples_seen"] > 0
    card = (out / "README.md").read_text()
    assert " ".join(("--languages en,es", *more, "--out base")) in card
    assert ("**Federated**: 2 silos" in card) == bool(more)
    assert str(tmp_path) not in card
    assert open_base(str(out)).hidden == 192


def test_a_federation_without_languages_is_refused(tmp_path: Path) -> None:
    done = call(tmp_path, tmp_path / "base", "--federated")
    assert done.exit_code == 2 and "name them: --languages all" in done.stderr


def test_a_teacher_of_many_languages_is_refused(tmp_path: Path) -> None:
    done = call(tmp_path, tmp_path / "b", "--teacher", "t", "--languages", "all")
    assert done.exit_code == 2 and "leave it out, or --languages" in done.stderr
