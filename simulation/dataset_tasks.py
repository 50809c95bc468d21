"""What each known data set asks: its labels, cloze patterns and label words.

Every label word is one token of the small bases and of the embedded one. The words stay English in
every language: one model answers all of them with one vocabulary of answers.
"""

from collections.abc import Iterable
from dataclasses import replace

from edge_client.tasks import Task

NEWS_PATTERNS = ("a [MASK] news : {text}", "[MASK] : {text}", "[MASK] news : {text}")
PAIR_PATTERNS = ("{text_a} ? [MASK] , {text_b}", "{text_a} . [MASK] , {text_b}")
PAIR_WORDS = {"entailment": "yes", "neutral": "maybe", "contradiction": "no"}
NEWS_LABELS = (
    *("business", "entertainment", "health", "politics", "religion", "sports", "technology"),
)
AG_NEWS = Task(
    "ag_news",
    ("world", "sports", "business", "sci_tech"),
    NEWS_PATTERNS,
    {"world": "world", "sports": "sports", "business": "business", "sci_tech": "technology"},
)
YAHOO = Task(
    "yahoo_answers",
    (
        "Society & Culture",
        "Science & Mathematics",
        "Health",
        "Education & Reference",
        "Computers & Internet",
        "Sports",
        "Business & Finance",
        "Entertainment & Music",
        "Family & Relationships",
        "Politics & Government",
    ),
    ("a [MASK] question : {text}", "[MASK] : {text}"),
    {
        "Society & Culture": "society",
        "Science & Mathematics": "science",
        "Health": "health",
        "Education & Reference": "education",
        "Computers & Internet": "computer",
        "Sports": "sports",
        "Business & Finance": "business",
        "Entertainment & Music": "entertainment",
        "Family & Relationships": "family",
        "Politics & Government": "politics",
    },
)
YELP = Task(
    "yelp_review_full",
    ("1", "2", "3", "4", "5"),
    ("it was [MASK] . {text}", "[MASK] ! {text}"),
    {"1": "terrible", "2": "bad", "3": "okay", "4": "good", "5": "great"},
)
MNLI = Task("mnli", tuple(PAIR_WORDS), PAIR_PATTERNS, PAIR_WORDS)
XNLI = Task("xnli", tuple(PAIR_WORDS), PAIR_PATTERNS, PAIR_WORDS)
XNLI_LANGUAGES = (
    *("ar", "bg", "de", "el", "en", "es", "fr", "hi", "ru", "sw", "th", "tr", "ur", "vi", "zh"),
)
NEWS = Task("masakhanews", NEWS_LABELS, NEWS_PATTERNS, {label: label for label in NEWS_LABELS})


def narrowed(task: Task, labels: Iterable[str | None]) -> Task:
    """The same question over some of its labels, in the same order.

    Raises:
        TaskError: Fewer than two of them.
    """
    wanted = set(labels)
    kept = tuple(label for label in task.labels if label in wanted)
    return replace(task, labels=kept, verbalizer={label: task.verbalizer[label] for label in kept})
