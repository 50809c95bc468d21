"""Recipes of bases: the embedded base's, and one for given languages.

The multilingual base has open texts of 21 languages in five scripts. MasakhaNEWS has three-letter
language codes, the other sets two-letter ones; a language in both (English, French) has the latter.
Of MasakhaNEWS and PAN-X only the training files are used, without sentences that an evaluation file
has too.
"""

import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.pretraining.checkpoint import PretrainError
from benchmarks.pretraining.corpus import (
    LANGUAGES,
    PASSAGE_WORDS,
    SNIPPET_MIN_WORDS,
    SOURCES,
    Passage,
    Sources,
    grouped,
    is_markup,
    medical,
    parallel_news,
    rows_of,
    snippets_of,
    wikitext,
)

AFRICAN = ("amh", "hau", "ibo", "lin", "lug", "orm", "run", "sna", "som", "swa", "tir", "yor")
EUROPEAN = ("ar", "de", "en", "es", "fr", "he", "it", "pt", "ru")
ALL_LANGUAGES = (*AFRICAN, *EUROPEAN)
NEWS_FOLDERS = {"eng": "en", "fra": "fr"}  # two names of one language

Reader = Callable[..., Iterator[Passage]]  # of a folder and languages

_SENTENCE_END = re.compile(r"(?<=[።፨])\s*|(?<=[.!?؟…])\s+|\n+")


@dataclass(frozen=True)
class Recipe:
    """What a base is made of, but for its teacher.

    Attributes:
        sources: Sets of texts.
        languages: Judged one by one.
        vocabulary: Tokens, at most.
        exponent: A language's share of the words is its share in the texts to this power; None
            takes the texts as they are.
        is_embedded: Whether it is the base that comes with the package.
    """

    sources: Sources
    languages: tuple[str, ...]
    vocabulary: int
    exponent: float | None
    is_embedded: bool


EMBEDDED = Recipe(SOURCES, LANGUAGES, 20_000, None, is_embedded=True)


def recipe_of(languages: str | None) -> Recipe:
    """The embedded base's recipe, or the multilingual one.

    Args:
        languages: `all`, names with commas between them, or None for the embedded base.

    Raises:
        PretrainError: A language without texts is named.
    """
    if languages is None:
        return EMBEDDED
    named = [name.strip() for name in languages.split(",")]
    chosen = ALL_LANGUAGES if named == ["all"] else tuple(dict.fromkeys(named))
    if unknown := [name for name in chosen if name not in ALL_LANGUAGES]:
        raise PretrainError(
            f"--languages {languages}: no texts in {', '.join(unknown)!r}; give all, or some of "
            f"{', '.join(ALL_LANGUAGES)}"
        )
    return Recipe(multilingual_sources(chosen), chosen, 30_000, 0.5, is_embedded=False)


def smoothed(passages: Sequence[Passage], exponent: float, seed: int) -> list[Passage]:
    """Give small languages more than their share: by words, (their share) ** exponent.

    Conneau and Lample 2019 (arXiv:1901.07291), section 3.1, with whole passages instead of draws:
    each language's are taken as often as its new share asks, the part that is left over by chance.
    Exponent 1 returns every passage once; towards 0 all languages get equally many words. The
    number of words stays about the same.

    Args:
        passages: Passages of all languages.
        exponent: More than 0, at most 1.
        seed: Chooses what is left over and the order. Equal seeds give equal lists.
    """
    rng = random.Random(seed)
    by_language: defaultdict[str, list[Passage]] = defaultdict(list)
    for passage in passages:
        by_language[passage.language].append(passage)
    words = {k: sum(len(p.text.split()) for p in v) for k, v in sorted(by_language.items())}
    weights = {language: count**exponent for language, count in words.items()}
    scale = sum(words.values()) / sum(weights.values())
    chosen: list[Passage] = []
    for language, weight in weights.items():
        own = by_language[language]
        wanted = round(len(own) * scale * weight / words[language])
        chosen += own * (wanted // len(own)) + rng.sample(own, wanted % len(own))
    rng.shuffle(chosen)
    return chosen


def sentences_of(text: str, limit: int = PASSAGE_WORDS) -> Iterator[str]:
    """Sentences in any of the scripts, blanks made one space; longer ones are cut into parts."""
    for sentence in _SENTENCE_END.split(text):
        words = sentence.split()
        for start in range(0, len(words), limit):
            yield " ".join(words[start : start + limit])


def _news(folder: Path, languages: Sequence[str]) -> Iterator[Passage]:
    for path in sorted(folder.glob("*/train*.tsv.gz")):
        language = NEWS_FOLDERS.get(path.parent.name, path.parent.name)
        if language not in languages:
            continue
        judged = [path.with_name(f"{name}.tsv.gz") for name in ("dev", "test")]
        evaluated = [s for file in judged if file.is_file() for a in _articles(file) for s in a]
        known, running = set(evaluated), " ".join(evaluated)
        for article in _articles(path):
            for text in grouped(sentence for sentence in article if sentence not in known):
                if len(text.split()) >= SNIPPET_MIN_WORDS and text not in running:
                    yield Passage(text, language, folder.name)


def _articles(path: Path) -> Iterator[list[str]]:
    for row in rows_of(path, "\t"):
        yield list(sentences_of(f"{row['headline']}\n{row['text']}"))


def _snippets(folder: Path, languages: Sequence[str]) -> Iterator[Passage]:
    for path in sorted(folder.glob("*.train.tsv.gz")):
        language = path.name.split(".")[0]
        if language not in languages:
            continue
        judged = folder / f"{language}.dev.tsv.gz"
        evaluated = set(snippets_of(judged)) if judged.is_file() else set()
        for text in snippets_of(path):
            is_short = len(text.split()) < SNIPPET_MIN_WORDS
            if not (is_short or is_markup(text) or text in evaluated):
                yield Passage(text, language, folder.name)


def multilingual_sources(languages: Sequence[str]) -> Sources:
    """The known sets, of which only some languages are read."""
    each = sorted(languages)
    return {name: (partial(read, languages=each), told) for name, (read, told) in _KNOWN.items()}


_KNOWN: dict[str, tuple[Reader, str]] = {
    "masakhanews": (
        _news,
        "MasakhaNEWS, training files only: articles of BBC, VOA and other publishers, for research "
        "use; the set states no licence where it was taken from",
    ),
    "text_medical_tico19": (medical, "TICO-19, CC0 1.0"),
    "text_wiki_news_parallel": (
        parallel_news,
        "PUD treebanks, CC BY-SA 3.0; Hebrew: IAHLTwiki, CC BY-SA 4.0",
    ),
    "ner_panx": (_snippets, "PAN-X, text of the training files only (Wikipedia), CC BY-SA"),
    "text_wikitext103": (wikitext, "WikiText-103 (English Wikipedia), CC BY-SA 3.0"),
}
