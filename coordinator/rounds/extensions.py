"""Extensions: means, server optimizers and selection policies from other packages.

A run file names them as it names built-in ones: `mean = "signs:0.001"` makes the extension `signs`
with the argument `"0.001"`. Only whoever starts the process adds extensions, by installing a
package or by the folder of `--plugins` (`smidgen.coordinator.plugins`); no run file, device or
operator can.

Extensions cannot change their inputs, and their results are checked. Any error in one becomes a
`PluginError` of one line that names it; an error of ours meanwhile, such as an unreadable file,
stays what it is. A serving process calls them with a timeout.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np

from smidgen.coordinator.rounds.bounds import is_computable
from smidgen.coordinator.rounds.learning.memory import Memory
from smidgen.coordinator.rounds.learning.optimizers import is_scale_free
from smidgen.coordinator.rounds.selection import Asking, Chosen
from smidgen.edge_client.errors import Failed, WrongInput, demand
from smidgen.edge_client.updates.step import Contribution
from smidgen.edge_client.wire.tensors import AdapterState

# What somebody else's code may end with; a signal of ours stays what it is.
FAILURES = (Exception, SystemExit)


class PluginError(Failed):
    """An extension that is not there, or did not do its part; one line that names it."""


def line_of(error: BaseException) -> str:
    """An error of somebody else's code in one line, whatever is in it."""
    try:
        said = plain(str(error))
    except Exception:  # its text is somebody else's code too
        said = ""
    return f"{type(error).__name__}: {said[:200]}" if said else type(error).__name__


def plain(text: str) -> str:
    """Somebody else's text as one line that can be written anywhere."""
    return " ".join(text.encode(errors="replace").decode().split())


T = TypeVar("T")
Call = Callable[[str, Callable[[], Any]], Any]
"""Called with what the code is called, where it fails, and the work; gives what the work gives."""


@contextmanager
def calling_by(call: Call) -> Iterator[None]:
    """A block in which `called` is done by this."""
    token = _CALL.set(call)
    try:
        yield
    finally:
        _CALL.reset(token)


def called(name: str, work: Callable[[], T]) -> T:
    """What the work gives or raises, or what the block's way to call raises instead.

    Args:
        name: What the code is called where it fails.
        work: The call.
    """
    found: T = _CALL.get()(name, work)
    return found


def _plainly(_name: str, work: Callable[[], T]) -> T:
    return work()


_CALL: ContextVar[Call] = ContextVar("call", default=_plainly)


Kind: TypeAlias = Literal["mean", "optimizer", "selection"]
NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}(:[^\s:]{1,64}){0,8}")


@dataclass(frozen=True)
class Extension:
    """A class of somebody else's.

    Attributes:
        kind: What it is.
        name: As run files say it.
        origin: Where it comes from, for people.
        factory: Makes it, from the arguments behind its name, as texts.
    """

    kind: Kind
    name: str
    origin: str
    factory: Callable[..., Any]


_KNOWN: dict[tuple[Kind, str], Extension] = {}


def add(one: Extension, ours: Collection[str] = ()) -> None:
    """Let run files of this process name an extension; again the same changes nothing.

    Raises:
        WrongInput: Its name makes no sense, is ours, or is another extension's.
    """
    said = f"{one.origin} names a {one.kind} {one.name!r}"
    is_name = NAME.fullmatch(one.name) and ":" not in one.name
    demand(bool(is_name), f"{said}; letters, digits, - and _ are expected", WrongInput)
    demand(one.name not in ours, f"{said}, which is built in; choose another name", WrongInput)
    known = _KNOWN.get((one.kind, one.name), one)
    demand(known.origin == one.origin, f"{said}, and so does {known.origin}", WrongInput)
    _KNOWN[one.kind, one.name] = one


@contextmanager
def apart() -> Iterator[None]:
    """A block in which only what is added inside is known, and which leaves nothing behind."""
    before = dict(_KNOWN)
    _KNOWN.clear()
    try:
        yield
    finally:
        _KNOWN.clear()
        _KNOWN.update(before)


def names_of(kind: Kind) -> list[str]:
    return sorted(name for of, name in _KNOWN if of == kind)


