"""CoNLL in the layouts that people keep it in, against what writes them."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from smidgen.edge_client.tasks.kind import kind_named
from smidgen.edge_client.texts.examples import Example, read_file
from smidgen.edge_client.texts.parts import Labels
from tests.edge_client.formats.tagged_files import DRUGS, tagged

Layout = Callable[[Sequence[str], Sequence[str]], list[str]]
NOTHING = "_"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("layouts")


def columns(*middle: str, first: int | None = None, after: tuple[str, ...] = ()) -> Layout:
    """Word first and tag last, or behind a number that counts and before other columns."""

    def write(words: Sequence[str], tags: Sequence[str]) -> list[str]:
        rows = enumerate(zip(words, tags, strict=True), start=first or 0)
        count = first is not None
        return [
            "\t".join([*([str(at)] if count else []), word, *middle, tag, *after])
            for at, (word, tag) in rows
        ]

    return write


def conllu(words: Sequence[str], tags: Sequence[str]) -> list[str]:
    """Tags in MISC; before the words the number of two, behind them one that is left out."""
    ends = [NOTHING] * 7
    rows = [
        "\t".join([str(at), word, *ends, "SpaceAfter=No" if tag == "O" else f"NER={tag}|Gloss=x"])
        for at, (word, tag) in enumerate(zip(words, tags, strict=True), start=1)
    ]
    both = ["\t".join(["1-2", "both", *ends, NOTHING])] if len(rows) > 1 else []
    empty = "\t".join([f"{len(rows)}.1", "left", *ends, NOTHING])
    return ["# sent_id = 1", "# text = a\tb", *both, *rows, empty]


LAYOUTS: dict[str, Layout] = {
    "two": columns(),
    "three": columns("NN"),
    "six": columns("NN", "I-NP", "x", "y"),
    "from one": columns(first=1),
    "from nought": columns("NN", first=0),
    "germeval": columns(first=1, after=("O",)),
    "conllu": conllu,
}


# Words that begin a comment, or count as the first column does, belong to other tests.
def is_plain(text: Example) -> bool:
    return not any(word[0] == "#" or word.isdecimal() or " " in word for word in text.words)


TEXTS = st.lists(tagged().filter(is_plain), min_size=1, max_size=4)


def file_of(folder: Path, layout: Layout, found: list[Example], head: str = "") -> Path:
    path = folder / "labelled.conll"
    blocks = ["\n".join(layout(one.words, one.tags)) + "\n" for one in found]
    path.write_text(head + "\n".join(blocks), encoding="utf-8", newline="")
    return path


@pytest.mark.few(4)
@pytest.mark.parametrize("name", LAYOUTS)
@given(found=TEXTS)
def test_a_layout_is_read_as_it_was_written(folder: Path, name: str, found: list[Example]) -> None:
    if name in ("conllu", "germeval"):  # without any entity nothing tells where they would be
        assume(any(tag != "O" for one in found for tag in one.tags))
    assert read_file(file_of(folder, LAYOUTS[name], found), DRUGS, labelled=True) == found


NAMED = [("ID FORM NER X", ("O",)), ("ID FORM entities:NER _ _", ("x", "y"))]


@pytest.mark.parametrize(("names", "after"), NAMED)
@given(found=TEXTS)
def test_columns_go_by_their_names(
    folder: Path, found: list[Example], names: str, after: tuple[str, ...]
) -> None:
    layout = columns(first=1, after=after)
    path = file_of(folder, layout, found, f"# global.columns = {names}\n")
    assert read_file(path, DRUGS, labelled=True) == found


@given(TEXTS, st.sampled_from(["BIOES", "BILOU"]))
def test_other_schemes_are_read_as_bio(folder: Path, found: list[Example], scheme: str) -> None:
    single, last = ("S", "E") if scheme == "BIOES" else ("U", "L")
    path = file_of(folder, lambda words, tags: columns()(words, ended(tags, single, last)), found)
    assert read_file(path, DRUGS, labelled=True) == found


def ended(tags: Sequence[str], single: str, last: str) -> list[str]:
    """The same tags by a scheme whose last words of entities are marked."""
    made = list[str]()
    for tag, after in zip(tags, [*tags[1:], "O"], strict=True):
        goes_on = after == f"I-{tag[2:]}" and tag != "O"
        letter = tag[0] if goes_on or tag == "O" else {"B": single, "I": last}[tag[0]]
        made.append(letter + tag[1:])
    return made


@given(TEXTS)
def test_iob1_is_read_as_bio(folder: Path, found: list[Example]) -> None:
    def first(tags: Sequence[str]) -> list[str]:
        pairs = zip(tags, ["O", *tags[:-1]], strict=True)
        return [
            tag if tag[2:] == before[2:] else tag.replace("B-", "I-", 1) for tag, before in pairs
        ]

    path = file_of(folder, lambda words, tags: columns()(words, first(tags)), found)
    assert read_file(path, DRUGS, labelled=True) == found


@pytest.mark.parametrize("labels", [("Drug", "Illness"), ("NP", "VP")])
@given(found=TEXTS.filter(lambda found: any("B-Drug" in one.tags for one in found)))
def test_of_two_columns_of_tags_that_of_the_known_labels_is_read(
    folder: Path, found: list[Example], labels: tuple[str, ...]
) -> None:
    path = file_of(folder, columns("B-NP"), found)
    back = read_file(path, Labels(labels, kind_named("tagging").files), labelled=True)
    expected = [one.tags if "Drug" in labels else ("B-NP",) * len(one.tags) for one in found]
    assert [one.tags for one in back] == expected


@given(
    st.lists(st.lists(st.integers(0, 99).map(str), min_size=1, max_size=4), min_size=1, max_size=4)
)
def test_words_that_are_numbers_stay_words(folder: Path, found: list[list[str]]) -> None:
    path = folder / "numbers.conll"
    path.write_text("\n".join("".join(f"{word}\tO\n" for word in words) for words in found))
    assert [[*one.words] for one in read_file(path, DRUGS, labelled=True)] == found
