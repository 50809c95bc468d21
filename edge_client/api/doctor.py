"""Whether this device will work: its machine, engines and bases, and the coordinator."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from smidgen.edge_client.api.labeller import Place, Tell
from smidgen.edge_client.api.plan import ADAPTER, plan, state_folder
from smidgen.edge_client.bases.base import (
    EMBEDDED,
    HEADLESS,
    HUB_FILES,
    find_folder,
    open_base,
    read_config,
)
from smidgen.edge_client.bases.gguf.header import is_gguf
from smidgen.edge_client.bases.layout import checked_shape
from smidgen.edge_client.bases.tokenizer import disagreements
from smidgen.edge_client.doctor.engines import Processor, read_engine, read_static_tls, read_steps
from smidgen.edge_client.doctor.machine import (
    ERROR,
    OK,
    WARNING,
    Finding,
    Host,
    is_jetson,
    read_machine,
    read_state_folder,
    this_host,
)
from smidgen.edge_client.engine.opening import ENGINES, engine_name
from smidgen.edge_client.errors import Failed, WrongInput
from smidgen.edge_client.planning.plan import AUTO, parse_budget
from smidgen.edge_client.planning.planner import plan_in_words
from smidgen.edge_client.planning.resources import flags_here
from smidgen.edge_client.tables import seconds

ROOT = Path("/")
OTHER_BASE = "do as that says, or give another --base"


@dataclass(frozen=True)
class Diagnosis:
    """What was looked at.

    Attributes:
        findings: One for each thing, in a fixed order.
        elapsed_s: How long it took.
    """

    findings: tuple[Finding, ...]
    elapsed_s: float

    @property
    def works(self) -> bool:
        """Whether nothing that was found is an error."""
        return not self.errors

    @property
    def errors(self) -> tuple[Finding, ...]:
        """What has to be mended first."""
        return tuple(one for one in self.findings if one.state == ERROR)


def doctor(
    *,
    bases: Sequence[Place] = (EMBEDDED,),
    coordinator: str = "",
    ca: str = "",
    plain_http: bool = False,
    engine: str = AUTO,
    memory_budget: str = AUTO,
    state: Place | None = None,
    tell: Tell = lambda line: None,
) -> Diagnosis:
    """Say whether this device will work, and what to do where it will not.

        smidgen.doctor(coordinator="https://hub:8700", ca="sha256:...").errors

    Nothing is changed, no text is read, and neither token nor key is sent. Engines are tried in
    processes of their own; it takes seconds on a PC, and may take minutes on a small board.

    Args:
        bases: Base models to plan for: folders, GGUF files, hub names or `embedded`.
        coordinator: URL of the coordinator to reach; default: none.
        ca: Certificate authority to trust: its `sha256:HEX`, a certificate file, or `system`;
            default: the one in the state folder.
        plain_http: Allow unencrypted HTTP to another machine.
        engine: `torch`, `onnx`, or `auto`: those that are installed.
        memory_budget: Such as `512M` or `1.5G`; `auto`: 60 % of what is available, with `cuda` on a
            discrete card of its memory.
        state: State folder; default `~/.local/state/smidgen/HOST`.
        tell: Told in a line what is about to be looked at, where that takes long.

    Raises:
        WrongInput: A budget that is no size, an engine that is not known, a URL that is none.
    """
    begun_s, host = time.monotonic(), this_host()
    parse_budget(memory_budget)
    engine_name(engine)
    folder = state_folder(state)
    found = [*read_machine(ROOT, host, folder), read_state_folder(folder)]
    if coordinator:
        tell(f"asking {coordinator}")
        found += _coordinator(coordinator, ca, folder, plain_http, host)
    found += _engines(engine, host, tell)
    for base in bases:
        tell(f"planning for {base}")
        found += [_plan(str(base), engine, memory_budget, state), *_tokenizer(str(base))]
    return Diagnosis(tuple(found), time.monotonic() - begun_s)


def _coordinator(
    url: str, ca: str, state: Path, is_plain_fine: bool, host: Host
) -> Sequence[Finding]:
    from smidgen.edge_client.doctor.coordinator import read_coordinator

    return read_coordinator(url, ca, state, is_plain_fine, host.now_s)


def _engines(asked: str, host: Host, tell: Tell) -> Iterator[Finding]:
    """Each engine by itself, both in one process, and ten steps of those that load."""
    processor = Processor(host.machine, flags_here(), is_jetson(ROOT))
    loaded: list[str] = []
    for kind in (kind for kind in ENGINES if asked in (AUTO, kind)):
        tell(f"loading the {kind} engine")
        tried = read_engine(kind, processor, asked != AUTO)
        loaded += [kind] * tried.loads
        yield tried.finding
    if loaded:
        tell("loading everything in one process")
        yield read_static_tls(loaded)
    for kind in loaded:
        tell(f"ten training steps with the {kind} engine")
        yield read_steps(kind)


def _plan(base: str, engine: str, memory_budget: str, state: Place | None) -> Finding:
    try:
        has_head = open_base(base).has_head
        adapter = ADAPTER if has_head else f"{ADAPTER}+head"
        options = plan(
            base, adapter=adapter, engine=engine, memory_budget=memory_budget, state=state
        )
    except (WrongInput, Failed) as error:
        told = str(error) if base in str(error) else f"{base}: {error}"
        return Finding("base", ERROR, told, OTHER_BASE)
    except OSError as error:
        return Finding("base", ERROR, f"{base} cannot be read: {error.strerror}", OTHER_BASE)
    chosen, head = options.chosen, "" if has_head else f"; {HEADLESS}"
    step = f"{seconds(chosen.predicted_step_s)} per step (estimated)"
    return Finding("base", OK, f"{base}: {plan_in_words(chosen.option)}, {step}{head}")


def _tokenizer(base: str) -> list[Finding]:
    """Where its tokenizer does not fit; a base that cannot be opened has its finding already."""
    if is_gguf(base):
        return []  # one file: what does not fit keeps it from being opened
    try:
        folder = find_folder(base, HUB_FILES)
        lines = disagreements(folder, checked_shape(read_config(folder)))
    except (WrongInput, Failed, ValueError, OSError):
        return []
    pairs = [line.rpartition("; ") for line in lines]
    return [Finding("tokenizer", WARNING, f"{base}: {what}", todo) for what, _, todo in pairs]
