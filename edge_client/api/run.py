"""A device and its coordinator: enrol, serve the runs that want it, take their adapters home."""

import os
import socket
import stat
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from smidgen import __version__
from smidgen.edge_client.adapters.peft_folder import check_adapter_folder
from smidgen.edge_client.api.labeller import Place, place, place_or_none
from smidgen.edge_client.api.plan import state_folder
from smidgen.edge_client.bases.base import EMBEDDED, BaseName, open_base
from smidgen.edge_client.engine.budgeted import ready_engine
from smidgen.edge_client.engine.limits import parse_limits
from smidgen.edge_client.errors import Failed, WrongInput, demand
from smidgen.edge_client.formats.source import Dialect
from smidgen.edge_client.guest.ceilings import Rules, parse_window
from smidgen.edge_client.planning.cuda_memory import CPU
from smidgen.edge_client.planning.plan import AUTO, parse_budget, parse_cache_size, parse_size
from smidgen.edge_client.tasks.kind import every_files
from smidgen.edge_client.texts.data_folder import check_folder
from smidgen.edge_client.wire.fleet import LONGEST_NAME, NAME, check_tags, is_name

if TYPE_CHECKING:
    from smidgen.edge_client.client.settings import Summary

PACKS_SIZE = "4G"
PATIENCE_S = 10.0
UNTIL = FINISHED, STOPPED = "finished", "stopped"


class NothingDone(Failed):
    """A device was in runs to their end, and all it was asked for failed.

    Args:
        summary: What it did.
    """

    def __init__(self, summary: "Summary") -> None:
        super().__init__(f"{summary.name}: nothing could be done; the log says why")
        self.summary = summary


def run_client(
    coordinator: str,
    data: Place,
    token: str = "",
    *,
    token_file: Place | None = None,
    until: str = FINISHED,
    tags: Mapping[str, str] | None = None,
    ca: str = "",
    plain_http: bool = False,
    base: BaseName = EMBEDDED,
    engine: str = AUTO,
    device: str = CPU,
    memory_budget: str = AUTO,
    limits: str = "",
    state: Place | None = None,
    name: str = "",
    cache_size: str = "256M",
    packs: Place | None = None,
    packs_size: str = PACKS_SIZE,
    pack_mirrors: Sequence[Place] = (),
    patience: float = PATIENCE_S,
    windows: Sequence[str] | None = None,
    on_mains: bool = False,
    max_watts: float | None = None,
    max_celsius: float | None = None,
    max_load: float | None = None,
    out: Place | None = None,
    personal: bool = False,
    rank_budget: int | None = None,
    text_column: str = "",
    label_column: str = "",
    delimiter: str = "",
    encoding: str = "",
) -> "Summary":
    """Serve a coordinator's runs until they are finished; their adapters then lie on this device.

    What the device does is logged by `edge_client`'s loggers.

        smidgen.run_client(server.url, "texts", created.token, name="hall").adapter

    Args:
        coordinator: URL of the coordinator.
        data: Folder with labelled.csv, unlabelled.csv, test.csv ..., or one file.
        token: Enrolment token; needed once.
        token_file: File (mode 0600) that holds the token instead; needed once.
        until: `finished`: exit when the runs it joined are over; `stopped`: keep waiting for new
            ones.
        tags: What its owner says of the device, such as `{"site": "kitchen"}`; runs choose by it.
        ca: Certificate authority to trust: its `sha256:HEX`, a certificate file, or `system`;
            needed once.
        plain_http: Allow unencrypted HTTP to another machine.
        base: Base model of the run: folder, GGUF file, hub name or `embedded`.
        engine: `torch`, `onnx`, or `auto`: torch if it is installed.
        device: `cpu`, or `cuda` with the torch engine.
        memory_budget: Such as `512M` or `1.5G`; `auto`: 60 % of what is available, with `cuda` on a
            discrete card of its memory.
        limits: What this device does at most, whatever a run asks: epochs, batch, tokens, lr, rank,
            samples, and seconds for a piece of work, such as `epochs=20,seconds=3600`; what is
            left out keeps the defaults of `smidgen.edge_client.engine.limits.Limits`.
        state: State folder; default `~/.local/state/smidgen/NAME`.
        name: Name of the device; default: the host name.
        cache_size: Disk space to cache the outputs of frozen layers, such as `1G`; `0`: no cache.
        packs: Folder for packs of runs that use a base other than `base`; the device downloads
            them. Without it, the device skips such runs.
        packs_size: Disk space for these packs, such as `4G`; those no open run needs are removed
            first.
        pack_mirrors: Folders or URLs to try for packs before the run's own mirrors and the
            coordinator.
        patience: Seconds to wait for the coordinator at start-up.
        windows: Hours in which it may work, in local time, such as `01:00-05:00`; default: always.
        on_mains: Work only on mains power or while charging.
        max_watts: Pause while the board draws more power than this.
        max_celsius: Pause while the hottest zone is above this; slow down just below it.
        max_load: Pause while other programs keep more processors busy than this.
        out: Folder for the adapter of a finished run; default: `adapter` in the state folder.
        personal: After each run, also make a personal adapter from this device's texts, in
            `personal` of the state folder.
        rank_budget: Total rank of the personal adapter, as R times the number of modules; default:
            what memory allows, at most half the bank's.
        text_column: Column with the text, or two for pairs, `a,b`; default `text`. In CoNLL, the
            column of the words, by name or number.
        label_column: Column with the label; default `label`. In CoNLL, the column of the tags, by
            name or number.
        delimiter: Separator of CSV and TSV columns, such as `;` or `tab`.
        encoding: Encoding of the text files, such as `latin-1`; default UTF-8.

    Raises:
        WrongInput: Wrong token, a coordinator that is not to be believed, another base, texts that
            do not fit the run, no plan that fits.
        NothingDone: The runs are finished and all that was asked of this device failed.
        Failed: Nobody answered at the start, work failed three times in a row, or a run ended
            and its adapter is not here.
    """
    from smidgen.edge_client.client.loop import Client
    from smidgen.edge_client.client.packs.shelf import Shelf
    from smidgen.edge_client.client.packs.sources import source_of
    from smidgen.edge_client.client.settings import Settings
    from smidgen.edge_client.client.state import ClientState
    from smidgen.edge_client.client.trust import trusted
    from smidgen.edge_client.personal.methods import Way

    name = name or socket.gethostname()
    check_name(name, is_folder=state is None)
    demand(rank_budget is None or personal, "--rank-budget is of --personal; give both")
    demand(
        rank_budget is None or 1 <= rank_budget <= Way.bank,
        f"--rank-budget {rank_budget}: 1 to {Way.bank}, the bank's ranks, is expected",
    )
    demand(patience >= 0, f"--patience {patience}: seconds, 0 or more, are expected")
    hours = tuple(parse_window(window) for window in windows or ())
    rules = Rules(hours, on_mains, max_watts, max_celsius, max_load)
    demand(until in UNTIL, f"--until {until!r} is not known; {' or '.join(UNTIL)} is expected")
    own_tags = dict(tags or {})
    check_tags(own_tags)
    places = (data, token_file, packs, out, ca, base, *pack_mirrors)
    named = [Path(one) for one in places if one]  # may lie in the state folder
    if token_file is not None:
        demand(not token, "--token and --token-file both say the token; give one of them")
        if Path(token_file).exists() or not is_enrolled(state_folder(state, name), named):
            token = read_token(Path(token_file))
    engine = ready_engine(engine, device)  # before anybody is asked
    packs_bytes, mirrors = parse_size("--packs-size", packs_size), [str(p) for p in pack_mirrors]
    is_said = packs is not None or not (mirrors or packs_size != PACKS_SIZE)
    demand(is_said, "--pack-mirror and --packs-size say how to fetch packs; give --packs FOLDER")
    texts, folder = place(data), place_or_none(out)
    if folder is not None:
        check_adapter_folder("--out", folder)
    dialect = Dialect(text_column, label_column, delimiter, encoding)
    check_folder(
        texts, every_files(), dialect
    )  # a folder that cannot serve is told before anybody is asked
    settings = Settings(
        url=coordinator.rstrip("/"),
        token=token,
        name=name,
        data=texts,
        dialect=dialect,
        base=open_base(str(base)),
        engine=engine,
        device=device,
        budget_bytes=parse_budget(memory_budget),
        limits=parse_limits(limits),
        cache_bytes=parse_cache_size(cache_size),
        version=__version__,
        patience_s=patience,
        out=folder,
        is_personal=personal,
        rank_budget=rank_budget,
        tags=own_tags,
        rules=rules,
        mirrors=tuple(map(source_of, mirrors)),
        is_until_finished=until == FINISHED,
    )
    client_state = ClientState(state_folder(state, name), named)  # before packs are made in it
    with client_state.locked():
        try:
            shelf = None if packs is None else Shelf(place(packs), packs_bytes)
            with nullcontext() if shelf is None else shelf.locked():
                verify = trusted(settings.url, ca, client_state.folder, patience, plain_http)
                summary = Client(replace(settings, verify=verify, packs=shelf), client_state).run()
        except Exception:
            client_state.undo()
            raise
    if summary.failures and not summary.works and not summary.is_stopped:
        raise NothingDone(summary)
    return summary


