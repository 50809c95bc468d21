"""Which of a run's exchanges make whole rounds, and which of these training takes."""

import re
from collections.abc import Iterator, Sequence

from edge_client.errors import Failed
from profiling.wire.relay import Exchange

UPLOAD = re.compile(r"/v1/work/([^/]+)/update$")


class CountError(Failed):
    """The relay did not see as many uploads as there were rounds."""


def by_client(exchanges: Sequence[Exchange]) -> list[list[Exchange]]:
    """Exchanges of each client that uploads, by its device key: it may have connected again."""
    keys = dict.fromkeys(one.key for one in exchanges if UPLOAD.match(one.path))
    return [[one for one in exchanges if one.key == key] for key in keys]


def uploads(own: Sequence[Exchange]) -> dict[str, int]:
    """Where a client's first upload of each work is, by the work's id; a repeated one is later."""
    places: dict[str, int] = {}
    for place, one in enumerate(own):
        if found := UPLOAD.match(one.path):
            places.setdefault(found[1], place)
    return places


def whole_rounds(exchanges: Sequence[Exchange], rounds: int) -> Iterator[Exchange]:
    """Exchanges of the last rounds of each client, as many of each kind as rounds have.

    Every round has one upload: from the one before the first of these rounds up to the one in the
    last of them is as much as the rounds take. What a client had to send again counts too.

    Raises:
        CountError: A client has fewer uploads.
    """
    for own in by_client(exchanges):
        places = list(uploads(own).values())
        if len(places) <= rounds:
            raise CountError(
                f"the relay saw {len(places)} uploads of a client, {rounds + 1} expected; "
                "run it again"
            )
        yield from own[places[-rounds - 1] : places[-1]]


def of_training(exchanges: Sequence[Exchange]) -> Iterator[Exchange]:
    """Those of them that training takes: the poll that gave the work, adapter, upload and report.

    The adapter counts here, though a client that was asked to evaluate it has it by then.
    """
    for own in by_client(exchanges):
        works = uploads(own)
        # What comes next in time begins this round again: each round has as much of each.
        after = [*own[1:], own[0]]
        for one, following in zip(own, after, strict=True):
            is_poll = one.path.startswith("/v1/work?") and UPLOAD.match(following.path)
            is_report = any(one.path == f"/v1/work/{work}/report" for work in works)
            is_adapter = one.path.startswith("/v1/adapters/")
            if is_poll or is_report or is_adapter or UPLOAD.match(one.path):
                yield one