def find(kind: Kind, name: str) -> Extension | None:
    """An extension by its name; None where this process has none of it."""
    return _KNOWN.get((kind, name))


def split(text: str) -> tuple[str, list[str]]:
    """`krum:2` as its name and its arguments."""
    name, *arguments = text.split(":")
    return name, arguments


def made(kind: Kind, text: str) -> tuple[Any, str]:
    """What a run file names, made; and what it is called where it fails.

    Raises:
        PluginError: This process does not know it, or it cannot be made.
    """
    name, arguments = split(text)
    one = find(kind, name)
    if one is None:
        raise PluginError(
            f"{kind} {name!r} is not known here; start with --plugins FOLDER or install its package"
        )
    at_work = f"{kind} {text!r} of {one.origin}"
    try:
        return called(at_work, lambda: one.factory(*arguments)), at_work
    except PluginError:
        raise
    except FAILURES as error:
        raise PluginError(f"{at_work} cannot be made: {line_of(error)}") from error


# What safetensors holds of numpy's types.
KEPT = tuple(np.dtype(f"{kind}{size}") for kind in ("int", "uint") for size in (8, 16, 32, 64))
KEPT += tuple(np.dtype(name) for name in ("float16", "float32", "float64", "bool"))
LONGEST_REASON = 200  # characters


class CheckedMean:
    """A mean of somebody else's (`mean.Mean`).

    It gets each update as it counts, multiplied by its share already: one that forgets shares still
    keeps the bounds of the round.

    Args:
        inner: The mean.
        called: What it is called where it fails.
    """

    def __init__(self, inner: Any, called: str) -> None:
        self._inner, self._called = inner, called

    def mean(self, updates: Iterable[Contribution], adapter: AdapterState) -> AdapterState:
        """As `Mean` has it."""
        source = _Source(updates)

        def mean() -> Any:
            try:
                return _read(self._inner.mean(iter(source), _frozen(adapter)))
            except FAILURES as error:
                if source.failure is not None:
                    raise source.failure from None
                raise PluginError(f"{self._called} raised {line_of(error)}") from error

        return as_adapter(called(self._called, mean), adapter, f"{self._called}: the mean")


class CheckedOptimizer:
    """A server optimizer of somebody else's (`optimizers.ServerOptimizer`).

    Args:
        inner: The optimizer.
        called: What it is called where it fails.

    Attributes:
        is_scale_free: See `optimizers.is_scale_free`.
    """

    def __init__(self, inner: Any, called: str) -> None:
        self._inner, self._called = inner, called
        try:
            self.is_scale_free = is_scale_free(inner)
        except FAILURES as error:
            raise PluginError(f"{called} raised {line_of(error)}") from error

    def step(
        self,
        adapter: AdapterState,
        mean: AdapterState,
        memory: Memory,
        round_index: int,
        rounds: int,
    ) -> tuple[AdapterState, Memory]:
        """As `ServerOptimizer` has it."""
        known = (_frozen(adapter), _frozen(mean), _frozen(memory), round_index, rounds)

        def step() -> tuple[Any, Any]:
            try:
                after, kept = self._inner.step(*known)
                return _read(after), kept
            except FAILURES as error:
                raise PluginError(f"{self._called} raised {line_of(error)}") from error

        after, kept = called(self._called, step)
        return as_adapter(after, adapter, f"{self._called}: the adapter"), as_memory(
            kept, self._called
        )


class CheckedSelection:
    """A policy of selection of somebody else's (`selection.Selection`).

    Args:
        inner: The selection.
        called: What it is called where it fails.
    """

    def __init__(self, inner: Any, called: str) -> None:
        self._inner, self._called = inner, called

    def choose(self, asking: Asking) -> Chosen:
        """As `Selection` has it."""
        asked = _unchangeable(asking)

        def choose() -> tuple[list[Any], dict[Any, str]]:
            try:
                chosen, why_not = self._inner.choose(asked)
                reasons = dict(why_not).items()
                return list(chosen), {one: plain(str(why))[:LONGEST_REASON] for one, why in reasons}
            except FAILURES as error:
                raise PluginError(f"{self._called} raised {line_of(error)}") from error

        chosen, told = called(self._called, choose)
        there = set(asking.candidates)
        if not all(isinstance(name, str) and name in there for name in chosen):
            raise PluginError(f"{self._called} chose a device that is not among the candidates")
        if len(set(chosen)) < len(chosen) or len(chosen) > asking.size:
            raise PluginError(
                f"{self._called} chose {len(chosen)} devices, some twice or more than the "
                f"{asking.size} that may be asked"
            )
        reasons = {name: why for name, why in told.items() if name in there and name not in chosen}
        return tuple(sorted(chosen)), reasons


