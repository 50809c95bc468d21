import gc
import shutil
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.bases.base import EMBEDDED, Base, open_base
from smidgen.edge_client.tasks.encoder import Encoder
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.texts.prompts.patterns import TaskError
from smidgen.edge_client.texts.tokens import TokenizerError, Tokens


def test_a_filled_pattern_is_the_joined_text_tokenised(real_base: Base) -> None:
    tokens = Tokens(real_base.folder)
    prompt = tokens.cloze("a [MASK] news : {text}", Example("the cup final"), 64)
    before, after = tokens.frame
    joined = tokens.encode("a"), [tokens.mask_id], tokens.encode("news : the cup final")
    assert prompt.ids == [*before, *(id_ for part in joined for id_ in part), *after]
    assert prompt.ids[prompt.mask_position] == tokens.mask_id


ODD = "Stocks end up near the year's highs, Ünïcödé & 日本 - but 3.5 % U.S.A."
STOCKS = [11789, 330, 166, 506, 123, 222, 11, 61, 279, 142, 16, 15021, 1724]


@pytest.mark.parametrize(
    ("pattern", "limit", "ids"),
    [
        ("{text} ( [MASK] )", 18, [2, *STOCKS, 12, 4, 13, 3]),
        ("it was [MASK] . {text}", 12, [2, 136, 128, 4, 18, *STOCKS[:6], 3]),
        (
            "{text_a} ? [MASK] , {text_b}",
            24,
            [2, *STOCKS[:9], 35, 4, 16, *[123, 472] * 4, 123, 3],
        ),
    ],
)
def test_ids_on_the_embedded_base_are_those_of_protocol_10(
    pattern: str, limit: int, ids: list[int]
) -> None:
    tokens = Tokens(open_base(EMBEDDED).folder)
    assert tokens.cloze(pattern, Example(ODD, "the final " * 20), limit).ids == ids


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


def test_a_literal_mask_in_a_text_is_not_the_patterns(tiny_base: Base) -> None:
    tokens = Tokens(tiny_base.folder)
    prompt = tokens.cloze("[MASK] : {text}", Example("[MASK]"), 16)
    assert prompt.mask_position == len(tokens.frame[0])


PATTERNS = ("{text} [MASK] .", "{text_a} ? [MASK] , {text_b}", "home [MASK] {text_b} : {text_a}")
LENGTHS = st.integers(0, 40)


@given(st.sampled_from(PATTERNS), LENGTHS, LENGTHS, st.integers(9, 40))
def test_texts_are_cut_to_the_limit_and_patterns_stay_whole(
    tiny_base: Base, pattern: str, first: int, second: int, limit: int
) -> None:
    tokens = Tokens(tiny_base.folder)
    whole = tokens.cloze(pattern, Example("", ""), 64)
    prompt = tokens.cloze(pattern, Example("rain " * first, "nine " * second), limit)
    rain, nine = tokens.encode("rain")[0], tokens.encode("nine")[0]
    assert [id_ for id_ in prompt.ids if id_ not in (rain, nine)] == whole.ids
    assert prompt.ids[prompt.mask_position] == tokens.mask_id
    asked = len(whole.ids) + first + second * ("text_b" in pattern)
    assert len(prompt.ids) <= limit
    assert len(prompt.ids) == asked or len(prompt.ids) >= limit - 1  # of a pair: two equal halves


@pytest.mark.parametrize("is_ensemble", [True, False])
def test_a_pattern_without_room_is_told_before_any_text(
    tiny_base: Base, hub_task: Task, is_ensemble: bool
) -> None:
    tokens, patterns = Tokens(tiny_base.folder), ("[MASK] {text}", "home " * 30 + "[MASK] {text}")
    asked = replace(hub_task, patterns=patterns, ensemble=is_ensemble)
    assert len(Encoder(tokens, asked, False, 16).views()) == 1  # a head asks none
    if not is_ensemble:
        assert len(Encoder(tokens, asked, True, 16).views()) == 1
        return
    with pytest.raises(TaskError, match=r"'home home .* no room for a text in 16 tokens"):
        Encoder(tokens, asked, True, 16)


