"""What data sets need beside their tasks (`texts.ready_tasks`): languages, fewer labels."""

from collections.abc import Iterable
from dataclasses import replace

from edge_client.texts.tasks import Task

XNLI_LANGUAGES = (
    *("ar", "bg", "de", "el", "en", "es", "fr", "hi", "ru", "sw", "th", "tr", "ur", "vi", "zh"),
)


def narrowed(task: Task, labels: Iterable[str | None]) -> Task:
    """The same question over some of its labels, in the same order.

    Raises:
        TaskError: Fewer than two of them.
    """
    wanted = set(labels)
    kept = tuple(label for label in task.labels if label in wanted)
    return replace(task, labels=kept, verbalizer={label: task.verbalizer[label] for label in kept})
