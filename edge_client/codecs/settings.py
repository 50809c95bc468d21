"""In how many bytes a run's updates travel, as its run file says it."""

from dataclasses import dataclass

from edge_client.codecs.codec import PLAIN, check_codec


@dataclass(frozen=True)
class Updates:
    """What updates are coded as on their way.

    Attributes:
        up: From a device: `float32`, `int8`, `int4`, or `topk:SHARE`, the largest numbers alone.
    """

    up: str = PLAIN

    def __post_init__(self) -> None:
        check_codec(self.up)

    @property
    def is_coded(self) -> bool:
        """Whether devices keep what a codec has left out."""
        return self.up != PLAIN
