import gzip
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.formats.source import DataError
from smidgen.edge_client.tasks.ready_tasks import AG_NEWS, MNLI, NEWS, XNLI, YAHOO, YELP
from smidgen.edge_client.tasks.task import Task, task_toml
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.texts.tokens import Tokens
from smidgen.simulation.datasets import known
from smidgen.simulation.datasets.catalogue import FOLDERS, VARIABLE, read_dataset, read_local
from smidgen.simulation.datasets.dataset import DataSet, disjoint, likeness
from smidgen.simulation.datasets.known import HYPOTHESES, drawn, is_test_premise
from tests.conftest import SHARED, shared

TASK = Task("own", ("a", "b"), ("[MASK] : {text}",), {"a": "good", "b": "bad"})
TEXTS = st.builds(Example, st.text("aB .", min_size=1, max_size=4), label=st.sampled_from("ab"))


def read(name: str, *languages: str) -> DataSet:
    return read_dataset(name, shared("data", FOLDERS.get(name, name)).parent, languages)


def write_news(folder: Path, language: str, rows: list[tuple[str, str, str]]) -> None:
    (folder / language).mkdir(parents=True)
    for part in ("train", "test"):
        lines = [f"{label}\t{headline} {part}\t{text}" for label, headline, text in rows]
        body = "\n".join(["category\theadline\ttext", *lines]).encode()
        (folder / language / f"{part}.tsv.gz").write_bytes(gzip.compress(body, mtime=0))


@pytest.fixture
def news(tmp_path: Path) -> Path:
    write_news(tmp_path / "masakhanews", "eng", [("sports", "Cup", "won"), ("health", "Flu", "on")])
    write_news(tmp_path / "masakhanews", "hau", [("sports", "Kofi", "ci"), ("religion", "A", "b")])
    (tmp_path / "masakhanews" / "PROVENANCE.md").write_text("# News\n- Licence: AFL-3.0\n")
    return tmp_path


@given(st.lists(TEXTS), st.lists(TEXTS))
def test_no_training_text_is_a_test_text_and_nothing_else_is_lost(
    train: list[Example], test: list[Example]
) -> None:
    kept, left_out = disjoint(train, test)
    assert not {likeness(e) for e in kept} & {likeness(e) for e in test}
    assert len(kept) + left_out == len(train)
    assert disjoint(kept, test) == (kept, 0)


@given(st.lists(TEXTS, unique_by=lambda e: e.text), st.integers(0, 3))
def test_a_draw_takes_equally_many_of_each_label_in_any_order(
    examples: list[Example], per_label: int
) -> None:
    there = Counter(example.label for example in examples)
    taken = drawn(examples, per_label)
    expected = {label: min(count, per_label) for label, count in there.items()}
    assert +Counter(e.label for e in taken) == +Counter(expected)
    assert set(drawn(examples[::-1], per_label)) == set(taken)


def test_languages_are_folders_and_labels_are_those_they_have(news: Path) -> None:
    data = read_dataset("masakhanews", news, ["hau"])
    assert data.task.labels == ("religion", "sports")
    assert {example.language for example in (*data.train, *data.test)} == {"hau"}
    assert data.train[0] == Example("Kofi train ci", label="sports", language="hau")
    assert read_dataset("masakhanews", news).task.labels == ("health", "religion", "sports")


