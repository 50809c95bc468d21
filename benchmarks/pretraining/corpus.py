"""Pretraining corpus of the embedded base: open texts from a folder of data sets.

Only sets whose terms allow a model to be distributed are listed; each line of `SOURCES` names its
licence. Texts are split into passages of one to a few sentences; a fixed part, chosen by a hash of
the text, is held out of training, along with its translations.
"""

import csv
import gzip
import hashlib
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from smidgen.edge_client.errors import WrongInput

LANGUAGES = ("en", "es", "fr", "de")
MEDICAL = ("ar", "es", "fr", "pt", "ru")
HELD_OUT_ONE_IN = 50
PASSAGE_WORDS = 42
SNIPPET_MIN_WORDS = 5
SNIPPETS = {"en": 8_000, "es": 8_000, "fr": 8_000, "de": 3_000}

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'(])")
_MARKUP = re.compile(r"redirec|[\[\]{}|*=]|^\W*$", re.IGNORECASE)
_NO_SPACE_BEFORE = re.compile(r"\s+([.,;:!?%)\]»”])")
_NO_SPACE_AFTER = re.compile(r"([(\[«“$£])\s+")


# folder -> (reader, licence of the text)
Sources = Mapping[str, tuple[Callable[[Path], Iterator["Passage"]], str]]


class CorpusError(WrongInput):
    """Texts that are not where they should be."""


@dataclass(frozen=True)
class Passage:
    """A short text to learn from.

    Attributes:
        text: The passage as written, accents and case kept.
        language: Two letters.
        source: Folder of the set it comes from.
        english: The same text in English, where the set has it in both; else empty.
    """

    text: str
    language: str
    source: str
    english: str = ""

    @property
    def is_held_out(self) -> bool:
        """Whether the passage (with its translations) is kept for evaluation."""
        digest = hashlib.sha256((self.english or self.text).encode()).digest()
        return int.from_bytes(digest[:8], "big") % HELD_OUT_ONE_IN == 0


@dataclass(frozen=True)
class Corpus:
    """The texts that were found.

    Attributes:
        training: Passages to learn from.
        held_out: Passages to be judged by.
        absent: Sets that are known and that the folder has not.
    """

    training: tuple[Passage, ...]
    held_out: tuple[Passage, ...]
    absent: tuple[str, ...]


def read_corpus(folder: Path, sources: Sources | None = None) -> Corpus:
    """Read every known set that lies in a folder; absent ones are skipped and named.

    Args:
        folder: Parent of one folder per set.
        sources: The known sets; those of the embedded base where none are given.

    Raises:
        CorpusError: None of the known sets is there, or one of them cannot be read.
    """
    sources = SOURCES if sources is None else sources
    absent = tuple(source for source in sources if not (folder / source).is_dir())
    if len(absent) == len(sources):
        raise CorpusError(
            f"no texts in {folder}; put at least one of these sets there: {', '.join(sources)}"
        )
    passages: dict[tuple[str, str], Passage] = {}
    for source, (reader, _) in sources.items():
        if source in absent:
            continue
        try:
            for passage in reader(folder / source):
                passages.setdefault((passage.language, passage.text), passage)
        except (OSError, EOFError, KeyError, ValueError, csv.Error, zlib.error) as error:
            raise CorpusError(f"set {source} in {folder} cannot be read: {error!r}") from error
    return Corpus(
        training=tuple(p for p in passages.values() if not p.is_held_out),
        held_out=tuple(p for p in passages.values() if p.is_held_out),
        absent=absent,
    )


def passages_of(text: str, limit: int = PASSAGE_WORDS) -> list[str]:
    """Cut a paragraph at sentence ends, into passages of at most `limit` words if they allow."""
    return grouped(_SENTENCE_END.split(text.strip()), limit)


def grouped(sentences: Iterable[str], limit: int = PASSAGE_WORDS) -> list[str]:
    """Put sentences together, in order, into passages of at most `limit` words if they allow."""
    passages: list[list[str]] = []
    for sentence in sentences:
        words = sentence.split()
        if passages and len(passages[-1]) + len(words) <= limit:
            passages[-1] += words
        elif words:
            passages.append(words)
    return [" ".join(words) for words in passages]


