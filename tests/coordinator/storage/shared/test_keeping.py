"""How many rounds `serve` was told to keep holds for commands on every machine."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from smidgen.coordinator.api.keeping import backup, move, prune
from smidgen.coordinator.api.serve import serve
from smidgen.coordinator.storage.database import StorePlace
from smidgen.coordinator.storage.store import Store
from smidgen.coordinator.upkeep.retention import rounds_kept
from tests.coordinator.upkeep.stores import filled, names


@pytest.mark.slow
def test_a_command_on_another_machine_drops_no_adapter_that_serve_was_told_to_keep(
    place: StorePlace, tmp_path: Path
) -> None:
    with closing(Store(place)) as store:
        run = filled(store, "mail", rounds=24, devices=1, open_updates=0)
    with serve(place, port=0, keep_rounds=24, plain_http=True):
        pass
    elsewhere = replace(place, folder=tmp_path / "elsewhere")
    assert "adapter" not in prune(elsewhere, dry_run=True).files
    backup(elsewhere, tmp_path / "copy")
    assert set(run.adapters) <= names(tmp_path / "copy")
    move(elsewhere, str(tmp_path / "back"))
    assert set(run.adapters) <= names(tmp_path / "back")
    with closing(Store(tmp_path / "back")) as store:
        assert rounds_kept(store) == 24


def test_a_store_of_an_older_smidgen_says_it_beside_the_database(tmp_path: Path) -> None:
    with closing(Store(tmp_path)) as store:
        (tmp_path / "limits.json").write_text('{"keep_rounds": 7}')
        assert rounds_kept(store) == 7
        store.marks.note_keep_rounds(3)
        assert rounds_kept(store) == 3
