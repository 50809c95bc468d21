"""The demo's data: 3,600 labelled notifications of twelve writers, in three languages.

`simulation/data/README.md` is its data card.

    folders = write_client_folders(Path("clients"), HOMES)
"""

import csv
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from smidgen.edge_client.tasks.task import Task

DATA = Path(__file__).parents[1] / "data"
LABELS = ("security", "delivery", "energy", "weather", "family", "health")
TASK = Task("hub", LABELS, ("{text} . this is about [MASK] .",), {label: label for label in LABELS})
DEVICES = tuple(f"hub-{number:02d}" for number in range(1, 13))
FILE_NAME = "hub_messages.csv"
# The demo's four homes: three writers each, two homes in English, one in Spanish, one in French.
HOMES = {f"home-{home + 1}": DEVICES[home::4] for home in range(4)}


@dataclass(frozen=True)
class Message:
    """One row of the committed file.

    Attributes:
        id: Device and number, `hub-01-001`.
        device: The writer-device.
        language: `en`, `es` or `fr`.
        split: `train` (labelled), `unlabelled` or `test`.
        label: One of `LABELS`; known for unlabelled texts too, for analysis only.
        text: The message.
    """

    id: str
    device: str
    language: str
    split: str
    label: str
    text: str


def load_messages(folder: Path = DATA) -> list[Message]:
    with (folder / FILE_NAME).open(encoding="utf-8", newline="") as file:
        return [Message(**row) for row in csv.DictReader(file)]


def write_client_folders(out: Path, clients: Mapping[str, Sequence[str]]) -> list[Path]:
    """Write one folder per client, as `smidgen.edge_client.texts.examples.read_folder` expects it.

    Args:
        out: Parent of the folders.
        clients: Client -> the writer-devices whose texts it holds, such as `HOMES`.
    """
    by_device: dict[str, list[Message]] = {}
    for message in load_messages():
        by_device.setdefault(message.device, []).append(message)
    return [
        _write_client(out / client, [one for device in devices for one in by_device[device]])
        for client, devices in clients.items()
    ]


def _write_client(folder: Path, messages: Sequence[Message]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    write_examples(folder / "labelled.csv", [m for m in messages if m.split == "train"])
    write_examples(folder / "test.csv", [m for m in messages if m.split == "test"])
    _write(
        folder / "unlabelled.csv",
        ["text", "language", "id"],
        [(m.text, m.language, m.id) for m in messages if m.split == "unlabelled"],
    )
    shutil.copyfile(DATA / "task.toml", folder / "task.toml")
    return folder


def write_dataset(folder: Path) -> Path:
    """The labelled messages as a data set of one's own: all writers' texts together."""
    folder.mkdir(parents=True, exist_ok=True)
    messages = load_messages()
    for split in ("train", "test"):
        chosen = [message for message in messages if message.split == split]
        write_examples(folder / f"{split}.csv", chosen)
    shutil.copyfile(DATA / "task.toml", folder / "task.toml")
    return folder


def write_examples(path: Path, messages: Sequence[Message]) -> None:
    """Write messages with their labels as a file that every reader of texts knows."""
    rows = [(m.text, m.label, m.language, m.id) for m in messages]
    _write(path, ["text", "label", "language", "id"], rows)


def _write(path: Path, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
