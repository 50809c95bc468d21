"""Which client is too old, by the version that it says it is.

Versions are compared by the numbers that they begin with: 0.10 is newer than 0.9.3, and 0.2.0rc1
counts as 0.2.0. One without numbers is nobody's to judge, and is never too old.
"""

import re

from edge_client.errors import demand

NUMBERS = re.compile(r"\d{1,9}(?:\.\d{1,9}){0,7}")


def check_minimum(version: str) -> None:
    """Refuse what is not a version, as `--minimum-client` gives it.

    Raises:
        WrongInput: Says what is expected.
    """
    is_fine = version == "" or NUMBERS.fullmatch(version) is not None
    demand(is_fine, f"--minimum-client {version!r}: a version such as 0.2.0 is expected")


def is_too_old(version: str, minimum: str) -> bool:
    """Whether a version is older than the oldest that gets work; nothing is older than ``""``."""
    found = NUMBERS.match(version)
    return bool(minimum) and found is not None and _numbers(found[0]) < _numbers(minimum)


def _numbers(version: str) -> list[int]:
    """A version's numbers; zeros at its end say nothing."""
    numbers = [int(part) for part in version.split(".")]
    while numbers and not numbers[-1]:
        numbers.pop()
    return numbers
