"""`smidgen coordinator init`, `prune`, `verify`, `backup`: a store set up, kept small, copied."""

import shlex
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from smidgen.coordinator.api import keeping
from smidgen.coordinator.api.keeping import Pruned
from smidgen.coordinator.commands.console import JsonOption, NewStoreOption, answer, at_store
from smidgen.coordinator.storage.database import StorePlace
from smidgen.coordinator.upkeep.backup import Found
from smidgen.edge_client.errors import Failed, demand
from smidgen.edge_client.options import options_of
from smidgen.edge_client.tables import size, some

if TYPE_CHECKING:
    from smidgen.coordinator.api.init import Certified


HOST = (
    "Name or address of this machine; devices get the first; may be repeated. Default: its network "
    "address and its name."
)
CERT = "Use this certificate (PEM, with intermediates) instead of making one."
CA = "With --cert, the only CA (PEM) that devices trust; default: those of their system."


@at_store
def init_command(
    store: NewStoreOption,
    host: Annotated[list[str] | None, typer.Option(help=HOST)] = None,
    port: Annotated[
        int | None, typer.Option(help="Port that `serve` will listen on; default 8700.")
    ] = None,
    days: Annotated[
        int | None, typer.Option(help="Days that the certificate is valid, 1 to 3650; default 365.")
    ] = None,
    cert: Annotated[Path | None, typer.Option(help=CERT)] = None,
    key: Annotated[
        Path | None, typer.Option(help="With --cert, its private key (PEM, without a password).")
    ] = None,
    ca: Annotated[Path | None, typer.Option(help=CA)] = None,
    renew: Annotated[
        bool,
        typer.Option(
            "--renew",
            help="Make a new certificate of the same CA, or use another --cert.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Set up a coordinator for other machines: a CA, a certificate and an operator token.

    The token is not shown again. `create` prints the line to paste on a device.
    """
    from smidgen.coordinator.api.init import (
        init,
        renew_certificate,
    )  # what makes certificates: 0.1 s
    from smidgen.coordinator.trust.making import Given

    is_pair = (cert is None) == (key is None) and (ca is None or cert is not None)
    demand(is_pair, "--cert and --key go together, and --ca with them; give both or neither")
    given = Given(cert, key, ca) if cert is not None and key is not None else None
    hosts = host or []
    if renew:
        certified = renew_certificate(store, hosts, port, days, given)
        text = "\n".join(certificate_lines(certified))
        answer(text, plain_certificate(certified), as_json)
        return
    made = init(store, hosts, port, days, given)
    lines = [
        *certificate_lines(made.certified),
        f"operator     {made.operator_token} (signs in to the page at the address)",
        f"next, here   smidgen coordinator create {shlex.join(store.options)} --task TASK",
        "             which prints the line for devices",
    ]
    plain = plain_certificate(made.certified) | {"operator_token": made.operator_token}
    answer("\n".join(lines), plain, as_json)


def certificate_lines(certified: "Certified") -> list[str]:
    until = f"{certified.valid_until:%Y-%m-%d}"
    return [
        f"address      {certified.url}",
        f"CA           {certified.ca}",
        f"certificate  until {until}, for {', '.join(certified.names)}",
    ]


def plain_certificate(certified: "Certified") -> dict[str, Any]:
    return {
        "url": certified.url,
        "ca": certified.ca,
        "names": list(certified.names),
        "valid_until_s": certified.valid_until.timestamp(),
    }


SAID = {
    "update": "updates of closed steps",
    "adapter": "adapters of old rounds",
    "orphan": "files of no run",
    "part": "parts of uploads that were cut",
}


@at_store
@options_of(keeping.prune)
def prune(call: Callable[..., Pruned], dry_run: bool, as_json: JsonOption = False) -> None:
    done = call()
    plain = asdict(done) | {"freed": done.freed, "is_dry_run": dry_run}
    answer("\n".join(said_of(done, dry_run)), plain, as_json)


def said_of(done: Pruned, dry_run: bool) -> list[str]:
    verb = "would free" if dry_run else "freed"
    lines = [
        f"{verb} {size(done.freed_bytes[kind])}: {done.files[kind]} {words}"
        for kind, words in SAID.items()
        if done.files.get(kind)
    ]
    kept = f"{size(done.kept_bytes)} of adapters and open updates stay"
    return [*(lines or ["nothing to remove"]), kept]


@at_store
@options_of(keeping.verify)
def verify(call: Callable[..., Found], store: StorePlace, as_json: JsonOption = False) -> None:
    """Look a store over: its database, its journals, its blobs, and who may read it.

    Also while it is served. Lists what is wrong, and ends with exit code 1 then.
    """
    found = call()
    plain = plain_of(found) | {"is_sound": not found.lines, "wrong": found.lines}
    answer("\n".join([*found.lines, held(found)]), plain, as_json)
    if found.lines:
        things = "1 thing is" if len(found.lines) == 1 else f"{len(found.lines)} things are"
        raise Failed(f"{things} wrong with the store {store}")


@at_store
@options_of(keeping.backup)
def backup(call: Callable[..., Found], out: Path, as_json: JsonOption = False) -> None:
    found = call()
    answer(f"{held(found)}; copied to {out}", plain_of(found) | {"out": str(out)}, as_json)


@at_store
@options_of(
    keeping.move, to={"metavar": "PLACE"}, blobs_to={"metavar": "URL", "show_default": False}
)
def move(call: Callable[..., Found], as_json: JsonOption = False) -> None:
    found = call()
    answer(f"{held(found)}; moved", plain_of(found), as_json)


def held(found: Found) -> str:
    blobs = f"{some(found.blobs, 'blob')} ({size(found.blob_bytes)})"
    return f"{some(found.runs, 'run')}, {some(found.events, 'event')}, {blobs}"


def plain_of(found: Found) -> dict[str, object]:
    names = ("runs", "events", "blobs", "blob_bytes")
    return {name: getattr(found, name) for name in names}
