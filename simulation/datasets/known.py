"""Readers of the known data sets, labelled and tagged, with their training and test parts.

A reader takes the set's folder and says which files it read. Nothing here is random: a part that
has to be drawn is drawn by the texts' hashes, so equal files give equal parts.

One word per line with its tag last, a blank line after each text. Sets in several languages have
one file for each.
"""

import gzip
import hashlib
import json
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from smidgen.edge_client.formats.conll import DOCUMENT
from smidgen.edge_client.formats.registry import read_rows
from smidgen.edge_client.formats.source import DataError
from smidgen.edge_client.formats.tags import OUTSIDE
from smidgen.edge_client.tasks.ready_tasks import AG_NEWS, CONVERSATION, NEWS, XNLI, YAHOO, YELP
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.examples import Example, joined
from smidgen.simulation.datasets.dataset import (
    AG_NEWS_PAIR,
    MNLI_QUOTED,
    YAHOO_PAIR,
    Parts,
    narrowed,
)

Row = Mapping[str, str]
SHORT = 150  # characters: with the template of a small decoder about 96 tokens at most
TWO = "two fields, asked by AUG-FedPrompt's pattern"


def ag_news(folder: Path, languages: Sequence[str]) -> Parts:
    """AG News: title and text kept apart where every row has both, else joined everywhere."""
    refuse_languages("ag_news", languages)
    files = folder / "train.csv.gz", folder / "test.csv.gz"
    rows = [list(_columns(path, "text", "label")) for path in files]
    is_pair = all(row.get("title") for part in rows for row in part)
    train, test = (
        [
            Example(*_fields(row.get("title"), row["text"], is_pair), row["label"], "en")
            for row in part
        ]
        for part in rows
    )
    notes = (
        f"{len(train):,} of the 120,000 training rows, not balanced",
        f"{len(test):,} of the 7,600 test rows, balanced",
        TWO if is_pair else "title and text joined: training rows do not keep them apart",
    )
    return Parts(AG_NEWS_PAIR if is_pair else AG_NEWS, train, test, files, notes)


def ag_news_instructions(folder: Path, languages: Sequence[str]) -> Parts:
    """AG News as conversations: which section a text is of, of texts of a line or two."""
    whole = ag_news(folder, languages)
    train, test = (
        [
            _conversation(f"Is this news about world, sports, business or technology? {text}", word)
            for text, word in ((joined(one), AG_NEWS.verbalizer[one.label or ""]) for one in part)
            if len(text) <= SHORT
        ]
        for part in (whole.train, whole.test)
    )
    notes = (*whole.notes, f"texts of at most {SHORT} characters")
    return Parts(CONVERSATION, train, test, whole.files, notes)


def tico19_instructions(folder: Path, languages: Sequence[str]) -> Parts:
    """TICO-19's phrases between doctor and patient as conversations: translations into French."""
    refuse_languages("tico19_instructions", languages)
    path = folder / "parallel.csv.gz"
    every = [
        _conversation(f"Translate into French: {row['en']}", row["fr"])
        for row in _columns(path, "id", "en", "fr")
        if row["id"].startswith("CMU") and len(row["en"]) <= SHORT
    ]
    return Parts(
        CONVERSATION,
        [one for number, one in enumerate(every) if number % 4],
        every[::4],
        (path,),
        (f"phrases between doctor and patient, at most {SHORT} characters; a fourth to test on",),
    )


def _conversation(question: str, answer: str) -> Example:
    said = ({"role": "user", "content": question}, {"role": "assistant", "content": answer})
    return Example(json.dumps(said, ensure_ascii=False))


def yahoo_answers(folder: Path, languages: Sequence[str]) -> Parts:
    """Yahoo! Answers: of each label one half of the 1,000 rows to train on, one to test.

    Question and answer are kept apart where the file has columns `question` and `answer`.
    """
    refuse_languages("yahoo_answers", languages)
    path = folder / "dev_10class_1k.csv.gz"
    said = list(_columns(path, "label"))
    is_pair = all(row.get("question") and row.get("answer") for row in said)
    if is_pair:
        rows = [Example(row["question"], row["answer"], row["label"], "en") for row in said]
    else:
        rows = [
            Example(row["text"], label=row["label"], language="en")
            for row in _columns(path, "text", "label")
        ]
    half = len(rows) // (2 * len(YAHOO.labels))
    train = drawn(rows, half)
    test = [example for example in rows if example not in set(train)]
    note = f"{len(rows):,} of the 1,460,000 rows, as another project drew them, halved by label"
    fields = TWO if is_pair else "question and answer joined: the file does not keep them apart"
    return Parts(YAHOO_PAIR if is_pair else YAHOO, train, test, (path,), (note, fields))


