from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.tasks.encoder import LOOKED_AT, Encoder, cut_of, cuts_in_words
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.examples import ClientData, Example
from smidgen.edge_client.texts.tokens import Tokens

TAGGING, NOTES = Task("drugs", ("Drug",), kind="tagging"), Task("notes", kind="mlm")
WORDS = st.lists(
    st.sampled_from(["rain", "cakes", "qqqqq", "é", "\u200b"]), min_size=1, max_size=20
)


def encoder(base: Base, task: Task, limit: int = 12) -> Encoder:
    return Encoder(Tokens(base.folder), task, False, limit)


@given(WORDS)
def test_a_tagged_text_is_cut_where_a_word_gets_no_answer(
    tiny_base: Base, words: list[str]
) -> None:
    reads, text = encoder(tiny_base, TAGGING), Example(" ".join(words), words=tuple(words))
    (prompt,), cut = reads.prompts([text]), cut_of(reads, text)
    assert (cut is None) == (len(prompt.places) == len(words))
    if cut is not None:
        assert cut.read == len(prompt.ids) - 2 < cut.tokens


@given(WORDS)
def test_a_text_whose_words_are_masked_is_cut_where_tokens_are_not_read(
    tiny_base: Base, words: list[str]
) -> None:
    reads, text = encoder(tiny_base, NOTES), Example(" ".join(words))
    (prompt,), cut = reads.prompts([text]), cut_of(reads, text)
    whole = len(reads.tokens.encode(text.text))
    assert (cut is None) == (whole <= 10)
    if cut is not None:
        assert (cut.tokens, cut.read) == (whole, len(prompt.ids) - 2)


def test_of_a_text_of_megabytes_the_tokens_are_told_about(tiny_base: Base) -> None:
    cut = cut_of(encoder(tiny_base, NOTES), Example("rain " * 400_000))
    assert cut is not None and 380_000 < cut.tokens < 420_000 and cut.read == 10


def test_texts_that_are_put_into_patterns_are_not_told(tiny_base: Base) -> None:
    task = Task("t", ("mail", "power"), ("[MASK] {text}",), {"mail": "mail", "power": "power"})
    reads = Encoder(Tokens(tiny_base.folder), task, True, 12)
    assert cut_of(reads, Example("rain " * 99)) is None


def test_of_very_many_texts_the_first_ones_are_looked_at(tiny_base: Base) -> None:
    long, short = Example("rain " * 20), Example("rain")
    reads, many = encoder(tiny_base, NOTES), (short,) * (LOOKED_AT - 1)
    (told,) = cuts_in_words(reads, ClientData((*many, *[long] * 1000), (), ()), 12)
    assert told.startswith("1 of the first 2,000 of 2,999 texts to train on are longer")
    assert not list(cuts_in_words(reads, ClientData((*many, short, long), (), ()), 12))


def test_each_part_tells_its_own_and_what_helps(tiny_base: Base) -> None:
    long = Example("rain " * 20, line=7, file="labelled.txt")
    data = ClientData((Example("rain"), long, long), (), (long,))
    reads = encoder(tiny_base, NOTES)
    train, test = cuts_in_words(reads, data, 12)
    assert train == (
        "2 of 3 texts to train on are longer than what is read: the first, labelled.txt, line 7, "
        "has about 20 tokens, of which 10 are read; split them into shorter ones, or give more "
        "--tokens"
    )
    assert test.startswith("1 of 1 texts to test on are")
    assert next(cuts_in_words(reads, data, 99)).endswith("this base reads no longer ones")
    assert not list(cuts_in_words(reads, ClientData(data.labelled[:1], (long,), ()), 12))
