import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.formats.source import DataError
from smidgen.edge_client.formats.tags import OUTSIDE
from smidgen.simulation.datasets.catalogue import read_dataset
from smidgen.simulation.datasets.known import READERS, begun, tagged_texts
from tests.conftest import shared

FEW = "-DOCSTART- (1)\n\nSome NN O I-Entity\npills NN O I-Entity\nhelp VB O O\n\nNo DT O O\n"
PLACES = st.sampled_from(["O", "B-X", "I-X", "B-Y", "I-Y"])


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))
    return path


def test_words_and_tags_are_read_text_by_text(tmp_path: Path) -> None:
    first, second = tagged_texts(write(tmp_path / "x" / "train.conll.gz", FEW), "en")
    assert first.words == ("Some", "pills", "help") and first.text == "Some pills help"
    assert first.tags == ("B-Entity", "I-Entity", OUTSIDE) and second.tags == (OUTSIDE,)
    assert first.language == "en"


@given(st.lists(PLACES))
def test_no_inner_tag_begins_an_entity_and_none_is_lost(tags: list[str]) -> None:
    told = list(begun(tags))
    for before, tag in zip([OUTSIDE, *told], told, strict=False):
        assert tag[0] != "I" or before[2:] == tag[2:]
    assert [tag[2:] for tag in told] == [tag[2:] for tag in tags]
    assert list(begun(told)) == told


def test_a_word_without_a_tag_is_named_by_its_line(tmp_path: Path) -> None:
    path = write(tmp_path / "x" / "train.conll.gz", "one O\ntwo\n")
    with pytest.raises(DataError, match=r"line 2: a word and its tag are expected"):
        list(tagged_texts(path, "en"))


def test_a_file_that_is_cut_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "x" / "train.conll.gz", FEW * 50)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match="cannot be read"):
        list(tagged_texts(path, "en"))


def test_tags_of_another_type_are_refused(tmp_path: Path) -> None:
    for part, word in (("train", "one"), ("test", "two")):
        write(tmp_path / "ner_bc5cdr" / f"{part}.conll.gz", f"{word} O\n\n{word}s B-Drug\n")
    with pytest.raises(DataError, match="'B-Drug' is not one of Entity"):
        read_dataset("ner_bc5cdr", tmp_path)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "name", [name for name in READERS if name.startswith("ner_") and name != "ner_panx"]
)
def test_the_shared_sets_are_tagged_in_every_language(name: str) -> None:
    found = read_dataset(name, shared("data", name).parent)
    assert found.task.kind == "tagging" and found.task.labels
    for language in {one.language for one in found.train}:
        mine = [one for one in found.test if one.language == language]
        assert any(set(one.tags) - {OUTSIDE} for one in mine)
        assert all(len(one.words) == len(one.tags) for one in mine)


@pytest.mark.slow
def test_the_shared_panx_has_nine_languages() -> None:
    found = read_dataset("ner_panx", shared("data", "ner_panx").parent)
    assert len({one.language for one in found.test}) == 9
    assert set(found.task.labels) == {"PER", "LOC", "ORG"}
