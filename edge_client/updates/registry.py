"""Update steps by the names that runs give them: ours, then those of installed packages.

Others' steps are classes as `step.UpdateStep` says, found by entry points of the group
`smidgen.update_steps`; the entry's name is the step's.
"""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from edge_client.codecs.codec import Shapes
from edge_client.errors import Failed, WrongInput, demand
from edge_client.tables import plain
from edge_client.updates.codec import Codec
from edge_client.updates.proximal import Proximal
from edge_client.updates.rolora import RoLora
from edge_client.updates.scaffold import Scaffold
from edge_client.updates.step import UpdateStep

GROUP = "smidgen.update_steps"
OURS: Mapping[str, type[UpdateStep]] = {
    one.name: one for one in (Proximal, Scaffold, RoLora, Codec)
}
SPEC = re.compile(r"[a-z][a-z0-9_-]{0,63}(:[^\s:]{1,64}){0,8}")


class StepError(WrongInput):
    """A run's update step is not known here, or cannot be made of its arguments."""


def check_step(spec: str) -> None:
    """Refuse what no run can name as a step of another package.

    Raises:
        WrongInput: Not a name with arguments, or one of ours, which has a setting of its own.
    """
    demand(bool(SPEC.fullmatch(spec)), f"steps: {spec[:40]!r}: NAME or NAME:ARGUMENT expected")
    name = spec.partition(":")[0]
    said = f"steps: {name} is set by its own name: proximal and scaffold of training, up of updates"
    demand(name not in OURS, said)


def made(specs: Iterable[str]) -> list[UpdateStep]:
    """Fresh steps in their order.

    Raises:
        StepError: One is not known here, or cannot be made of these arguments.
        Failed: Its package cannot be imported.
    """
    return [_made(spec) for spec in specs]


def sent_shapes(specs: Iterable[str], shapes: Shapes, round_index: int) -> Shapes:
    """The tensors that an update of a round has on its way.

    Args:
        specs: The run's steps.
        shapes: Of its adapter.
        round_index: The round.
    """
    for step in made(specs):
        shapes = step.shapes(shapes, round_index)
    return shapes


def _made(spec: str) -> UpdateStep:
    name, *arguments = spec.split(":")
    kind = OURS.get(name) or _others().get(name)
    if kind is None:
        known = ", ".join(sorted({*OURS, *_others()}))
        raise StepError(
            f"update step {plain(name)[:64]!r} is not known here (known: {known}); install the "
            "package that has it on the coordinator and on every device"
        )
    try:
        return kind(*arguments)
    except (TypeError, ValueError) as error:
        raise StepError(f"update step {plain(spec)[:64]!r} cannot be made: {error}") from error


@cache
def _others() -> dict[str, type[UpdateStep]]:
    return {point.name: _loaded(point) for point in entry_points(group=GROUP)}


def _loaded(point: EntryPoint) -> type[UpdateStep]:
    try:
        kind: type[UpdateStep] = point.load()
    except Exception as error:  # somebody else's code
        package = point.dist.name if point.dist else point.value
        said = f"{type(error).__name__}: {plain(str(error))[:200]}"
        raise Failed(
            f"package {package}: its update step {point.name} cannot be used: {said}"
        ) from error
    return kind