def _unchangeable(asking: Asking) -> Asking:
    """The same, with candidates sorted: some of it is the run's own state."""
    return replace(
        asking,
        candidates=tuple(sorted(asking.candidates)),
        texts=MappingProxyType(asking.texts),
        confidences=MappingProxyType(asking.confidences),
        heard=MappingProxyType(asking.heard),
        memory=MappingProxyType(asking.memory),
        tags=MappingProxyType({name: MappingProxyType(one) for name, one in asking.tags.items()}),
    )


class _Source:
    """Updates on their way into an extension; remembers whether they themselves failed."""

    def __init__(self, updates: Iterable[Contribution]) -> None:
        self._updates = updates
        self.failure: Exception | None = None

    def __iter__(self) -> Iterator[Contribution]:
        try:
            for one in self._updates:
                yield replace(one, delta=_frozen(counted(one)), share=1.0)
        except Exception as error:
            self.failure = error
            raise


def counted(one: Contribution) -> AdapterState:
    """A delta times its share, float32; to the last bit as it came where all of it counts."""
    if one.share == 1.0:
        return one.delta
    share = np.float64(one.share)
    return {name: (share * delta).astype(np.float32) for name, delta in one.delta.items()}


def _frozen(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same numbers, which nobody can write to through these."""
    found = {name: one.view() for name, one in tensors.items()}
    for one in found.values():
        one.flags.writeable = False
    return found


def _read(found: Any) -> Any:
    """What an extension gave; a mapping is read at once, which may be code of its own."""
    return dict(found) if isinstance(found, Mapping) else found


def as_memory(kept: Any, what: str) -> Memory:
    """What an extension remembers, as arrays of numbers by name."""

    def arrays_by_name() -> dict[Any, Any]:
        try:
            return dict(kept)
        except FAILURES as error:
            raise PluginError(f"{what}: its memory is not arrays by name") from error

    arrays = called(what, arrays_by_name)
    is_memory = all(
        isinstance(name, str) and isinstance(one, np.ndarray) and one.dtype.kind in "fiub"
        for name, one in arrays.items()
    )
    if not is_memory:
        raise PluginError(f"{what}: its memory is not numpy arrays of numbers by name")
    for name, one in arrays.items():
        if any("\ud800" <= letter <= "\udfff" for letter in name):
            raise PluginError(f"{what}: its memory has a name that is not text: {name!a}")
        if one.dtype.newbyteorder("=") not in KEPT:
            said = f"{one.dtype} in {name!a}; one of {', '.join(map(str, KEPT))} is expected"
            raise PluginError(f"{what}: its memory has {said}")
        if not np.isfinite(one).all():
            raise PluginError(f"{what}: its memory has {name!a} with NaN or infinity")
    return {name: np.array(one, one.dtype.newbyteorder("=")) for name, one in arrays.items()}


def as_adapter(found: Any, adapter: AdapterState, what: str) -> AdapterState:
    """What an extension gave, as float32 tensors of the adapter's names and shapes."""
    if not isinstance(found, Mapping) or set(found) != set(adapter):
        raise PluginError(f"{what} has other tensors than the adapter")
    state = {}
    for name, expected in adapter.items():
        one = found[name]
        is_number = isinstance(one, np.ndarray) and one.dtype.kind in "fiu"
        if not is_number or one.shape != expected.shape:
            said = getattr(one, "shape", type(one).__name__)
            raise PluginError(f"{what} has {name!r} as {said}, expected {expected.shape}")
        with np.errstate(over="ignore"):
            state[name] = np.array(one, np.float32)
        if not is_computable(state[name]):
            raise PluginError(f"{what} holds numbers in {name!r} that no device can compute with")
    return state