def test_a_view_asks_one_pattern_of_an_ensemble(tiny_base: Base, hub_task: Task) -> None:
    tokens, patterns = Tokens(tiny_base.folder), ("[MASK] : {text}", "{text} [MASK] .")
    encoder = Encoder(tokens, replace(hub_task, patterns=patterns, ensemble=True), True, 16)
    prompts = [view.prompts([Example("home")])[0] for view in encoder.views()]
    assert prompts == [tokens.cloze(pattern, Example("home"), 16) for pattern in patterns]


ORDINARY = st.text(st.sampled_from("abcdexyz.,'!?éß日本 \n\t"), max_size=30).map(lambda t: f"{t} ")


@given(ORDINARY, st.integers(1, 40), st.integers(1, 400))
def test_the_start_of_a_long_text_has_the_whole_texts_first_tokens(
    tiny_base: Base, part: str, limit: int, times: int
) -> None:
    tokens, text = Tokens(tiny_base.folder), part * times
    assert tokens.first_ids(text, limit) == tokens.encode(text)[:limit]


@pytest.mark.few(2)
@pytest.mark.parametrize("part", ["home ", "x" * 99 + " ", " ", "x"])
def test_a_text_of_a_megabyte_is_a_prompt_at_once(
    tiny_base: Base, hub_task: Task, part: str
) -> None:
    encoder = Encoder(Tokens(tiny_base.folder), hub_task, True, 32)
    example = Example(part * (2**20 // len(part)))
    start = time.process_time()
    (prompt,) = encoder.prompts([example])
    assert len(prompt.ids) <= 32 and time.process_time() - start < 5  # all of it took minutes


def test_a_label_word_may_be_of_several_tokens(tiny_base: Base) -> None:
    tokens, words = Tokens(tiny_base.folder), {"a": "security", "b": "good mail", "c": "xyz"}
    found = tokens.label_word_ids(Task("t", ("a", "b", "c"), ("[MASK] {text}",), words))
    assert found == [tokens.encode(word) for word in words.values()]
    assert [len(ids) for ids in found] == [1, 2, 3]


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("ሰላም", "label word 'ሰላም' of 'b' is unknown to"),
        ("good ሰላም", "label word 'good ሰላም' of 'b' is unknown to"),
        ("\u200b", "label word .* of 'b' is unknown to"),
        ("Security", "label word 'Security' of 'b' is .* the same tokens .* as the word of 'a'"),
    ],
)
def test_a_label_word_that_cannot_answer_is_named(tiny_base: Base, word: str, reason: str) -> None:
    task = Task("t", ("a", "b"), ("[MASK] {text}",), {"a": "security", "b": word})
    with pytest.raises(TaskError, match=f"task 't': {reason}"):
        Tokens(tiny_base.folder).label_word_ids(task)


def test_the_share_of_unknown_tokens_is_of_the_text_alone(tiny_base: Base, hub_task: Task) -> None:
    encoder = Encoder(Tokens(tiny_base.folder), hub_task, True, 32)
    texts = Example("home"), Example("ሰላም"), Example("home ሰላም ሰላም", "door"), Example("")
    assert [encoder.unknown_share(text) for text in texts] == [0.0, 1.0, 0.5, 0.0]


def test_a_batch_is_padded_to_its_longest(tiny_base: Base, hub_task: Task) -> None:
    tokens = Tokens(tiny_base.folder)
    encoder = Encoder(tokens, hub_task, True, 32)
    examples = [Example("home", label="family"), Example("home weather power")]
    batch = encoder.batch(encoder.prompts(examples))
    assert batch.ids.shape == batch.attention.shape == (2, int(batch.attention[1].sum()))
    assert batch.ids[0, -1] == tokens.pad_id and batch.attention[0, -1] == 0
    assert batch.labels.tolist() == [hub_task.labels.index("family"), -1]


