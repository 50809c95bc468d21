import csv
import gzip
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.pretraining.checkpoint import PretrainError
from benchmarks.pretraining.corpus import Passage, read_corpus, rows_of
from benchmarks.pretraining.recipes import (
    ALL_LANGUAGES,
    EMBEDDED,
    multilingual_sources,
    recipe_of,
    sentences_of,
    smoothed,
)
from benchmarks.pretraining.vocabulary import build_vocabulary, wordpiece
from tests.conftest import shared

SCRIPTS = (
    "ቻይና በቀጥታ የውጭ ኢንቨስትመንት አሜሪካንን በልጣለች።",
    "ينبغي علاج كل آلام الصدر بهذه الطريقة؟",
    "השחקן באתר הרשמי של רוסטוב",
    "Рыбницкий район за образцовое выполнение",
    "Àìsàn jẹjẹrẹ ikùn ló dé o! Ɗan ƙasa",
)


def write_articles(path: Path, *articles: tuple[str, str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t")
        writer.writerow(("category", "headline", "text"))
        writer.writerows(("health", headline, text) for headline, text in articles)


def read_all(data: Path) -> list[Passage]:
    corpus = read_corpus(data, multilingual_sources(ALL_LANGUAGES))
    return [*corpus.training, *corpus.held_out]


def test_sentences_of_the_evaluation_files_are_not_learned_from(tmp_path: Path) -> None:
    news = tmp_path / "masakhanews" / "yor"
    judged = "This one is in the test file."
    write_articles(news / "train.tsv.gz", ("A first headline", f"Quite another sentence. {judged}"))
    write_articles(news / "test.tsv.gz", ("Some other headline", judged))
    assert [p.text for p in read_all(tmp_path)] == ["A first headline Quite another sentence."]


def test_a_passage_inside_an_evaluated_sentence_is_left_out(tmp_path: Path) -> None:
    news = tmp_path / "masakhanews" / "yor"
    write_articles(news / "train.tsv.gz", ("", "the river rose in the night"))
    write_articles(news / "dev.tsv.gz", ("", "they say the river rose in the night and fell"))
    assert read_all(tmp_path) == []


def test_two_articles_do_not_share_a_passage(tmp_path: Path) -> None:
    articles = [(f"Headline number {n}", "The text is short.") for n in range(3)]
    write_articles(tmp_path / "masakhanews" / "hau" / "train_fewshot50.tsv.gz", *articles)
    wanted = {f"Headline number {n} The text is short." for n in range(3)}
    assert {p.text for p in read_all(tmp_path)} == wanted


def test_a_language_with_two_names_is_one(tmp_path: Path) -> None:
    article = ("A headline", "The text is short.")
    write_articles(tmp_path / "masakhanews" / "eng" / "train.tsv.gz", article)
    write_articles(tmp_path / "masakhanews" / "amh" / "train.tsv.gz", article)
    assert {p.language for p in read_all(tmp_path)} == {"en", "amh"}


def test_hebrew_is_not_taken_for_a_translation(tmp_path: Path) -> None:
    folder = tmp_path / "text_wiki_news_parallel"
    folder.mkdir()
    for language, lines in {"en": 3, "ru": 3, "he": 2}.items():
        with gzip.open(folder / f"{language}.txt.gz", "wt", encoding="utf-8") as file:
            file.writelines(f"{language} line {n}\n" for n in range(lines))
    english = {p.text: p.english for p in read_all(tmp_path)}
    assert english["ru line 2"] == "en line 2" and english["he line 1"] == ""


def test_no_passage_of_the_real_set_is_in_its_evaluation_files() -> None:
    data = shared("data", "masakhanews").parent
    rows = [
        row
        for name in ("dev", "test")
        for row in rows_of(data / "masakhanews" / "lin" / f"{name}.tsv.gz", "\t")
    ]
    judged = " ".join(" ".join(f"{row['headline']} {row['text']}".split()) for row in rows)
    reader = multilingual_sources(("lin",))["masakhanews"][0]
    assert not [p.text for p in reader(data / "masakhanews") if p.text in judged]


def test_sentences_end_in_every_script() -> None:
    text = "ቻይና በልጣለች። አሜሪካ።ሆነች እንዴ? كيف الحال؟ بخير. Yes! No"
    assert len(list(sentences_of(text))) == 7


def test_a_sentence_without_end_is_cut() -> None:
    assert [len(s.split()) for s in sentences_of("word " * 100, limit=42)] == [42, 42, 16]


def test_the_vocabulary_knows_every_script() -> None:
    tokens, _ = build_vocabulary([*SCRIPTS] * 3, [False] * 15, 2000)
    encoded = [token for text in SCRIPTS for token in wordpiece(tokens).encode(text).tokens]
    assert "[UNK]" not in encoded


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=60), st.floats(0.05, 1.0))
def test_smoothing_keeps_every_language_and_the_number_of_words(
    languages: list[str], exponent: float
) -> None:
    passages = [Passage(f"{n} words here", name, "x") for n, name in enumerate(languages)]
    chosen = smoothed(passages, exponent, seed=0)
    assert abs(len(chosen) - len(passages)) <= 2
    before, after = Counter(languages), Counter(p.language for p in chosen)
    smallest = min(before, key=before.__getitem__)
    assert after[smallest] >= before[smallest] - 1


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=60))
def test_exponent_one_takes_every_passage_once(languages: list[str]) -> None:
    passages = [Passage(f"{n} words", name, "x") for n, name in enumerate(languages)]
    assert sorted(p.text for p in smoothed(passages, 1.0, 5)) == sorted(p.text for p in passages)


def test_without_languages_the_recipe_is_the_embedded_base_s() -> None:
    assert recipe_of(None) is EMBEDDED
    assert recipe_of("all").languages == ALL_LANGUAGES
    assert recipe_of("yor, amh").languages == ("yor", "amh")


def test_a_language_without_texts_is_named() -> None:
    with pytest.raises(PretrainError, match="no texts in 'xho'; give all, or some of amh"):
        recipe_of("yor,xho")
