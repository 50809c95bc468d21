"""Which of a run's exchanges make whole rounds, and which of these training takes."""

import re
from collections.abc import Iterator, Sequence

from profiling.wire.relay import Exchange

UPLOAD = re.compile(r"/v1/work/([^/]+)/update$")


def by_client(exchanges: Sequence[Exchange]) -> list[list[Exchange]]:
    """Exchanges of each connection on which there were uploads: of a client that has enrolled."""
    numbers = {one.connection for one in exchanges if UPLOAD.match(one.path)}
    return [[one for one in exchanges if one.connection == number] for number in sorted(numbers)]


def whole_rounds(exchanges: Sequence[Exchange], rounds: int) -> Iterator[Exchange]:
    """Exchanges of the last rounds of each client, as many of each kind as rounds have.

    Every round has one upload: from the one before the first of these rounds up to the one in the
    last of them is as much as the rounds take.
    """
    for own in by_client(exchanges):
        uploads = [place for place, one in enumerate(own) if UPLOAD.match(one.path)]
        yield from own[uploads[-rounds - 1] : uploads[-1]]


def of_training(exchanges: Sequence[Exchange]) -> Iterator[Exchange]:
    """Those of them that training takes: the poll that gave the work, adapter, upload and report.

    The adapter counts here, though a client that was asked to evaluate it has it by then.
    """
    for own in by_client(exchanges):
        works = {found[1] for one in own if (found := UPLOAD.match(one.path))}
        # What comes next in time begins this round again: each round has as much of each.
        after = [*own[1:], own[0]]
        for one, following in zip(own, after, strict=True):
            is_poll = one.path.startswith("/v1/work?") and UPLOAD.match(following.path)
            is_report = any(one.path == f"/v1/work/{work}/report" for work in works)
            is_adapter = one.path.startswith("/v1/adapters/")
            if is_poll or is_report or is_adapter or UPLOAD.match(one.path):
                yield one