def test_a_tokenizer_is_gone_with_whoever_had_it(tiny_base: Base) -> None:
    gc.disable()  # what holds itself would stay: engines are opened and closed again and again
    try:
        for remembers in (False, True):
            tokens = Tokens(tiny_base.folder)
            if remembers:
                tokens.remember()
            assert tokens.encode("home")
            left = weakref.ref(tokens)
            del tokens
            assert left() is None
    finally:
        gc.enable()


def test_remembered_texts_have_the_same_ids(tiny_base: Base) -> None:
    tokens, known = Tokens(tiny_base.folder), Tokens(tiny_base.folder)
    known.remember()
    for text in ("home", "the cup final", "", "home " * 40, "home", ""):
        ids = known.encode(text)
        assert ids == tokens.encode(text)
        ids.clear()  # whoever was answered may change it


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"mask_token": "\\ud800"}',
    ],
    ids=lambda body: repr(body[:12]),
)
def test_a_damaged_configuration_of_a_tokenizer_is_told_in_one_line(
    tiny_base: Base, tmp_path: Path, body: bytes
) -> None:
    shutil.copy(tiny_base.folder / "tokenizer.json", tmp_path)
    (tmp_path / "tokenizer_config.json").write_bytes(body)
    with pytest.raises(
        TokenizerError, match=r"tokenizer_config\.json .*; copy the base again"
    ) as e:
        Tokens(tmp_path)
    assert len(str(e.value).splitlines()) == 1


def test_a_configuration_of_a_tokenizer_is_read_in_utf_8_with_a_mark_or_without(
    tiny_base: Base, tmp_path: Path
) -> None:
    shutil.copy(tiny_base.folder / "tokenizer.json", tmp_path)
    for mark in (b"", b"\xef\xbb\xbf"):
        body = mark + '{"mask_token": "[MASK]", "name": "très"}'.encode()
        (tmp_path / "tokenizer_config.json").write_bytes(body)
        assert Tokens(tmp_path).mask_id == Tokens(tiny_base.folder).mask_id


@pytest.mark.parametrize("text", ["home", "the cup final [SEP] [MASK]", "", "home " * 40])
def test_a_vocabulary_that_was_let_go_gives_the_same_ids(tiny_base: Base, text: str) -> None:
    def ids(tokens: Tokens, first: int) -> list[object]:
        asked: list[Callable[[], object]] = [
            lambda: tokens.gaps(text, 24),
            lambda: tokens.cloze("{text} [MASK] .", Example(text), 24),
            lambda: tokens.words([text, "a"], 9),
            lambda: tokens.asked_in(text, {}, [(0, 2)]),
        ]
        return [one() for one in asked[first:] + asked[:first]]

    kept, tokens, readings = Tokens(tiny_base.folder), Tokens(tiny_base.folder), list[int]()
    for first in range(4):  # whatever is asked first reads it anew
        assert ids(tokens, first) == ids(kept, first)
        assert tokens.let_go(lambda: readings.append(1)) and not tokens.let_go(lambda: None)
        assert len(readings) == first
    assert tokens.gaps(text, 24) == kept.gaps(text, 24)


def test_a_vocabulary_is_kept_where_prompts_are_remembered(tiny_base: Base) -> None:
    tokens = Tokens(tiny_base.folder)
    tokens.remember()
    assert not tokens.let_go(lambda: None)


def test_a_tokenizer_that_has_changed_since_it_was_let_go_is_refused(
    tiny_base: Base, tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_base.folder, tmp_path / "base")
    tokens = Tokens(folder)
    tokens.let_go(lambda: None)
    (folder / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes() + b" ")
    with pytest.raises(TokenizerError, match="has changed while it was in use"):
        tokens.encode("a")
