"""The federated rounds before clients train for themselves, as experiments of their own.

They have no word of what is done with their adapter: by their key they are run once for every rank
budget, and for every other experiment that goes on from them.
"""

from dataclasses import replace

from simulation.experiments.experiment import Experiment
from simulation.experiments.personal.settings import left_out


def parts(experiment: Experiment) -> tuple[Experiment, ...]:
    """The rounds that go before: none, those of all, or without each group of languages.

    Where clients' own begin earlier, the rounds up to there come last.
    """
    personal = experiment.personal
    if personal is None or not experiment.rounds:
        return ()
    plain = replace(experiment, personal=None)
    if not personal.groups:
        every = replace(plain, name=f"rounds, seed {plain.seed}")
        if personal.start in (None, plain.rounds):
            return (every,)
        early = f"rounds to {personal.start}, seed {plain.seed}"
        return (every, replace(plain, name=early, rounds=personal.start or 0))
    return tuple(
        replace(
            plain,
            name=f"rounds without {', '.join(group)}, seed {plain.seed}"[:200],
            languages=tuple(one for one in plain.languages if one not in group),
        )
        for group in left_out(plain.languages, personal.groups)
    )


def part_of(experiment: Experiment, client: str) -> int:
    """Which of `parts` a client goes on from: the one in which it was left out, if it was."""
    personal = experiment.personal
    if personal is None or not personal.groups:
        return 0
    groups = left_out(experiment.languages, personal.groups)
    return next(number for number, group in enumerate(groups) if client in group)
