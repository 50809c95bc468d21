"""Training a base from open texts: what `smidgen simulate pretrain` does, and says."""

import json
import platform
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Table
from transformers.utils import logging as transformers_logging

from edge_client.texts.tokens import Tokens
from simulation.pretraining.card import CardFacts, card_of, write_base
from simulation.pretraining.card_text import multilingual_card
from simulation.pretraining.checkpoint import Limits, PretrainError, Progress
from simulation.pretraining.corpus import Corpus, CorpusError, read_corpus
from simulation.pretraining.held_out import TOPICS, masked_score, read_news, zero_shot
from simulation.pretraining.lesson import (
    BATCH_TOKENS,
    SILO_BATCH_TOKENS,
    Lesson,
    plain_lesson,
    taught_lesson,
)
from simulation.pretraining.recipes import Recipe, recipe_of


def pretrain(
    data: Path,
    out: Path,
    teacher: Path | None,
    languages: str | None,
    federated: bool,
    steps: int | None,
    minutes: float | None,
    seed: int,
    threads: int,
    json_output: bool,
) -> None:
    """Train a base as `smidgen simulate pretrain --help` says; goes on from OUT.work."""
    torch.set_num_threads(threads)
    transformers_logging.disable_progress_bar()
    try:
        limits = Limits(steps, None if minutes is None else 60.0 * minutes)
        recipe = _recipe(languages, teacher, federated)
        corpus = read_corpus(data, recipe.sources)
        for source in corpus.absent:
            print(f"skipped: no {source} in {data}", file=sys.stderr)
        if teacher:
            lesson = taught_lesson(corpus, recipe, teacher, seed)
        else:
            lesson = plain_lesson(corpus, recipe, seed, federated)
        run = _train(lesson, limits, seed, out.with_name(f"{out.name}.work") / "checkpoint.pt")
    except (CorpusError, PretrainError) as error:
        print(f"smidgen simulate pretrain: {error}", file=sys.stderr)
        raise typer.Exit(2) from error
    report = _report(corpus, lesson, run, teacher.name if teacher else "", seed)
    made = _command(languages, federated, teacher, steps, minutes, seed, threads)
    write_base(lesson.student, lesson.tokenizer, _card(report, recipe, lesson, made), out)
    report = _judge(report, recipe.languages, lesson, corpus, data, out)
    write_base(lesson.student, lesson.tokenizer, _card(report, recipe, lesson, made), out)
    _print(report)
    if json_output:
        print(json.dumps(report.as_json()))


def _recipe(languages: str | None, teacher: Path | None, is_federated: bool) -> Recipe:
    if languages and teacher:
        raise PretrainError(
            "--teacher answers in English and teaches the embedded base only; leave it out, or "
            "--languages"
        )
    if is_federated and not languages:
        raise PretrainError("--federated makes a silo of a language; name them: --languages all")
    return recipe_of(languages)


def _train(lesson: Lesson, limits: Limits, seed: int, checkpoint: Path) -> Progress:
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Bar(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("training", total=1.0)

        def show(run: Progress) -> None:
            text = f"step {run.step:,}  loss {run.loss:.3f}"
            bar.update(task, completed=run.progress, description=text)

        return lesson.learn(limits, seed, checkpoint, show)


def _report(corpus: Corpus, lesson: Lesson, run: Progress, teacher: str, seed: int) -> CardFacts:
    return CardFacts(
        sources=tuple(sorted({passage.source for passage in corpus.training})),
        absent=corpus.absent,
        passages=dict(Counter(passage.language for passage in corpus.training)),
        teacher=teacher,
        seed=seed,
        steps=run.step,
        batch_tokens=SILO_BATCH_TOKENS if lesson.silos else BATCH_TOKENS,
        course_batches=len(lesson.batches),
        samples=sum(len(batch.student.ids) for batch in lesson.batches),
        samples_seen=lesson.samples_seen(run.step, seed),
        silos={silo.language: silo.num_examples for silo in lesson.silos},
        elapsed_s=run.elapsed_s,
        hardware=_hardware(lesson.student.device),
        parameters=sum(parameter.numel() for parameter in lesson.student.parameters()),
        held_out={},
        news=(),
        news_rows=0,
    )


def _judge(
    report: CardFacts,
    languages: Sequence[str],
    lesson: Lesson,
    corpus: Corpus,
    data: Path,
    out: Path,
) -> CardFacts:
    held_out = {}
    for language in languages:
        passages = [passage for passage in corpus.held_out if passage.language == language]
        if passages:
            held_out[language] = masked_score(lesson.student, lesson.tokenizer, passages)
    news = read_news(data) if "en" in languages else []
    scores = zero_shot(lesson.student, Tokens(out), TOPICS, news) if news else []
    return replace(report, held_out=held_out, news=tuple(scores), news_rows=len(news))


def _card(report: CardFacts, recipe: Recipe, lesson: Lesson, made: str) -> str:
    if recipe.is_embedded:
        return card_of(report, lesson.student, made)
    return multilingual_card(report, recipe, lesson.student, made)


def _command(
    languages: str | None,
    federated: bool,
    teacher: Path | None,
    steps: int | None,
    minutes: float | None,
    seed: int,
    threads: int,
) -> str:
    length = f"--steps {steps}" if steps else f"--minutes {minutes:g}"
    taught = f"--teacher models/{teacher.name} " if teacher else ""
    taught += f"--languages {languages} " if languages else ""
    taught += "--federated " if federated else ""
    return (
        f"smidgen simulate pretrain --data data {taught}--out base {length} "
        f"--seed {seed} --threads {threads}"
    )


def _hardware(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{torch.get_num_threads()} processor threads ({platform.machine()})"


def _print(report: CardFacts) -> None:
    table = Table("held out", "masks", "top-1", "perplexity", "a word", "bits a character")
    for language, score in report.held_out.items():
        table.add_row(
            language,
            f"{score.masks:,}",
            f"{score.top_1:.1%}",
            f"{score.perplexity:.1f}",
            f"{score.word_perplexity:,.0f}",
            f"{score.bits_per_character:.2f}",
        )
    Console().print(table)
    if report.news:
        table = Table("AG News zero-shot", "plain", "calibrated")
        for asked in report.news:
            table.add_row(asked.pattern, f"{asked.plain:.1%}", f"{asked.calibrated:.1%}")
        Console().print(table)
