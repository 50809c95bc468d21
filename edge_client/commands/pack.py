"""`smidgen pack`: turn a Hugging Face model, or a random one of a real shape, into a base pack."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress as Bar

from smidgen.edge_client.api.pack import Pack
from smidgen.edge_client.api.pack import pack as make_pack
from smidgen.edge_client.bases.packing import Progress
from smidgen.edge_client.commands.console import JsonOption
from smidgen.edge_client.errors import Stopped
from smidgen.edge_client.options import Commands, options_of
from smidgen.edge_client.tables import size

app = Commands("Make a base pack, which devices map instead of loading.")


@app.command()
@options_of(make_pack, without=("progress",), model={"is_argument": True})
def pack(call: Callable[..., Pack], json_output: JsonOption = False) -> None:
    start = time.perf_counter()
    try:
        with _progress() as progress:
            packed = call(progress=progress)
    except KeyboardInterrupt as error:
        raise Stopped("stopped; nothing is left of the attempt") from error
    for line in packed.warnings:
        print(f"warning: {line}", file=sys.stderr)
    elapsed_s = time.perf_counter() - start
    print(json.dumps(_result(packed, elapsed_s)) if json_output else _summary(packed, elapsed_s))


@contextmanager
def _progress() -> Iterator[Progress]:
    """A progress bar on stderr where people look at it."""
    with Bar(console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as bar:
        task = bar.add_task("packing")
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _result(packed: Pack, elapsed_s: float) -> dict[str, object]:
    return {
        "pack": str(packed.folder),
        "pack_id": packed.pack_id,
        "bytes": packed.total_bytes,
        "bits": packed.bits,
        "architecture": packed.architecture,
        "parameters": packed.parameters,
        "warnings": packed.warnings,
        "elapsed_s": round(elapsed_s, 3),
    }


def _summary(packed: Pack, elapsed_s: float) -> str:
    facts = {
        "pack": packed.folder if packed.is_new else f"{packed.folder} (was there, the very same)",
        "pack id": packed.pack_id,
        "model": f"{packed.name} ({packed.architecture})",
        "parameters": f"{packed.parameters / 1e6:.1f} M in {packed.bits} bits",
        "size": size(packed.total_bytes),
        "took": f"{elapsed_s:.1f} s",
    }
    return "\n".join(f"{name:<12} {value}" for name, value in facts.items())
