import gzip
from pathlib import Path

import pytest

from benchmarks.papers.grid import read_file
from benchmarks.papers.tables.silos import NAMES
from smidgen.simulation.datasets.catalogue import (
    ENGLISH,
    LANGUAGES,
    MEDICAL,
    MEDICAL_LANGUAGES,
    MOST,
    NEWS,
    read_dataset,
    side_of,
)
from tests.conftest import shared

WIKI = [
    " = Head = ",
    " ",
    " One @,@ 000 words are here now . Too short . The <unk> is left out here . ",
]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Twenty sentences of each language, numbered alike, as they lie in the shared folder."""
    for folder in (NEWS, MEDICAL, ENGLISH):
        (tmp_path / folder).mkdir()
    for language in LANGUAGES:
        lines = [f"{language} sentence {number}" for number in range(20)]
        write(tmp_path / NEWS / f"{language}.txt.gz", lines)
    rows = [[f"row{n}", *(f"{language} dose {n}" for language in MEDICAL_LANGUAGES)] for n in "ab"]
    head = ["id", *MEDICAL_LANGUAGES]
    write(tmp_path / MEDICAL / "parallel.csv.gz", [",".join(row) for row in [head, *rows]])
    write(tmp_path / ENGLISH / "wiki.valid.txt.gz", WIKI)
    return tmp_path


def write(path: Path, lines: list[str]) -> None:
    path.write_bytes(gzip.compress("\n".join([*lines, ""]).encode(), mtime=0))


def numbers(texts: list[str]) -> set[int]:
    return {int(text.split()[-1]) for text in texts if "sentence" in text}


def test_a_sentence_is_on_one_side_in_every_language(data: Path) -> None:
    tests, dev = (read_dataset(name, data) for name in ("silo_texts", "silo_texts_dev"))
    assert tests.train == dev.train and tests.sha256 == dev.sha256
    assert tests.task != dev.task  # by which results of either are told apart
    sides = [numbers([one.text for one in part]) for part in (tests.train, tests.test, dev.test)]
    assert not sides[0] & sides[1] and not sides[0] & sides[2] and not sides[1] & sides[2]
    assert set.union(*sides) == set(range(20))
    for language in LANGUAGES:
        mine = [one.text for one in tests.test if one.language == language]
        assert numbers(mine) == {n for n in range(20) if side_of(n) == "test"}


def test_medical_and_english_texts_are_trained_on_alone(data: Path) -> None:
    found = read_dataset("silo_texts", data)
    texts = {one.text for one in found.train if one.language == "en"}
    assert {"en dose a", "en dose b", "One,000 words are here now ."} <= texts
    assert not any("unk" in text or text == "Too short ." for text in texts)
    assert not any(
        "dose" in one.text for one in (*found.test, *found.train) if one.language == "he"
    )
    assert MEDICAL in found.origin and ENGLISH in found.origin


def test_a_language_alone_reads_its_own_files(data: Path) -> None:
    found = read_dataset("silo_texts", data, ["he"])
    assert {one.language for one in (*found.train, *found.test)} == {"he"}
    assert found.origin == f"folder {NEWS}"


def test_the_most_of_each_silo_is_in_the_paper_s_proportions() -> None:
    sizes = read_file("healthcare")[1].tables["sizes"]
    printed = {one: sizes[NAMES[one]].get("train samples") for one in MOST}
    for language, most in MOST.items():
        figure, smallest = printed[language], printed["he"]
        assert figure is not None and smallest is not None
        assert most == pytest.approx(MOST["he"] * figure.value / smallest.value, abs=1)


@pytest.mark.slow
def test_the_shared_texts_are_as_skewed_as_said() -> None:
    found = read_dataset("silo_texts", shared("data", NEWS).parent)
    counts = {name: sum(one.language == name for one in found.train) for name in LANGUAGES}
    assert max(counts, key=lambda name: counts[name]) == "en" and counts["he"] == MOST["he"]
    assert counts["en"] >= 100 * counts["he"]
    assert "CC0" in found.licence and "CC BY-SA 4.0" in found.licence
