"""Maps exceptions on a device to the failure codes that are sent to the coordinator."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from smidgen.edge_client.adapters.spec import AdapterError
from smidgen.edge_client.bases.architectures import ArchitectureError
from smidgen.edge_client.bases.base import BaseError
from smidgen.edge_client.bases.header import WeightsError
from smidgen.edge_client.bases.layout import PackError
from smidgen.edge_client.client.connection import Refused
from smidgen.edge_client.client.packs.fetch import NotFetched, PackDownloading
from smidgen.edge_client.client.packs.shelf import NoRoom
from smidgen.edge_client.engine.engine import EngineError
from smidgen.edge_client.engine.limits import OutOfTime, OverLimits
from smidgen.edge_client.errors import Failed, WrongInput
from smidgen.edge_client.formats.source import DataError
from smidgen.edge_client.planning.budget import MemoryRanOut
from smidgen.edge_client.planning.plan import BudgetError
from smidgen.edge_client.tasks.scores import TrainingError
from smidgen.edge_client.texts.prompts.patterns import TaskError
from smidgen.edge_client.texts.tokens import TokenizerError
from smidgen.edge_client.updates.masks import NoCiphers
from smidgen.edge_client.updates.registry import StepError
from smidgen.edge_client.wire.fleet import REVOKED, Terms
from smidgen.edge_client.wire.messages import Report, WireError, Work
from smidgen.edge_client.wire.reports import Failure

if TYPE_CHECKING:
    from smidgen.edge_client.client.settings import Summary

MOST_IN_A_ROW = 3  # pieces of work that may fail one after the other
# What may pass by itself; a device leaves if it has not passed within `Settings.grace_s`.
PASSING: tuple[Failure, ...] = ("disk", "memory", "budget", "transfer")
ERRORS = (RuntimeError, ValueError, MemoryError, OSError)  # of work; others are bugs


class ClientError(WrongInput):
    """The device cannot serve this run as it is set up; says what to change."""


def not_known(url: str, error: Refused) -> ClientError:
    """Why a coordinator takes nothing more from this device, and what to do."""
    if str(error) == REVOKED or error.status == 409:
        return ClientError(f"{url}: {error}")
    return ClientError(f"{url} does not know this device: {error}; start it again with a --token")


class GaveUp(Failed):
    """Too many pieces of work failed one after the other, or a run ended without its adapter.

    Attributes:
        summary: What was done before, where that is known.
    """

    summary: "Summary | None" = None


@dataclass
class RunMembership:
    """How this device stands to a run that it is in.

    Attributes:
        terms: The run's; None where only its work is known.
        in_a_row: Pieces of its work that failed one after the other.
        failing_since_s: When the first of these did.
    """

    terms: Terms | None
    in_a_row: int = 0
    failing_since_s: float = 0.0


@dataclass(frozen=True)
class Declined:
    """A run that this device cannot take part in, as things are.

    Attributes:
        terms: The run's; None of one that is over, whose adapter this device does not have.
        error: Why.
        at_s: When that was seen, in seconds of an ever growing clock.
    """

    terms: Terms | None
    error: Exception
    at_s: float


class NotTaken(Failed):
    """The coordinator refused the answer to a piece of work."""


class NoMemoryNow(Failed):
    """No plan fits what is available at the moment."""


class TooOld(ClientError):
    """The coordinator gives work to newer clients alone."""


def too_old(version: str, minimum: str, state: Path) -> TooOld:
    """What to install, and that nothing is lost.

    Args:
        version: This client's.
        minimum: The oldest that gets work.
        state: The state folder.
    """
    return TooOld(
        f"this client is smidgen {version}, its coordinator gives work to {minimum} or newer: "
        f"install that on this device and start the client again; its state stays in {state}"
    )


class OtherBase(ClientError):
    """The run trains on a base that this device was not started with."""


# The first that fits.
CODES: tuple[tuple[type[Exception], Failure], ...] = (
    (DataError, "texts"),
    (TaskError, "task"),
    (OtherBase, "base"),
    (PackDownloading, "fetching"),
    (NotFetched, "base"),
    (NoRoom, "disk"),
    (BaseError, "base"),
    (ArchitectureError, "base"),
    (PackError, "base"),
    (WeightsError, "base"),
    (TokenizerError, "base"),
    (AdapterError, "adapter"),
    (BudgetError, "budget"),
    (MemoryRanOut, "memory"),
    (MemoryError, "memory"),
    (TrainingError, "training"),
    (EngineError, "engine"),
    (StepError, "engine"),
    (NoCiphers, "engine"),
    (OverLimits, "limits"),
    (OutOfTime, "limits"),
    (WireError, "transfer"),
    (NotTaken, "refused"),
    (OSError, "disk"),
)


def code_of(error: Exception) -> Failure:
    """The code of an error; nothing of its words."""
    return next((code for kind, code in CODES if isinstance(error, kind)), "internal")


def is_lasting(error: Exception, budget_bytes: int | None) -> bool:
    """Whether the same work would fail until somebody changes what this client was given.

    Args:
        error: What went wrong; a file that cannot be read now may be there in an hour.
        budget_bytes: The budget given; what is available by itself may be more in an hour.
    """
    if isinstance(error, BudgetError):
        return budget_bytes is not None
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError):
            return False
        cause = cause.__cause__
    return isinstance(error, WrongInput)


def failed(
    work: Work,
    standing: RunMembership,
    error: Exception,
    now_s: float,
    grace_s: float,
    budget_bytes: int | None,
) -> Report:
    """What is said of work that failed; the device leaves where going on would be in vain.

    Args:
        work: What was asked.
        standing: How the device stands to its run; notes since when its work fails.
        error: What went wrong.
        now_s: Seconds, ever growing.
        grace_s: How long failures that may pass by themselves are borne.
        budget_bytes: See `is_lasting`.
    """
    code = code_of(error)
    if not standing.in_a_row:
        standing.failing_since_s = now_s
    borne_s = grace_s if code in PASSING else 0.0
    is_last = standing.in_a_row + 1 >= MOST_IN_A_ROW and now_s - standing.failing_since_s >= borne_s
    is_leaving = is_last or is_lasting(error, budget_bytes)
    return Report(work.work_id, "failed", failure=code, is_leaving=is_leaving)
