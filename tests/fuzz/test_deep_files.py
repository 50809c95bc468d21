"""Files of ours that are nested deeper than Python goes are damaged files, as any others."""

from pathlib import Path

import msgspec
import pytest

from smidgen.coordinator.fleet import presence
from smidgen.coordinator.trust.folder import TrustError
from smidgen.coordinator.trust.folder import read as trust_in
from smidgen.coordinator.upkeep.retention import LIMITS_FILE, DiskLimits, noted
from smidgen.edge_client.adapters.peft_folder import ORIGIN, read_peft_folder
from smidgen.edge_client.adapters.spec import AdapterError
from smidgen.edge_client.client.state import ClientState, StateError
from smidgen.edge_client.files import from_json
from smidgen.edge_client.labelling.label_journal import FileNotes, LabelJournal
from smidgen.edge_client.metering.work import Link
from smidgen.edge_client.personal.choice import CHOICE, FOLDER, chosen_in
from smidgen.simulation.experiments.record import ROWS, RecordError, read_rows

DEEP = b'{"x":' + b"[" * 100_000


def deep(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(DEEP + b"\n")
    return path


def test_no_value_is_deep() -> None:
    with pytest.raises(msgspec.DecodeError, match="nested too deeply"):
        from_json(DEEP, dict)


def test_what_can_be_made_anew_counts_as_absent(tmp_path: Path) -> None:
    assert Link(deep(tmp_path / "link.json")).rate() is None
    deep(tmp_path / LIMITS_FILE)
    assert noted(tmp_path) == DiskLimits()
    deep(tmp_path / presence.FILE)
    assert presence.now_of(tmp_path) > 0.0


def test_a_book_of_texts_is_put_aside(tmp_path: Path) -> None:
    path = deep(tmp_path / "texts.jsonl")
    assert FileNotes(path).book == LabelJournal()
    assert path.with_name("texts.jsonl.bad").is_file()


def test_what_cannot_be_made_anew_is_named(tmp_path: Path) -> None:
    path = deep(tmp_path / "device.json")
    with pytest.raises(StateError, match=r"device\.json is damaged"):
        ClientState(tmp_path).identity()
    path = deep(tmp_path / FOLDER / CHOICE)
    with pytest.raises(AdapterError, match=f"{path.name} is not there or damaged"):
        chosen_in(tmp_path)
    deep(tmp_path / ORIGIN)
    with pytest.raises(AdapterError, match="is not an exported adapter"):
        read_peft_folder(tmp_path)
    deep(tmp_path / ROWS)
    with pytest.raises(RecordError, match="line 1: not an experiment's row"):
        read_rows(tmp_path)
    deep(tmp_path / "address.json")
    with pytest.raises(TrustError, match=r"address\.json is damaged"):
        trust_in(tmp_path)
