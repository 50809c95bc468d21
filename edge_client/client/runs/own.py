"""Downloads the adapters of finished runs and personalizes them on this device's own texts.

`STATE/personal/due.json` holds the settings until this is done; a client killed meanwhile resumes
at its next start. Which of the two adapters answers afterwards is recorded beside it.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import msgspec

from smidgen.edge_client.adapters.initial import most_bytes
from smidgen.edge_client.adapters.peft_folder import read_peft_folder
from smidgen.edge_client.adapters.spec import AdapterSpec, parse_adapter
from smidgen.edge_client.client.failures import (
    ERRORS,
    MOST_IN_A_ROW,
    PASSING,
    Declined,
    GaveUp,
    RunMembership,
    code_of,
    is_lasting,
)
from smidgen.edge_client.client.folder import HOME, TERMS
from smidgen.edge_client.client.progress_log import called
from smidgen.edge_client.client.runs.adapters import Adapters, take_home
from smidgen.edge_client.client.runs.joining import Standings
from smidgen.edge_client.client.settings import Settings
from smidgen.edge_client.client.state import ClientState
from smidgen.edge_client.client.transport import (
    MOST_ADAPTER_BYTES,
    Coordinator,
    Refused,
    TransportError,
)
from smidgen.edge_client.errors import Failed, WrongInput
from smidgen.edge_client.files import close_to_others, from_json, write_atomically
from smidgen.edge_client.guest.steps import Paused
from smidgen.edge_client.metering.work import WorkMeter
from smidgen.edge_client.personal.choice import ADAPTER, FOLDER, choose, fall_back
from smidgen.edge_client.personal.making import Made, Opening, make, method_for, way_for
from smidgen.edge_client.personal.methods import Given, Way
from smidgen.edge_client.texts.data_folder import DataFolder
from smidgen.edge_client.wire.fleet import Membership, Terms
from smidgen.edge_client.wire.messages import Over, Receipt, WireError
from smidgen.edge_client.wire.reports import Failure
from smidgen.edge_client.wire.training import SGD, Training

log = logging.getLogger(__name__)


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
        self._due = state.folder / FOLDER / "due.json"
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
        at = Opening(
            settings.engine,
            settings.base,
            terms.task,
            training,
            settings.budget_bytes,
            settings.device,
            on_texts,
        )
        is_said = given.spec.net != "rates"  # which are for the rank that they were learned with
        rank = settings.rank_budget if is_said else None
        # A run that gave an adapter is followed by what lies between that and one's own
        way = way_for(method_for("" if net else "interpolated", net), at, net, rank)
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
    return Way.lr if spec.net == "generator" or training.optimizer == SGD else training.lr


PARTING_S = 60.0  # how long a coordinator whose run is finished is waited for
LONGEST_PAUSE_S = 30.0
MISSED = "coordinator export has its adapter"  # of a run that a device does not ask for again


class Homecoming:
    """Takes adapters of finished runs home.

    Args:
        coordinator: Has them.
        settings: What the client was started with.
        state: Its state folder.
        standings: Are kept.
        adapters: Those of work, in which a finished one may be, too.
        own: Makes an adapter of this device's own by them.

    Attributes:
        folder: Of the last one; empty where there is none.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        settings: Settings,
        state: ClientState,
        standings: Standings,
        adapters: Adapters,
        own: OwnAdapter,
    ) -> None:
        self._coordinator, self._settings, self._state = coordinator, settings, state
        self._standings, self._adapters, self._own, self.folder = standings, adapters, own, ""
        self._tries: dict[str, int] = {}  # in vain, by run
        self._parted_from: list[str] = []
        self._absent = Counter[str]()  # how often runs that it joined were not heard of, by names

    def of(self, over: Over) -> bool:
        """Fetch a finished run's adapter and say so; what fails is tried again.

        Returns:
            Whether to ask what is next; false where it would be the same for ever.
        """
        run_id, standings = over.run_id, self._standings
        terms = standings.terms(run_id)
        standings.joined.pop(run_id, None)
        standings.declined.pop(run_id, None)
        standings.finished[run_id] = over.run_name
        try:
            if terms is None:
                raise Refused(404, "the terms that were kept here are damaged or gone")
            fetch = partial(self._coordinator.adapter, meter=WorkMeter())
            # Beside those of the runs that go on.
            settings = self._settings.on_base(terms.base_id)
            most = (
                most_bytes(parse_adapter(terms.adapter_spec), settings.base, terms.task)
                if settings.base.base_id == terms.base_id
                else MOST_ADAPTER_BYTES
            )
            known, runs = (over.adapter_sha256, most), len(standings.joined) + 1
            body = self._adapters.body(*known, fetch, runs, PARTING_S)
            self.folder = take_home(self._state, terms, settings, over, body)
            kept = self._state.finished_run(terms.run_name)  # the next run does not write over it
            self._own.follows(terms, str(kept) if kept.is_dir() else self.folder)
        except (Failed, WrongInput, OSError) as error:  # TransportError and WireError are Failed
            return self._not_had(over, error)
        self._state.joined.note_home(run_id)  # before the coordinator hears of it, and forgets
        receipt = self._say(run_id, Membership("home"))
        if receipt is not None and not receipt.accepted:  # it goes on, for its operator extended it
            self._state.joined.note_home(run_id, is_home=False)
            del standings.finished[run_id]
            standings.joined[run_id] = RunMembership(terms)
        elif receipt is not None:
            self._parted(run_id)
        return receipt is not None

    def recall(self) -> None:
        """Note that no run wants this device: what becomes of those that it joined.

        Those of an earlier life are over; without this, a client that ends with its runs would wait
        for ever. Of others one line says that they are not heard of, the second time that they are
        not: a server beside the one that knows this device may lag behind.
        """
        standings, state = self._standings, self._state
        known = {*standings.joined, *standings.declined, *standings.finished, *standings.left}
        absent = [one.terms for one in standings.joined.values() if one.terms is not None]
        for ending in (HOME, TERMS):
            for file, terms in state.joined.all(ending).items():
                run_id, name = (terms.run_id, terms.run_name) if terms else (file, file)
                if run_id in known or run_id in standings.finished:
                    continue
                own = state.finished_run(name)
                places = (self._settings.out, own, state.folder / ADAPTER)
                found = next((place for place in places if place and place.is_dir()), None)
                if ending == HOME and found is not None:
                    self._parted(run_id)
                    standings.finished[run_id], self.folder = name, str(found)
                    log.info("run %s was over before; its adapter is in %s", name, found)
                elif self._settings.is_until_finished:
                    # That may be noted nowhere, or it is of before the run was extended.
                    has = f", of which {own} holds an adapter," if own.is_dir() else ""
                    error = GaveUp(
                        f"run {name}{has if terms else ', whose terms are damaged,'} is over, or "
                        f"wants this device no more; {MISSED}"
                    )
                    log.error("%s", error)
                    standings.declined[run_id] = Declined(None, error, time.monotonic())
                    state.joined.forget(run_id)  # the next start waits for another run
                elif terms is not None and ending == TERMS:
                    absent.append(terms)
        self._absent[names := ", ".join(map(called, absent))] += 1
        if names and self._absent[names] == 2:
            log.warning(
                "%s has nothing of run %s for this device: it was taken out, or the store is a "
                "backup from before that run; what this device keeps of it stays, and it takes "
                "part once it is asked again",
                self._settings.url,
                names,
            )

    def _parted(self, run_id: str) -> None:
        """The coordinator knows that a run is over here."""
        self._parted_from.append(run_id)
        if not self._settings.is_until_finished:
            self.forget()

    def forget(self) -> None:
        """Drop the terms of runs that are over; a client that ends with its runs does as it ends.

        If it is killed before, its next life sees by them that it has nothing more to wait for.
        """
        while self._parted_from:
            self._state.forget_terms(self._parted_from.pop())

    def _not_had(self, over: Over, error: Exception) -> bool:
        """A finished adapter is not to be had: now, or at all where the coordinator refuses.

        One that arrives damaged, or that cannot be written down, comes no better for ever: the
        device does without it, for other runs wait behind it. A full disk or a cut line may pass.
        """
        run_id = over.run_id
        tries = self._tries[run_id] = self._tries.get(run_id, 0) + 1
        is_vain = isinstance(error, WireError) or is_lasting(error, None)
        is_lost = isinstance(error, Refused) or (is_vain and tries >= MOST_IN_A_ROW)
        why = f"run {over.run_name} is finished, its adapter not to be had: {error}"
        self._standings.declined[run_id] = Declined(
            None, GaveUp(f"{why}; {MISSED}" if is_lost else why), time.monotonic()
        )
        if tries == 1:
            log.error("%s", why)
        is_ending = self._settings.is_until_finished
        # Told that it does without, a coordinator may say it again.
        if is_lost and not (is_ending and tries > MOST_IN_A_ROW):
            code: Failure = "transfer" if isinstance(error, TransportError) else code_of(error)
            told = self._say(run_id, Membership("declined", code))
            if told is not None:
                self._parted(run_id)
            return told is not None
        # Also before the end: other runs may go on, and who is not asked has no rest else.
        time.sleep(min(0.25 * 2.0 ** min(tries, 16), LONGEST_PAUSE_S))
        # After a quarter of a minute, in which a disk may have room again, the next life tries.
        return not (is_ending and tries >= 2 * MOST_IN_A_ROW)

    def _say(self, run_id: str, membership: Membership) -> Receipt | None:
        return self._standings.say(self._coordinator, run_id, membership, PARTING_S)
