"""Registry of update steps: ours, FedProx with them, then those of installed packages.

Other packages add classes like `step.UpdateStep` by entry points of the group
`smidgen.update_steps`; the entry's name is the step's.

FedProx, Li et al. 2020 (arXiv:1812.06127): the loss gains mu/2 * ||w - received||^2.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from smidgen.edge_client.codecs import Shapes
from smidgen.edge_client.errors import Failed, WrongInput, demand
from smidgen.edge_client.tables import plain
from smidgen.edge_client.updates.codec import Codec
from smidgen.edge_client.updates.forms import Turns
from smidgen.edge_client.updates.privacy import DeviceNoise, TextNoise
from smidgen.edge_client.updates.ridge import Ridge
from smidgen.edge_client.updates.scaffold import Scaffold
from smidgen.edge_client.updates.secure_sum import SecureSum
from smidgen.edge_client.updates.step import Correction, DeviceContext, UpdateStep


class Proximal(UpdateStep):
    """Adds mu * (w - received) to each gradient.

    Args:
        mu: As a text.
    """

    name = "proximal"

    def __init__(self, mu: str) -> None:
        super().__init__()
        self._mu = float(mu)

    def correct(self, correction: Correction, context: DeviceContext) -> Correction:
        return replace(correction, proximal=self._mu)


GROUP = "smidgen.update_steps"
OURS: Mapping[str, type[UpdateStep]] = {
    one.name: one
    for one in (Proximal, Scaffold, Turns, Ridge, DeviceNoise, TextNoise, SecureSum, Codec)
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
    demand(
        name not in OURS,
        f"steps: {name} is set by its own name: proximal and scaffold of training, up of updates, "
        "the table privacy",
    )


def made(specs: Iterable[str]) -> list[UpdateStep]:
    """Fresh steps in their order.

    Raises:
        StepError: One is not known here, cannot be made of these arguments, or stands twice, so
            that its states would be each other's.
        Failed: Its package cannot be imported.
    """
    steps = [_made(spec) for spec in specs]
    twice = [name for name, number in Counter(one.name for one in steps).items() if number > 1]
    demand(not twice, f"update step {', '.join(twice)} stands twice in a run; once", StepError)
    return steps


@contextmanager
def naming(step: UpdateStep, kind: type[Failed] = Failed) -> Iterator[None]:
    """A block in which errors of somebody else's step become one line that names it.

    Raises:
        Failed: Of this kind.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        if step.name in OURS or isinstance(error, (Failed, WrongInput)):
            raise
        raise kind(f"update step {step.name} raised {_line_of(error)}") from error


def _line_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {plain(str(error))[:200]}"


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
    except Exception as error:  # somebody else's code
        said = str(error) if isinstance(error, (TypeError, ValueError)) else _line_of(error)
        raise StepError(f"update step {plain(spec)[:64]!r} cannot be made: {said}") from error


@cache
def _others() -> dict[str, type[UpdateStep]]:
    found: dict[str, type[UpdateStep]] = {}
    for point in entry_points(group=GROUP):
        kind = _loaded(point)
        demand(
            found.setdefault(point.name, kind) is kind,
            f"update step {point.name} is of two packages; uninstall one",
            Failed,
        )
    return found


def _loaded(point: EntryPoint) -> type[UpdateStep]:
    package = point.dist.name if point.dist else point.value
    said = f"package {package}: its update step {point.name} cannot be used: "
    try:
        kind: type[UpdateStep] = point.load()
    except Exception as error:  # somebody else's code
        raise Failed(said + _line_of(error)) from error
    is_step = isinstance(kind, type) and issubclass(kind, UpdateStep)
    demand(is_step, said + "a subclass of UpdateStep is expected", Failed)
    demand(point.name not in OURS, said + "the name is smidgen's own", Failed)
    demand(kind.name == point.name, said + f"its class has the name {kind.name!r}", Failed)
    return kind
