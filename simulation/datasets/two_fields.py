"""Tasks of sets that keep two fields of a text apart: headline and body, question and answer.

The first pattern of each is AUG-FedPrompt's own (its table 1), in lower case as all of ours are;
the others are those of one text, with both fields in its place.
"""

from dataclasses import replace

from edge_client.tasks.ready_tasks import AG_NEWS, MNLI, YAHOO
from edge_client.tasks.task import Task

BOTH = "{text_a} {text_b}"


def of_two(task: Task, first: str) -> Task:
    """A task of one text as one of two fields.

    Args:
        task: Asked by `{text}`.
        first: The pattern that is asked, with `{text_a}` and `{text_b}`.
    """
    others = (pattern.replace("{text}", BOTH) for pattern in task.patterns)
    return replace(task, patterns=(first, *others))


AG_NEWS_PAIR = of_two(AG_NEWS, "{text_a} ( [MASK] ) {text_b}")
YAHOO_PAIR = of_two(YAHOO, "[ category : ] {text_a} [MASK] {text_b}")
_QUOTED = '" {text_a} " ? [MASK] , " {text_b} "'
MNLI_QUOTED = replace(
    MNLI, patterns=(_QUOTED, *(pattern for pattern in MNLI.patterns if pattern != _QUOTED))
)
