"""Baselines of a demo: each device trained alone, its personal adapter, and the base by itself."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import numpy as np

from smidgen.edge_client.adapters.peft_folder import read_peft_folder
from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import open_base
from smidgen.edge_client.engine.engine import Engine
from smidgen.edge_client.engine.opening import open_engine
from smidgen.edge_client.personal.choice import Choice, chosen_in
from smidgen.edge_client.tables import Column, Table
from smidgen.edge_client.tasks.kind import kind_of, measure_called
from smidgen.edge_client.tasks.scores import Measure
from smidgen.edge_client.tasks.task import read_task
from smidgen.edge_client.texts.examples import Example, read_folder
from smidgen.profiling.canvas import PALETTE, legend_below, new_figure, plain, save
from smidgen.simulation.demo.setting import (
    ALONE,
    SCORE,
    Fleet,
    Progress,
    Setting,
    Step,
    engine_by_name,
    fleet,
    prompt_init,
)

ROUND_DONE = re.compile(r"^round (\d+) of \d+", re.MULTILINE)  # in a log of `client train`


@dataclass(frozen=True)
class Compared:
    """What stands beside the federated adapter, on the same test texts.

    Attributes:
        measure: What the shares are called: accuracy, or exact match where a text has more than
            one answer.
        zero_shot: Share of the base without any adapter.
        alone: Share of each device's own adapter on all devices' texts, mean over devices.
        alone_own: Share of each device's own adapter on its own texts, mean over devices.
        together: Share of the one federated adapter.
        test_texts: Test texts of all devices.
    """

    measure: str
    zero_shot: float
    alone: float
    alone_own: float
    together: float
    test_texts: int


def train_alone(setting: Setting, folders: Sequence[Path], progress: Progress) -> Compared:
    """Train every device for as many rounds with nobody but itself, and score it on all texts."""
    alone, training = setting.out / "alone", setting.training
    engines = engine_by_name(setting, folders)
    names = [f"{folder.name}-alone" for folder in folders]
    with fleet(setting.out / "logs", cores_each=1) as processes:
        for folder, name in zip(folders, names, strict=True):
            line = [
                *("client", "train", "--data", str(folder), "--out", str(alone / folder.name)),
                *("--base", setting.base, "--adapter", setting.adapter),
                *("--rounds", str(setting.rounds), "--seed", str(setting.seed)),
                *("--epochs", str(training.epochs), "--batch", str(training.batch)),
                *("--lr", str(training.lr), "--tokens", str(training.tokens)),
                *("--prompt-init", prompt_init(folders), "--engine", engines[folder.name]),
            ]
            processes.start(name, line)
        total = setting.rounds * len(folders)
        processes.wait(lambda: progress(Step(ALONE, "train", _rounds_in(processes, names), total)))
        progress(Step(ALONE, "done", total, total))
    return _compare(setting, folders, progress)


def _rounds_in(processes: Fleet, names: Sequence[str]) -> int:
    """Rounds that processes which train alone have done, by their logs."""
    texts = [(processes.logs / f"{name}.log").read_text(errors="replace") for name in names]
    return sum(max(map(int, ROUND_DONE.findall(text)), default=0) for text in texts)


def _compare(setting: Setting, folders: Sequence[Path], progress: Progress) -> Compared:
    """Score the base and each device's own adapter on all devices' test texts."""
    task, base = read_task(folders[0] / "task.toml"), open_base(setting.base)
    texts = [read_folder(folder, task) for folder in folders]
    everybody = [example for device in texts for example in device.test]
    scoring = _Scoring(len(everybody) * (2 + len(folders)), progress)
    # LoRA's B starts at zero: this is the base itself, whatever adapter is trained.
    engine = open_engine("auto", base, task, parse_adapter("lora:1"), setting.training)
    zero_shot = float(scoring.right(engine, everybody, "the base").mean())
    engine.close()
    engine = open_engine("auto", base, task, parse_adapter(setting.adapter), setting.training)
    everywhere, at_home = [], []
    for number, folder in enumerate(folders):
        engine.load_adapter(read_peft_folder(setting.out / "alone" / folder.name)[1])
        right = scoring.right(engine, everybody, f"{folder.name}'s own")
        everywhere.append(float(right.mean()))
        first = sum(len(device.test) for device in texts[:number])
        own = right[first : first + len(texts[number].test)]
        at_home += [float(own.mean())] if len(own) else []
    engine.load_adapter(read_peft_folder(setting.out / "adapter")[1])
    together = float(scoring.right(engine, everybody, "the adapter of all").mean())
    engine.close()
    measure = "accuracy" if kind_of(task).is_one_label else "exact match"
    return Compared(measure, zero_shot, mean(everywhere), mean(at_home), together, len(everybody))


class _Scoring:
    """Scores adapters one after the other and tells how far it is.

    Args:
        total: Texts to be read in all.
        progress: Told after each micro-batch.
    """

    def __init__(self, total: int, progress: Progress) -> None:
        self._total, self._progress, self._done = total, progress, 0

    def right(self, engine: Engine, examples: Sequence[Example], doing: str) -> np.ndarray:
        """Which texts' answers are all right; bool, shape (texts)."""
        views = len(engine.encoder.views())
        read = 0

        def on_texts(count: int) -> None:
            nonlocal read
            read += count
            done = self._done + read // views
            self._progress(Step(SCORE, doing, done, self._total, "texts"))

        engine.on_texts = on_texts
        answers = kind_of(engine.encoder.task).answers(engine, examples)
        self._done += len(examples)
        return np.array([one.is_right.all() for one in answers])


