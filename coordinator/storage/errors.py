"""Errors of a store."""

from smidgen.edge_client.errors import WrongInput


class StoreError(WrongInput):
    """A store that cannot be opened or does not hold what was asked for."""


class Conflict(StoreError):
    """A place of a journal that another process has written, or folded away."""
