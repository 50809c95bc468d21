"""The embedded base's tokenizer: uncased WordPiece whose first ids are shared with a teacher.

Accents are stripped for every language, as common English teachers do, so that both split a text
into the same words and a masked word means the same to both.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece
from tokenizers.trainers import WordPieceTrainer

from benchmarks.pretraining.checkpoint import PretrainError

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# label words that a user will try first: always one token
# fmt: off
LABEL_WORDS = (
    "security", "mail", "delivery", "package", "power", "energy", "weather", "family", "health",
    "home", "school", "medicine", "world", "sports", "business", "technology", "politics",
    "science", "entertainment", "religion", "news", "topic", "good", "bad", "great", "terrible",
    "yes", "no", "maybe", "right", "wrong", "water", "money", "travel", "music",
)
# fmt: on


def wordpiece(vocabulary: Sequence[str]) -> Tokenizer:
    """An uncased, accent-free WordPiece tokenizer over a vocabulary in id order."""
    model = WordPiece(
        {token: index for index, token in enumerate(vocabulary)},
        unk_token="[UNK]",
        max_input_chars_per_word=100,
    )
    tokenizer = Tokenizer(model)
    _as_bert(tokenizer)
    ids = {token: vocabulary.index(token) for token in SPECIALS}
    tokenizer.add_special_tokens(list(SPECIALS))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:0 [SEP]:0",
        special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])],
    )
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    return tokenizer


def build_vocabulary(
    texts: Sequence[str],
    english: Sequence[bool],
    size: int,
    teacher: Sequence[str] = (),
    shared: int = 13_500,
) -> tuple[list[str], int]:
    """Choose tokens: specials, what is shared with the teacher, then pieces of the other texts.

    Of the teacher's Latin-script tokens the first ones (its order is that of frequency) and those
    that occur in the English texts most often are taken, half and half; the rest of the vocabulary
    is learned from the texts that are not English, or from all where there is no teacher.

    Args:
        texts: What to learn from.
        english: Whether each text is English.
        size: Tokens in all, at most.
        teacher: The teacher's tokens in id order.
        shared: How many tokens to take from the teacher, at most.

    Returns:
        Tokens in id order, and how many of the first ids (specials included) the teacher has too.
    """
    chosen = dict.fromkeys(SPECIALS)
    if teacher:
        chosen.update(dict.fromkeys(_shared_tokens(texts, english, teacher, shared)))
    shared_ids = len(chosen) if teacher else 0
    chosen.update(dict.fromkeys(LABEL_WORDS))
    learn = [
        t for t, is_english in zip(texts, english, strict=True) if not (teacher and is_english)
    ]
    for token in _learned_tokens(learn, size):
        if len(chosen) >= size:
            break
        chosen.setdefault(token)
    return list(chosen), shared_ids


def words_of(tokenizer: Tokenizer, text: str) -> list[str]:
    """A text's words as this tokenizer's normaliser and pre-tokenizer give them."""
    normal = tokenizer.normalizer.normalize_str(text)
    return [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normal)]


def token_list(tokenizer: Tokenizer) -> list[str]:
    vocabulary = tokenizer.get_vocab()
    return sorted(vocabulary, key=vocabulary.__getitem__)


def read_tokenizer(folder: Path) -> Tokenizer:
    """A folder's `tokenizer.json`, neither cutting nor padding.

    Raises:
        PretrainError: It is none.
    """
    path = folder / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise PretrainError(f"{path} is no tokenizer; --teacher wants a BERT folder") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _as_bert(tokenizer: Tokenizer) -> None:
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True, strip_accents=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()


def _shared_tokens(
    texts: Sequence[str], english: Sequence[bool], teacher: Sequence[str], limit: int
) -> list[str]:
    usable = [
        one
        for one in teacher
        if one not in SPECIALS
        and not one.startswith("[unused")
        and all(ord(letter) < 0x250 or letter in "–—‘’“”…€" for letter in one)  # Latin
    ]
    known = set(usable)
    frame = wordpiece(SPECIALS)
    counts = Counter(
        word
        for text, is_english in zip(texts, english, strict=True)
        if is_english
        for word in words_of(frame, text)
        if word in known
    )
    chosen = dict.fromkeys(t for t in usable if len(t.removeprefix("##")) == 1)
    chosen.update(dict.fromkeys(word for word in LABEL_WORDS if word in known))
    frequent = (word for word, count in counts.most_common() if count > 1)
    for first, seen in _zip_longest(usable, frequent):
        chosen.setdefault(first)
        if seen:
            chosen.setdefault(seen)
        if len(chosen) >= limit:
            break
    order = {token: index for index, token in enumerate(teacher)}
    return sorted(list(chosen)[:limit], key=order.__getitem__)


def _zip_longest(first: Iterable[str], second: Iterable[str]) -> Iterable[tuple[str, str]]:
    others = iter(second)
    for item in first:
        yield item, next(others, "")


def _learned_tokens(texts: Sequence[str], size: int) -> list[str]:
    if not texts:
        return []
    tokenizer = Tokenizer(WordPiece(unk_token="[UNK]"))
    _as_bert(tokenizer)
    # The trainer numbers inner characters as its hash table gives them, and breaks ties between
    # merges by number: numbering them beforehand makes equal texts give equal tokens.
    inner = {f"##{c}" for text in texts for word in words_of(tokenizer, text) for c in word[1:]}
    trainer = WordPieceTrainer(
        vocab_size=size,
        min_frequency=2,
        special_tokens=[*SPECIALS, *sorted(inner)],
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return token_list(tokenizer)