def choices(setting: Setting, folders: Sequence[Path]) -> dict[str, Choice]:
    """What each home found of its own adapter, by its name.

    Raises:
        AdapterError: One has none; its log says why.
    """
    return {one.name: chosen_in(setting.out / "state" / one.name)[1] for one in folders}


def personal_table(found: Mapping[str, Choice]) -> Table:
    """What either adapter does on each home's own test texts, and which one answers."""
    measure = _measure(found)
    rows = [
        [name, str(one.test_examples), *map(measure.in_words, _both(one)), one.use]
        for name, one in found.items()
    ]
    columns = [Column("home", "word"), Column("test texts"), Column("shared"), Column("personal")]
    return Table(
        [*columns, Column("answers", "word")],
        rows,
        f"{measure.name} of each home on its own test texts: the adapter of all, and its own",
        ["personal: trained on from the shared one, as far as texts kept aside said; the better"],
    )


def draw_personal(found: Mapping[str, Choice], path: Path, title: str) -> None:
    """Draw that as a PNG.

    Args:
        found: By home.
        path: The PNG to write.
        title: Above the picture.

    Raises:
        Failed: It cannot be written.
    """
    figure = new_figure(7, 3.4, title)
    axes = figure.subplots()
    measure = _measure(found)
    unit = 100 if measure.higher_is_better else 1
    for place, kind in enumerate(("shared", "personal")):
        heights = [unit * _both(one)[place] for one in found.values()]
        at = [number + 0.4 * (place - 0.5) for number in range(len(found))]
        axes.bar(at, heights, width=0.38, color=PALETTE[place], label=kind)
        for left, height in zip(at, heights, strict=True):
            axes.annotate(f"{height:.0f}", (left, height), ha="center", va="bottom", fontsize=8)
    axes.set_xticks(range(len(found)), list(found))
    axes.set(ylabel=f"{measure.name}{', %' if measure.higher_is_better else ''}")
    plain([axes])
    legend_below(axes, 2)
    save(figure, path)


def _measure(found: Mapping[str, Choice]) -> Measure:
    """What homes compare by; one that could make no adapter of its own does not say it."""
    keys = [one.measure for one in found.values() if not one.failure]
    return measure_called(keys[0] if keys else "accuracy")


def _both(one: Choice) -> tuple[float, ...]:
    figures = (one.accuracy_shared, one.accuracy), (one.score_shared, one.score)
    return tuple(float("nan") if x is None else x for x in figures[one.measure != "accuracy"])
