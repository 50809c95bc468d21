"""`smidgen client base`: which bases are on this machine, and where."""

import json
from pathlib import Path
from typing import Annotated

import typer

from smidgen.edge_client.adapters.card import licence_of, loadable_name
from smidgen.edge_client.bases.base import (
    EMBEDDED,
    IDENTITY_FILES,
    Base,
    BaseError,
    find_folder,
    open_base,
    read_config,
)
from smidgen.edge_client.bases.families import is_known
from smidgen.edge_client.bases.manifest import is_pack
from smidgen.edge_client.commands.console import JsonOption
from smidgen.edge_client.errors import demand


def base(
    name: Annotated[
        str, typer.Argument(help="Folder, hub name, or `embedded`; by default all are listed.")
    ] = "",
    path: Annotated[
        bool, typer.Option("--path", help="Print the folder alone, as `from_pretrained` takes it.")
    ] = False,
    json_output: JsonOption = False,
) -> None:
    """Say where a base lies on this machine and what it is; without NAME, list those found."""
    demand(not path or name != "", "--path prints one folder; name a base, such as embedded")
    if not name:
        _list(json_output)
    elif path:
        folder = _loadable(name)
        print(json.dumps({"folder": str(folder)}) if json_output else folder)
    else:
        opened = open_base(name)
        facts = _facts(opened)
        print(json.dumps(facts) if json_output else _aligned(facts))


def _list(as_json: bool) -> None:
    folders = {EMBEDDED: find_folder(EMBEDDED, ())} | _from_hub()
    if as_json:
        listed = [{"name": name, "folder": str(folder)} for name, folder in folders.items()]
        print(json.dumps({"bases": listed}))
        return
    width = max(map(len, folders))
    for name, folder in folders.items():
        print(f"{name:<{width}}  {folder}")
    print("a folder of your own, and a pack made by `smidgen pack`, go by their paths")


def _from_hub() -> dict[str, Path]:
    """Folders of bases in the cache of huggingface_hub, by name; of each the newest copy."""
    from huggingface_hub import scan_cache_dir  # heavy
    from huggingface_hub.errors import CacheNotFound

    try:
        repositories = scan_cache_dir().repos
    except CacheNotFound:
        return {}
    folders = {}
    for repository in sorted(repositories, key=lambda found: found.repo_id):
        copies = sorted(repository.revisions, key=lambda copy: -copy.last_modified)
        whole = [copy.snapshot_path for copy in copies if _is_base(copy.snapshot_path)]
        if repository.repo_type == "model" and whole:
            folders[repository.repo_id] = whole[0]
    return folders


def _is_base(folder: Path) -> bool:
    if not all((folder / file).is_file() for file in IDENTITY_FILES):
        return False
    try:
        return is_known(read_config(folder)["model_type"])
    except ValueError:
        return False


def _loadable(name: str) -> Path:
    """The folder of a base that `from_pretrained` reads."""
    opened = open_base(name)
    if is_pack(opened.folder):
        raise BaseError(
            f"{name} is a pack, which transformers does not read; PEFT needs the model it was "
            f"made from: {opened.peft_name}"
        )
    if opened.is_gguf:
        raise BaseError(
            f"{name} is a GGUF file; `from_pretrained` takes its folder and `gguf_file`, its name"
        )
    return opened.folder.resolve()


def _facts(opened: Base) -> dict[str, object]:
    shape = opened.shape
    return {
        "name": opened.name,
        "folder": str(opened.folder.resolve()),
        "kind": "pack"
        if opened.manifest
        else ("GGUF file" if opened.is_gguf else "Hugging Face folder"),
        "architecture": opened.architecture,
        "layers": opened.layers,
        "hidden": opened.hidden,
        "tokens": shape.positions,
        "bits": opened.bits,
        "licence": licence_of(opened) or None,
        "loaded_as": loadable_name(opened.peft_name),
        "base_id": opened.base_id,
    }


def _aligned(facts: dict[str, object]) -> str:
    shown = {name: "not said" if value is None else value for name, value in facts.items()}
    return "\n".join(f"{name.replace('_', ' '):<12} {value}" for name, value in shown.items())
