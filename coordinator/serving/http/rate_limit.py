"""Token buckets: a burst, then a sustained rate per second."""

import math
from collections import OrderedDict

MOST = 10_000  # that are remembered: whoever is forgotten begins anew


class TokenBuckets:
    """A pace for each of many, such as devices or addresses.

    Args:
        at_once: How often it may happen without a pause.
        per_s: How often a second for as long as one likes.
    """

    def __init__(self, at_once: int, per_s: float) -> None:
        self._at_once, self._per_s = at_once, per_s
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # and since when

    def take(self, who: str, now_s: float) -> int:
        """Count one; 0 where it may happen, else after how many seconds one may.

        Args:
            who: Whose pace it is.
            now_s: Monotonic time.
        """
        left, at_s = self._left.pop(who, (float(self._at_once), now_s))
        left = min(float(self._at_once), left + (now_s - at_s) * self._per_s)
        may = left >= 1
        self._left[who] = (left - 1 if may else left), now_s
        if len(self._left) > MOST:
            self._left.popitem(last=False)
        return 0 if may else math.ceil((1 - left) / self._per_s)
