from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.formats.tags import Scheme, TagFault, is_iob1
from smidgen.edge_client.texts.examples import Example
from tests.edge_client.formats.tagged_files import DRUGS, tagged

TAGS = ("O", "B-Drug", "I-Drug", "B-Illness", "I-Illness", "B-drug", "S-Drug", "", "B-", "I", "o")


def fault(tags: Any, labels: tuple[str, ...] = DRUGS.labels) -> TagFault:
    found = Scheme(labels).bio(tags)
    assert isinstance(found, TagFault)
    return found


@given(tagged())
def test_tags_in_bio_stay_as_they_are(text: Example) -> None:
    for labels in (DRUGS.labels, ()):
        assert Scheme(labels).bio(text.tags) == text.tags


@given(st.lists(st.sampled_from(TAGS), max_size=6))
def test_of_what_comes_out_each_inner_tag_follows_its_type_and_all_are_known(
    tags: list[str],
) -> None:
    found = Scheme(DRUGS.labels).bio(tags)
    if isinstance(found, TagFault):
        wrong = tags[found.place]
        assert wrong not in TAGS[:5] or wrong[0] == "I"
        found = Scheme(DRUGS.labels).bio(tags[: found.place])
    assert not isinstance(found, TagFault)
    for before, tag in zip(["O", *found], found, strict=False):
        assert tag in TAGS[:5]
        assert not tag.startswith("I") or before[1:] == tag[1:]


def as_bioes(tags: tuple[str, ...], single: str, last: str) -> list[str]:
    """The same entities with a letter for the last word of each, and for one of a single word."""
    found = []
    for tag, after in zip(tags, [*tags[1:], "O"], strict=True):
        is_last = tag != "O" and after != f"I-{tag[2:]}"
        found.append({"B": single, "I": last}[tag[0]] + tag[1:] if is_last else tag)
    return found


@given(tagged(), st.sampled_from([("S", "E"), ("U", "L"), ("W", "E")]))
def test_schemes_with_more_letters_say_the_same(text: Example, letters: tuple[str, str]) -> None:
    notes = list[str]()
    found = Scheme(DRUGS.labels, notes=notes).bio(as_bioes(text.tags, *letters))
    assert found == text.tags
    assert bool(notes) == any(tag != "O" for tag in text.tags)


@given(st.lists(tagged(), min_size=1, max_size=5))
def test_iob1_says_the_same(texts: list[Example]) -> None:
    first = []
    for text in texts:
        pairs = zip(("O", *text.tags), text.tags, strict=False)
        first.append([f"I{t[1:]}" if t[0] == "B" and t[1:] != b[1:] else t for b, t in pairs])
    scheme = Scheme(DRUGS.labels, is_iob1(first))
    assert [scheme.bio(tags) for tags in first] == [text.tags for text in texts]


@pytest.mark.parametrize("tags", [("B-Drug", "O", "I-Drug"), ("S-Drug", "I-Drug"), ("O",), ()])
def test_what_begins_entities_otherwise_is_not_iob1(tags: tuple[str, ...]) -> None:
    assert not is_iob1([tags])


def test_a_type_that_is_not_known_may_be_a_word_and_is_not_shown() -> None:
    expected = "its tag is not O, nor B- or I- and one of Drug, Illness"
    assert fault(("O", "B-Smith")) == (1, expected)
    for tags in (("Smith",), ("I-Smith",)):
        assert "Smith" not in fault(tags, ()).said


def test_a_type_in_other_letters_is_named() -> None:
    assert fault(("B-drug",)).said.endswith("it differs from Drug in case or spaces")


def test_what_helps_a_file_in_an_older_way_is_said_once() -> None:
    scheme = Scheme(DRUGS.labels)
    first, second = scheme.bio(("I-Drug",)), scheme.bio(("B-Drug", "I-Illness"))
    assert isinstance(first, TagFault) and isinstance(second, TagFault)
    assert "B- is expected; write the file as BIO (IOB2)" in first.said
    assert second.said.endswith("of which the word before is not; B- is expected")
