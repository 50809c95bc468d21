"""Tasks that come with smidgen, for well-known data sets under the names used in papers.

    task = find_task("agnews")  # or the file of that name, if there is one

Every label word is one token of the small bases and of the embedded one. Label words are English in
every language: one model answers all of them with one vocabulary of answers. The first pattern of
each task is ours, and so is the last, by which causal language models are asked (`Task.asked`); the
others follow Schick and Schuetze 2021 (arXiv:2001.07676), in lower case and with one text where the
set has only one.
"""

from pathlib import Path

from smidgen.edge_client.tasks.task import Task, read_task
from smidgen.edge_client.texts.prompts.patterns import TaskError

NEWS_PATTERNS = (
    "a [MASK] news : {text}",
    "[MASK] : {text}",
    "[MASK] news : {text}",
    "{text} ( [MASK] )",
    "( [MASK] ) {text}",
    "[ category : [MASK] ] {text}",
    "[MASK] - {text}",
    "{text}\nTopic: [MASK]",
)
PAIR_PATTERNS = (
    "{text_a} ? [MASK] , {text_b}",
    "{text_a} . [MASK] , {text_b}",
    '" {text_a} " ? [MASK] , " {text_b} "',
    "{text_a}\nQuestion: {text_b}\nAnswer: [MASK]",
)
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
    tuple(pattern.replace("news", "question") for pattern in NEWS_PATTERNS),
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
    (
        "it was [MASK] . {text}",
        "[MASK] ! {text}",
        "just [MASK] ! {text}",
        "{text} . all in all , it was [MASK] .",
        "{text} in summary , the restaurant was [MASK] .",
        "{text}\nAll in all, it was [MASK]",
    ),
    {"1": "terrible", "2": "bad", "3": "okay", "4": "good", "5": "great"},
)
MNLI = Task("mnli", tuple(PAIR_WORDS), PAIR_PATTERNS, PAIR_WORDS)
XNLI = Task("xnli", tuple(PAIR_WORDS), PAIR_PATTERNS, PAIR_WORDS)
NEWS = Task("masakhanews", NEWS_LABELS, NEWS_PATTERNS, {label: label for label in NEWS_LABELS})
XGLUE_NC_WORDS = {
    "foodanddrink": "food",
    "sports": "sports",
    "travel": "travel",
    "finance": "finance",
    "lifestyle": "lifestyle",
    "news": "news",
    "entertainment": "entertainment",
    "health": "health",
    "video": "video",
    "autos": "cars",
}
CONVERSATION = Task("chat", kind="chat")  # of a base that is asked without an adapter
READY = {
    "agnews": AG_NEWS,
    "mnli": MNLI,
    "yahoo": YAHOO,
    "yelp-f": YELP,
    "masakhanews": NEWS,
    "xnli": XNLI,
    "xglue-nc": Task("xglue_nc", tuple(XGLUE_NC_WORDS), NEWS_PATTERNS, XGLUE_NC_WORDS),
}


def find_task(given: str | Path, folder: Path = Path()) -> Task:
    """A task by its file or, where there is no such file, by its name in `READY`.

    Args:
        given: File or name, as typed.
        folder: What a file is relative to.

    Raises:
        TaskError: Neither, or a file that holds no valid task.
    """
    file = folder / given
    if file.exists() and not file.is_dir():
        return read_task(file)
    if str(given) not in READY:
        names = ", ".join(READY)
        raise TaskError(f"no task file at {file}; write one, or give --task FILE or one of {names}")
    return READY[str(given)]
