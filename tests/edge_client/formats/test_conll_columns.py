"""Columns of words against an oracle: who writes the file knows which column is what."""

from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.formats.conll import CONLL
from smidgen.edge_client.formats.source import DataError, Dialect, LeftOut, Row, Source, Wants
from smidgen.edge_client.texts.examples import Example, every_row
from smidgen.edge_client.texts.parts import Labels
from tests.edge_client.formats.tagged_files import DRUGS, tagged

TEXTS = st.lists(tagged(), min_size=1, max_size=4).filter(
    lambda texts: (
        any(tag != "O" for one in texts for tag in one.tags)
        and not all(word.strip(".)").isdecimal() for one in texts for word in one.words)
    )
)
WANTS: tuple[Wants, ...] = ("tags", "text")
Words = list[tuple[tuple[str, ...], tuple[str, ...]]]


def read(path: Path, written: str, **how: object) -> tuple[Words, list[str]]:
    """Words and tags of each text, and what is said of the columns."""
    path.write_bytes(written.encode())
    source = Source(path, **{"wants": "tags", "labels": DRUGS.labels, **how})  # type: ignore[arg-type]
    rows = list(CONLL.read(source))
    assert all(isinstance(row, Row) for row in rows), rows
    return [(row.words, row.tags) for row in rows if isinstance(row, Row)], source.notes


def numbers(style: str, text: int, start: int) -> "count[int] | list[str]":
    """What the first column says of each word of a text."""
    if style == "of the file":
        return count(start)
    if style == "of the text, from 0":
        return count(0)
    if style == "with gaps":
        return count(1, 2)
    if style == "with a dot":
        return [f"{number}." for number in range(1, 99)]
    return [f"{text}-{number}" for number in range(1, 99)]


STYLES = ("of the file", "of the text, from 0", "with gaps", "with a dot", "of text and word")


@given(texts=TEXTS, style=st.sampled_from(STYLES), middle=st.sampled_from(("", "NN\t", "NN\t_\t")))
def test_a_column_that_numbers_words_is_never_the_words(
    tmp_path_factory: pytest.TempPathFactory, texts: list[Example], style: str, middle: str
) -> None:
    lines, start = list[str](), 1
    for place, text in enumerate(texts, start=1):
        of_words = zip(numbers(style, place, start), text.words, text.tags, strict=False)
        lines += [*(f"{number}\t{word}\t{middle}{tag}" for number, word, tag in of_words), ""]
        start += len(text.words)
    path = tmp_path_factory.mktemp("columns") / "a.conll"
    found, notes = read(path, "\n".join(lines))
    assert found == [(text.words, text.tags) for text in texts]
    assert notes[0] == "its second column as the words, since the first counts them"


@given(
    texts=TEXTS,
    names=st.permutations(("FORM", "NER", "LEMMA", "MISC")),
    header=st.sampled_from(("# global.columns = ", "")),
    is_lower=st.booleans(),
)
def test_columns_that_the_file_names_are_taken_by_their_names(
    tmp_path_factory: pytest.TempPathFactory,
    texts: list[Example],
    names: list[str],
    header: str,
    is_lower: bool,
) -> None:
    cells = {"LEMMA": "x", "MISC": "_"}
    first = (" " if header else "\t").join(name.lower() if is_lower else name for name in names)
    lines = [header + first]
    for text in texts:
        for word, tag in zip(text.words, text.tags, strict=True):
            row = {**cells, "FORM": word, "NER": tag}
            lines.append("\t".join(row[name] for name in names))
        lines.append("")
    path = tmp_path_factory.mktemp("columns") / "a.conll"
    found, notes = read(path, "\n".join(lines))
    assert found == [(text.words, text.tags) for text in texts]
    assert any("as the words" in note for note in notes)
    assert any("as the tags" in note for note in notes)


GERMEVAL = "#\thttp://x [2009-10-17]\n{}\n\n#\thttp://y\n1\tBonn\tO\tB-Illness\n2\tis\tO\tO\n"
OUTER = "1\tAspirin\tB-Drug\tO\n2\thelped\tO\tO"
U = "{}\t{}\t_\tNOUN\t_\t_\t0\troot\t_\t{}\n"


def test_of_nested_tags_behind_numbered_words_the_outer_ones_are_read(tmp_path: Path) -> None:
    found, notes = read(tmp_path / "a.tsv", GERMEVAL.format(OUTER))
    assert found[0] == (("Aspirin", "helped"), ("B-Drug", "O"))
    assert notes[1] == "its column 3 as the tags, not column 4, which holds tags too"


