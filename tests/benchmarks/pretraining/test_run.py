import gzip
import json
import random
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForMaskedLM, BertForMaskedLM

from benchmarks.pretraining.checkpoint import Limits, PretrainError
from benchmarks.pretraining.corpus import SOURCES, CorpusError, Passage, join_tokens, read_corpus
from benchmarks.pretraining.course import MASK, CourseBatch, build_course
from benchmarks.pretraining.held_out import TOPICS, masked_score, zero_shot
from benchmarks.pretraining.run import Request, read_texts
from benchmarks.pretraining.student import (
    Teacher,
    batch_loss,
    new_student,
    principal_embeddings,
    start_from_teacher,
    train,
)
from benchmarks.pretraining.vocabulary import (
    LABEL_WORDS,
    build_vocabulary,
    read_tokenizer,
    token_list,
    wordpiece,
)
from smidgen.edge_client.bases.base import open_base
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.texts.tokens import Tokens
from tests.command_line import benchmarks

WORDS = ("the", "old", "river", "town", "power", "team", "wins", "money", "market", "game", "car")


def sentence(rng: random.Random) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(8)) + "."


def passages(count: int = 60) -> list[Passage]:
    rng = random.Random(7)
    english = [sentence(rng) for _ in range(count)]
    translated = [text.replace("the", "el").replace("river", "río") for text in english]
    return [Passage(text, "en", "made_up") for text in english] + [
        Passage(text, "es", "made_up", english=original)
        for text, original in zip(translated, english, strict=True)
    ]


def tiny_student(tokens: int) -> BertForMaskedLM:
    return new_student(tokens, hidden=32, layers=1, seed=3)


def write_teacher(folder: Path, tokens: list[str]) -> None:
    new_student(len(tokens), hidden=192, layers=1, seed=9).save_pretrained(folder)
    wordpiece(tokens).save(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def teacher_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("teacher")
    tokens, _ = build_vocabulary([p.text for p in passages()], [True] * 120, 400)
    write_teacher(folder, tokens)
    return folder


@pytest.fixture(scope="module")
def taught(teacher_folder: Path) -> tuple[list[str], Teacher, list[CourseBatch]]:
    known = wordpiece(read_tokens(teacher_folder))
    texts = passages()
    tokens, shared = build_vocabulary(
        [p.text for p in texts], [p.language == "en" for p in texts], 500, token_list(known)
    )
    course = build_course(texts, wordpiece(tokens), known, 256, maskings=1, seed=0)
    teacher = Teacher(teacher_folder, tokens[:shared], torch.device("cpu"))
    teacher.learn_axes([batch.teacher for batch in course if batch.teacher], axes=32)
    return tokens, teacher, course


def read_tokens(folder: Path) -> list[str]:
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    return sorted(vocabulary, key=vocabulary.__getitem__)


def write_news_set(data: Path, lines: int = 80) -> None:
    rng = random.Random(1)
    folder = data / "text_wiki_news_parallel"
    folder.mkdir(parents=True)
    for language in ("en", "es"):
        with gzip.open(folder / f"{language}.txt.gz", "wt", encoding="utf-8") as file:
            file.writelines(f"{sentence(rng)}\n" for _ in range(lines))


def test_absent_sets_are_skipped_and_named(tmp_path: Path) -> None:
    write_news_set(tmp_path)
    corpus = read_corpus(tmp_path)
    assert {p.source for p in corpus.training} == {"text_wiki_news_parallel"}
    assert corpus.absent == tuple(s for s in SOURCES if s != "text_wiki_news_parallel")


def test_a_folder_without_any_set_names_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"text_wikitext103.*ner_panx"):
        read_corpus(tmp_path)


def test_a_set_that_lacks_its_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "mnli").mkdir()
    with pytest.raises(CorpusError, match="set mnli"):
        read_corpus(tmp_path)


