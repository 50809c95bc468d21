"""The two ways in which a command may fail, each told in one line by `smidgen.main`.

Every error class of the house derives from one of them. What derives from neither is a bug, and
ends in a traceback.
"""


class WrongInput(ValueError):
    """What the user gave cannot be used; exit code 2. Says what was expected and what to do."""


class Failed(RuntimeError):
    """The input was right, the work was not done; exit code 1. Says what to do."""


def demand(condition: bool, message: str, kind: type[Exception] = WrongInput) -> None:
    """Raise an error of the given kind unless the condition holds."""
    if not condition:
        raise kind(message)
