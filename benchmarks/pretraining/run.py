"""Pretrains a base from open texts: a request, the course made from it, the base's folder.

request = Request(Path("data"), Path("base"), steps=1000)
facts = pretrain(request, read_texts(request), on_step=print)
"""

import platform
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import BertForMaskedLM
from transformers.utils import logging as transformers_logging

from benchmarks.pretraining.card import CardFacts, card_of, write_base
from benchmarks.pretraining.checkpoint import Limits, PretrainError, Progress
from benchmarks.pretraining.corpus import Corpus, Passage, read_corpus
from benchmarks.pretraining.course import CourseBatch, build_course
from benchmarks.pretraining.held_out import LONGEST, TOPICS, masked_score, read_news, zero_shot
from benchmarks.pretraining.neighbours import start_from_counts
from benchmarks.pretraining.recipes import Recipe, recipe_of, smoothed
from benchmarks.pretraining.student import (
    SPREAD,
    Teacher,
    new_student,
    samples_seen,
    start_from_teacher,
    train,
)
from benchmarks.pretraining.vocabulary import (
    build_vocabulary,
    read_tokenizer,
    token_list,
    wordpiece,
)
from smidgen.edge_client.texts.tokens import Tokens

BATCH_TOKENS = 2048
MASKINGS = 1
AXES_BATCHES = 12


@dataclass(frozen=True)
class Request:
    """A base to train; equal requests on equal texts and machines give equal weights.

    Attributes:
        data: Folder of data sets.
        out: Folder of the base; `OUT.work` holds the checkpoint that training goes on from.
        teacher: Folder of a BERT to learn from; None: only the text teaches.
        languages: `all`, or names with commas between them; None: the embedded base.
        steps: Optimizer steps.
        minutes: Training time, instead of steps.
        seed: Root seed.
        threads: Processor threads.

    Raises:
        PretrainError: Values that exclude each other, or a language without texts.
    """

    data: Path
    out: Path
    teacher: Path | None = None
    languages: str | None = None
    steps: int | None = None
    minutes: float | None = None
    seed: int = 0
    threads: int = 2

    def __post_init__(self) -> None:
        _ = self.limits, self.recipe  # both refuse what cannot be

    @property
    def limits(self) -> Limits:
        return Limits(self.steps, None if self.minutes is None else 60.0 * self.minutes)

    @property
    def recipe(self) -> Recipe:
        if self.languages and self.teacher:
            raise PretrainError(
                "--teacher answers in English and teaches the embedded base only; leave it out, or "
                "--languages"
            )
        return recipe_of(self.languages)

    @property
    def command(self) -> str:
        """What to type for it, without paths of the machine."""
        length = f"--steps {self.steps}" if self.steps else f"--minutes {self.minutes:g}"
        taught = f"--teacher models/{self.teacher.name} " if self.teacher else ""
        taught += f"--languages {self.languages} " if self.languages else ""
        return (
            f"python -m benchmarks pretrain --data data {taught}--out base {length} "
            f"--seed {self.seed} --threads {self.threads}"
        )


@dataclass(frozen=True)
class Lesson:
    """What is learned, and by whom.

    Attributes:
        student: The model, on its device.
        tokenizer: The student's tokenizer.
        teacher: What answers the masks too; None: only the text teaches.
        course: All batches.
    """

    student: BertForMaskedLM
    tokenizer: Tokenizer
    course: Sequence[CourseBatch]
    teacher: Teacher | None = None


def read_texts(request: Request) -> Corpus:
    """Read the texts that a request's recipe names.

    Raises:
        CorpusError: No set of them is there, or one cannot be read.
        PretrainError: A language has no text.
    """
    corpus = read_corpus(request.data, request.recipe.sources)
    read = {passage.language for passage in corpus.training}
    is_named = request.languages not in (None, "all")  # of all those that are there will do
    missing = [name for name in request.recipe.languages if name not in read]
    if missing and (is_named or not read):
        said = "leave it out of --languages, or give a data folder with some (--data)"
        raise PretrainError(f"no text in {missing[0]!r} is there; {said}")
    return corpus


def pretrain(
    request: Request, corpus: Corpus, on_step: Callable[[Progress], None] = lambda run: None
) -> CardFacts:
    """Train a base, from its checkpoint if there is one, and write its folder.

    Args:
        request: What to train.
        corpus: The texts of `read_texts`.
        on_step: Called after each step.

    Raises:
        PretrainError: The checkpoint is of another run, or the teacher's folder has no tokenizer.
    """
    torch.set_num_threads(request.threads)
    transformers_logging.disable_progress_bar()
    recipe, seed = request.recipe, request.seed
    if request.teacher:
        lesson = taught_lesson(corpus, recipe, request.teacher, seed)
    else:
        lesson = plain_lesson(corpus, recipe, seed)
    checkpoint = request.out.with_name(f"{request.out.name}.work") / "checkpoint.pt"
    run = train(
        lesson.student, lesson.course, lesson.teacher, request.limits, seed, checkpoint, on_step
    )
    facts = _facts(request, corpus, lesson, run)
    _write(request, lesson, facts)
    facts = _judged(request, corpus, lesson, facts)
    _write(request, lesson, facts)
    return facts