def is_enrolled(folder: Path, given: Sequence[Path] = ()) -> bool:
    """Whether a coordinator has let the device of a state folder in: its token file may be gone.

    Args:
        folder: The state folder.
        given: See `smidgen.edge_client.client.state.ClientState`.

    Raises:
        WrongInput: The folder is damaged, or somebody's own.
    """
    from smidgen.edge_client.client.state import ClientState

    known = ClientState(folder, given).identity() if folder.is_dir() else None
    return known is not None and known.name != ""


def check_name(name: str, *, is_folder: bool) -> None:
    """Refuse a name that no coordinator takes.

    Args:
        name: The device's name.
        is_folder: Whether it has to name a folder, too.

    Raises:
        WrongInput: Says what is expected.
    """
    told = f"of {len(name)} characters" if len(name) > LONGEST_NAME else repr(name)
    slash = " and no slash" if is_folder else ""
    demand(
        is_name(name) and not (is_folder and "/" in name),
        f"--name {told}: {NAME}{slash} are expected",
    )


def read_token(file: Path) -> str:
    """The token in a file that its owner alone may read.

    Raises:
        WrongInput: There is no such file, others may read it, or it holds something else.
    """
    try:
        with file.open("rb") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            body = opened.read(4096)  # of its file
    except (OSError, ValueError) as error:  # ValueError: a name with NUL
        why = error.strerror if isinstance(error, OSError) else error
        todo = (
            "write the token of the line that `create` printed into it, as its owner's alone (0600)"
        )
        raise WrongInput(f"--token-file {str(file)!r} cannot be read: {why}; {todo}") from error
    demand(
        not mode & (stat.S_IRWXG | stat.S_IRWXO),
        f"--token-file {file} is open to others (mode {stat.S_IMODE(mode):o}); chmod 600 it",
    )
    words = body.decode("ascii", errors="replace").split()
    demand(
        len(words) == 1 and words[0].isascii() and words[0].isprintable(),
        f"--token-file {file}: one line with the token is expected",
    )
    return words[0]
