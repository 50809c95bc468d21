"""The search for a body that a decoder cannot take: hypothesis makes them, and makes one small."""

from pathlib import Path

from hypothesis import HealthCheck, given, seed, settings

from tests.fuzz.ground import Ground
from tests.fuzz.inputs import bodies
from tests.fuzz.targets import TARGETS, corpus

ALL_CHECKS = tuple(HealthCheck)


class Found(AssertionError):
    """A body that ended otherwise than in a value or in one of the decoder's own errors."""


def search(name: str, ground: Ground, number: int, examples: int, keep: Path) -> None:
    """Try so many bodies on a target; the same number gives the same ones.

    Args:
        name: The target.
        ground: Where bodies are read.
        number: The seed.
        examples: How many.
        keep: Folder that gets the smallest body that was found.

    Raises:
        Found: Names the file and how to put it into the corpus.
    """
    target, kept, last = TARGETS[name], list(corpus(name).values()), b""

    @seed(number)
    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=ALL_CHECKS)
    @given(bodies(kept))
    def takes(body: bytes) -> None:
        nonlocal last
        last = body
        target.is_value(ground, body)

    try:
        takes()
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        keep.mkdir(parents=True, exist_ok=True)
        file = keep / f"{name}-{number}"
        file.write_bytes(last)
        raise Found(
            f"{name}, seed {number}: {type(error).__name__}: {str(error)[:500]}\n"
            f"the body is in {file}; mend what reads it, and keep it by\n"
            f"python -m tests.fuzz keep {name} {file}"
        ) from error
