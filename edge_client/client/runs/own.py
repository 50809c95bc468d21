"""What follows a run on a device that wants it: an adapter of its own, made of its own texts.

`STATE/personal/due.json` says by what it is made until it is; a killed client makes it in its next
life. Which of the two adapters answers then is written down beside it.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import msgspec

from edge_client.adapters.peft_folder import read_peft_folder
from edge_client.adapters.spec import AdapterSpec, parse_adapter
from edge_client.client.failures import ERRORS, PASSING, code_of
from edge_client.client.settings import Settings
from edge_client.client.state import ClientState
from edge_client.files import close_to_others, from_json, write_atomically
from edge_client.guest.steps import Paused
from edge_client.personal.choice import ADAPTER, FOLDER, choose, fall_back
from edge_client.personal.making import Made, Opening, make, method_for, way_for
from edge_client.personal.methods import Given
from edge_client.personal.way import Method, Way
from edge_client.texts.data_folder import DataFolder
from edge_client.wire.fleet import Terms
from edge_client.wire.reported.failures import Failure
from edge_client.wire.training import SGD, Training

log = logging.getLogger(__name__)

DUE = "due.json"
ON_FROM_SHARED: Method = "interpolated"  # what follows a run that gave an adapter


@dataclass(frozen=True)
class Due:
    """What an adapter of one's own is to be made by.

    Attributes:
        terms: Of the finished run.
        folder: Of what it gave.
    """

    terms: Terms
    folder: str


class OwnAdapter:
    """Makes it, after each run that is finished.

    Args:
        settings: What the client was started with.
        state: Its state folder.

    Attributes:
        folder: Of the last one; empty where there is none.
    """

    def __init__(self, settings: Settings, state: ClientState) -> None:
        self._settings, self._state, self.folder = settings, state.folder, ""
        self._due = state.folder / FOLDER / DUE
        self._is_tried = False  # with what is due; a disk that takes no change may keep that

    def follows(self, terms: Terms, folder: str) -> None:
        """Note down that it is to be made.

        Args:
            terms: Of the finished run.
            folder: Of what it gave.
        """
        if not self._settings.is_personal:
            return
        try:
            self._is_tried = False
            self._due.parent.mkdir(mode=0o700, exist_ok=True)
            write_atomically(self._due, msgspec.json.encode(asdict(Due(terms, folder))), 0o600)
        except OSError as error:
            log.warning("no adapter of this device's own is made: %s", error)

    @property
    def is_due(self) -> bool:
        """Whether one is to be made."""
        return self._settings.is_personal and not self._is_tried and self._due.is_file()

    def make(self, on_texts: Callable[[int], None]) -> None:
        """Make it; where it cannot be, the shared adapter answers.

        What may pass by itself, such as a full disk, is tried again in the next life.

        Args:
            on_texts: Heard between two steps.

        Raises:
            Paused: It raised that; it is begun anew when it is asked for again.
        """
        self._is_tried, is_passing, due = True, False, None
        try:
            due = from_json(self._due.read_bytes(), Due)
            log.info("run %s: an adapter of this device's own is made", due.terms.run_name)
            made = self._made(due, on_texts)
            is_net = bool(parse_adapter(due.terms.adapter_spec).net)
            choice = choose(self._state, due.terms.run_name, "" if is_net else due.folder, made)
            self.folder = str(self._state / FOLDER / ADAPTER)
            log.info("%s (%s)", choice, self.folder)
        except Paused:  # it is due again once there is memory for it
            self._is_tried = False
            raise
        except (*ERRORS, msgspec.MsgspecError) as error:
            log.warning("no adapter of this device's own is made: %s", error)
            is_passing = due is not None and code_of(error) in PASSING
            if due is not None:
                self._fall_back(due, code_of(error))
        if not is_passing:
            with suppress(OSError):
                self._due.unlink()

    def _fall_back(self, due: Due, failure: Failure) -> None:
        """The run's adapter answers from now on, where it gave one."""
        if parse_adapter(due.terms.adapter_spec).net:
            return
        try:
            fall_back(self._state, due.terms.run_name, due.folder, failure)
        except OSError as error:
            log.warning("which adapter answers is not written down: %s", error)

    def _made(self, due: Due, on_texts: Callable[[int], None]) -> Made:
        terms = due.terms
        settings = self._settings.on_base(terms.base_id)
        origin, numbers = read_peft_folder(Path(due.folder), settings.base)
        given = Given(parse_adapter(origin.adapter), numbers)
        net = given if given.spec.net else None
        lr = rate_of(given.spec, terms.training)
        training = replace(terms.training, epochs=Way.epochs, lr=lr)
        known = (settings.engine, settings.base, terms.task, training)
        at = Opening(*known, settings.budget_bytes, settings.device, on_texts)
        is_said = given.spec.net != "rates"  # which are for the rank that they were learned with
        rank = settings.rank_budget if is_said else None
        way = way_for(method_for("" if net else ON_FROM_SHARED, net), at, net, rank)
        texts = DataFolder(settings.data, terms.task, settings.dialect).read()
        out = self._state / FOLDER / ADAPTER
        made = make(at, way, texts, 0, out, given, None if net else given)
        close_to_others(out)
        return made


def rate_of(spec: AdapterSpec, training: Training) -> float:
    """The learning rate of an adapter of one's own after a run: AdamW trains it.

    The run's, but for SGD's, which is another optimizer's, and a generator's, whose run trains
    banks at a rate of their own.
    """
    is_other = spec.net == "generator" or training.optimizer == SGD
    return Way.lr if is_other else training.lr
