"""Where the client keeps its state: whose folder that is."""

from pathlib import Path

from edge_client.client.folder.names import TODO, foreign_in, in_words
from edge_client.doctor.finding import ERROR, OK, UNKNOWN, Finding


def read_state_folder(state: Path) -> Finding:
    """Whether a client would take the folder for its own, if nothing else in there is named to it.

    Args:
        state: The client's state folder.
    """
    try:
        held = foreign_in(state)
    except OSError as error:
        told = f"{state} cannot be read: {error.strerror}"
        return Finding("state folder", UNKNOWN, told, "run it as the client's user")
    if held is not None:
        return Finding("state folder", ERROR, in_words(state, held), TODO)
    there = "a client's, or free for one" if state.is_dir() else "no folder yet"
    return Finding("state folder", OK, f"{state}: {there}")
