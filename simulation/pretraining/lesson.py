"""What a base is trained on and how: the student, its tokenizer, and one course or many silos."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import BertForMaskedLM

from simulation.pretraining.checkpoint import Limits, PretrainError, Progress
from simulation.pretraining.corpus import Corpus, Passage
from simulation.pretraining.course import CourseBatch, build_course
from simulation.pretraining.federated import samples_of_rounds, train_federated
from simulation.pretraining.neighbours import start_from_counts
from simulation.pretraining.recipes import Recipe
from simulation.pretraining.silo import Silo
from simulation.pretraining.student import (
    SPREAD,
    new_student,
    samples_seen,
    start_from_teacher,
    train,
)
from simulation.pretraining.teacher import Teacher
from simulation.pretraining.texts import smoothed
from simulation.pretraining.vocabulary import (
    build_vocabulary,
    read_tokenizer,
    token_list,
    wordpiece,
)

BATCH_TOKENS = 2048
SILO_BATCH_TOKENS = 512  # a silo has a few hundred samples a round to make steps of
MASKINGS = 1
AXES_BATCHES = 12


@dataclass(frozen=True)
class Lesson:
    """Ready to be learned.

    Attributes:
        student: The model, on its device.
        tokenizer: Its tokenizer.
        teacher: Or None: then only the text teaches.
        course: Its batches; empty where it is federated.
        silos: A language each; empty where it is not.
    """

    student: BertForMaskedLM
    tokenizer: Tokenizer
    teacher: Teacher | None = None
    course: Sequence[CourseBatch] = ()
    silos: Sequence[Silo] = ()

    @property
    def batches(self) -> list[CourseBatch]:
        """All batches, of all silos too."""
        return [*self.course, *(batch for silo in self.silos for batch in silo.course)]

    def learn(
        self, limits: Limits, seed: int, checkpoint: Path, on_step: Callable[[Progress], None]
    ) -> Progress:
        """Train the student, from the checkpoint if there is one."""
        if self.silos:
            return train_federated(self.student, self.silos, limits, seed, checkpoint, on_step)
        return train(self.student, self.course, self.teacher, limits, seed, checkpoint, on_step)

    def samples_seen(self, steps: int, seed: int) -> int:
        """How many samples the first steps (or rounds) read."""
        if self.silos:
            return samples_of_rounds(self.silos, steps, seed)
        return samples_seen(self.course, steps, seed)


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
    return Lesson(student.to(_device()), tokenizer, teacher, course)


def plain_lesson(corpus: Corpus, recipe: Recipe, seed: int, is_federated: bool) -> Lesson:
    """Texts alone: all in one course, or each language's in a silo.

    The vocabulary and the embeddings to start from are learned from the texts of all languages
    both ways. They rest on counts, which silos would add up once, before the first round.
    """
    passages: Sequence[Passage] = corpus.training
    if recipe.exponent is not None:
        passages = smoothed(passages, recipe.exponent, seed)
    tokenizer = wordpiece(_vocabulary(passages, recipe)[0])
    student = new_student(tokenizer.get_vocab_size(), seed=seed)
    if not is_federated:
        course = build_course(passages, tokenizer, None, BATCH_TOKENS, MASKINGS, seed)
        start_from_counts(student, course, SPREAD, seed)
        return Lesson(student.to(_device()), tokenizer, course=course)
    silos = []
    for language in recipe.languages:
        own = [passage for passage in corpus.training if passage.language == language]
        course = build_course(own, tokenizer, None, SILO_BATCH_TOKENS, MASKINGS, seed)
        silos += [Silo(language, course)] if course else []
    start_from_counts(student, [batch for s in silos for batch in s.course], SPREAD, seed)
    return Lesson(student.to(_device()), tokenizer, silos=silos)


def _vocabulary(
    passages: Sequence[Passage], recipe: Recipe, teacher: Sequence[str] = ()
) -> tuple[list[str], int]:
    texts = [passage.text for passage in passages]
    is_english = [passage.language == "en" for passage in passages]
    return build_vocabulary(texts, is_english, recipe.vocabulary, teacher)


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
