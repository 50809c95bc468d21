"""Early stopping: how many evaluations in a row have found nothing better.

An evaluation is an improvement where its score is above the last improvement's by more than what
asking a cohort explains (`scoring.is_worse`); where everybody is asked any difference is one. Many
small gains add up: the mark that they are held against stays until they are one together. An
evaluation of which nobody can tell how far it is off says nothing and is not counted.
"""

from dataclasses import dataclass

from coordinator.rounds.scoring import Score, is_worse


@dataclass(frozen=True)
class Patience:
    """How long nothing better was found.

    Attributes:
        mark: The last score that was an improvement; None of none.
        misses: Evaluations since then.
    """

    mark: Score | None = None
    misses: int = 0


def after_score(patience: Patience, score: Score) -> Patience:
    """What is known after an evaluation; one without texts, or without an error, changes nothing.

    `misses` is 0 after a score that is an improvement and else one more than before.
    """
    if not score.texts or score.error is None:
        return patience
    if patience.mark is None or is_worse(patience.mark, score):
        return Patience(score)
    return Patience(patience.mark, patience.misses + 1)


def lack_of_progress(patience: Patience, most: int) -> str:
    """Why a run stops, in words; empty where it goes on.

    Args:
        patience: What is known.
        most: Evaluations without an improvement that it stops after; 0: it never does.
    """
    if not most or patience.misses < most or patience.mark is None:
        return ""
    times = f"{patience.misses} evaluation{'s' if patience.misses > 1 else ''}"
    return f"no improvement on {patience.mark.accuracy:.1%} in {times}"