def test_a_translation_is_held_out_with_its_original(tmp_path: Path) -> None:
    write_news_set(tmp_path, 400)
    corpus = read_corpus(tmp_path)
    held = {p.text for p in corpus.held_out if p.language == "en"}
    assert held
    assert {p.english for p in corpus.held_out if p.language == "es"} <= held
    assert not held & {p.english for p in corpus.training}


def test_tokens_are_joined_into_text() -> None:
    text = "In 1990 , the `` Red @-@ Green '' ( RG ) won 2 @,@ 000 ."
    assert join_tokens(text.split()) == "In 1990, the Red-Green (RG) won 2,000."


def test_equal_texts_give_an_equal_vocabulary() -> None:
    rng = random.Random(0)
    texts = ["".join(rng.choices("abcdefghijklmnop", k=5)) for _ in range(800)]
    once, again = (build_vocabulary(texts, [True] * 800, 300)[0] for _ in range(2))
    assert once == again  # ties between merges included


def test_label_words_are_single_tokens() -> None:
    tokens, shared = build_vocabulary(["el rio"], [False], 400)
    tokenizer = wordpiece(tokens)
    assert shared == 0
    assert all(len(tokenizer.encode(w, add_special_tokens=False).ids) == 1 for w in LABEL_WORDS)


def test_the_shared_tokens_come_first() -> None:
    teacher = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "the", "river", "京"]
    tokens, shared = build_vocabulary(["the river", "el rio"], [True, False], 200, teacher)
    assert set(tokens[5:shared]) == {"a", "the", "river"}


def test_principal_axes_keep_inner_products() -> None:
    rows = torch.randn(50, 8) @ torch.randn(8, 32)
    small = principal_embeddings(rows, 8, spread=1.0)
    centred = rows - rows.mean(0)
    gram = centred @ centred.T
    ours = small @ small.T
    torch.testing.assert_close(ours / ours.norm(), gram / gram.norm(), rtol=1e-3, atol=1e-5)


def test_the_teacher_answers_the_masks_that_are_marked(
    taught: tuple[list[str], Teacher, list[CourseBatch]],
) -> None:
    tokens, teacher, course = taught
    mask_id = tokens.index(MASK)
    for batch in course:
        at_masks = batch.student.ids[batch.student.rows, batch.student.columns]
        assert bool((at_masks == mask_id).all())
        if batch.teacher is not None:
            answers = teacher.probabilities(teacher.ask(batch.teacher).states)
            assert len(answers) == int(batch.is_taught.sum())
            torch.testing.assert_close(answers.sum(1), torch.ones(len(answers)))


def test_every_parameter_gets_a_gradient(
    taught: tuple[list[str], Teacher, list[CourseBatch]],
) -> None:
    tokens, teacher, course = taught
    batch = next(batch for batch in course if batch.teacher is not None)
    assert batch.teacher is not None
    student, answer = tiny_student(len(tokens)), teacher.ask(batch.teacher)
    bridges = torch.nn.ModuleList(torch.nn.Linear(32, 32) for _ in range(2))
    batch_loss(student, bridges, batch, answer, teacher.probabilities(answer.states)).backward()
    trained = [*student.parameters(), *bridges.parameters()]
    assert all(p.grad is not None and bool(p.grad.any()) for p in trained)


def test_a_resumed_run_ends_in_the_same_weights(
    taught: tuple[list[str], Teacher, list[CourseBatch]], tmp_path: Path
) -> None:
    tokens, teacher, course = taught
    whole, parts = tiny_student(len(tokens)), tiny_student(len(tokens))
    for student in (whole, parts):
        start_from_teacher(student, teacher)
    limits = Limits(steps=12)
    train(whole, course, teacher, limits, 0, tmp_path / "whole.pt")
    train(parts, course, teacher, limits, 0, tmp_path / "parts.pt", stop_after=5)
    again = tiny_student(len(tokens))
    run = train(again, course, teacher, limits, 0, tmp_path / "parts.pt")
    assert run.step == 12
    assert all(
        torch.equal(a, b) for a, b in zip(whole.parameters(), again.parameters(), strict=True)
    )