def test_a_table_of_words_with_labels_stays_a_table(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("word\tlabel\nASS\tDrug\n")
    dialect = Dialect("word", "label")
    (found,) = every_row(tmp_path / "a.tsv", Labels(("Drug",)), True, [], dialect)
    assert found.example == Example("ASS", label="Drug")


@pytest.mark.parametrize("between", ["\n", "\n\n", "\n\n\n"])
def test_names_may_stand_apart_from_the_first_text(tmp_path: Path, between: str) -> None:
    found, notes = read(tmp_path / "a.tsv", f"word\tner{between}1\tO\nASS\tB-Drug\n")
    assert found == [(("1", "ASS"), ("O", "B-Drug"))] and len(notes) == 2
    assert read(tmp_path / "a.tsv", "word\tner\n")[0] == []


def test_a_comment_with_fewer_columns_than_the_tags_have_is_none_of_a_word(tmp_path: Path) -> None:
    body = "# a\n# global.columns = A FORM B NER\nx ASS x B-Drug\n\n# b c\n\n# d\nx a x O\n"
    found, _ = read(tmp_path / "a.conll", body)
    assert found == [(("ASS",), ("B-Drug",)), (("a",), ("O",))]


def test_of_conllu_the_forms_are_words_and_the_entities_of_misc_their_tags(tmp_path: Path) -> None:
    lines = U.format("1-2", "im", "_") + U.format(1, "in", "SpaceAfter=No|NER=O")
    lines += U.format(2, "dem", "_") + U.format("2.1", "x", "_") + U.format(3, "ASS", "NER=B-Drug")
    found, notes = read(tmp_path / "a.conllu", "# text = im ASS\n" + lines)
    assert found == [(("in", "dem", "ASS"), ("O", "O", "B-Drug"))]
    assert notes[-1] == "the entities of its column MISC as the tags"
    alone, _ = read(tmp_path / "a.conllu", lines, wants="text")
    assert alone == [(("in", "dem", "ASS"), ())]


def test_conllu_without_tags_is_refused_by_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is CoNLL-U without tags: NER=B-TYPE is expected in its"):
        read(tmp_path / "a.conllu", U.format(1, "in", "_") + U.format(2, "dem", "_"))


def test_a_column_of_tags_that_is_not_the_last_is_read_and_said(tmp_path: Path) -> None:
    found, notes = read(tmp_path / "a.conll", "Aspirin B-Drug NN\nhelped O VBD\n")
    assert found == [(("Aspirin", "helped"), ("B-Drug", "O"))]
    assert notes == ["its column 2 as the tags"]


@pytest.mark.parametrize("tag", ["3", "ner:inner", "NER:INNER"])
def test_which_column_is_meant_can_be_said_by_number_or_name(tmp_path: Path, tag: str) -> None:
    body = "# global.columns = FORM NER:outer NER:inner LEMMA\nASS B-Drug B-Illness ass\n"
    told = Dialect(text_column="4", label_column=tag)
    assert read(tmp_path / "a.conll", body, dialect=told)[0] == [(("ass",), ("B-Illness",))]


def test_a_column_of_another_name_is_refused_with_those_that_are_there(tmp_path: Path) -> None:
    body = "# global.columns = FORM NER\nASS B-Drug\n"
    with pytest.raises(DataError, match="there is no column tags; its columns are FORM, NER"):
        read(tmp_path / "a.conll", body, dialect=Dialect(label_column="tags"))
    plain = read(tmp_path / "a.conll", "ASS B-Drug\n", dialect=Dialect(text_column="body"))
    assert plain[0] == [(("ASS",), ("B-Drug",))], "of the folder's tables"


def test_columns_none_of_which_is_called_as_words_are(tmp_path: Path) -> None:
    body = "# global.columns = NUM SURFACE NER\n1\tASS\tB-Drug\n"
    with pytest.raises(DataError, match="NUM, SURFACE, NER; one called FORM, WORD or TOKEN is"):
        read(tmp_path / "a.conll", body)
    assert read(tmp_path / "a.conll", body, dialect=Dialect("SURFACE"))[0] == [
        (("ASS",), ("B-Drug",))
    ]


@pytest.mark.parametrize("body", ["1 CD O\n\n1 CD O\n\nAnn NN O\n", "7 O\n8 O\n", "1 O\n2 O\n"])
def test_numbers_that_do_not_number_words_are_words(tmp_path: Path, body: str) -> None:
    found, notes = read(tmp_path / "a.conll", body)
    assert found[0][0][0] == body[0] and not notes


@given(st.lists(st.text(st.sampled_from("aB-DrugO#1\t \n=_|"), max_size=12), max_size=8))
def test_each_text_of_any_file_is_read_or_left_out_once(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str]
) -> None:
    path = tmp_path_factory.mktemp("columns") / "a.conll"
    path.write_text("\n".join(lines))
    for wants in WANTS:
        try:
            rows = list(CONLL.read(Source(path, wants)))
        except DataError:
            continue  # of its columns
        blocks = [one for one in "\n".join(lines).split("\n\n") if one.strip()]
        assert all(isinstance(row, LeftOut) or len(row.words) >= 1 for row in rows)
        assert len(rows) >= len([one for one in blocks if "#" not in one]) - 1
        ends = [row.line for row in rows]
        assert ends == sorted(ends)
