"""Int8 inference for long lists of texts, used only where it gives the same answers as float32.

Quantized activations change the logits, and how often that changes an answer depends on the base.
So the first texts of a long list, spread evenly over it, are read both ways; the rest are read in
int8 only if at least 99 % of those answers agree. Short lists, such as a device's test texts, are
always read in float32: they would gain nothing, and their scores stay comparable.

Law: the answers depend on the adapter and the texts alone, never on what was read before.
"""

import logging
from collections.abc import Collection, Sequence

import numpy as np

from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.engine.backend import AnswerTexts
from smidgen.edge_client.engine.engine import EngineError
from smidgen.edge_client.texts.examples import Example

log = logging.getLogger(__name__)

CHECKED = 200  # texts that are read both ways
WORTH = 3 * CHECKED  # texts from which on it is worth it
AGREEMENT = 0.99
# What processors that multiply int8 faster than float32 say they have. Without such products the
# runtime's int8 kernels are slower, and on old x86 they saturate.
INT8_FLAGS = ("avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm")


def has_int8(flags: Collection[str]) -> bool:
    """Whether a processor with these flags multiplies int8 faster than float32."""
    return any(flag in flags for flag in INT8_FLAGS)


def is_worth(base: Base, flags: Collection[str]) -> bool:
    """Whether int8 reads a base faster on a processor with these flags."""
    # Narrower bases are read faster in float32 (measured: 128 to 1024)
    return base.bits == 8 and base.hidden >= 384 and has_int8(flags)


class QuickInference:
    """Decides for each list whether its texts are read in int8.

    Args:
        is_possible: Whether the quick way exists: for the base, and on this processor.
    """

    def __init__(self, is_possible: bool) -> None:
        self._is_possible, self._is_told = is_possible, False

    def predict(self, examples: Sequence[Example], answer: AnswerTexts) -> np.ndarray:
        """Log-probabilities, float32, (texts, labels); see the module.

        Args:
            examples: The texts.
            answer: Reads them, either way.
        """
        if not self._is_possible or len(examples) < WORTH:
            return answer(examples, False)
        spread = np.linspace(0, len(examples) - 1, CHECKED).astype(int)
        checked = [examples[row] for row in spread]
        exact = answer(checked, False)
        is_quick = self._agree(checked, exact, answer)
        left = np.setdiff1d(np.arange(len(examples)), spread)
        rows = np.empty((len(examples), exact.shape[1]), np.float32)
        rows[spread] = exact
        rows[left] = answer([examples[row] for row in left], is_quick)
        return rows

    def _agree(self, checked: Sequence[Example], exact: np.ndarray, answer: AnswerTexts) -> bool:
        """Whether int8 gives the same labels; logs the reason once if not."""
        try:
            quick = answer(checked, True)
        except EngineError as error:  # a runtime without these kernels
            self._is_possible = False
            log.warning("texts are read in float32: %s", error)
            return False
        share = agreement(exact, quick)
        if share < AGREEMENT and not self._is_told:
            self._is_told = True
            log.warning(
                "texts are read in float32: int8 agrees on %.1f %% of them only", 100 * share
            )
        return share >= AGREEMENT


def agreement(exact: np.ndarray, quick: np.ndarray) -> float:
    """Share of rows whose most probable label is the same."""
    return float((exact.argmax(axis=1) == quick.argmax(axis=1)).mean())
