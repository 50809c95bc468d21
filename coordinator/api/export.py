"""Taking a run's adapter out of a store, as a folder that PEFT loads."""

from contextlib import closing
from pathlib import Path
from typing import Literal

from smidgen.coordinator.api.stores import AtStore, Place, open_store
from smidgen.coordinator.storage.database import place_of
from smidgen.coordinator.upkeep.export import ExportedAdapter, export_from
from smidgen.edge_client.adapters.peft_folder import WithBase, check_adapter_folder
from smidgen.edge_client.bases.base import BaseName


def export(
    store: AtStore,
    out: Place,
    *,
    run: str | None = None,
    round_index: int | Literal["best", "last"] | None = None,
    base: BaseName = "",
    base_name: str = "",
    with_base: WithBase | None = None,
    database: str = "",
    blobs: str = "",
) -> ExportedAdapter:
    """Write a round's adapter as a folder that PEFT loads.

        smidgen.export("store", "adapter").round_index

    Args:
        store: Folder of a store that `create` made; it may be served meanwhile.
        out: PEFT adapter folder to write; only an earlier export is replaced.
        run: Run id or name; default: the newest run.
        round_index: Whose adapter: of the `last` closed round, of the `best` by evaluation (of
            equals the newest), or of that round; 0 is the untrained one. By default the one that
            the run keeps: the last, unless it says `keep = "best"`.
        base: Where to find the run's base: folder, GGUF file or hub name; default: its name, from
            the current folder. Without it, the card lacks the tokens of label words and no
            `adapter.gguf` is written.
        base_name: Name by which PEFT users load the base, such as a hub name; default: the run's
            base, or the last part of its folder.
        with_base: `copied`: include the base, as a Hugging Face folder or its GGUF file, so that
            PEFT's auto classes find it from any working folder. `merged`: also include a model with
            LoRA or biases merged into its weights, which transformers loads alone.
        database: URL of a PostgreSQL database shared by several machines; default: SQLite in the
            folder.
        blobs: Where adapters and updates are stored, as `s3://BUCKET/PREFIX`; default: the folder.

    Raises:
        WrongInput: No such store or run, a round whose adapter is gone or never was, a base
            that is named or to be copied and is not here or is another one, an adapter that is not
            merged, or a place that cannot be written to.
        Failed: It could not be written after all.
    """
    folder = Path(out)
    check_adapter_folder("--out", folder)
    with closing(open_store(place_of(store, database, blobs))) as opened:
        return export_from(
            opened,
            folder,
            run=run,
            round_index=round_index,
            base=str(base),
            base_name=base_name,
            with_base=with_base,
        )