def yelp_review_full(folder: Path, languages: Sequence[str]) -> Parts:
    """Yelp stars: tested on 1,000 rows of the set, trained on reviews of Yelp's open data set."""
    refuse_languages("yelp_review_full", languages)
    files = folder.parent / "yelp_openset" / "reviews_5k.csv.gz", folder / "dev_1k.csv.gz"
    pool, test = (
        [
            Example(row["text"], label=row["stars"], language="en")
            for row in _columns(path, "text", "stars")
        ]
        for path in files
    )
    train = drawn(pool, min(_counts(pool).values()))
    notes = (
        f"training rows are {len(train):,} reviews of Yelp's open data set, drawn equal by stars, "
        "not the set's 650,000",
        f"tested on {len(test):,} rows that another project drew, balanced, not the set's 50,000",
    )
    return Parts(YELP, train, test, files, notes)


def mnli(folder: Path, languages: Sequence[str]) -> Parts:
    """MultiNLI: subsets of its training part and of its matched development part."""
    refuse_languages("mnli", languages)
    files = folder / "train_9k.csv.gz", folder / "test_matched_1k.csv.gz"
    train, test = ([_pair(row, "en") for row in _pairs(path)] for path in files)
    notes = (
        f"{len(train):,} of the 392,702 training rows",
        f"tested on {len(test):,} of the 9,815 matched development rows, tokenised with spaces",
    )
    return Parts(MNLI_QUOTED, train, test, files, notes)


def masakhanews(folder: Path, languages: Sequence[str]) -> Parts:
    """MasakhaNEWS: headline and text joined, as in the paper's baselines; every label it has."""
    train: list[Example] = []
    test: list[Example] = []
    files: list[Path] = []
    few: list[str] = []
    for language in chosen("masakhanews", languages, language_folders(folder)):
        whole = folder / language / "train.tsv.gz"
        part = whole if whole.is_file() else folder / language / "train_fewshot50.tsv.gz"
        few += [] if part == whole else [language]
        files += [part, folder / language / "test.tsv.gz"]
        train += _news(part, language)
        test += _news(files[-1], language)
    task = narrowed(NEWS, {example.label for example in (*train, *test)})
    notes = ["headline and text joined; dev rows are left out"]
    if few:
        notes.append(f"50 training rows per label in {', '.join(few)}: the whole part is not here")
    return Parts(task, train, test, tuple(files), tuple(notes))


