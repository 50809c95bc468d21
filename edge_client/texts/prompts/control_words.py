"""Control words of a tokenizer, such as [SEP] or <mask>, are plain text when they occur in a text.

With `encode_special_tokens`, `tokenizers` ignores its special tokens. Two kinds slip through. A
word that only `tokenizer_config.json` calls special is not special to the library. And a model may
have control words among its own pieces (Unigram does, and any model whose words are not split at
punctuation), which it finds without the library's list, so they are renamed inside it.

A mask is only where we put it: its place in a sentence is marked by a word that no text contains,
and that the library treats as the mask.
"""

import json
import secrets
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer


def named_in(config: Mapping[str, Any]) -> set[str]:
    named = [value for key, value in config.items() if key.endswith("_token")]
    for key in ("additional_special_tokens", "extra_special_tokens"):
        more = config.get(key)
        named += more.values() if isinstance(more, dict) else more if isinstance(more, list) else []
    added = config.get("added_tokens_decoder")
    if isinstance(added, dict):
        named += [one for one in added.values() if isinstance(one, dict) and one.get("special")]
    return {word for one in named if isinstance(word := content_of(one), str) and word}


def content_of(token: object) -> object:
    """A token's own word; older files keep a whole AddedToken there."""
    return token.get("content") if isinstance(token, dict) else token


def set_apart(tokenizer: "Tokenizer", named: Iterable[str], unknown_id: int | None) -> set[str]:
    """Read control words in texts as plain text from now on.

    Args:
        tokenizer: Changed in place; no word gets another id.
        named: Control words beside those that the tokenizer itself calls special.
        unknown_id: The id of what it does not know, which any text may have.

    Returns:
        All its control words.
    """
    from tokenizers import AddedToken

    added = {one.content: one for one in tokenizer.get_added_tokens_decoder().values()}
    for word in sorted(named):
        if tokenizer.token_to_id(word) is not None and not (word in added and added[word].special):
            one = added.get(word, AddedToken(word, normalized=False))
            flags = {"lstrip": one.lstrip, "rstrip": one.rstrip, "single_word": one.single_word}
            same = AddedToken(word, special=True, normalized=one.normalized, **flags)
            tokenizer.add_special_tokens([same])
    decoder = tokenizer.get_added_tokens_decoder()
    words = {one.content: id_ for id_, one in decoder.items() if one.special}
    tokenizer.encode_special_tokens = True
    if _is_any_reached(tokenizer, words, set(words.values()) - {unknown_id}):
        _rename(tokenizer, set(words))
    return set(words)


def _is_any_reached(tokenizer: "Tokenizer", words: Iterable[str], ids: set[int]) -> bool:
    """Whether the model itself makes a control word of a typed one."""
    typed = [text for word in words for text in (word, f"a {word}")]
    found = tokenizer.encode_batch(typed, add_special_tokens=False)
    return any(not ids.isdisjoint(one.ids) for one in found)


def _rename(tokenizer: "Tokenizer", words: set[str]) -> None:
    """Give control words names in the model that no text spells; their ids stay.

    The model goes before the other one comes: it may be half of what a small device has.
    """
    from tokenizers import models

    model = tokenizer.model
    kind, state = type(model), model.__getstate__()
    tokenizer.model = models.WordLevel()
    del model
    other = kind()
    other.__setstate__(_renamed(state, words, secrets.token_hex(8)))
    tokenizer.model = other


def _renamed(state: bytes, words: set[str], prefix: str) -> bytes:
    """A model's state with other names for some words."""
    if state.startswith(b'{"type":"Unigram"'):  # long, and with a score for each word: not parsed
        for word in words:
            said = json.dumps(word, ensure_ascii=False)[1:].encode()
            state = state.replace(b'["' + said + b",", b'["' + prefix.encode() + said + b",")
        return state
    parsed = json.loads(state)

    def renamed(word: str) -> str:
        return prefix + word if word in words else word

    parsed["vocab"] = {renamed(word): id_ for word, id_ in parsed["vocab"].items()}
    if isinstance(parsed.get("unk_token"), str):
        parsed["unk_token"] = renamed(parsed["unk_token"])
    if "merges" in parsed:
        parsed["merges"] = [pair for pair in parsed["merges"] if not _touches(pair, words)]
    return json.dumps(parsed).encode()


def _touches(merge: str | list[str], words: set[str]) -> bool:
    """Whether two pieces of BPE, or what becomes of them, are a control word."""
    first, second = merge.split(" ", 1) if isinstance(merge, str) else merge
    return not words.isdisjoint((first, second, first + second))


def marked(tokenizer: "Tokenizer", mask_id: int | None, word: str) -> int:
    """Add a word that marks a mask's place in a sentence; its id, which no base knows.

    It takes in the spaces around it as the mask does, where there is one.
    """
    from tokenizers import AddedToken

    added = tokenizer.get_added_tokens_decoder()
    mask = AddedToken("", normalized=False) if mask_id is None else added[mask_id]
    return _add_like(tokenizer, mask, word)


def alias(tokenizer: "Tokenizer", word: str) -> tuple[str, int, int]:
    """Add a word that is read where a control word would be; its id, and the control word's."""
    added = tokenizer.get_added_tokens_decoder().items()
    id_, like = next((id_, one) for id_, one in added if one.content == word)
    name = unheard_of()
    return name, _add_like(tokenizer, like, name), id_


def _add_like(tokenizer: "Tokenizer", like: "AddedToken", word: str) -> int:
    """Add a word with another's flags that no special token is; its id."""
    from tokenizers import AddedToken

    flags = {"lstrip": like.lstrip, "rstrip": like.rstrip, "single_word": like.single_word}
    tokenizer.add_tokens([AddedToken(word, normalized=like.normalized, special=False, **flags)])
    added = tokenizer.get_added_tokens_decoder().items()
    return next(id_ for id_, one in added if one.content == word)


def unheard_of() -> str:
    """A word that no text holds, for it is drawn at random.

    Of letters and digits, which no normalizer drops, between two that no accent changes.
    """
    return f"q{secrets.token_hex(12)}q"
