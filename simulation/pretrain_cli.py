"""`smidgen simulate pretrain`: train the embedded base from a folder of open texts."""

import json
import platform
import sys
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from tokenizers import Tokenizer
from transformers import BertForMaskedLM
from transformers.utils import logging as transformers_logging

from edge_client.tokens import Tokens
from simulation.corpus import LANGUAGES, Corpus, CorpusError, read_corpus
from simulation.course import Batch, build_course
from simulation.distill import Teacher
from simulation.held_out import TOPICS, masked_score, read_news, zero_shot
from simulation.model_card import Report, card_of, write_base
from simulation.pretrain import (
    Limits,
    PretrainError,
    Run,
    new_student,
    start_from_teacher,
    train,
)
from simulation.vocabulary import build_vocabulary, read_tokenizer, token_list, wordpiece

VOCABULARY = 20_000
BATCH_TOKENS = 2048
MASKINGS = 1
AXES_BATCHES = 12


def pretrain(
    data: Annotated[Path, typer.Option(help="Folder of data sets.")],
    out: Annotated[Path, typer.Option(help="Folder of the base; OUT.work holds checkpoints.")],
    teacher: Annotated[Path | None, typer.Option(help="Folder of a BERT to learn from.")] = None,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps.")] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Training time, instead of --steps.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Root seed.")] = 0,
    threads: Annotated[int, typer.Option(help="Processor threads.")] = 2,
    json_output: Annotated[
        bool, typer.Option("--json", help="Last line of stdout: one JSON object.")
    ] = False,
) -> None:
    """Train the embedded base; goes on from OUT.work when it was interrupted."""
    torch.set_num_threads(threads)
    transformers_logging.disable_progress_bar()
    try:
        limits = Limits(steps, None if minutes is None else 60.0 * minutes)
        corpus = read_corpus(data)
        for source in corpus.absent:
            print(f"skipped: no {source} in {data}", file=sys.stderr)
        lesson = _prepare(corpus, teacher, seed)
        run = _train(lesson, limits, seed, out.with_name(f"{out.name}.work") / "checkpoint.pt")
    except (CorpusError, PretrainError) as error:
        print(f"smidgen simulate pretrain: {error}", file=sys.stderr)
        raise typer.Exit(2) from error
    report = _report(corpus, lesson, run, teacher.name if teacher else "", seed)
    command = _command(teacher, steps, minutes, seed, threads)
    write_base(lesson.student, lesson.tokenizer, card_of(report, lesson.student, command), out)
    report = _judge(report, lesson.student, lesson.tokenizer, corpus, data, out)
    write_base(lesson.student, lesson.tokenizer, card_of(report, lesson.student, command), out)
    _print(report)
    if json_output:
        print(json.dumps(report.as_json()))


@dataclass(frozen=True)
class _Lesson:
    student: BertForMaskedLM
    tokenizer: Tokenizer
    teacher: Teacher | None
    course: list[Batch]


def _prepare(corpus: Corpus, teacher_folder: Path | None, seed: int) -> _Lesson:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if teacher_folder and not (teacher_folder / "tokenizer.json").is_file():
        raise PretrainError(f"no tokenizer.json in {teacher_folder}; --teacher wants a BERT folder")
    known = read_tokenizer(teacher_folder) if teacher_folder else None
    tokens, shared = build_vocabulary(
        [passage.text for passage in corpus.training],
        [passage.language == "en" for passage in corpus.training],
        VOCABULARY,
        token_list(known) if known else (),
    )
    tokenizer = wordpiece(tokens)
    course = build_course(corpus.training, tokenizer, known, BATCH_TOKENS, MASKINGS, seed)
    student = new_student(len(tokens), seed=seed)
    teacher = None
    if teacher_folder:
        teacher = Teacher(teacher_folder, tokens[:shared], device)
        start_from_teacher(student, teacher, seed)
        read = [batch.teacher for batch in course if batch.teacher is not None]
        teacher.learn_axes(read[:: len(read) // AXES_BATCHES + 1], student.config.hidden_size)
    return _Lesson(student.to(device), tokenizer, teacher, course)


def _train(lesson: _Lesson, limits: Limits, seed: int, checkpoint: Path) -> Run:
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("training", total=1.0)

        def show(run: Run) -> None:
            text = f"step {run.step:,}  loss {run.loss:.3f}"
            bar.update(task, completed=run.progress, description=text)

        return train(lesson.student, lesson.course, lesson.teacher, limits, seed, checkpoint, show)


def _report(corpus: Corpus, lesson: _Lesson, run: Run, teacher: str, seed: int) -> Report:
    return Report(
        sources=tuple(sorted({passage.source for passage in corpus.training})),
        absent=corpus.absent,
        passages=dict(Counter(passage.language for passage in corpus.training)),
        teacher=teacher,
        seed=seed,
        steps=run.step,
        batch_tokens=BATCH_TOKENS,
        course_batches=len(lesson.course),
        elapsed_s=run.elapsed_s,
        hardware=_hardware(lesson.student.device),
        parameters=sum(parameter.numel() for parameter in lesson.student.parameters()),
        held_out={},
        news=(),
        news_rows=0,
    )


def _judge(
    report: Report,
    student: BertForMaskedLM,
    tokenizer: Tokenizer,
    corpus: Corpus,
    data: Path,
    out: Path,
) -> Report:
    held_out = {}
    for language in LANGUAGES:
        passages = [passage for passage in corpus.held_out if passage.language == language]
        if passages:
            held_out[language] = masked_score(student, tokenizer, passages)
    news = read_news(data)
    scores = zero_shot(student, Tokens(out), TOPICS, news) if news else []
    return replace(report, held_out=held_out, news=tuple(scores), news_rows=len(news))


def _command(
    teacher: Path | None, steps: int | None, minutes: float | None, seed: int, threads: int
) -> str:
    length = f"--steps {steps}" if steps else f"--minutes {minutes:g}"
    taught = f"--teacher models/{teacher.name} " if teacher else ""
    return (
        f"smidgen simulate pretrain --data data {taught}--out base {length} "
        f"--seed {seed} --threads {threads}"
    )


def _hardware(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{torch.get_num_threads()} processor threads ({platform.machine()})"


def _print(report: Report) -> None:
    table = Table("held out", "masks", "top-1", "perplexity")
    for language, score in report.held_out.items():
        table.add_row(language, f"{score.masks:,}", f"{score.top_1:.1%}", f"{score.perplexity:.1f}")
    Console().print(table)
    if report.news:
        table = Table("AG News zero-shot", "plain", "calibrated")
        for asked in report.news:
            table.add_row(asked.pattern, f"{asked.plain:.1%}", f"{asked.calibrated:.1%}")
        Console().print(table)