def xnli(folder: Path, languages: Sequence[str]) -> Parts:
    """XNLI's development part, cut in two by premise, at the same rows in every language.

    A premise's three hypotheses, and all translations of them, are on one side.
    """
    have = [path.name.split(".")[1] for path in sorted(folder.glob("dev.*.csv.gz"))]
    names = chosen("xnli", languages, have)
    files = tuple(folder / f"dev.{language}.csv.gz" for language in names)
    train: list[Example] = []
    test: list[Example] = []
    for language, path in zip(names, files, strict=True):
        for index, row in enumerate(_pairs(path)):
            side = test if is_test_premise(index // HYPOTHESES) else train
            side.append(_pair(row, language))
    note = "the development part alone, halved by premise at the same rows in every language"
    return Parts(
        XNLI, train, test, files, (note, "the 392,702 training and 5,010 test rows are not here")
    )


HYPOTHESES = 3


def is_test_premise(premise: int) -> bool:
    """Whether a premise of XNLI's development part, counted from 0, is on the test side."""
    return hashlib.sha256(f"xnli {premise}".encode()).digest()[0] % 2 == 1


def drawn(examples: Sequence[Example], per_label: int) -> list[Example]:
    """A number of texts of each label: the smallest hashes, in the texts' own order."""
    by_label = defaultdict(list)
    for number, example in enumerate(examples):
        digest = hashlib.sha256(f"{example.text}\n{example.text_b}".encode()).digest()
        by_label[example.label].append((digest, number))
    kept = [n for found in by_label.values() for _, n in sorted(found)[:per_label]]
    return [examples[number] for number in sorted(kept)]


def chosen(name: str, languages: Sequence[str], have: Sequence[str]) -> list[str]:
    """The languages asked for, in their order and once each; none asked for means all.

    Raises:
        DataError: One of them is not there.
    """
    unknown = [language for language in languages if language not in have]
    if unknown or not have:
        asked = repr(unknown[0]) if unknown else "any language"
        raise DataError(f"{name} has no {asked}; it has {', '.join(have) or 'none'}")
    return list(dict.fromkeys(languages)) or list(have)


def language_folders(folder: Path) -> list[str]:
    return sorted(path.parent.name for path in folder.glob("*/test.tsv.gz"))


def refuse_languages(name: str, languages: Sequence[str]) -> None:
    """Refuse any language but English.

    Raises:
        DataError: Another one is asked for.
    """
    if set(languages) - {"en"}:
        raise DataError(f"{name} is English alone, not {', '.join(languages)}; leave languages out")


def _columns(path: Path, *needed: str) -> Iterable[Row]:
    if not path.is_file():
        folder = path.parent
        raise DataError(
            f"no file {folder.name}/{path.name} in {folder.parent}; put the data set there"
        )
    for _, row in read_rows(path):
        if missing := [column for column in needed if row.get(column) is None]:
            raise DataError(f"{path}: no column `{missing[0]}`; found {', '.join(row)}")
        yield row


def _pairs(path: Path) -> Iterable[Row]:
    return _columns(path, "premise", "hypothesis", "label")


def _pair(row: Row, language: str) -> Example:
    return Example(row["premise"], row["hypothesis"], row["label"], language)


def _news(path: Path, language: str) -> list[Example]:
    return [
        Example(_joined(row["headline"], row["text"]), label=row["category"], language=language)
        for row in _columns(path, "category", "headline", "text")
    ]


def _joined(title: str | None, text: str) -> str:
    return f"{title} {text}" if title else text


def _fields(title: str | None, text: str, is_pair: bool) -> tuple[str, str]:
    return (title or "", text) if is_pair else (_joined(title, text), "")


def _counts(examples: Iterable[Example]) -> dict[str | None, int]:
    counts: dict[str | None, int] = defaultdict(int)
    for example in examples:
        counts[example.label] += 1
    return counts


NCBI = Task("ncbi_disease", ("Disease",), kind="tagging")
PANX = Task("panx", ("PER", "LOC", "ORG"), kind="tagging")


def abstracts(
    folder: Path, languages: Sequence[str], name: str, task: Task, notes: tuple[str, ...]
) -> Parts:
    """A set of English abstracts; its development part is left out."""
    refuse_languages(name, languages)
    files = folder / "train.conll.gz", folder / "test.conll.gz"
    train, test = (list(tagged_texts(path, "en")) for path in files)
    return Parts(task, train, test, files, (*notes, "its dev part is left out"))


def by_language(
    folder: Path,
    languages: Sequence[str],
    name: str,
    task: Task,
    parts: tuple[str, str],
    notes: tuple[str, ...],
) -> Parts:
    """A set with files of each language.

    Args:
        folder: The set's.
        languages: Those wanted; none means all.
        name: The set's.
        task: Its entities.
        parts: Names of the training and the test file behind the language's.
        notes: How it differs from the set as published.
    """
    have = sorted(path.name.split(".")[0] for path in folder.glob(f"*.{parts[1]}"))
    names = chosen(name, languages, have)
    train, test = ({one: folder / f"{one}.{part}" for one in names} for part in parts)
    return Parts(
        task,
        [text for one, path in train.items() for text in tagged_texts(path, one)],
        [text for one, path in test.items() for text in tagged_texts(path, one)],
        (*train.values(), *test.values()),
        notes,
    )


def tagged_texts(path: Path, language: str) -> Iterator[Example]:
    """The texts of a file, an inner tag that begins an entity told as its first.

    Raises:
        DataError: The file cannot be read, or a line is not a word and its tag.
    """
    words: list[str] = []
    tags: list[str] = []
    for line, columns in _word_columns(path):
        if not columns or columns[0] == DOCUMENT:
            if words:
                yield _text(words, tags, language)
            words, tags = [], []
        elif len(columns) < 2:
            raise DataError(f"{path}, line {line}: a word and its tag are expected")
        else:
            words.append(columns[0])
            tags.append(columns[-1])
    if words:
        yield _text(words, tags, language)


def _word_columns(path: Path) -> Iterator[tuple[int, list[str]]]:
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                yield number, line.split()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def begun(tags: Sequence[str]) -> Iterator[str]:
    """Tags as BIO has them: the first word of an entity is B, where the file calls it inner.

    Laws: types stay; tags that are so already stay as they are.
    """
    before = OUTSIDE
    for tag in tags:
        place, _, label = tag.partition("-")
        is_inner = place == "I" and before.partition("-")[2] == label
        before = tag if place != "I" or is_inner else f"B-{label}"
        yield before


def _text(words: Sequence[str], tags: Sequence[str], language: str) -> Example:
    return Example(" ".join(words), language=language, words=tuple(words), tags=tuple(begun(tags)))


READERS: dict[str, Callable[[Path, Sequence[str]], Parts]] = {
    "ag_news": ag_news,
    "ag_news_instructions": ag_news_instructions,
    "tico19_instructions": tico19_instructions,
    "masakhanews": masakhanews,
    "mnli": mnli,
    "xnli": xnli,
    "yahoo_answers": yahoo_answers,
    "yelp_review_full": yelp_review_full,
    "ner_bc5cdr": partial(
        abstracts,
        name="ner_bc5cdr",
        task=Task("bc5cdr", ("Entity",), kind="tagging"),
        notes=("chemicals and diseases are one type",),
    ),
    "ner_ncbi_disease": partial(abstracts, name="ner_ncbi_disease", task=NCBI, notes=()),
    "ner_e3c_clinical": partial(
        by_language,
        name="ner_e3c_clinical",
        task=Task("e3c_clinical", ("ety",), kind="tagging"),
        parts=("train.iob.gz", "test.iob.gz"),
        notes=("layer 1, annotated by hand",),
    ),
    "ner_panx": partial(
        by_language,
        name="ner_panx",
        task=PANX,
        parts=("train.tsv.gz", "dev.tsv.gz"),
        notes=("judged by its dev part: the test parts at hand carry no tags",),
    ),
}
