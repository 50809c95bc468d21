"""Root error classes `WrongInput` and `Failed`, which `smidgen.main` reports in one line.

Every error class of this project derives from one of them. Any other exception is a bug and ends in
a traceback.
"""

from typing import ClassVar


class WrongInput(ValueError):
    """What the user gave cannot be used; says what was expected and what to do."""

    exit_code: ClassVar[int] = 2


class Failed(RuntimeError):
    """The input was right and the work was not done; says why."""

    exit_code: ClassVar[int] = 1


class Stopped(Failed):
    """The user stopped it (Ctrl-C or SIGTERM); says what is left behind."""

    exit_code: ClassVar[int] = 130


def demand(condition: bool, message: str, kind: type[Exception] = WrongInput) -> None:
    """Raise an error of a kind unless the condition holds."""
    if not condition:
        raise kind(message)


def installing(extra: str = "") -> str:
    """How to install smidgen with an extra; it is on no package index."""
    wanted = f"[{extra}]" if extra else ""
    return f"pip install '.{wanted}' in a clone of smidgen, or 'WHEEL{wanted}' with its wheel"
