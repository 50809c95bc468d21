"""Conversations as transformers writes and masks them, with the tokenizer of a public decoder."""

from pathlib import Path
from typing import Any

import pytest

from smidgen.edge_client.texts.prompts.chat_template import ChatTemplate, Refused
from smidgen.edge_client.texts.tokens import Tokens
from tests.conftest import SHARED
from tests.parity.texts.chat_templates import MARKED, TEMPLATES, TURNS

transformers = pytest.importorskip("transformers")
pytest.importorskip("jinja2")
FOLDER = SHARED / "models" / "smollm2-135m-instruct"
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"no {FOLDER.name} in SMIDGEN_SHARED")
CONVERSATIONS = {
    "one answer": TURNS[:3],
    "two answers": TURNS,
    "a question behind": TURNS[:4],
    "no system": TURNS[1:],
    "signs of many languages": [
        {"role": "user", "content": "नमस्ते 👋🏽 مرحبا"},
        {"role": "assistant", "content": "ሰላም — 你好\u200d 👩‍👩‍👧"},
    ],
}


@pytest.fixture(scope="module")
def theirs() -> Any:
    return transformers.PreTrainedTokenizerFast.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def tokens() -> Tokens:
    return Tokens(FOLDER)


def ours_of(tokens: Tokens, template: ChatTemplate, turns: Any) -> tuple[list[int], list[int]]:
    found = template.conversation(turns)
    assert not isinstance(found, str), found
    return tokens.asked_in(found[0], {}, found[1])


@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize("name", [*TEMPLATES, *(f"marked {one}" for one in MARKED)])
def test_a_template_gives_the_text_that_transformers_gives(
    theirs: Any, name: str, asks: bool
) -> None:
    source = TEMPLATES.get(name) or MARKED[name.removeprefix("marked ")]
    ours = ChatTemplate(source, theirs.special_tokens_map, FOLDER)
    for turns in CONVERSATIONS.values():
        expected: Any
        try:
            expected = theirs.apply_chat_template(
                turns, chat_template=source, tokenize=False, add_generation_prompt=asks
            )
        except Exception:  # theirs may be any of jinja2's
            with pytest.raises(Refused):
                ours.render(turns, asks=asks)
        else:
            assert ours.render(turns, asks=asks) == expected


@pytest.mark.parametrize("turns", CONVERSATIONS.values(), ids=CONVERSATIONS)
@pytest.mark.parametrize("name", MARKED)
def test_what_a_template_calls_generated_is_asked_for_and_nothing_else(
    theirs: Any, tokens: Tokens, name: str, turns: Any
) -> None:
    ids, asked = ours_of(tokens, ChatTemplate(MARKED[name], {}, FOLDER), turns)
    found = theirs.apply_chat_template(
        turns, chat_template=MARKED[name], return_dict=True, return_assistant_tokens_mask=True
    )
    assert ids == found["input_ids"]
    assert [int(place in asked) for place in range(len(ids))] == found["assistant_masks"]


@pytest.mark.parametrize("turns", CONVERSATIONS.values(), ids=CONVERSATIONS)
def test_the_bases_own_template_gives_the_ids_that_transformers_gives(
    theirs: Any, tokens: Tokens, turns: Any
) -> None:
    ids, asked = ours_of(tokens, tokens.template, turns)
    assert ids == theirs.apply_chat_template(turns)["input_ids"]
    answers = [one["content"] for one in turns if one["role"] == "assistant"]
    said = "".join(f"{one}<|im_end|>\n" for one in answers)
    assert theirs.decode([ids[place] for place in asked]) == said


def test_the_mask_of_the_bases_own_template_is_that_made_by_hand(tokens: Tokens) -> None:
    turns = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "no"},
        {"role": "assistant", "content": "ok"},
    ]
    ids, asked = ours_of(tokens, tokens.template, turns)
    words = [tokens._tokenizer.id_to_token(id_) for id_ in ids]
    start, end, asks = "<|im_start|>", "<|im_end|>", ["ass", "istant", "Ċ"]
    first = [start, "user", "Ċ", "hi", end, "Ċ", start, *asks, "yes", end, "Ċ"]
    second = [start, "user", "Ċ", "no", end, "Ċ", start, *asks, "ok", end, "Ċ"]
    assert words[:3] == [start, "system", "Ċ"] and words[-26:] == first + second
    before = len(ids) - 26
    assert [place - before for place in asked] == [10, 11, 12, 23, 24, 25]


def test_a_template_beside_the_tokenizer_wins_over_its_configuration(tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((FOLDER / name).read_bytes())
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert Tokens(tmp_path).template.render(TURNS[1:]) == theirs.apply_chat_template(
        TURNS[1:], tokenize=False
    )
