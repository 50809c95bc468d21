"""What becomes of errors in somebody else's code: one line that names it."""

from edge_client.errors import Failed

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
