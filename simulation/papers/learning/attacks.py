"""What hostile devices do to a run, without the defences and with them: 2 of 20, by every attack.

The demo's messages, dealt to 20 devices of which all are asked in every round. Each attack is
paired by seed with the same run in which the hostile devices take no part.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from coordinator.rounds.learning.settings import Learning
from edge_client.files import write_atomically
from edge_client.tables import Column, Table
from edge_client.wire.training import Training
from simulation.demo.messages import DATA, load_messages, write_examples
from simulation.experiments.experiment import Experiment
from simulation.experiments.hostile import ATTACKS, Attack, Hostile
from simulation.experiments.result import Result, mean_and_spread
from simulation.papers.paired import beside, by_seed, paired, points
from simulation.papers.scenario import SUMMARY, Cell, Measured, Scenario
from simulation.population.deal import Deal

DEVICES, HOSTILE, ROUNDS = 20, 2, 10
LABELLED = 360  # of the 1,080 labelled messages, 18 a device: a run of minutes
ALPHA = 1.0  # AUG-FedPrompt's: devices hold unequal mixes of the labels
WITHOUT, WITH = "no defence", "as by default"
NOTES = (
    f"{HOSTILE} of {DEVICES} devices are hostile; all are asked in every round; judged by the test "
    "texts of the honest ones, by the truth",
    f"{WITHOUT}: norm_bound = 0, max_examples = 0, no check of a new adapter, no roll-back",
    f"paired: minus the run of equal seed and column with the hostile devices {ATTACKS[0]}",
)
# Of the two hostile ones among 20: what each mean bears is as many, or more.
MEANS = ("fedavg", "trimmed:0.2", "median", "krum:2", "multikrum:2:10", "geometric")
FORGED: tuple[Attack, ...] = (ATTACKS[0], "scaled", "flipped", "noise")
ALONE = "norm_bound = 0, max_examples = 0, no check of a new adapter, no roll-back: the mean alone"


def write_messages(folder: Path) -> Path:
    """The demo's labelled messages as a data set of one's own: all writers' texts together."""
    folder.mkdir(parents=True, exist_ok=True)
    messages = load_messages()
    for split in ("train", "test"):
        chosen = [message for message in messages if message.split == split]
        write_examples(folder / f"{split}.csv", chosen)
    write_atomically(folder / "task.toml", (DATA / "task.toml").read_bytes())
    return folder


def attacks(folder: Path, base: str, chosen: Sequence[Attack] = ATTACKS) -> Scenario:
    """Every attack without the defences and with them.

    Args:
        folder: Where the messages are; see `write_messages`.
        base: `embedded`, a folder or a hub name.
        chosen: Attacks beside `absent`.
    """
    asked = dict.fromkeys((ATTACKS[0], *chosen))
    cells = [
        Cell(attack, column, experiment(folder, base, attack, column == WITH))
        for column in (WITHOUT, WITH)
        for attack in asked
    ]
    title = f"{HOSTILE} hostile of {DEVICES} devices, {ROUNDS} rounds: accuracy in %"
    return Scenario("attacks", title, tuple(cells), NOTES)


def aggregations(folder: Path, base: str, means: Sequence[str] = MEANS) -> Scenario:
    """Forged updates against each mean, without any other defence.

    Args:
        folder: Where the messages are; see `write_messages`.
        base: `embedded`, a folder or a hub name.
        means: As `[learning] mean` has them.
    """
    cells = [
        Cell(attack, mean, replace(one, learning=Learning(mean=mean)))
        for mean in means
        for attack in FORGED
        for one in [experiment(folder, base, attack, is_resisted=False)]
    ]
    title = f"{HOSTILE} hostile of {DEVICES} devices, {ROUNDS} rounds, by mean: accuracy in %"
    return Scenario("attacks-by-mean", title, tuple(cells), (NOTES[0], ALONE, NOTES[2]))


def experiment(folder: Path, base: str, attack: Attack, is_resisted: bool) -> Experiment:
    """One attack."""
    return Experiment(
        attack,
        f"folder:{folder}",
        base=base,
        adapter="lora:8",
        deal=Deal(clients=DEVICES, labelled=LABELLED, alpha=ALPHA),
        training=Training(epochs=1, batch=16, lr=5e-3, tokens=64),  # the demo's
        rounds=ROUNDS,
        norm_bound="adaptive" if is_resisted else 0.0,
        max_examples="adaptive" if is_resisted else 0,
        is_guarded=is_resisted,
        hostile=Hostile(HOSTILE, attack),
    )


def paired_table(found: Sequence[Measured]) -> tuple[Table, Any]:
    """What each attack costs, seed by seed; the same for machines."""
    plain = [_paired(item, found) for item in found]
    rows = [
        [
            str(one["attack"]),
            str(one["defence"]),
            points(one["accuracy"]),
            points(one["difference"]),
            by_seed(one["difference_by_seed"]),
            points(one["reported"]),
            str(one["not_taken_or_back"]),
        ]
        for one in plain
    ]
    columns = [Column("attack", "text"), Column("defence", "text"), Column("accuracy")]
    columns += [Column(name) for name in ("paired", "by seed", "reported", "went back")]
    notes = (
        "in %; ± is the sample standard deviation over seeds; reported: by what all devices told",
        "went back: rounds not taken or gone back from, of all seeds",
    )
    return Table(columns, rows, "what hostile devices cost", list(notes), SUMMARY), plain


def _paired(item: Measured, found: Sequence[Measured]) -> dict[str, Any]:
    reported = [_reported(result) for result in item.results]
    told = [one for one in reported if one is not None]
    return {
        "attack": item.cell.row,
        "defence": item.cell.column,
        **paired(item, beside(item, found, ATTACKS[0])),
        "reported": mean_and_spread(told) if told else None,
        "not_taken_or_back": sum(bool(row.trouble) for one in item.results for row in one.rows),
    }


def _reported(result: Result) -> float | None:
    """Accuracy by what devices told after the last round."""
    return max(result.rows, key=lambda row: row.round_index).reported
