"""Joining a run: the device asks for its terms, sees whether it can take part, and only then joins.

A device that cannot take part never counts as one of the run's, and its owner hears why at once.
"""

import logging
import platform

from edge_client.adapters.spec import parse_adapter
from edge_client.client.failures import ClientError, NoMemoryNow, OtherBase
from edge_client.client.settings import Settings
from edge_client.client.state import ClientState, Identity
from edge_client.client.transport import Coordinator, Refused, Unreachable, patiently
from edge_client.engine.budgeted import check_budget
from edge_client.planning.resources import memory_bytes, usable_cores
from edge_client.planning.sizes import BudgetError
from edge_client.texts.data_folder import DataFolder
from edge_client.texts.examples import ClientData
from edge_client.texts.rows import DataError
from edge_client.wire.fleet import DeviceFacts, Enrol, Enrolled, Terms
from edge_client.wire.messages import PROTOCOL
from edge_client.wire.tensors import sha256

log = logging.getLogger(__name__)


def join(settings: Settings, state: ClientState) -> tuple[Enrolled, DataFolder]:
    """Join the run, or go on in the one that was joined before.

    Returns:
        Who this device is there, and its texts, which were looked at.

    Raises:
        ClientError: Wrong token, another base, or another protocol.
        BudgetError: No plan fits the memory budget.
        DataError: The device's texts do not fit the run.
        StateError: The state folder cannot be written.
        TransportError: Nobody answered at the start.
    """
    known = state.identity(settings.url)
    if known is None and not settings.token:
        raise ClientError(f"not enrolled with {settings.url} yet; give --token")
    if known is not None:
        terms = known.enrolled.terms
        if settings.token and sha256(settings.token.encode()) != known.token_sha256:
            _check_same_run(settings, terms)
        folder = check_ready(settings, terms)
        log.info("already enrolled as %s in run %s", known.enrolled.device_id, _called(terms))
        return known.enrolled, folder
    coordinator = Coordinator(settings.url)
    try:
        folder = check_ready(settings, _asked(coordinator, settings))
        state.check_room()
        enrolled = _enrolled(coordinator, settings)
    finally:
        coordinator.close()
    token_sha256 = sha256(settings.token.encode())
    state.keep_identity(Identity(settings.url, enrolled, token_sha256))
    log.info("enrolled as %s in run %s", enrolled.device_id, _called(enrolled.terms))
    return enrolled, folder


def _called(terms: Terms) -> str:
    return f"{terms.run_name} ({terms.run_id})"


def _asked(coordinator: Coordinator, settings: Settings) -> Terms:
    try:
        terms = patiently(lambda: coordinator.terms(settings.token), settings.patience_s)
    except Refused as error:
        raise _refusal(settings.url, error) from error
    check_protocol(settings.url, terms.protocol)
    return terms


def _enrolled(coordinator: Coordinator, settings: Settings) -> Enrolled:
    facts = DeviceFacts(
        machine=platform.machine(),
        cores=usable_cores(),
        memory_bytes=memory_bytes(),
        python=platform.python_version(),
        smidgen=settings.version,
    )
    request = Enrol(PROTOCOL, settings.token, settings.name, facts)
    try:
        return patiently(lambda: coordinator.enrol(request), settings.patience_s)
    except Refused as error:
        raise _refusal(settings.url, error) from error


def _refusal(url: str, error: Refused) -> ClientError:
    if error.status == 404:
        return ClientError(
            f"{url} answers, but not as a coordinator of protocol {PROTOCOL}; check "
            "--coordinator, or install the same version of smidgen on both sides"
        )
    hint = "; check --token" if error.status == 401 else ""
    return ClientError(f"{url} refused to enrol: {error}{hint}")


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


def _check_same_run(settings: Settings, terms: Terms) -> None:
    """A device enrolled before may bring another token of its run, not one of another run."""
    coordinator = Coordinator(settings.url)
    try:
        other = _asked(coordinator, settings)
    except Unreachable as error:
        log.warning("%s; going on in run %s, whose token is not asked for", error, _called(terms))
        return
    finally:
        coordinator.close()
    if other.run_id != terms.run_id:
        raise ClientError(
            f"this device is enrolled in run {_called(terms)}, and --token is of run "
            f"{_called(other)}; give another --name or --state to join that one too, or delete the "
            "state folder to leave the first"
        )


def check_ready(settings: Settings, terms: Terms) -> DataFolder:
    """Look before any work whether this device can do what the run asks; its texts, read.

    Raises:
        ClientError: It holds another base.
        DataError: Its texts do not fit the run's task.
        BudgetError: No plan fits its memory budget.
        NoMemoryNow: None fits what is available now.
    """
    check_base(settings, terms.base_id, terms.base_name)
    folder = DataFolder(settings.data, terms.task.labels, settings.dialect)
    check_texts(settings, folder.read(), is_labelling=terms.labelling is not None)
    spec, work = parse_adapter(terms.adapter_spec), (terms.training, len(terms.task.labels))
    try:
        ours = settings.budget_bytes, settings.device
        check_budget(settings.engine, settings.base, spec, *work, *ours)
    except BudgetError as error:
        if settings.budget_bytes is not None:
            raise
        raise NoMemoryNow(f"{error}; start the client again when more memory is free") from error
    return folder


def check_base(settings: Settings, base_id: str, base_name: str) -> None:
    """Refuse to train on another base than the run's.

    Raises:
        OtherBase: Names both.
    """
    mine = settings.base
    if mine.base_id != base_id:
        raise OtherBase(
            f"--base {mine.name} ({mine.base_id[:12]}) is not the run's base {base_name} "
            f"({base_id[:12]}); copy the coordinator's base to this device"
        )


def check_texts(settings: Settings, data: ClientData, *, is_labelling: bool) -> None:
    """Refuse texts with which there is nothing to do in this run.

    Raises:
        DataError: Unlabelled texts alone, and devices of this run do not label.
    """
    if not (data.labelled or data.test or (is_labelling and data.unlabelled)):
        raise DataError(
            f"{settings.data} holds unlabelled texts alone, and in this run devices do not label; "
            "put a labelled.csv with columns text,label there"
        )
    if not data.labelled and not is_labelling:
        log.info("no labelled texts here: this device evaluates adapters and does not train")
