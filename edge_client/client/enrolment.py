"""Enrolment, and whether this device can take part in a run that wants it.

The device draws its key and syncs it to disk before sending it, so an enrolment whose answer is
lost repeats into the same device. A device that cannot take part in a run never counts as a member,
and its owner is told why at once.
"""

import logging
import math
import platform
import shlex
from contextlib import suppress
from dataclasses import replace
from urllib.parse import urlsplit

from smidgen.edge_client.adapters.spec import at_most, largest_rank, parse_adapter
from smidgen.edge_client.client.connection import Unreachable, reached
from smidgen.edge_client.client.failures import ClientError, NoMemoryNow, OtherBase, not_known
from smidgen.edge_client.client.settings import Settings
from smidgen.edge_client.client.state import ClientState, Identity
from smidgen.edge_client.client.transport import Coordinator, Refused
from smidgen.edge_client.engine.budgeted import check_budget
from smidgen.edge_client.engine.opening import installed_engine
from smidgen.edge_client.formats.source import DataError
from smidgen.edge_client.metering.machine import board, is_on_mains
from smidgen.edge_client.planning.plan import BudgetError
from smidgen.edge_client.planning.resources import memory_bytes, usable_cores
from smidgen.edge_client.texts.data_folder import DataFolder
from smidgen.edge_client.texts.examples import ClientData
from smidgen.edge_client.texts.parts import Wanted
from smidgen.edge_client.updates.states import held_bytes, multiplier_of
from smidgen.edge_client.wire.fleet import (
    REVOKED,
    DeviceFacts,
    Enrol,
    Enrolled,
    Membership,
    Terms,
    draw_key,
)
from smidgen.edge_client.wire.messages import PROTOCOL

log = logging.getLogger(__name__)


def identity_of(settings: Settings, state: ClientState) -> Identity:
    """Who this device is; one that is nobody yet draws its key now, which is kept at once.

    A key stays with the address it was drawn for. Another one gets it where no token is given: the
    same coordinator elsewhere. With a token it is another coordinator, and a new device, whose key
    lies beside the old one until that coordinator has let it in.

    Raises:
        ClientError: It never enrolled, and there is no token.
        StateError: The state folder cannot be written.
    """
    known = state.identity()
    if known is not None:
        is_same = not known.url or _address(known.url) == _address(settings.url)
        if is_same or not settings.token:
            return replace(known, url=settings.url)
        drawn = state.drawn()
        if drawn is not None and _address(drawn.url) == _address(settings.url):
            return replace(drawn, url=settings.url)
    if not settings.token:
        raise ClientError(f"not enrolled with {settings.url} yet; give --token")
    state.check_room()
    drawn = Identity(settings.url, draw_key())
    if known is None:
        state.keep_identity(drawn)
    else:
        state.keep_drawn(drawn)
    return drawn


def last_elsewhere(settings: Settings, state: ClientState) -> str:
    """Where this device was let in last, if that is another address than it is given; or empty."""
    known = state.identity()
    is_other = known is not None and known.name and known.url.rstrip("/") != settings.url
    return known.url if known is not None and is_other else ""


def _address(url: str) -> tuple[str, int]:
    """Host and port; two coordinators of one host differ in the port alone."""
    with suppress(ValueError):
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        return parts.hostname or url, port
    return url, 0


def enrol(
    coordinator: Coordinator, known: Identity, settings: Settings, elsewhere: str = ""
) -> Identity:
    """Say who this device is, as it does in each of its lives; what the coordinator calls it.

    A coordinator that knows this device is waited for; a new one, and one at an address where it
    never was, as long as `--patience` says.

    Args:
        coordinator: Who is told.
        known: Who this device is.
        settings: Of the client.
        elsewhere: See `last_elsewhere`.

    Raises:
        ClientError: Wrong token, or another protocol.
        TransportError: Nobody answered.
    """
    facts, tags = facts_of(settings), dict(settings.tags)
    patience_s = math.inf if known.name and not elsewhere else settings.patience_s

    def ask(token: str) -> Enrolled:
        request = Enrol(PROTOCOL, settings.name, facts, token, tags, coordinator.life)
        return reached(lambda: coordinator.enrol(request), patience_s)

    try:
        try:
            enrolled = ask("" if known.name else settings.token)
        except Refused as error:
            if error.status != 401 or not (known.name and settings.token):
                raise
            enrolled = ask(settings.token)  # the coordinator has forgotten the key
            log.warning("%s had forgotten this device, which its token has let in", settings.url)
    except Unreachable as error:
        if not elsewhere:
            raise
        raise Unreachable(f"{error}; this device was last let in at {elsewhere}") from error
    except Refused as error:
        raise _refusal(settings, error) from error
    check_protocol(settings.url, enrolled.protocol)
    log.info("enrolled as %s (%s)", enrolled.name, enrolled.device_id)
    return replace(known, device_id=enrolled.device_id, name=enrolled.name)


def is_unheard(error: Exception) -> bool:
    """Whether no coordinator can have let a device in whose enrolment has failed with an error.

    An answer that was lost may have been one that let it in.
    """
    return bool(getattr(error, "is_absent", isinstance(error.__cause__, Refused)))