def test_the_checksum_depends_on_what_was_read_and_on_no_path(news: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    (news / "masakhanews").rename(moved / "masakhanews")
    both = read_dataset("masakhanews", moved, ["eng", "hau"])
    assert both.sha256 == read_dataset("masakhanews", moved, ["hau", "eng"]).sha256
    assert both.sha256 != read_dataset("masakhanews", moved, ["eng"]).sha256
    assert both.origin == "folder masakhanews"


def test_the_licence_is_the_line_beside_the_files(news: Path) -> None:
    assert read_dataset("masakhanews", news).licence == "AFL-3.0"
    (news / "masakhanews" / "PROVENANCE.md").unlink()
    (news / "masakhanews" / "README.md").write_text('---\nlicense: "cc-by-4.0"\n---\n# News\n')
    assert read_dataset("masakhanews", news).licence == "cc-by-4.0"
    (news / "masakhanews" / "README.md").unlink()
    (news / "masakhanews" / "LICENSE").write_text("\n  MIT License\n\nCopyright\n")
    assert read_dataset("masakhanews", news).licence == "MIT License"
    (news / "masakhanews" / "LICENSE").unlink()
    assert read_dataset("masakhanews", news).licence == "unknown: ask whoever gave it to you"


@pytest.mark.parametrize(
    ("name", "languages", "message"),
    [
        ("agnews", (), "no data set 'agnews'; one of ag_news, "),
        ("xnli", (), "no folder xnli in "),
        ("masakhanews", ("deu",), "masakhanews has no 'deu'; it has eng, hau"),
    ],
)
def test_what_is_not_there_is_named(
    news: Path, name: str, languages: tuple[str, ...], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        read_dataset(name, news, languages)


def test_a_file_that_lies_in_another_folder_is_named_where_it_is_missing(tmp_path: Path) -> None:
    (tmp_path / "yelp_review_full").mkdir()
    with pytest.raises(DataError, match=r"no file yelp_openset/reviews_5k\.csv\.gz in .*put the"):
        read_dataset("yelp_review_full", tmp_path)


def test_without_a_folder_the_environment_is_asked(
    news: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(DataError, match=f"give one, set {VARIABLE}, or ask the hub"):
        read_dataset("masakhanews")
    monkeypatch.setenv(VARIABLE, str(news))
    assert {example.language for example in read_dataset("masakhanews").test} == {"eng", "hau"}


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    (tmp_path / "ag_news").mkdir()
    for part in ("train", "test"):
        body = gzip.compress(b"topic,text\nworld,x\n", mtime=0)
        (tmp_path / "ag_news" / f"{part}.csv.gz").write_bytes(body)
    with pytest.raises(DataError, match=r"train\.csv\.gz: no column `label`; found topic, text"):
        read_dataset("ag_news", tmp_path)


def test_an_unknown_label_is_named(news: Path) -> None:
    write_news(news / "masakhanews", "swa", [("sports", "x", "y"), ("gossip", "z", "w")])
    with pytest.raises(DataError, match="masakhanews: label 'gossip' is not one of health"):
        read_dataset("masakhanews", news)


def test_own_files_are_read_with_their_names_and_checksum(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text,label\none,a\ntwo,b\nTWO!,b\n")
    (tmp_path / "test.jsonl").write_text('{"text": "two", "label": "b"}\n')
    data = read_local(tmp_path / "train.csv", tmp_path / "test.jsonl", TASK)
    assert [example.text for example in data.train] == ["one"]
    assert (data.name, data.origin) == ("own", "files train.csv, test.jsonl")
    assert data.notes == ("2 training texts left out: they are test texts",)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    folder = tmp_path / "pets"
    folder.mkdir()
    rows = b"text,label,language\none,a,eng\ntwo,b,hau\n"
    (folder / "train.csv.gz").write_bytes(gzip.compress(rows, mtime=0))
    (folder / "test.jsonl").write_text('{"text": "three", "label": "a", "language": "eng"}\n')
    (folder / "task.toml").write_text(task_toml(TASK))
    return folder


def test_a_folder_of_ones_own_is_read_in_any_format_and_by_language(own: Path) -> None:
    data = read_dataset(f"folder:{own}")
    assert (data.name, data.origin, len(data.train)) == ("own", "folder pets", 2)
    assert [e.text for e in read_dataset(f"folder:{own}", languages=["eng"]).train] == ["one"]
    with pytest.raises(DataError, match="pets has no 'swa'; it has eng, hau"):
        read_dataset(f"folder:{own}", languages=["swa"])


def test_a_folder_of_ones_own_is_told_by_its_files_and_not_by_where_it_is(own: Path) -> None:
    before = read_dataset(f"folder:{own}").sha256
    moved = own.rename(own.with_name("elsewhere"))
    assert read_dataset(f"folder:{moved}").sha256 == before
    (moved / "task.toml").write_text(task_toml(replace(TASK, patterns=("{text} [MASK]",))))
    assert read_dataset(f"folder:{moved}").sha256 != before


def test_what_a_folder_of_ones_own_lacks_is_named(own: Path) -> None:
    (own / "test.jsonl").unlink()
    with pytest.raises(DataError, match=r"pets has no test\.\*; `smidgen simulate data NAME"):
        read_dataset(f"folder:{own}")
    (own / "task.toml").write_text("labels = [1")
    (own / "test.jsonl").write_text('{"text": "three", "label": "a"}')
    with pytest.raises(DataError, match=r"task\.toml is not TOML"):
        read_dataset(f"folder:{own}")
    (own / "test.jsonl").unlink()
    (own / "task.toml").unlink()
    with pytest.raises(DataError, match=r"pets has no test\.\*, task\.toml; "):
        read_dataset(f"folder:{own}")
    with pytest.raises(DataError, match="no folder nowhere; "):
        read_dataset("folder:nowhere")


def test_a_text_kept_back_stays_so_when_the_file_grows(tmp_path: Path) -> None:
    path = tmp_path / "all.csv"
    rows = [f"text number {number},{'ab'[number % 2]}" for number in range(200)]
    path.write_text("\n".join(["text,label", *rows[:100]]))
    before = read_local(path, None, TASK)
    path.write_text("\n".join(["text,label", *rows[::-1]]))
    after = read_local(path, None, TASK)
    assert set(before.train) <= set(after.train) and set(before.test) <= set(after.test)
    assert 20 < len(after.test) < 60


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.csv cannot be read"):
        read_local(tmp_path / "none.csv", None, TASK)


FEW = {"masakhanews": ("lin", "yor"), "xnli": ("en", "sw")}


LABELLED = [one for one in known.READERS if not one.startswith("ner_") and "_instr" not in one]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ag_news_instructions", "tico19_instructions"])
def test_short_texts_of_a_shared_set_become_conversations(name: str) -> None:
    data = read(name)
    assert data == read(name) and data.licence and disjoint(data.train, data.test)[1] == 0
    for example in (*data.train, *data.test):
        question, answer = json.loads(example.text)
        assert (question["role"], answer["role"]) == ("user", "assistant")
        assert len(question["content"]) < 210 and answer["content"].strip()
    if name == "ag_news_instructions":
        answers = {json.loads(one.text)[1]["content"] for one in data.test}
        assert answers == set(AG_NEWS.verbalizer.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", LABELLED)
def test_every_shared_set_reads_twice_the_same(name: str) -> None:
    data = read(name, *FEW.get(name, ()))
    assert data == read(name, *FEW.get(name, ()))
    assert data.licence and len(data.sha256) == 64 and not data.origin.count("/")
    assert {e.label for e in data.train} == {e.label for e in data.test} == set(data.task.labels)
    assert disjoint(data.train, data.test)[1] == 0


@pytest.mark.slow
def test_the_shared_news_in_two_languages() -> None:
    data = read("masakhanews", "lin", "yor")
    assert Counter(example.language for example in data.test) == {"lin": 175, "yor": 411}
    assert data.task.labels == tuple(label for label in NEWS.labels if label != "technology")


@pytest.mark.slow
def test_no_translation_of_a_test_row_is_trained_on() -> None:
    data = read("xnli", "en", "sw", "de")
    rows = {language: [e for e in data.test if e.language == language] for language in ("en", "sw")}
    assert [e.label for e in rows["en"]] == [e.label for e in rows["sw"]]
    tested = sum(is_test_premise(premise) for premise in range(830))
    assert len(rows["en"]) == len(rows["sw"]) == HYPOTHESES * tested
    english = {e.text for e in data.train if e.language == "en"}
    assert not english & {e.text for e in rows["en"]}


@pytest.mark.slow
def test_yelp_is_trained_on_equally_many_reviews_of_each_star() -> None:
    counts = Counter(example.label for example in read("yelp_review_full").train)
    assert len(counts) == 5 and max(counts.values()) - min(counts.values()) <= 1


BASES = [
    Path("edge_client/embedded/base"),
    *sorted(path.parent for path in (SHARED / "models").glob("*-mlm/tokenizer.json")),
]


@pytest.mark.few
@pytest.mark.parametrize("base", BASES, ids=lambda base: base.name)
@pytest.mark.parametrize("task", [AG_NEWS, MNLI, NEWS, XNLI, YAHOO, YELP], ids=lambda t: t.name)
def test_every_label_word_is_one_token_of_every_small_base(base: Path, task: Task) -> None:
    root = Path(__file__).parents[3]
    ids = Tokens(root / base).label_word_ids(task)
    assert [len(word) for word in ids] == [1] * len(task.labels)