def test_training_lowers_the_perplexity(
    taught: tuple[list[str], Teacher, list[CourseBatch]], tmp_path: Path
) -> None:
    tokens, _, course = taught
    tokenizer, student = wordpiece(tokens), tiny_student(len(tokens))
    before = masked_score(student, tokenizer, passages())
    train(student, course, None, Limits(steps=60), 0, tmp_path / "c.pt")
    assert masked_score(student, tokenizer, passages()).perplexity < 0.5 * before.perplexity


def test_steps_and_minutes_exclude_each_other() -> None:
    with pytest.raises(PretrainError, match="either --steps or --minutes"):
        Limits(steps=3, seconds=4.0)
    with pytest.raises(PretrainError, match="either --steps or --minutes"):
        Limits()
    for endless in (float("nan"), float("inf")):
        with pytest.raises(PretrainError, match="either --steps or --minutes"):
            Limits(seconds=endless)


@pytest.mark.parametrize("is_taught", [False, True])
def test_a_checkpoint_of_other_steps_or_another_teacher_is_refused(
    taught: tuple[list[str], Teacher, list[CourseBatch]], tmp_path: Path, is_taught: bool
) -> None:
    tokens, teacher, course = taught
    train(tiny_student(len(tokens)), course, None, Limits(steps=2), 0, tmp_path / "c.pt")
    by, limits = (teacher, Limits(steps=2)) if is_taught else (None, Limits(steps=3))
    with pytest.raises(PretrainError, match="other texts, steps, teacher or seed"):
        train(tiny_student(len(tokens)), course, by, limits, 0, tmp_path / "c.pt")


def test_another_teacher_is_another_number(teacher_folder: Path, tmp_path: Path) -> None:
    tokens = token_list(read_tokenizer(teacher_folder))
    other = new_student(len(tokens), hidden=192, layers=1, seed=10)
    other.save_pretrained(tmp_path / "other")
    (tmp_path / "other" / "tokenizer.json").write_bytes(
        (teacher_folder / "tokenizer.json").read_bytes()
    )
    shared, device = tokens[5:9], torch.device("cpu")
    one, same = (Teacher(teacher_folder, shared, device).identity for _ in range(2))
    assert one == same != Teacher(tmp_path / "other", shared, device).identity


@pytest.mark.parametrize("body", [b"", b"garbage", b"PK\x03\x04cut"])
def test_a_damaged_checkpoint_says_what_to_do(
    taught: tuple[list[str], Teacher, list[CourseBatch]], tmp_path: Path, body: bytes
) -> None:
    tokens, _, course = taught
    (tmp_path / "c.pt").write_bytes(body)
    with pytest.raises(PretrainError, match="no whole checkpoint; delete it or choose another"):
        train(tiny_student(len(tokens)), course, None, Limits(steps=1), 0, tmp_path / "c.pt")


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json"])
def test_a_teacher_that_cannot_be_read_is_one_line(
    teacher_folder: Path, tmp_path: Path, file: str
) -> None:
    data, broken = tmp_path / "data", tmp_path / "teacher"
    write_news_set(data)
    shutil.copytree(teacher_folder, broken)
    (broken / file).write_text("{")
    typed = ("--data", str(data), "--out", str(tmp_path / "base"), "--teacher", str(broken))
    done = benchmarks("pretrain", *typed, "--steps", "1")
    assert done.exit_code == 2 and "--teacher wants a BERT folder" in done.stderr, done
    assert "Traceback" not in done.stderr


def test_a_language_without_a_text_is_named(tmp_path: Path) -> None:
    data = tmp_path / "data"
    write_news_set(data)
    typed = ("--data", str(data), "--out", str(tmp_path / "base"), "--languages", "am")
    done = benchmarks("pretrain", *typed, "--steps", "1")
    assert done.exit_code == 2 and "Traceback" not in done.stderr and "'am" in done.stderr, done


