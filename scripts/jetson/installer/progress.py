"""What an install is at, for people who wait at a terminal: a slow board takes minutes."""

import sys


def tell(doing: str, *about: object) -> None:
    """Say it, where somebody sees it; a script that calls this one sees the outcome alone."""
    if sys.stderr.isatty():
        print("{} ...".format(doing.format(*about)), file=sys.stderr, flush=True)
