"""Early stopping, participation history and backoff for unresponsive devices.

The history holds the results of each device's last training, as far as selection uses them. A
device that misses its step's deadline is left out of one step, then two, four and so on, at most
`LONGEST_REST`, so it is never forgotten. Any answer in time ends the backoff.

Early stopping counts evaluations in a row without improvement: a score above that of the last
improvement by more than sampling a cohort explains (`scoring.is_worse`), or by any amount where all
devices are asked. Small gains add up, since the reference stays until they exceed it together. An
evaluation with an unknown error is not counted.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from smidgen.coordinator.rounds.events import AlsoAsked, Answered, StepOpened
from smidgen.coordinator.rounds.scoring import Score, is_worse


@dataclass(frozen=True)
class Heard:
    """A device's last training that counted, and how often it was asked since.

    Attributes:
        round_index: Of it; 0 where none has counted.
        examples: Texts that it says it trained on.
        took_s: Seconds that it took; None where nobody measured.
        loss: Mean loss that it says it had; None where it has not said.
        tries: How often it was asked after that, and has failed, come late or not answered yet.
        counted: Rounds in which its training has counted.
        asked: How often it was asked to train, and has not failed.
    """

    round_index: int
    examples: int
    took_s: float | None = None
    loss: float | None = None
    tries: int = 0
    counted: int = 0
    asked: int = 0


def after_asking(heard: Mapping[str, Heard], asked: StepOpened | AlsoAsked) -> Mapping[str, Heard]:
    """What is known once devices are asked: of each that is asked to train, one try more."""
    if isinstance(asked, StepOpened) and asked.kind != "train":
        return heard
    known = {name: heard.get(name, Heard(0, 0)) for _, name in asked.members}
    again = {
        name: replace(one, tries=one.tries + 1, asked=one.asked + 1) for name, one in known.items()
    }
    return {**heard, **again}


def after_failure(heard: Mapping[str, Heard], device_id: str) -> Mapping[str, Heard]:
    """What is known once a device has failed: it has sent nothing of its texts."""
    before = heard.get(device_id, Heard(0, 0))
    return {**heard, device_id: replace(before, asked=max(0, before.asked - 1))}


def after_training(
    heard: Mapping[str, Heard], round_index: int, told: Iterable[tuple[str, Answered]]
) -> dict[str, Heard]:
    """What is known after a training step; the loss that was told last stays.

    Whose training counted has no try that did not.
    """
    found = dict(heard)
    for name, one in told:
        before = heard.get(name, Heard(0, 0))
        new = Heard(round_index, one.num_examples, one.took_s, before.loss)
        found[name] = replace(new, counted=before.counted + 1, asked=before.asked)
    return found


def with_loss(heard: Mapping[str, Heard], device_id: str, loss: float) -> Mapping[str, Heard]:
    """What is known once a device has told its loss, which may be before its step closes."""
    return {**heard, device_id: replace(heard.get(device_id, Heard(0, 0)), loss=loss)}


LONGEST_REST = 64  # steps


@dataclass(frozen=True)
class Silence:
    """A device that has not answered lately.

    Attributes:
        misses: Steps in a row that closed without it.
        rests_until: Number of the first step of the run that it may be asked in again, from 1.
    """

    misses: int
    rests_until: int


def rest_after(misses: int) -> int:
    """Steps that a device rests which has missed so many in a row, one or more."""
    rest: int = 2 ** min(misses - 1, 30)
    return min(rest, LONGEST_REST)


def after_step(
    silences: Mapping[str, Silence],
    asked: Collection[str],
    answered: Collection[str],
    step_number: int,
) -> Mapping[str, Silence]:
    """Who is silent once a step is over.

    Args:
        silences: Who was before, by device.
        asked: Its members.
        answered: Those that answered in time, failures too.
        step_number: The step's place among all steps of the run, from 1.

    Returns:
        The same object where nothing has changed.
    """
    back = [name for name in answered if name in silences]
    missing = set(asked) - set(answered)
    if not back and not missing:
        return silences
    found = dict(silences)
    for name in back:
        del found[name]
    for name in missing:
        misses = found[name].misses + 1 if name in found else 1
        found[name] = Silence(misses, step_number + 1 + rest_after(misses))
    return found


def awake(
    device_ids: Collection[str], silences: Mapping[str, Silence], step_number: int
) -> set[str]:
    """Those of some devices that do not rest in a step."""
    return {
        name
        for name in device_ids
        if name not in silences or silences[name].rests_until <= step_number
    }


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
