"""How data sets lie on the Hugging Face hub: which columns, which split, which numbers mean what.

The known ones are the originals of the sets in `datasets.catalogue`; for any other set the user
names the columns and gives a task.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from edge_client.formats.opened import DataError
from edge_client.tasks.ready_tasks import AG_NEWS, NEWS, XNLI, YELP
from edge_client.tasks.task import Task
from simulation.datasets.dataset import XNLI_LANGUAGES
from simulation.datasets.two_fields import MNLI_QUOTED, YAHOO_PAIR

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
    known = [path for path in paths if _ending(path) in FORMATS]
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


def _ending(path: str) -> str:
    return PurePosixPath(path.removesuffix(".gz")).suffix