def facts_of(settings: Settings) -> DeviceFacts:
    """What this device says of itself.

    Raises:
        EngineError: Its engine is not installed.
    """
    return DeviceFacts(
        machine=platform.machine(),
        cores=usable_cores(),
        memory_bytes=memory_bytes(),
        python=platform.python_version(),
        smidgen=settings.version,
        engine=installed_engine(settings.engine, settings.device),
        base_id=settings.base.base_id,
        budget_bytes=settings.budget_bytes,
        board=board(),
        is_on_mains=is_on_mains(),
    )


def _refusal(settings: Settings, error: Refused) -> ClientError:
    if error.status == 404:
        return ClientError(
            f"{settings.url} answers, but not as a coordinator of protocol {PROTOCOL}; check "
            "--coordinator, or install the same version of smidgen on both sides"
        )
    if str(error) == REVOKED:
        return not_known(settings.url, error)
    hint = ""
    if error.status == 401 and "token" in str(error):
        hint = (
            "; check --token, --token-file or SMIDGEN_TOKEN"
            if settings.token
            else "; give --token to enrol this device again"
        )
    return ClientError(f"{settings.url} refused to enrol: {error}{hint}")


def check_protocol(url: str, protocol: int) -> None:
    """Refuse a coordinator of another version.

    Raises:
        ClientError: Says which versions.
    """
    if protocol != PROTOCOL:
        raise ClientError(
            f"{url} speaks protocol {protocol}, this client {PROTOCOL}; install the same version "
            "of smidgen on both sides"
        )


def check_ready(settings: Settings, terms: Terms, folder: DataFolder) -> Membership:
    """Look before any work whether this device can do what a run asks.

    Args:
        settings: What the client was started with.
        terms: What is asked.
        folder: The device's texts, as the run's task reads them.

    Returns:
        How it takes part: in the run's rank, or where its owner or its memory allows less, in the
        largest that fits, halved as often as it must be.

    Raises:
        ClientError: The device holds another base.
        StepError: It lacks an update step.
        OverLimits: It is more than the device's owner allows.
        DataError: Its texts do not fit the run's task.
        BudgetError: No plan fits its memory budget.
        NoMemoryNow: None fits what is available now.
    """
    check_base(settings, terms.base_id, terms.base_name, is_offered=terms.pack is not None)
    settings.limits.check(terms.training)
    settings.limits.check_noise(multiplier_of(terms.steps))
    check_texts(settings, terms.task, folder.read(), is_labelling=terms.labelling is not None)
    spec, lack = parse_adapter(terms.adapter_spec), None
    work = (terms.training, terms.task, settings.budget_bytes, settings.device)
    held = held_bytes(terms.steps)
    largest = largest_rank(spec, settings.base.shape)
    rank = min(largest, max(1, int(settings.limits.rank)))
    while True:
        try:
            adapter = at_most(spec, rank)
            plan = check_budget(settings.engine, settings.base, adapter, *work, held_bytes=held)
            most_rank = rank if rank < largest else 0
            return Membership("joined", None, plan.predicted_peak_bytes, most_rank)
        except BudgetError as error:
            lack = lack or error
            if rank > 1 and not (spec.net or spec.form):
                rank //= 2
                continue
            if settings.budget_bytes is not None:
                raise lack from None
            raise NoMemoryNow(f"{lack}; start the client again when more memory is free") from error


def check_base(
    settings: Settings, base_id: str, base_name: str, *, is_offered: bool = False
) -> None:
    """Refuse to train on another base than the run's.

    Args:
        settings: What the client was started with.
        base_id: The run's.
        base_name: What its owner calls it.
        is_offered: Whether it can be fetched.

    Raises:
        OtherBase: Names both.
    """
    mine = settings.base
    hint = ", or with `--packs FOLDER` to fetch it" if is_offered and not settings.packs else ""
    if mine.base_id != base_id:
        raise OtherBase(
            f"--base {mine.name} ({mine.base_id[:12]}) is not the run's base {base_name} "
            f"({base_id[:12]}); {_start_again(mine.name, base_name)}{hint}"
        )


def _start_again(mine: str, base_name: str) -> str:
    """A name that this device can open by itself is told; not a folder's, and not in vain."""
    if base_name.startswith("./") or base_name == mine:
        return "start it again with `--base FOLDER`, a copy of the coordinator's base"
    return f"start it again with `--base {shlex.quote(base_name)}`"


def check_texts(settings: Settings, task: Wanted, data: ClientData, *, is_labelling: bool) -> None:
    """Refuse texts with which there is nothing to do in this run.

    Raises:
        DataError: Unlabelled texts alone, and devices of this run do not label.
    """
    if not (data.labelled or data.test or (is_labelling and data.unlabelled)):
        raise DataError(
            f"{settings.data} holds unlabelled texts alone, and in this run devices do not label; "
            f"{task.files.lacks}"
        )
    if not data.labelled and not is_labelling:
        what = task.files.nouns
        log.info("no %s here: this device evaluates adapters and does not train", what)
