from hypothesis import given
from hypothesis import strategies as st

from edge_client.formats.tags import Scheme
from edge_client.texts.examples import Example
from tests.edge_client.formats.tagged_files import DRUGS, tagged

TAGS = ("O", "B-Drug", "I-Drug", "B-Illness", "I-Illness", "B-drug", "S-Drug", "", "B-", "I", "o")


@given(tagged())
def test_tags_in_bio_have_no_fault(text: Example) -> None:
    assert Scheme(DRUGS.labels).fault(text.tags) is None
    assert Scheme(()).fault(text.tags) is None


@given(st.lists(st.sampled_from(TAGS), max_size=6))
def test_without_a_fault_each_inner_tag_follows_its_type_and_all_are_known(tags: list[str]) -> None:
    fault = Scheme(DRUGS.labels).fault(tags)
    good = tags if fault is None else tags[: fault.place]
    for before, tag in zip(["O", *good], good, strict=False):
        assert tag in TAGS[:5]
        assert not tag.startswith("I") or before[1:] == tag[1:]
    if fault is not None:
        wrong, before = tags[fault.place], ["O", *tags][fault.place]
        assert wrong not in TAGS[:5] or (wrong[0] == "I" and before[1:] != wrong[1:])


def test_a_type_that_is_not_known_may_be_a_word_and_is_not_shown() -> None:
    fault = Scheme(DRUGS.labels).fault(("O", "B-Smith"))
    assert fault == (1, "its tag is not O, nor B- or I- and one of Drug, Illness")
    told = [Scheme(()).fault(tags) for tags in (("Smith",), ("I-Smith",))]
    assert all(one and "Smith" not in one.said for one in told)


def test_a_type_in_other_letters_is_named() -> None:
    fault = Scheme(DRUGS.labels).fault(("B-drug",))
    assert fault and fault.said.endswith("it differs from Drug in case or spaces")


def test_what_helps_a_file_in_an_older_way_is_said_once() -> None:
    scheme = Scheme(DRUGS.labels)
    first, second = scheme.fault(("I-Drug",)), scheme.fault(("B-Drug", "I-Illness"))
    assert first and "B- is expected; write the file as BIO (IOB2)" in first.said
    assert second and second.said.endswith("of which the word before is not; B- is expected")
