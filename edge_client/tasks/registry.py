"""Registry of task kinds: ours, and those of installed packages.

A package adds one as an entry point in the group `smidgen.tasks` (docs/extending.md). It is
imported when a task of that kind is first used; nothing from the network adds to the registry.
"""

from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from smidgen.edge_client.errors import demand
from smidgen.edge_client.tables import plain
from smidgen.edge_client.texts.prompts.patterns import TaskError

GROUP = "smidgen.tasks"
DEFAULT = "labels"  # of a task that does not say its kind
OURS = {
    "labels": "smidgen.edge_client.tasks.kinds.classification",
    "tagging": "smidgen.edge_client.tasks.kinds.tagging",
    "mlm": "smidgen.edge_client.tasks.kinds.masked_words",
    "completion": "smidgen.edge_client.tasks.kinds.completion",
    "chat": "smidgen.edge_client.tasks.kinds.chat",
    "multilabel": "smidgen.edge_client.tasks.kinds.multilabel",
    "relation": "smidgen.edge_client.tasks.kinds.relation",
}
NEEDED = ("name", "measure", "files", "check", "head", "prompts", "answers", "score", "show")


def names() -> list[str]:
    return [*OURS, *sorted(point.name for point in entry_points(group=GROUP))]


@cache
def find(name: str) -> Any:
    """A kind of task, see `kind.TaskKind`.

    Raises:
        TaskError: There is none of this name, two packages have it, or it lacks something.
    """
    if name in OURS:
        return import_module(OURS[name]).KIND
    points = [point for point in entry_points(group=GROUP) if point.name == name]
    demand(
        bool(points),
        f"kind is one of {', '.join(names())}, not {plain(name)!r:.200}",
        TaskError,
    )
    packages = [point.dist.name if point.dist else point.value for point in points]
    demand(
        len(points) == 1,
        f"packages {' and '.join(packages)} both name a kind of task {name!r}; remove one",
        TaskError,
    )
    said = f"package {packages[0]}: kind of task {name!r}"
    try:
        kind = points[0].load()
        kind = kind() if isinstance(kind, type) else kind
    except Exception as error:  # somebody else's code may raise anything
        raise TaskError(f"{said} cannot be imported: {type(error).__name__}: {error}") from error
    for part in NEEDED:
        demand(
            getattr(kind, part, None) is not None,
            f"{said} has no `{part}`; see `smidgen.edge_client.tasks.kind.TaskKind`",
            TaskError,
        )
    demand(kind.name == name, f"{said} calls itself {kind.name!r}; one name is expected", TaskError)
    return kind
