"""Where a scenario's figures come from: base, texts, settings, versions, machine, date and files.

People read it as lines below the tables, machines as data in `summary.json`.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from edge_client.tasks.kind import kind_of
from profiling.instruments.machine import this_machine
from simulation.datasets.dataset import DataSet
from simulation.experiments.record import ROWS
from simulation.experiments.runner import versions
from simulation.experiments.stage import Stage
from simulation.papers.scenario import Scenario, trained_of


def facts(scenario: Scenario, stages: Sequence[Stage], seeds: int) -> list[str]:
    """What the figures are of: base, texts, sizes, seeds, and how far they can be trusted."""
    return [*sources(stages), *sizes(scenario, stages, seeds)]


def sources(stages: Sequence[Stage]) -> list[str]:
    """Bases and data sets, one line each."""
    lines = []
    for base in {on.base.base_id: on.base for on in stages}.values():
        lines.append(f"base {Path(base.name).name}, {base.layers} layers, {base.base_id[:12]}")
    for texts in _sets(stages):
        lines.append(f"{texts.name}: {texts.origin}; licence: {texts.licence}; {texts.sha256[:12]}")
    return lines


def _sets(stages: Sequence[Stage]) -> list[DataSet]:
    return list({on.dataset.sha256: on.dataset for on in stages}.values())


def sizes(scenario: Scenario, stages: Sequence[Stage], seeds: int) -> list[str]:
    """How texts differ from the published ones, what is trained, how far figures can be trusted.

    Args:
        scenario: What was run.
        stages: One per experiment.
        seeds: How many.
    """
    lines = [f"{texts.name}: {note}" for texts in _sets(stages) for note in texts.notes]
    trained = [cell.experiment for cell in scenario.cells if cell.experiment.is_trained]
    adapters = dict.fromkeys(map(trained_of, trained))
    rounds = ", ".join(str(n) for n in sorted({experiment.rounds for experiment in trained})) or "0"
    tests = min(_asked(scenario, on) for on in stages)
    error = 100 * 0.5 / math.sqrt(tests)
    spread = "one seed, so no spread" if seeds == 1 else f"{seeds} seeds, ± is their spread"
    told = f"{', '.join(adapters) or 'nothing trained'}; {rounds} rounds; {spread}"
    if all(kind_of(on.dataset.task).is_one_label for on in stages):  # one answer for each text
        known = f"{tests:,} test texts has an error of up to {error:.1f}"
        told += f"; an accuracy on {known} of its own"
    lines.append(told)
    return lines


def _asked(scenario: Scenario, on: Stage) -> int:
    """Test texts that a figure is of: all, or those of the one language that cells are of."""
    languages = {cell.language for cell in scenario.cells}
    of_all = "" in languages or not languages
    return min(
        sum(of_all or text.language == one for text in on.dataset.test) for one in languages or {""}
    )


def provenance(stages: Sequence[Stage], seconds: float) -> dict[str, object]:
    """The same as data, with when, where and how long.

    Args:
        stages: One per experiment of the scenario.
        seconds: Wall clock of this command; results that were there before took none of it.
    """
    bases = {on.base.base_id: on.base for on in stages}.values()
    sets = {on.dataset.sha256: on.dataset for on in stages}.values()
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
        "machine": asdict(this_machine()),
        "versions": versions(),
        "bases": [
            {"name": Path(base.name).name, "base_id": base.base_id, "layers": base.layers}
            for base in bases
        ],
        "datasets": [
            {
                "name": texts.name,
                "origin": texts.origin,
                "licence": texts.licence,
                "sha256": texts.sha256,
                "patterns": list(texts.task.asked()),
                "notes": list(texts.notes),
            }
            for texts in sets
        ],
    }


def settings_of(stages: Sequence[Stage], out: Path) -> dict[str, object]:
    """One cell's settings, and where the rows of its rounds are.

    Args:
        stages: The cell's experiment with each seed.
        out: Folder of experiments.
    """
    said = asdict(stages[0].experiment)
    del said["name"], said["seed"]
    files = [path for on in stages if (path := rows_of(on, out)).is_file()]  # others ran elsewhere
    return {"settings": _finite(said), "rows_files": list(map(str, files))}


def rows_of(on: Stage, out: Path) -> Path:
    """The file with one row per round of an experiment."""
    return out / on.key / ROWS


def _finite(value: Any) -> Any:
    """The same without numbers that JSON has not: `inf` becomes that word."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