def test_a_checkpoint_of_another_seed_is_refused(
    taught: tuple[list[str], Teacher, list[CourseBatch]], tmp_path: Path
) -> None:
    tokens, _, course = taught
    train(tiny_student(len(tokens)), course, None, Limits(steps=1), 0, tmp_path / "c.pt")
    with pytest.raises(PretrainError, match=r"teacher or seed.*delete it"):
        train(tiny_student(len(tokens)), course, None, Limits(steps=1), 1, tmp_path / "c.pt")


def test_a_checkpoint_of_other_texts_is_refused(
    taught: tuple[list[str], Teacher, list[CourseBatch]], tmp_path: Path
) -> None:
    tokens, _, course = taught
    turned = [replace(batch, gold=(batch.gold + 1) % len(tokens)) for batch in course]
    train(tiny_student(len(tokens)), course, None, Limits(steps=1), 0, tmp_path / "c.pt")
    with pytest.raises(PretrainError, match="other texts"):
        train(tiny_student(len(tokens)), turned, None, Limits(steps=1), 0, tmp_path / "c.pt")


def test_the_command_writes_a_base_that_opens(teacher_folder: Path, tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "base"
    write_news_set(data)
    (data / "ag_news").mkdir()
    with gzip.open(data / "ag_news" / "test.csv.gz", "wt", encoding="utf-8") as file:
        file.write("title,text,label\n")
        file.writelines(f"a game,{'of the year ' * 99},{label}\n" for label in TOPICS.labels)
    typed = ["--data", str(data), "--out", str(out), "--teacher", str(teacher_folder)]
    result = benchmarks("pretrain", *typed, "--steps", "2", "--threads", "1", "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout.splitlines()[-1])
    assert report["steps"] == 2 and report["teacher"] == teacher_folder.name
    assert open_base(str(out)).hidden == 192
    assert AutoModelForMaskedLM.from_pretrained(out).config.model_type == "bert"
    card = (out / "README.md").read_text()
    assert str(tmp_path) not in card and re.search(r"\| AG News \| \d+ \|", card)
    examples = [Example("a game", label=label) for label in TOPICS.labels]
    student = BertForMaskedLM.from_pretrained(out, dtype=torch.float32)
    assert zero_shot(student, Tokens(out), TOPICS, examples)[0].plain == 0.25


def test_the_command_refuses_a_folder_without_texts(tmp_path: Path) -> None:
    typed = [
        "--data",
        str(tmp_path),
        "--out",
        str(tmp_path / "base"),
        "--steps",
        "1",
        "--threads",
        "1",
    ]
    result = benchmarks("pretrain", *typed)
    assert result.exit_code == 2
    assert "put at least one of these sets there" in result.output


def test_the_command_replaces_no_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for out, said in ((".", "is the current folder"), ("/", "is the root folder")):
        result = benchmarks("pretrain", "--data", ".", "--out", out, "--steps", "1")
        assert result.exit_code == 2 and f"--out {out} {said}" in result.stderr


def test_the_command_replaces_nobodys_folder(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / "cat.jpg").write_text("a cat")
    result = benchmarks("pretrain", "--data", ".", "--out", str(photos), "--steps", "1")
    assert result.exit_code == 2 and "holds other things, such as cat.jpg" in result.stderr
    assert (photos / "cat.jpg").read_text() == "a cat"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "either --steps or --minutes"),
        ({"steps": 1, "minutes": 1.0}, "either --steps or --minutes"),
        ({"steps": 1, "languages": "all", "teacher": Path("t")}, "leave it out, or --languages"),
        ({"steps": 1, "languages": "en,xx"}, "no texts in 'xx'"),
    ],
)
def test_what_cannot_be_asked_together_is_named(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(PretrainError, match=said):
        Request(Path("data"), Path("base"), **fields)


def test_a_base_without_texts_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    request = Request(tmp_path, tmp_path / "base", steps=1)
    with pytest.raises(CorpusError, match="put at least one of these sets there"):
        read_texts(request)
    assert not list(tmp_path.iterdir())
