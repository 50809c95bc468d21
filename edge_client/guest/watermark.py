"""Whether the machine's memory runs short, whoever takes it: programs, or a GPU that shares it.

    mark = Watermark(total_bytes)
    mark.look(available_bytes, now_s)  # True: let go of all that can be had again
    mark.is_squeezed                   # take less than allowed for a while

A control group's limit is none of this: within it a client may use what its budget says.
"""

LEAST_SHARE, LEAST_BYTES = 20, 256 << 20  # a twentieth of the memory, no more than 256 MiB
PLENTY = 2  # times the least: where it is short no more
CALM_S = 30.0  # of plenty, before work goes on
UP_AGAIN_S = 600.0  # of plenty, before a larger plan is tried


class Watermark:
    """Two marks and two delays, so that it does not flap.

    Laws: it is short while less than the least is available; once short, it stays so until there
    was plenty for `CALM_S`, and squeezed until there was plenty for `UP_AGAIN_S`.

    Args:
        total_bytes: The machine's memory; None: nobody knows, and it is never short.

    Attributes:
        least_bytes: What is to stay available.
        is_short: Whether it is short.
        is_squeezed: Whether it was, lately.
    """

    def __init__(self, total_bytes: int | None) -> None:
        self.least_bytes = min((total_bytes or 0) // LEAST_SHARE, LEAST_BYTES)
        self.is_short = self.is_squeezed = False
        self._scarce_s = 0.0  # when there was no plenty last

    def look(self, available_bytes: int | None, now_s: float) -> bool:
        """Whether it is short now.

        Args:
            available_bytes: What the kernel says could be had without swapping; None: nothing.
            now_s: Seconds, ever growing.
        """
        if available_bytes is None:
            return self.is_short
        if available_bytes < PLENTY * self.least_bytes:
            self._scarce_s = now_s
        if available_bytes < self.least_bytes:
            self.is_short = self.is_squeezed = True
        calm_s = now_s - self._scarce_s
        self.is_short = self.is_short and calm_s < CALM_S
        self.is_squeezed = self.is_squeezed and calm_s < UP_AGAIN_S
        return self.is_short