def join_tokens(tokens: Sequence[str]) -> str:
    """Undo a treebank tokenisation: no space before a full stop, none inside brackets."""
    text = " ".join(token for token in tokens if token not in ("''", "``", "'"))
    text = text.replace(" @-@ ", "-").replace(" @,@ ", ",").replace(" @.@ ", ".")
    text = re.sub(r" ('s|'t|'re|'ve|'ll|'d|'m|n't)\b", r"\1", text)
    return _NO_SPACE_AFTER.sub(r"\1", _NO_SPACE_BEFORE.sub(r"\1", text)).strip()


def lines_of(path: Path) -> Iterator[str]:
    """Lines of a gzipped text, line ends kept."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        yield from file


def rows_of(path: Path, delimiter: str = ",") -> Iterator[dict[str, str]]:
    """Rows of a gzipped table with a header line."""
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file, delimiter=delimiter)


def wikitext(folder: Path, languages: Sequence[str] = LANGUAGES) -> Iterator[Passage]:
    """WikiText in its tokenised form, headings left out; of no use without English."""
    for path in sorted(folder.glob("*.txt.gz")) if "en" in languages else ():
        for line in lines_of(path):
            if line.strip() and not line.startswith(" = "):
                for text in passages_of(join_tokens(line.split())):
                    yield Passage(text, "en", folder.name)


def medical(folder: Path, languages: Sequence[str] = LANGUAGES) -> Iterator[Passage]:
    """TICO-19: English, and some of the other columns beside it."""
    others = [language for language in MEDICAL if language in languages]
    for row in rows_of(folder / "parallel.csv.gz"):
        if "en" in languages:
            yield Passage(row["en"], "en", folder.name)
        for language in others:
            yield Passage(row[language], language, folder.name, english=row["en"])


def is_markup(text: str) -> bool:
    """Whether a snippet has wiki markup left in it."""
    return bool(_MARKUP.search(text))


def parallel_news(folder: Path, languages: Sequence[str] = LANGUAGES) -> Iterator[Passage]:
    """News of Wikipedia, line by line beside the English; Hebrew's are other texts."""
    english = [line.strip() for line in lines_of(folder / "en.txt.gz")]
    for language in languages:
        path = folder / f"{language}.txt.gz"
        if path.is_file():
            texts = [line.strip() for line in lines_of(path)]
            others = [""] * len(texts) if language in ("en", "he") else english
            for text, other in zip(texts, others, strict=True):
                yield Passage(text, language, folder.name, english=other)


def _snippets(folder: Path) -> Iterator[Passage]:
    for language, limit in SNIPPETS.items():
        texts = (
            text for path in sorted(folder.glob(f"{language}.*")) for text in snippets_of(path)
        )
        usable = (t for t in texts if len(t.split()) >= SNIPPET_MIN_WORDS and not is_markup(t))
        for text in islice(usable, limit):
            yield Passage(text, language, folder.name)


def snippets_of(path: Path) -> Iterator[str]:
    """Texts of a file with a token and its tag on each line, joined."""
    tokens: list[str] = []
    for line in lines_of(path):
        if line.strip():
            tokens.append(line.split("\t")[0])
        elif tokens:
            yield join_tokens(tokens)
            tokens = []
    if tokens:
        yield join_tokens(tokens)


def _sentence_pairs(folder: Path) -> Iterator[Passage]:
    for row in rows_of(folder / "train_9k.csv.gz"):
        for text in passages_of(f"{row['premise']} {row['hypothesis']}"):
            yield Passage(text, "en", folder.name)


SOURCES: Sources = {
    "text_wikitext103": (wikitext, "WikiText-103 (English Wikipedia), CC BY-SA 3.0"),
    "text_medical_tico19": (medical, "TICO-19, en es fr, CC0 1.0"),
    "text_wiki_news_parallel": (parallel_news, "PUD treebanks, en es fr de, CC BY-SA 3.0"),
    "ner_panx": (_snippets, "PAN-X, text only (Wikipedia), en es fr de, CC BY-SA"),
    "mnli": (
        _sentence_pairs,
        "MultiNLI, 9,000 training pairs: OANC terms, CC BY(-SA), public domain",
    ),
}
