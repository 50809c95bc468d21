"""What goes before an experiment, as experiments of their own: rounds, or what taught its base.

They have no word of what is done with their adapter: by their key they are run once for every rank
budget, and for every other experiment that goes on from them.
"""

from dataclasses import dataclass, replace

from simulation.experiments.experiment import Experiment
from simulation.experiments.personal.settings import GUIDED, left_out


@dataclass(frozen=True)
class Parts:
    """Rounds that clients go on from, and those that an experiment's base comes from.

    Attributes:
        given: What its method goes by: of all clients, or without each group of languages; none
            for a method that goes by nothing.
        early: What one's own begins with, if that is before the rounds are over; at most one.
        beneath: What one's own is trained above, in turn; the last is there in the end.
        taught: What trained the weights of the base; at most one.
    """

    given: tuple[Experiment, ...] = ()
    early: tuple[Experiment, ...] = ()
    beneath: tuple[Experiment, ...] = ()
    taught: tuple[Experiment, ...] = ()

    @property
    def rounds(self) -> tuple[Experiment, ...]:
        """Those that clients go on from, whose costs are the experiment's too."""
        return (*self.given, *self.early, *self.beneath)

    @property
    def every(self) -> tuple[Experiment, ...]:
        return (*self.rounds, *self.taught)


def parts(experiment: Experiment) -> Parts:
    """What goes before an experiment.

    Args:
        experiment: Any.
    """
    personal = experiment.personal
    if experiment.taught is not None:
        return Parts(taught=(experiment.taught,))
    if personal is None or not experiment.rounds:
        return Parts()
    plain = replace(experiment, personal=None)
    whole = (_lasting(plain, plain.rounds),)
    if personal.groups:
        groups = left_out(plain.languages, personal.groups)
        return Parts(tuple(_without(plain, group) for group in groups))
    if personal.above:
        training = replace(plain.training, lr=personal.lr)
        shared = replace(plain, adapter=personal.above, training=training)
        stages = range(personal.stages)
        ends = [stage * plain.rounds // personal.stages for stage in stages]
        beneath = tuple(_lasting(shared, rounds) for rounds in (*ends, plain.rounds))
        return Parts(whole if personal.method in GUIDED else (), (), beneath)
    is_early = personal.start not in (None, plain.rounds)
    return Parts(whole, (_lasting(plain, personal.start or 0),) if is_early else ())


def _lasting(plain: Experiment, rounds: int) -> Experiment:
    return replace(plain, name=f"{rounds} rounds, seed {plain.seed}", rounds=rounds)


def _without(plain: Experiment, group: tuple[str, ...]) -> Experiment:
    return replace(
        plain,
        name=f"rounds without {', '.join(group)}, seed {plain.seed}"[:200],
        languages=tuple(one for one in plain.languages if one not in group),
    )


def part_of(experiment: Experiment, client: str) -> int:
    """Which of `Parts.given` a client goes on from: the one in which it was left out, if it was."""
    personal = experiment.personal
    if personal is None or not personal.groups:
        return 0
    groups = left_out(experiment.languages, personal.groups)
    return next(number for number, group in enumerate(groups) if client in group)
