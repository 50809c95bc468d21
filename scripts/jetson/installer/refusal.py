"""What an install says: why it cannot go on, in one line, and what it is at, on a terminal."""

import sys


class Refusal(Exception):
    """Nothing was changed; the message is for people."""


def demand(holds: bool, message: str) -> None:
    if not holds:
        raise Refusal(message)


def tell(doing: str, *about: object) -> None:
    """Say it, where somebody sees it; a script that calls this one sees the outcome alone."""
    if sys.stderr.isatty():
        print("{} ...".format(doing.format(*about)), file=sys.stderr, flush=True)