def taught_lesson(corpus: Corpus, recipe: Recipe, teacher_folder: Path, seed: int) -> Lesson:
    """A course that a teacher has answers to; the student starts from its embeddings.

    Raises:
        PretrainError: The folder has no tokenizer.
    """
    if not (teacher_folder / "tokenizer.json").is_file():
        raise PretrainError(f"no tokenizer.json in {teacher_folder}; --teacher wants a BERT folder")
    known = read_tokenizer(teacher_folder)
    tokens, shared = _vocabulary(corpus.training, recipe, token_list(known))
    tokenizer = wordpiece(tokens)
    course = build_course(corpus.training, tokenizer, known, BATCH_TOKENS, MASKINGS, seed)
    student = new_student(len(tokens), seed=seed)
    teacher = Teacher(teacher_folder, tokens[:shared], _device())
    start_from_teacher(student, teacher, seed)
    read = [batch.teacher for batch in course if batch.teacher is not None]
    teacher.learn_axes(read[:: len(read) // AXES_BATCHES + 1], student.config.hidden_size)
    return Lesson(student.to(_device()), tokenizer, course, teacher)


def plain_lesson(corpus: Corpus, recipe: Recipe, seed: int) -> Lesson:
    """A course of texts alone; the embeddings start from their counts."""
    passages: Sequence[Passage] = corpus.training
    if recipe.exponent is not None:
        passages = smoothed(passages, recipe.exponent, seed)
    tokenizer = wordpiece(_vocabulary(passages, recipe)[0])
    student = new_student(tokenizer.get_vocab_size(), seed=seed)
    course = build_course(passages, tokenizer, None, BATCH_TOKENS, MASKINGS, seed)
    start_from_counts(student, course, SPREAD, seed)
    return Lesson(student.to(_device()), tokenizer, course)


def _vocabulary(
    passages: Sequence[Passage], recipe: Recipe, teacher: Sequence[str] = ()
) -> tuple[list[str], int]:
    texts = [passage.text for passage in passages]
    is_english = [passage.language == "en" for passage in passages]
    return build_vocabulary(texts, is_english, recipe.vocabulary, teacher)


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _facts(request: Request, corpus: Corpus, lesson: Lesson, run: Progress) -> CardFacts:
    seed = request.seed
    return CardFacts(
        sources=tuple(sorted({passage.source for passage in corpus.training})),
        absent=corpus.absent,
        passages=dict(Counter(passage.language for passage in corpus.training)),
        teacher=request.teacher.name if request.teacher else "",
        seed=seed,
        steps=run.step,
        batch_tokens=BATCH_TOKENS,
        course_batches=len(lesson.course),
        samples=sum(len(batch.student.ids) for batch in lesson.course),
        samples_seen=samples_seen(lesson.course, run.step, seed),
        elapsed_s=run.elapsed_s,
        hardware=_hardware(lesson.student.device),
        parameters=sum(parameter.numel() for parameter in lesson.student.parameters()),
        held_out={},
        news=(),
        news_rows=0,
    )


def _judged(request: Request, corpus: Corpus, lesson: Lesson, facts: CardFacts) -> CardFacts:
    """The facts with what the written base scores on texts that it was not trained on."""
    languages = request.recipe.languages
    news = read_news(request.data) if "en" in languages else []
    cut = (" ".join(one.text.split()[: LONGEST // 2]) for one in news)
    judged = {one: [p for p in corpus.held_out if p.language == one] for one in languages}
    judged["AG News"] = [Passage(text, "en", "ag_news") for text in cut]
    held_out = {
        what: masked_score(lesson.student, lesson.tokenizer, passages)
        for what, passages in judged.items()
        if passages
    }
    scores = zero_shot(lesson.student, Tokens(request.out), TOPICS, news) if news else []
    return replace(facts, held_out=held_out, news=tuple(scores), news_rows=len(news))


def _write(request: Request, lesson: Lesson, facts: CardFacts) -> None:
    card = card_of(facts, request.recipe, lesson.student, request.command)
    write_base(lesson.student, lesson.tokenizer, card, request.out)


def _hardware(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{torch.get_num_threads()} processor threads ({platform.machine()})"
