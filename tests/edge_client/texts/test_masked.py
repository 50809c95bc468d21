"""Which tokens are masked, and with what: the laws of the encoder of kind `mlm`."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.tasks.encoder import Encoder
from smidgen.edge_client.tasks.kinds.masked_words import masked, most_masked
from smidgen.edge_client.tasks.task import Masking, Task
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.texts.prompts.patterns import TaskError
from smidgen.edge_client.texts.tokens import Prompt, Tokens
from tests.tiny import WORDS

# Words of one token, words of many letters, and whatever else a text may hold.
WORD = st.one_of(
    st.sampled_from([*WORDS.split(), "microwave", "antidisestablishment"]), st.text(max_size=9)
)
TEXT = st.lists(WORD, max_size=20).map(" ".join)
EXAMPLES = st.lists(st.builds(Example, TEXT, st.one_of(st.just(""), TEXT)), min_size=1, max_size=5)
MASKINGS = st.builds(Masking, st.floats(0.01, 0.5), st.booleans())
LIMITS = st.integers(3, 40)
DRAWS = st.integers(0, 2**63 - 1)
LONG = [Example(" ".join(WORDS.split()[row:])) for row in range(40)]


def tokens_of(base: Base, examples: Sequence[Example], limit: int) -> list[list[int]]:
    """What stands in each text's place, nothing masked."""
    tokens = Tokens(base.folder)
    room = limit - sum(map(len, tokens.frame))
    joined = [f"{one.text} {one.text_b}" if one.text_b else one.text for one in examples]
    return [tokens.encode(text)[:room] or [tokens.unknown_id or 0] for text in joined]


def unmasked(prompt: Prompt) -> list[int]:
    ids = list(prompt.ids)
    for place, answer in zip(prompt.places, prompt.answers, strict=True):
        ids[place] = answer
    return ids


@given(EXAMPLES, MASKINGS, LIMITS, DRAWS)
def test_the_right_answers_put_back_give_the_text(
    tiny_base: Base, examples: list[Example], masking: Masking, limit: int, draw: int
) -> None:
    tokens = Tokens(tiny_base.folder)
    before, after = tokens.frame
    prompts = masked(tokens, masking, examples, limit, draw)
    for prompt, ids in zip(prompts, tokens_of(tiny_base, examples, limit), strict=True):
        assert unmasked(prompt) == [*before, *ids, *after] and len(prompt.ids) <= limit
        assert prompt.places == sorted(set(prompt.places))
        assert prompt.places[0] > 0 and prompt.places[-1] <= len(ids)


@given(EXAMPLES, MASKINGS, LIMITS, DRAWS)
def test_a_share_of_the_tokens_is_asked_for_and_one_at_least(
    tiny_base: Base, examples: list[Example], masking: Masking, limit: int, draw: int
) -> None:
    prompts = masked(Tokens(tiny_base.folder), masking, examples, limit, draw)
    for prompt in prompts:
        count = max(1, round(masking.share * (len(prompt.ids) - 2)))
        assert 1 <= len(prompt.places) <= count <= most_masked(masking, limit)
        assert masking.whole_words or len(prompt.places) == count


@given(EXAMPLES, st.floats(0.01, 0.5), LIMITS, DRAWS)
def test_whole_words_are_asked_for_whole_and_none_that_fits_is_left(
    tiny_base: Base, examples: list[Example], share: float, limit: int, draw: int
) -> None:
    tokens, masking = Tokens(tiny_base.folder), Masking(share, whole_words=True)
    for example, prompt in zip(
        examples, masked(tokens, masking, examples, limit, draw), strict=True
    ):
        text = f"{example.text} {example.text_b}" if example.text_b else example.text
        _, words = tokens.pieces(text, limit - 2)
        chosen = [words[place - 1] for place in prompt.places]
        count = max(1, round(share * len(words)))
        sizes = {word: words.count(word) for word in words}
        if min(sizes.values()) > count:
            assert len(set(chosen)) == 1 and len(chosen) == count  # a part of the shortest
            assert sizes[chosen[0]] == min(sizes.values())
        else:
            assert all(chosen.count(word) == sizes[word] for word in chosen)
            left = [size for word, size in sizes.items() if word not in chosen]
            assert all(len(chosen) + size > count for size in left)


