"""Words and tags in columns and in JSON: written and read back, real files, and bad lines."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from smidgen.edge_client.formats.lines import LONGEST_LINE
from smidgen.edge_client.formats.source import DataError, Dialect
from smidgen.edge_client.tasks.kind import kind_named
from smidgen.edge_client.texts.accounting import Accounting
from smidgen.edge_client.texts.examples import Example, read_file, read_texts
from smidgen.edge_client.texts.parts import Labels
from smidgen.edge_client.texts.written import write_tagged
from tests.conftest import shared
from tests.edge_client.formats.tagged_files import DRUGS, as_columns, tagged

GOOD = Example("Aspirin helped", words=("Aspirin", "helped"), tags=("B-Drug", "O"))
COLUMNS = "Aspirin\tB-Drug\nhelped\tO\n"
JSON = '{"tokens": ["Aspirin", "helped"], "tags": ["B-Drug", "O"]}\n'
LANGUAGES = ("", "en:", "zh-min-nan:")


@given(st.lists(tagged(), min_size=1, max_size=5), st.sampled_from(((), ("NN",), ("NN", "O"))))
def test_columns_read_back_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, texts: list[Example], middle: tuple[str, ...]
) -> None:
    # A first column of numbers alone may number the words.
    assume(not middle or not all(word.isdecimal() for text in texts for word in text.words))
    path = tmp_path_factory.mktemp("texts") / "labelled.conll"
    path.write_text(as_columns(texts, middle=middle), encoding="utf-8", newline="")
    found = read_file(path, DRUGS, labelled=True)
    assert found == texts
    lines = path.read_bytes().decode().split("\n")
    assert [lines[one.line - 1].split("\t")[0] for one in found] == [t.words[-1] for t in texts]


@given(st.lists(tagged(), min_size=1, max_size=5), st.sampled_from(LANGUAGES))
def test_a_words_language_is_taken_off_in_tsv(
    tmp_path_factory: pytest.TempPathFactory, texts: list[Example], language: str
) -> None:
    path = tmp_path_factory.mktemp("texts") / "labelled.tsv"
    before = [
        Example("", words=tuple(f"{language}{w}" for w in t.words), tags=t.tags) for t in texts
    ]
    path.write_text(as_columns(before), encoding="utf-8", newline="")
    found = read_file(path, DRUGS, labelled=True)
    if language or not any(":" in word for text in texts for word in text.words):
        assert [one.words for one in found] == [text.words for text in texts]
        assert {one.language for one in found} == {language[:-1]}


@given(st.lists(tagged(), min_size=1, max_size=5), st.sampled_from(("", "en")))
def test_json_reads_back_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, texts: list[Example], language: str
) -> None:
    path = tmp_path_factory.mktemp("texts") / "labelled.jsonl"
    texts = [Example(t.text, "", None, language, t.words, t.tags) for t in texts]
    write_tagged(path, texts)
    assert read_file(path, DRUGS, labelled=True) == texts


def test_half_a_character_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.jsonl: a word cannot be written as UTF-8"):
        write_tagged(tmp_path / "a.jsonl", [Example("\ud83d", words=("\ud83d",), tags=("O",))])


@pytest.mark.parametrize(
    "body",
    [
        "-DOCSTART- -X- O O\n\nAspirin NN I-NP B-Drug\nhelped VBD O O\n",
        "# sent_id = 1\n# text = Aspirin helped\nAspirin\t_\tB-Drug\nhelped\t_\tO\n",
        "-DOCSTART- (1)\nAspirin B-Drug\r\nhelped O\r\n \r\n",
        "\n\n\ufeffAspirin B-Drug \nhelped  O\t\n".replace("\ufeff", ""),
    ],
)
def test_documents_comments_and_loose_spaces_are_no_words(tmp_path: Path, body: str) -> None:
    path = tmp_path / "a.conll"
    path.write_bytes(body.encode())
    assert read_file(path, DRUGS, labelled=True) == [GOOD]


def test_a_hash_may_be_a_word_too(tmp_path: Path) -> None:
    path = tmp_path / "a.iob"
    path.write_text("# O\nAspirin B-Drug\n\nno O\n# O\n")
    assert [one.words for one in read_file(path, DRUGS, labelled=True)] == [
        ("#", "Aspirin"),
        ("no", "#"),
    ]


# A bad text before a good one, the number of the line, and what is said of it.
BAD = [
    ("conll", b"pain\tB-Pain\n\n", 1, "its tag is not O, nor B- or I- and one of Drug, Illness"),
    ("conll", b"mild\tO\npain\tI-Drug\n\n", 2, "its tag goes on with Drug, of which the word"),
    ("conll", b"mild\tO\npain\n\n", 2, "a word without a tag"),
    ("conll", b"mild\tO\n\tO\n\n", 2, "a tag without a word"),
    ("bio", b"mild O\n O\n\n", 2, "a tag without a word"),
    ("iob", b"mild O\npain\0 O\nagain O\n\n", 2, "a NUL byte; text is expected"),
    ("conll", b"mild\tO\npain\xff\tO\n\n", 2, "not UTF-8; save it as UTF-8"),
    ("conll", b"y" * 10_000_000 + b"\tO\nagain\tO\n\n", 1, "longer than 1,048,576"),
    ("conll", b"mild\tO\n" * 200_000 + b"\n", 149_797, "longer than 1,048,576"),
    ("tsv", b"mild\tO\n\tO\n\n", 2, "a tag without a word"),
    ("jsonl", b'{"tokens": ["pain"], "tags": ["O", "O"]}\n', 1, "1 tokens and 2 tags"),
    ("jsonl", b'{"tokens": ["pain", " "], "tags": ["O", "O"]}\n', 1, "an empty token"),
    (
        "jsonl",
        b'{"tokens": ["pain"], "tags": [0]}\n',
        1,
        "`tokens` and `tags`: two lists of strings",
    ),
    (
        "jsonl",
        b'{"tokens": "pain", "tags": ["O"]}\n',
        1,
        "`tokens` and `tags`: two lists of strings",
    ),
    ("jsonl", b'{"tokens": ["pain"]}\n', 1, "an object with `tokens` and `tags` expected"),
    ("jsonl", b'{"tokens": ["a", "pain"], "tags": ["O", "I-Drug"]}\n', 1, "token 2: its tag goes"),
    ("jsonl", b'{"tokens": ["\\ud83d"], "tags": ["O"]}\n', 1, "not UTF-8"),
    ("jsonl", b'{"tokens": ["pain\\u0000"], "tags": ["O"]}\n', 1, "a NUL byte"),
    ("jsonl", b"[" * 10**5 + b"\n", 1, "not JSON: "),
    ("jsonl", b'{"tokens": ["' + b"y" * 10_000_000 + b'"], "tags": ["O"]}\n', 1, "longer than"),
]


@pytest.mark.parametrize(("ending", "body", "line", "reason"), BAD)
def test_one_bad_text_is_left_out_and_told(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    ending: str,
    body: bytes,
    line: int,
    reason: str,
) -> None:
    path = tmp_path / f"a.{ending}"
    good = JSON if ending == "jsonl" else COLUMNS
    path.write_bytes(body + good.encode())
    assert read_file(path, DRUGS, labelled=True) == [GOOD]
    (said,) = caplog.messages
    assert said.startswith(f"{path}: 1 of 2 rows left out (1 ")
    assert f"): line {line}: {reason}" in said
    assert not {"pain", "mild", "Pain"} & set(said.replace(str(path), "").split())
    said.encode()


def test_a_file_of_bad_texts_alone_names_the_first(tmp_path: Path) -> None:
    path = tmp_path / "labelled.conll"
    path.write_text("mild B-Drug\npain I-Illness\n\npain E-Drug\n")
    with pytest.raises(DataError, match=r"labelled\.conll, line 2: .* write the file as BIO .* no"):
        read_file(path, DRUGS, labelled=True)


def test_a_cut_archive_and_another_format_are_named(tmp_path: Path) -> None:
    packed, table = tmp_path / "a.conll.gz", tmp_path / "a.csv"
    packed.write_bytes(gzip.compress(COLUMNS.encode() * 99)[:-9])
    table.write_text("text,label\nx,y\n")
    for path, said in (
        (packed, "cannot be read as UTF-8 conll"),
        (table, "no spans or tags of its words"),
    ):
        with pytest.raises(DataError, match=said):
            read_file(path, DRUGS, labelled=True)


def test_another_encoding_is_read_where_it_is_told_or_marked(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    path.write_bytes("Grüße\tO\n".encode("latin-1"))
    (found,) = read_file(path, DRUGS, labelled=True, dialect=Dialect(encoding="latin-1"))
    path.write_bytes("Grüße\tO\n".encode("utf-16"))
    assert read_file(path, DRUGS, labelled=True) == [found] and found.text == "Grüße"


@given(st.lists(st.binary(max_size=12), max_size=6), st.sampled_from(["conll", "tsv", "jsonl"]))
def test_whatever_bytes_there_are_good_texts_before_them_are_read(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], ending: str
) -> None:
    path = tmp_path_factory.mktemp("texts") / f"a.{ending}"
    good = JSON if ending == "jsonl" else COLUMNS + "\n"
    path.write_bytes(good.encode() + b"\n".join(lines))
    found = read_file(path, DRUGS, labelled=True)
    assert found[0] == GOOD
    for one in found:
        assert len(one.words) == len(one.tags) and all(word.strip() for word in one.words)
        one.text.encode()


REAL = [
    ("ner_ncbi_disease", "dev.conll.gz", ("Disease",), 923, ""),
    ("ner_e3c_clinical", "es.train.iob.gz", ("ety",), 455, ""),
    ("ner_panx", "ru.dev.tsv.gz", ("PER", "LOC", "ORG"), 10_000, ""),
    ("ner_panx", "he.dev.tsv.gz", ("PER", "LOC", "ORG"), 10_000, ""),
]


@pytest.mark.few(2)
@pytest.mark.parametrize(("name", "file", "labels", "count", "fault"), REAL)
def test_real_files_read_whole(
    name: str, file: str, labels: tuple[str, ...], count: int, fault: str
) -> None:
    left_out = Accounting()
    path = shared("data", name) / file
    found = list(read_texts(path, Labels(labels, kind_named("tagging").files), True, left_out))
    assert len(found) == count and not left_out.left_out
    assert {tag[2:] for _, one, _ in found for tag in one.tags} - {""} == set(labels)


def test_a_real_file_in_an_older_way_says_what_helps_and_reads_once_it_is_written_so(
    tmp_path: Path,
) -> None:
    """Of BC5CDR as SciBERT has it an entity of one word begins with I-."""
    path, left_out, task = (
        shared("data", "ner_bc5cdr") / "dev.conll.gz",
        Accounting(),
        Labels(("Entity",), kind_named("tagging").files),
    )
    before = list(read_texts(path, task, True, left_out))
    assert left_out.bad > len(before) and "write the file as BIO (IOB2)" in left_out.faults[0]
    last, lines = "", list[str]()
    for line in gzip.decompress(path.read_bytes()).decode().splitlines():
        tag = line.split("\t")[-1]
        is_new = tag.startswith("I-") and last != tag[2:]
        lines.append(line.removesuffix(tag) + f"B-{tag[2:]}" if is_new else line)
        last = tag[2:] if tag[:2] in ("B-", "I-") else ""
    (tmp_path / "labelled.conll").write_text("\n".join(lines))
    left = Accounting()
    assert len(list(read_texts(tmp_path / "labelled.conll", task, True, left))) > 3900
    assert not left.left_out


def test_other_columns_of_json_are_there_for_whoever_asks(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    row = {"id": 7, "tokens": ["Aspirin"], "tags": ["B-Drug"], "language": "de", "home": "x"}
    path.write_text(json.dumps(row) + "\n" + json.dumps({"tokens": [], "tags": []}) + "\n")
    left_out = Accounting()
    ((line, example, columns),) = read_texts(path, DRUGS, True, left_out)
    assert (line, example.language, columns["home"]) == (1, "de", "x")
    assert left_out.reasons["empty"] == 1 and not left_out.bad


@pytest.mark.slow
def test_a_text_as_long_as_a_line_may_be_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    path.write_text("word\tO\n" * (LONGEST_LINE // 7) + "\n" + COLUMNS)
    assert [len(one.words) for one in read_file(path, DRUGS, labelled=True)] == [149_796, 2]


@pytest.mark.parametrize("row", ["#\tNN\tO", "# 1\tNN\tO"])
def test_a_hash_is_a_word_where_its_row_is_like_the_others(tmp_path: Path, row: str) -> None:
    path = tmp_path / "labelled.conll"
    for rows in ((row,), (row, "a\tNN\tO"), ("a\tNN\tO", row)):
        path.write_text("\n".join(rows) + "\n")
        (found,) = read_file(path, DRUGS, labelled=True)
        assert len(found.words) == len(rows)
