import pytest

from edge_client.base import Base
from edge_client.tasks import Task, TaskError
from edge_client.texts import Example
from edge_client.tokens import Encoder, Tokens


def test_a_filled_pattern_is_the_joined_text_tokenised(real_base: Base) -> None:
    tokens = Tokens(real_base.folder)
    prompt = tokens.cloze("a [MASK] news : {text}", Example("the cup final"), 64)
    before, after = tokens.frame
    joined = before + tokens.encode("a [MASK] news : the cup final") + after
    assert prompt.ids == joined
    assert prompt.ids[prompt.mask_position] == tokens.mask_id


def test_the_text_is_cut_and_the_pattern_never(tiny_base: Base) -> None:
    tokens = Tokens(tiny_base.folder)
    pattern = "{text} . this is about [MASK] ."
    short = tokens.cloze(pattern, Example("home"), 64)
    prompt = tokens.cloze(pattern, Example("home " * 500), 24)
    assert len(prompt.ids) == 24
    tail = len(short.ids) - short.mask_position
    assert prompt.ids[-tail:] == short.ids[-tail:]
    assert prompt.ids[prompt.mask_position] == tokens.mask_id


def test_both_texts_of_a_pair_keep_a_share(tiny_base: Base) -> None:
    tokens = Tokens(tiny_base.folder)
    pattern = "{text_a} [MASK] {text_b}"
    for first, second in ((400, 2), (2, 400), (400, 400)):
        example = Example("home " * first, "family " * second)
        prompt = tokens.cloze(pattern, example, 32)
        assert len(prompt.ids) <= 32
        assert prompt.ids.count(tokens.encode("home")[0]) >= min(first, 10)
        assert prompt.ids.count(tokens.encode("family")[0]) >= min(second, 10)


def test_a_pattern_longer_than_the_limit_is_refused(tiny_base: Base) -> None:
    with pytest.raises(TaskError, match="no room for a text"):
        Tokens(tiny_base.folder).cloze("home " * 30 + "[MASK] {text}", Example("x"), 16)


def test_a_label_word_of_several_tokens_is_named(tiny_base: Base) -> None:
    words = {"a": "security", "b": "counterintuitively"}
    task = Task("t", ("a", "b"), ("[MASK] {text}",), words)
    with pytest.raises(TaskError, match=r"'counterintuitively' of 'b' is .* one token"):
        Tokens(tiny_base.folder).label_word_ids(task)


def test_a_batch_is_padded_to_its_longest(tiny_base: Base, hub_task: Task) -> None:
    tokens = Tokens(tiny_base.folder)
    encoder = Encoder(tokens, hub_task, True, 32)
    examples = [Example("home", label="family"), Example("home weather power")]
    batch = encoder.batch(encoder.prompts(examples), encoder.labels(examples))
    assert batch.ids.shape == batch.attention.shape == (2, int(batch.attention[1].sum()))
    assert batch.ids[0, -1] == tokens.pad_id and batch.attention[0, -1] == 0
    assert batch.labels.tolist() == [hub_task.labels.index("family"), -1]
