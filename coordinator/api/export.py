"""Taking a run's adapter out of a store, as a folder that PEFT loads."""

from contextlib import closing
from dataclasses import dataclass
from datetime import date
from importlib import metadata
from pathlib import Path

from coordinator.api.stores import Place, open_store
from coordinator.storage.figures import accuracies, rows
from coordinator.storage.runs import config_of, find_run
from coordinator.storage.status import state_of
from coordinator.storage.store import Run, Store
from edge_client.adapters.card import Card
from edge_client.adapters.peft_folder import Exported, check_adapter_folder, write_peft_folder


@dataclass(frozen=True)
class ExportedAdapter:
    """A run's adapter in a folder of its own.

    Attributes:
        folder: The PEFT folder.
        run_id: The run.
        round_index: The last closed round, whose adapter it is; 0: the untrained one.
        adapter_sha256: Of its bytes in the store.
    """

    folder: Path
    run_id: str
    round_index: int
    adapter_sha256: str

    @property
    def is_trained(self) -> bool:
        """Whether a round of training has closed."""
        return self.round_index > 0


def export(
    store: Place, out: Place, *, run: str | None = None, base_name: str = ""
) -> ExportedAdapter:
    """Write the adapter of the last closed round as a folder that PEFT loads.

        smidgen.export("store", "adapter").round_index

    Args:
        store: Folder of a store that `create_run` made; it may be served meanwhile.
        out: PEFT adapter folder to write; an earlier export there is replaced, nothing else.
        run: Run id or name; the newest run by default.
        base_name: What PEFT's users load the base by, such as a hub name; by default the run's
            base, of a folder its last part.

    Raises:
        WrongInput: No such store or run, or a place that cannot be written to.
        Failed: It could not be written after all.
    """
    folder = Path(out)
    check_adapter_folder("--out", folder)
    with closing(open_store(store)) as opened:
        chosen = find_run(opened, run)
        config, state = config_of(chosen), state_of(opened, chosen)
        exported = Exported(
            adapter=config.adapter,
            base_name=base_name or chosen.base_reference,
            base_id=chosen.base_id,
            architecture=chosen.architecture,
            task=config.task,
        )
        card = _card(opened, chosen, state.round_index)
        write_peft_folder(folder, exported, opened.read(state.adapter_sha256), card)
    return ExportedAdapter(folder, chosen.run_id, state.round_index, state.adapter_sha256)


def _card(store: Store, run: Run, rounds: int) -> Card:
    table = rows(store, run.run_id)
    return Card(
        rounds=rounds,
        devices=len({row["device_id"] for row in table}),
        accuracies=accuracies(table),
        date=date.today().isoformat(),
        version=metadata.version("smidgen"),
    )
