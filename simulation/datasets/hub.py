"""Data sets from the Hugging Face hub: split files, read without the `datasets` library.

huggingface_hub downloads a set's two files and pyarrow reads them; `datasets` would bring pandas,
fsspec and multiprocess for the same rows. A set that is not in Parquet is read from the hub's own
conversion. Nothing from the hub is executed. Columns, splits and label numbers are known for the
sets in `datasets.catalogue`; for others the user names the columns and gives a task.

    data = read_hub("masakhane/masakhanews@main", languages=("hau", "yor"))
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from smidgen.edge_client.errors import installing
from smidgen.edge_client.formats.registry import read_rows
from smidgen.edge_client.formats.source import DataError
from smidgen.edge_client.proxies import named_proxies
from smidgen.edge_client.tasks.ready_tasks import AG_NEWS, NEWS, XNLI, YELP
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.examples import Example
from smidgen.simulation.datasets.dataset import (
    MNLI_QUOTED,
    UNKNOWN,
    XNLI_LANGUAGES,
    YAHOO_PAIR,
    DataSet,
    Parts,
    build,
    checksum,
    narrowed,
)

LANGUAGE = "{language}"


@dataclass(frozen=True)
class HubLayout:
    """Where the texts of a set are.

    Attributes:
        task: The question; its labels are in the order of the hub's numbers.
        text: Columns joined to one text, the first of a pair.
        text_b: Column with the second of a pair, or empty.
        label: Column with the label, as a name or a number.
        test: Splits that may serve as test part, the best first.
        config: Folder of the configuration; `{language}` where each language has one.
        languages: What `{language}` may be, or the one language of the set; empty for unknown.
        note: How texts are put together, where it is not plain.
        is_narrowed: Whether labels that no text of the chosen languages has leave the task.
    """

    task: Task
    text: tuple[str, ...] = ("text",)
    text_b: str = ""
    label: str = "label"
    test: tuple[str, ...] = ("test", "validation", "dev")
    config: str = ""
    languages: tuple[str, ...] = ()
    note: str = ""
    is_narrowed: bool = False


_NEWS_LANGUAGES = (
    *("amh", "eng", "fra", "hau", "ibo", "lin", "lug", "orm"),
    *("pcm", "run", "sna", "som", "swa", "tir", "xho", "yor"),
)
LAYOUTS = {
    "fancyzhx/ag_news": HubLayout(AG_NEWS, languages=("en",)),
    "Yelp/yelp_review_full": HubLayout(YELP, languages=("en",)),
    "community-datasets/yahoo_answers_topics": HubLayout(
        YAHOO_PAIR,
        text=("question_title", "question_content"),
        text_b="best_answer",
        label="topic",
        languages=("en",),
        note="question (with its explanation) and best answer are two fields, asked by "
        "AUG-FedPrompt's pattern",
    ),
    "nyu-mll/glue": HubLayout(
        MNLI_QUOTED,
        text=("premise",),
        text_b="hypothesis",
        test=("validation_matched",),
        config="mnli",
        languages=("en",),
    ),
    "facebook/xnli": HubLayout(
        XNLI,
        text=("premise",),
        text_b="hypothesis",
        config=LANGUAGE,
        languages=XNLI_LANGUAGES,
        note="training rows are MultiNLI's, translated by machine",
    ),
    "masakhane/masakhanews": HubLayout(
        NEWS,
        text=("headline", "text"),
        config=LANGUAGE,
        languages=_NEWS_LANGUAGES,
        note="headline and text joined",
        is_narrowed=True,
    ),
}


def configs_of(layout: HubLayout, languages: Sequence[str], repo: str) -> list[tuple[str, str]]:
    """Configuration and language of each part to read.

    Raises:
        DataError: A language the set has not, or languages of a set that is not split by them.
    """
    unknown = [language for language in languages if language not in layout.languages]
    if unknown:
        known = ", ".join(layout.languages) or "none that is known here"
        raise DataError(f"hub:{repo} has no language {unknown[0]!r}; it has {known}")
    if LANGUAGE not in layout.config:
        return [(layout.config, layout.languages[0] if layout.languages else "")]
    chosen = dict.fromkeys(languages or layout.languages)
    return [(layout.config.replace(LANGUAGE, language), language) for language in chosen]


FORMATS = (".csv", ".tsv", ".jsonl", ".parquet")


def files_of(paths: Iterable[str], config: str, splits: Sequence[str], repo: str) -> list[str]:
    """The files of the first split that is there, sorted.

    Raises:
        DataError: None of the splits is there, or several configurations have it.
    """
    known = [p for p in paths if PurePosixPath(p.removesuffix(".gz")).suffix in FORMATS]
    inside = [path for path in known if not config or config in PurePosixPath(path).parts[:-1]]
    for split in splits:
        word = re.compile(rf"(?:^|[/._-]){re.escape(split)}(?:[/._-])")
        found = sorted(path for path in inside if word.search(path))
        folders = sorted({str(PurePosixPath(path).parent) for path in found})
        if len(folders) > 1:
            raise DataError(
                f"hub:{repo} has {split} files in {', '.join(folders[:4])}; name one with --config"
            )
        if found:
            return found
    where = f" of configuration {config!r}" if config else ""
    raise DataError(
        f"hub:{repo} has no {' or '.join(splits)} file{where} ({', '.join(FORMATS)}); "
        f"it has {', '.join(known[:4]) or 'no tables at all'}"
    )


@dataclass(frozen=True)
class Listing:
    """A revision of a set on the hub.

    Attributes:
        repo: `OWNER/NAME`.
        revision: The commit, 40 hexadecimal digits.
        paths: Names of its files.
        licence: One line, as the card states it.
    """

    repo: str
    revision: str
    paths: tuple[str, ...]
    licence: str


def read_hub(name: str, languages: Sequence[str] = (), layout: HubLayout | None = None) -> DataSet:
    """Read a set from the hub, or from the hub library's own cache of it.

    Args:
        name: `OWNER/NAME[@REVISION]`, REVISION a commit, branch or tag.
        languages: Languages wanted of a set with one configuration each; none means all.
        layout: Columns and task of a set that is not in `LAYOUTS`.

    Raises:
        DataError: The hub does not give it, its layout is not known, or a row does not fit.
    """
    repo, _, revision = name.partition("@")
    layout = layout or LAYOUTS.get(repo)
    if layout is None:
        raise DataError(
            f"hub:{repo} is not known here ({', '.join(LAYOUTS)} are); give --task FILE with the "
            "labels in the order of its numbers, and --text, --label if its columns differ"
        )
    configs = configs_of(layout, languages, repo)
    listing = find(repo, revision)
    train: list[Example] = []
    test: list[Example] = []
    files: dict[str, Path] = {}
    for config, language in configs:
        for part, splits in ((train, ("train",)), (test, layout.test)):
            for path in files_of(listing.paths, config, splits, repo):
                files[path] = fetch(listing, path)
                part += read_examples(files[path], layout, language)
    task = layout.task
    if layout.is_narrowed:
        task = narrowed(task, {example.label for example in (*train, *test)})
    notes = ("as the hub has it", *((layout.note,) if layout.note else ()))
    parts = Parts(task, train, test, tuple(files.values()), notes)
    return build(
        task.name, parts, f"hub {repo}@{listing.revision[:12]}", listing.licence, checksum(files)
    )


def read_examples(path: Path, layout: HubLayout, language: str) -> list[Example]:
    """The labelled texts of one file; rows without a text or with a negative label are left out.

    Raises:
        DataError: A column is missing, or a label is none of the task's.
    """
    columns = (*layout.text, *((layout.text_b,) if layout.text_b else ()), layout.label)
    names = _label_names(path, layout.label)
    examples = []
    for row in _rows(path, columns):
        label = _label(row[layout.label], names, layout)
        text = " ".join(row[column] for column in layout.text if row[column])
        if text.strip() and label:
            text_b = row[layout.text_b] if layout.text_b else ""
            examples.append(Example(text, text_b, label, language))
    return examples


def find(repo: str, revision: str) -> Listing:
    """Ask the hub what files a set has; of a set without Parquet, what the hub converted.

    Raises:
        DataError: The hub cannot be reached, or has no such set or revision.
    """
    info = _ask(repo, revision or None)
    listing = Listing(repo, str(info.sha), _paths(info), _licence(info))
    if revision or any(path.endswith(".parquet") for path in listing.paths):
        return listing
    try:
        converted = _ask(repo, "refs/convert/parquet")
    except DataError:
        return listing
    return Listing(repo, str(converted.sha), _paths(converted), listing.licence)


def fetch(listing: Listing, path: str) -> Path:
    """Download one file of a set into the hub library's cache, unless it is there.

    Raises:
        DataError: The hub does not give it.
    """
    from huggingface_hub import hf_hub_download

    with _one_line(f"{listing.repo}, file {path}"):
        return Path(
            hf_hub_download(listing.repo, path, repo_type="dataset", revision=listing.revision)
        )


def _ask(repo: str, revision: str | None) -> Any:
    from huggingface_hub import HfApi

    with _one_line(f"{repo}@{revision}" if revision else repo):
        return HfApi().dataset_info(repo, revision=revision)


@contextmanager
def _one_line(what: str) -> Iterator[None]:
    """What the hub's library raises, as a `DataError` of one line."""
    # HTTPError is the one of whichever HTTP client this version of the library brings.
    from huggingface_hub.errors import HFValidationError, HTTPError

    try:
        with named_proxies():
            yield
    except (HTTPError, HFValidationError, OSError) as error:
        raise DataError(f"the hub does not give {what}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """Without what the server said, which may be anybody's page, and without an address."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:
        return f"it answered {status}"
    return getattr(error, "strerror", None) or type(error).__name__


def _paths(info: Any) -> tuple[str, ...]:
    return tuple(str(sibling.rfilename) for sibling in info.siblings or ())


def _licence(info: Any) -> str:
    """What the card states; the hub also shows it as a tag `license:...`."""
    stated = getattr(info.card_data, "license", None) if info.card_data else None
    tags = [tag.partition(":")[2] for tag in info.tags or () if tag.startswith("license:")]
    names = stated if isinstance(stated, list) else [stated] if stated else tags
    return ", ".join(str(name) for name in names) or UNKNOWN


def _label(value: str, names: Sequence[str], layout: HubLayout) -> str:
    """A label's name; empty for a negative number, which means none."""
    labels = layout.task.labels
    if value in labels:
        return value
    number = int(value) if value.lstrip("-").isdigit() else None
    if number is None or number >= len(labels):
        raise DataError(f"label {value!r} is not one of {', '.join(labels)} or their numbers")
    if number < 0:
        return ""
    return names[number] if set(names) == set(labels) else labels[number]


def _rows(path: Path, columns: Sequence[str]) -> Iterator[dict[str, str]]:
    if path.suffix == ".parquet":
        yield from _parquet_rows(path, columns)
        return
    for _, row in read_rows(path):
        if missing := [column for column in columns if column not in row]:
            raise DataError(f"{path.name}: no column {missing[0]!r}; found {', '.join(row)}")
        yield {column: row[column] or "" for column in columns}


def _parquet_rows(path: Path, columns: Sequence[str]) -> Iterator[dict[str, str]]:
    file = _parquet_file(path)
    found = file.schema_arrow.names
    if missing := [column for column in columns if column not in found]:
        raise DataError(f"{path.name}: no column {missing[0]!r}; found {', '.join(found)}")
    for batch in file.iter_batches(4096, columns=list(columns)):
        for row in batch.to_pylist():
            yield {key: "" if value is None else str(value) for key, value in row.items()}


def _label_names(path: Path, column: str) -> list[str]:
    """Names of a label's numbers, as the `datasets` library leaves them in a Parquet file."""
    if path.suffix != ".parquet":
        return []
    metadata = _parquet_file(path).schema_arrow.metadata or {}
    try:
        features = json.loads(metadata.get(b"huggingface", b"{}"))["info"]["features"]
        return [str(name) for name in features[column]["names"]]
    except (KeyError, TypeError, ValueError):
        return []


def _parquet_file(path: Path) -> Any:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise DataError(f"data sets of the hub need pyarrow; {installing('simulate')}") from error
    try:
        return parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path.name} is not a Parquet file: {error}") from error
