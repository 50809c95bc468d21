"""In how many bytes a run's updates and steps travel, as its run file says it."""

from dataclasses import dataclass

from edge_client.codecs.codec import PLAIN, check_codec, check_setting
from edge_client.errors import WrongInput

SOON_S = 10.0  # an update that is sent within this is not made smaller
# Codecs by their exactness, with their share of float32's bytes, see docs/reference/run-file.md.
EXACT = ((PLAIN, 1.0), ("int8", 0.27), ("int4", 0.15))


@dataclass(frozen=True)
class Updates:
    """What updates, and the steps that they give, are coded as on their way.

    Attributes:
        up: From a device: `float32`, `int8`, `int4`, `topk:SHARE`, the largest numbers alone, or
            `auto`, as each device's link asks for (`codec_for`).
        down: To devices, the step of each round, for all alike: one of these but `auto`.
    """

    up: str = PLAIN
    down: str = PLAIN

    def __post_init__(self) -> None:
        check_setting(self.up)
        try:
            check_codec(self.down)
        except WrongInput as error:
            raise WrongInput(f"down: {error}") from error

    @property
    def is_coded(self) -> bool:
        """Whether devices keep what a codec has left out."""
        return self.up != PLAIN

    @property
    def is_plain(self) -> bool:
        """Whether everything travels as it is, both ways."""
        return self.up == self.down == PLAIN


def codec_for(plain_bytes: int, bytes_per_s: float | None) -> str:
    """What `auto` comes to: the most exact codec whose file is sent within so many seconds.

    Laws: a slower link never gets a more exact codec, nor does a larger adapter. A link that nobody
    has measured gets `int8`, and one on which nothing is sent in time the smallest.

    Args:
        plain_bytes: Size of the update as float32.
        bytes_per_s: What the link carries; None: not known.
    """
    if bytes_per_s is None:
        return EXACT[1][0]
    in_time = [name for name, share in EXACT if plain_bytes * share <= SOON_S * bytes_per_s]
    return in_time[0] if in_time else EXACT[-1][0]