@given(EXAMPLES, EXAMPLES, MASKINGS, DRAWS)
def test_what_is_masked_hangs_on_a_texts_place_and_on_no_other_text(
    tiny_base: Base, examples: list[Example], others: list[Example], masking: Masking, draw: int
) -> None:
    tokens = Tokens(tiny_base.folder)
    alone = masked(tokens, masking, examples, 24, draw)
    assert masked(tokens, masking, examples + others, 24, draw)[: len(examples)] == alone
    beside = [*others[:1], *examples[1:]]
    assert masked(tokens, masking, beside, 24, draw)[1:] == alone[1:]
    same = masked(tokens, masking, LONG[:1] * 40, 60, draw)
    assert len({tuple(prompt.places) for prompt in same}) > 1


@given(EXAMPLES, st.integers(1, 4), st.integers(4, 24))
def test_batches_hold_each_prompt_as_it_is_however_they_are_made(
    tiny_base: Base, examples: list[Example], rows: int, width: int
) -> None:
    encoder = Encoder(Tokens(tiny_base.folder), Task("notes", kind="mlm"), True, 24)
    prompts = encoder.prompts(examples, draw=5)
    seen = []
    for chosen, batch in encoder.by_length(examples, rows, width, draw=5):
        assert batch.texts is not None
        for place, row in enumerate(chosen):
            mine = batch.texts == place
            real = batch.ids[place, batch.attention[place] == 1].tolist()
            assert real == prompts[row].ids
            assert batch.mask_positions[mine].tolist() == prompts[row].places
            assert batch.labels[mine].tolist() == prompts[row].answers
        seen += chosen
    assert sorted(seen) == list(range(len(examples)))


def test_equal_draws_mask_equal_words_and_others_others(tiny_base: Base) -> None:
    tokens = Tokens(tiny_base.folder)
    first, again, other = (masked(tokens, Masking(), LONG, 60, draw) for draw in (7, 7, 8))
    assert first == again
    assert sum(one.places != two.places for one, two in zip(first, other, strict=True)) > 30


def test_eight_in_ten_are_masked_one_is_changed_and_one_stays(tiny_base: Base) -> None:
    tokens = Tokens(tiny_base.folder)
    asked = [prompt for draw in range(10) for prompt in masked(tokens, Masking(), LONG, 60, draw)]
    put = np.array([prompt.ids[place] for prompt in asked for place in prompt.places])
    right = np.array([answer for prompt in asked for answer in prompt.answers])
    count, is_masked = len(put), put == tokens.mask_id
    changed = put[~is_masked & (put != right)]
    assert count > 1000
    for share, found in ((0.8, is_masked.sum()), (0.1, len(changed)), (0.1, (put == right).sum())):
        # Five deviations of a binomial; that a changed word is drawn as itself lies far within.
        assert abs(found - share * count) <= 5 * np.sqrt(share * (1 - share) * count)
    assert set(changed.tolist()) <= set(tokens.ordinary_ids)


def test_every_share_of_tokens_is_as_likely_at_each_place(tiny_base: Base) -> None:
    tokens, example = Tokens(tiny_base.folder), [Example("a " * 20)]
    draws = 2000
    counts = np.zeros(22)
    for draw in range(draws):
        counts[masked(tokens, Masking(), example, 60, draw)[0].places] += 1
    share = 3 / 20
    assert counts[0] == counts[-1] == 0 and counts.sum() == 3 * draws
    deviation = np.sqrt(share * (1 - share) * draws)
    assert (np.abs(counts[1:-1] - share * draws) <= 5 * deviation).all()


@given(MASKINGS, LIMITS, LIMITS)
def test_shorter_inputs_have_no_more_masked(masking: Masking, one: int, other: int) -> None:
    assert most_masked(masking, min(one, other)) <= most_masked(masking, max(one, other))


def test_a_text_without_tokens_is_one_unknown_one(tiny_base: Base) -> None:
    tokens = Tokens(tiny_base.folder)
    for text in ("", " ", "\u200b\x00"):
        (prompt,) = masked(tokens, Masking(), [Example(text)], 24, 0)
        assert prompt.places == [1] and prompt.answers == [tokens.unknown_id]


@pytest.mark.parametrize("kind", ["mlm", "tagging"])
def test_inputs_that_leave_no_room_for_a_text_are_refused(tiny_base: Base, kind: str) -> None:
    tokens = Tokens(tiny_base.folder)
    labels = ("Drug",) if kind == "tagging" else ()
    task = Task("notes", labels, kind="tagging" if labels else "mlm")
    encoder = Encoder(tokens, task, True, 3)
    assert len(encoder.prompts([Example("the front door")])[0].ids) == 3
    with pytest.raises(TaskError, match="2 tokens leave no room for a text"):
        replace(encoder, limit=2)
