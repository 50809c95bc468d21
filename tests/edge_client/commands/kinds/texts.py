"""Data folders of tasks that tag words or ask for masked ones, for tests of commands."""

import json
from pathlib import Path
from typing import Any

from tests.command_line import Done

TAGGING = 'name = "drugs"\nkind = "tagging"\nlabels = ["Chemical", "Disease"]\n'
MASKED = 'name = "notes"\nkind = "mlm"\n\n[masking]\nshare = 0.3\nwhole_words = false\n'
CONLL = (
    "Naloxone\tB-Chemical\nreverses\tO\nhypotension\tB-Disease\n\n"
    "lithium\tB-Chemical\ncarbonate\tI-Chemical\n,\tO\ntwice\tO\n\n"
    "no\tO\nheart\tB-Disease\nfailure\tI-Disease\n\n"
)
NOTES = "rain at nine\nthe parcel is at the gate\nstorm in the night\n"


def tagging_data(folder: Path) -> Path:
    """Tagged words to train and to score on."""
    folder.mkdir()
    (folder / "labelled.conll").write_text(CONLL)
    (folder / "test.conll").write_text(CONLL)
    (folder / "task.toml").write_text(TAGGING)
    return folder


def masked_data(folder: Path) -> Path:
    """Texts to train and to score on, of two languages."""
    folder.mkdir()
    (folder / "unlabelled.txt").write_text(NOTES)
    (folder / "test.csv").write_text("text,language\nrain at nine,en\nregen um neun,de\nsnow,en\n")
    (folder / "task.toml").write_text(MASKED)
    return folder


def last_object(done: Done) -> dict[str, Any]:
    """What a command with `--json` says."""
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def objects(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
