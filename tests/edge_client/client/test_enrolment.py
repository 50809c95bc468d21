"""A device is its key; one that cannot take part in a run is told why and never joins."""

import json
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.spec import AdapterError, parse_adapter
from smidgen.edge_client.bases.base import Base, open_base
from smidgen.edge_client.client.enrolment import check_ready
from smidgen.edge_client.client.failures import ClientError, GaveUp, OtherBase, code_of
from smidgen.edge_client.client.loop import Client
from smidgen.edge_client.client.runs.joining import _terms_text
from smidgen.edge_client.client.runs.own import MISSED
from smidgen.edge_client.client.settings import Settings
from smidgen.edge_client.client.state import ClientState, Identity
from smidgen.edge_client.client.state import FinishedWork as Kept
from smidgen.edge_client.client.transport import Unreachable
from smidgen.edge_client.engine.limits import Limits
from smidgen.edge_client.formats.source import DataError
from smidgen.edge_client.planning.plan import BudgetError
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.data_folder import DataFolder
from smidgen.edge_client.updates.registry import StepError
from smidgen.edge_client.wire.fleet import REVOKED, Enrol, Membership, Terms, device_id_of
from smidgen.edge_client.wire.messages import PROTOCOL, Next, Report, decode, encode
from smidgen.edge_client.wire.tensors import encode_adapter, sha256
from smidgen.edge_client.wire.training import Labelling
from tests.edge_client.client.servers import Answer, http_server
from tests.edge_client.client.terms import IDLE, Door, enrolled_as, over, terms_for
from tests.processes import free_port
from tests.tiny import write_tiny_base


@dataclass
class Gate:
    """A coordinator of one run without an adapter, which is over once somebody has joined it."""

    terms: Terms
    enrols: list[Enrol] = field(default_factory=list)
    refusal: Answer | None = None
    port: int = 0  # of its first life, and so of each

    def __post_init__(self) -> None:
        self.door = Door(self.terms)

    def answer(self, method: str, path: str, body: bytes) -> Answer:
        if path == "/v1/enrol":
            self.enrols.append(decode(body, Enrol))
            if self.refusal:
                return self.refusal
        if known := self.door.answer(path, body):
            return known
        said = [state for _, state, _ in self.door.said]
        if path.startswith("/v1/adapters"):
            return 404, b'{"detail": "no such adapter"}'
        return 200, encode(Next(over=over("0" * 64))) if said == ["joined"] else IDLE


@dataclass
class Home:
    """A device's files and what it is started with."""

    folder: Path
    base: Base
    terms: Terms

    def write(self, part: str, lines: Sequence[str]) -> None:
        (self.folder / "mine").mkdir(exist_ok=True)
        (self.folder / "mine" / f"{part}.csv").write_text("\n".join(lines) + "\n")

    @property
    def state(self) -> ClientState:
        return ClientState(self.folder / "state")

    def settings(self, url: str, **more: object) -> Settings:
        plain = Settings(url, "token", "hub", self.folder / "mine", self.base, "onnx")
        return replace(plain, is_until_finished=True, **more)  # type: ignore[arg-type]

    def join(self, gate: Gate, **more: object) -> list[tuple[str, str, str | None]]:
        """Serve one life, to the end of a run without an adapter; how the device stood to it."""
        gate.door = Door(gate.terms)
        missed = pytest.raises(GaveUp, match=MISSED)
        with http_server(gate.answer, port=gate.port) as url, missed:
            gate.port = urlsplit(url).port or 0
            Client(self.settings(url, **more), self.state).run()
        return gate.door.said


@pytest.fixture
def home(tmp_path: Path, tiny_base: Base, hub_task: Task) -> Home:
    home = Home(tmp_path, tiny_base, terms_for(tiny_base, hub_task))
    home.write("labelled", ["text,label", "the front door opened,security"])
    return home


def test_a_device_that_can_take_part_says_what_its_plan_takes(home: Home) -> None:
    gate = Gate(home.terms)
    assert home.join(gate)[0] == ("run", "joined", None)
    (enrol,) = gate.enrols
    assert (enrol.token, enrol.name, enrol.protocol) == ("token", "hub", PROTOCOL)
    facts = enrol.facts
    assert (facts.engine, facts.base_id) == ("onnx", home.base.base_id)
    assert facts.memory_bytes > 0 and facts.budget_bytes is None


def test_facts_and_tags_are_said_anew_in_each_life(home: Home) -> None:
    gate = Gate(home.terms)
    home.join(gate, tags={"site": "kitchen"}, budget_bytes=1 << 30)
    home.join(gate, tags={"site": "hall"})
    assert [enrol.tags for enrol in gate.enrols] == [{"site": "kitchen"}, {"site": "hall"}]
    assert [enrol.facts.budget_bytes for enrol in gate.enrols] == [1 << 30, None]
    assert [enrol.token for enrol in gate.enrols] == ["token", ""]


def test_a_key_is_kept_before_anybody_hears_of_it_and_used_again_after_a_lost_answer(
    home: Home,
) -> None:
    gate = Gate(home.terms, refusal=(503, b"the answer is lost"))
    kept = []

    def answer(method: str, path: str, body: bytes) -> Answer:
        kept.append(json.loads((home.folder / "state" / "device.json").read_bytes()))
        return gate.answer(method, path, body)

    with http_server(answer) as url:
        gate.port = urlsplit(url).port or 0
        with pytest.raises(Unreachable):
            Client(home.settings(url, patience_s=0.0), home.state).run()
    gate.refusal = None
    home.join(gate)
    identity = home.state.identity()
    assert identity is not None and kept[0]["key"] == identity.key
    assert (kept[0]["name"], identity.name, identity.device_id) == ("", "hub", "d-hub")


def test_a_key_that_lay_there_before_the_first_start_is_used(home: Home) -> None:
    home.state.keep_identity(Identity("", "derived from a seed"))
    home.join(Gate(home.terms))
    identity = home.state.identity()
    assert identity is not None and identity.key == "derived from a seed"
    assert identity.url.startswith("http://127.0.0.1:")
    assert device_id_of("a") != device_id_of("b")


def test_another_coordinator_replaces_a_device_only_once_it_has_let_it_in(home: Home) -> None:
    mine = Identity("http://127.0.0.1:1", "key", "d1", "hub")
    home.state.keep_identity(mine)
    home.state.keep_finished(Kept(Report("w", "done"), None))
    gate = Gate(home.terms, refusal=(401, b'{"detail": "no such token"}'))
    drawn = []
    for _ in range(2):
        with pytest.raises(ClientError, match="refused to enrol"):
            home.join(gate)
        drawn.append(home.state.drawn())
        assert home.state.identity() == mine and len(home.state.finished()) == 1
    assert drawn[0] == drawn[1] and drawn[0] is not None
    gate.refusal = None
    home.join(gate)
    other = home.state.identity()
    assert other is not None and (other.key, other.name) == (drawn[0].key, "hub")
    assert home.state.drawn() is None and not home.state.finished()


def test_another_host_gets_a_key_of_its_own_only_with_a_token(home: Home) -> None:
    home.state.keep_identity(Identity("http://192.0.2.1:8700", "key", "d1", "hub"))
    home.join(Gate(home.terms), token="")
    moved = home.state.identity()
    assert moved is not None and moved.key == "key"
    home.state.keep_identity(replace(moved, url="http://192.0.2.1:8700"))
    home.join(Gate(home.terms))
    other = home.state.identity()
    assert other is not None and other.key != "key"


def test_an_address_where_a_device_never_was_is_waited_for_no_longer_than_patience(
    home: Home,
) -> None:
    home.state.keep_identity(Identity("https://192.0.2.1:8700", "key", "d1", "hub"))
    said = r"this device was last let in at https://192\.0\.2\.1:8700"
    with pytest.raises(Unreachable, match=said):
        Client(home.settings("http://127.0.0.1:9", token="", patience_s=0.0), home.state).run()
    known = home.state.identity()
    assert known is not None and known.url == "https://192.0.2.1:8700"


def test_a_device_without_a_token_is_told_so_before_anybody_is_asked(home: Home) -> None:
    gate = Gate(home.terms)
    with pytest.raises(ClientError, match=r"not enrolled with .* yet; give --token"):
        home.join(gate, token="")
    assert not gate.enrols and home.state.identity() is None


@pytest.mark.parametrize(("token", "hint"), [("x", "check --token"), ("", "give --token")])
def test_a_refused_device_is_told_what_to_do(home: Home, token: str, hint: str) -> None:
    home.state.keep_identity(Identity("", "key"))
    gate = Gate(home.terms, refusal=(401, b'{"detail": "no such token"}'))
    with pytest.raises(ClientError, match=f"refused to enrol: no such token; {hint}"):
        home.join(gate, token=token)


@pytest.mark.parametrize("token", ["x", ""])
def test_a_revoked_device_is_told_that_its_operator_alone_lets_it_in(
    home: Home, token: str
) -> None:
    home.state.keep_identity(Identity("", "key", "d1", "hub"))
    gate = Gate(home.terms, refusal=(401, json.dumps({"detail": REVOKED}).encode()))
    with pytest.raises(ClientError) as caught:
        home.join(gate, token=token)
    url, _, said = str(caught.value).partition(": ")
    assert url.startswith("http://127.0.0.1:") and said == REVOKED


def test_a_new_device_is_told_what_to_look_at_where_nobody_listens(home: Home) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(Unreachable, match=r"network up, and .* serve` running there\? --patience"):
        Client(home.settings(url, patience_s=0.0), home.state).run()


def test_a_coordinator_that_forgot_the_key_hears_the_token_again(home: Home) -> None:
    home.state.keep_identity(Identity("", "key", "d1", "hub"))
    gate = Gate(home.terms)

    def answer(method: str, path: str, body: bytes) -> Answer:
        if path == "/v1/enrol" and not decode(body, Enrol).token:
            gate.enrols.append(decode(body, Enrol))
            return 401, b'{"detail": "this enrolment token is not known"}'
        return gate.answer(method, path, body)

    with http_server(answer) as url, pytest.raises(GaveUp, match=MISSED):
        Client(home.settings(url), home.state).run()
    assert [enrol.token for enrol in gate.enrols] == ["", "token"]


def test_texts_of_other_labels_are_refused_before_joining(home: Home) -> None:
    home.write("labelled", ["text,label", "the front door opened,doors"])
    gate = Gate(home.terms)
    with pytest.raises(DataError, match=r"labelled\.csv, line 2"):
        home.join(gate)
    assert gate.door.said == [("run", "declined", "texts")]


def test_unlabelled_texts_alone_are_refused_where_nobody_labels(home: Home) -> None:
    (home.folder / "mine" / "labelled.csv").unlink()
    home.write("unlabelled", ["text", "rain today"])
    with pytest.raises(DataError, match="in this run devices do not label"):
        home.join(Gate(home.terms))
    labelling = Gate(replace(home.terms, labelling=Labelling()))
    assert home.join(labelling)[0] == ("run", "joined", None)


def test_a_task_of_another_kind_needs_texts_of_its_own(home: Home) -> None:
    drugs = replace(home.terms, task=Task("drugs", ("Drug",), kind="tagging"), adapter_spec="head")
    home.write("unlabelled", ["text", "rain today"])
    with pytest.raises(DataError, match=r"do not label; put a labelled\.conll there"):
        home.join(Gate(drugs))
    (home.folder / "mine" / "test.conll").write_text("rain O\n")
    assert home.join(Gate(drugs))[0] == ("run", "joined", None)


@pytest.mark.parametrize("part", ["unlabelled", "test"])
def test_a_silo_takes_part_with_texts_to_train_on_or_to_test_on_alone(
    home: Home, part: str
) -> None:
    notes = replace(home.terms, task=Task("notes", kind="mlm"))
    (home.folder / "mine" / "labelled.csv").unlink()
    (home.folder / "mine" / part).mkdir()
    (home.folder / "mine" / part / "a.txt").write_text("rain today\n")
    assert home.join(Gate(notes))[0] == ("run", "joined", None)


def test_a_budget_too_small_is_refused_before_joining(home: Home) -> None:
    gate = Gate(home.terms)
    with pytest.raises(BudgetError, match="--memory-budget"):
        home.join(gate, budget_bytes=1 << 20)
    assert gate.door.said == [("run", "declined", "budget")]


def test_another_base_is_refused_before_joining(home: Home) -> None:
    gate = Gate(replace(home.terms, base_id="0" * 64, base_name="./tiny"))
    with pytest.raises(OtherBase, match="`--base FOLDER`, a copy of the coordinator's base"):
        home.join(gate)
    assert gate.door.said == [("run", "declined", "base")]


def test_a_run_of_a_base_that_goes_by_name_says_that_name(home: Home) -> None:
    gate = Gate(replace(home.terms, base_id="0" * 64, base_name="google/bert_tiny"))
    with pytest.raises(OtherBase, match="start it again with `--base google/bert_tiny`"):
        home.join(gate)


def test_a_device_that_cannot_take_part_in_one_run_serves_the_other(home: Home) -> None:
    gate = Gate(home.terms)
    gate.door = Door(replace(home.terms, run_id="other", base_id="0" * 64), home.terms)
    weights = encode_adapter(initial_adapter(parse_adapter("lora:2"), home.base, 3, seed=3))

    def answer(method: str, path: str, body: bytes) -> Answer:
        said = {(run, state) for run, state, _ in gate.door.said}
        if path.startswith("/v1/work?") and said == {("other", "declined"), ("run", "joined")}:
            return 200, encode(Next(over=over(sha256(weights))))
        return (200, weights) if "/adapters/" in path else gate.answer(method, path, body)

    with http_server(answer) as url:
        summary = Client(home.settings(url), home.state).run()
    assert summary.runs == ("mail",) and gate.door.said[0] == ("other", "declined", "base")


def test_a_coordinator_of_another_version_is_named(home: Home) -> None:
    said = encode(replace(enrolled_as("hub"), protocol=PROTOCOL + 1))
    with pytest.raises(
        ClientError, match=f"speaks protocol {PROTOCOL + 1}, this client {PROTOCOL}"
    ):
        home.join(Gate(home.terms, refusal=(200, said)))


def test_a_server_that_is_no_coordinator_is_named(home: Home) -> None:
    gate = Gate(home.terms, refusal=(404, b'{"detail":"Not Found"}'))
    with pytest.raises(ClientError, match="not as a coordinator of protocol 14; check --coor"):
        home.join(gate)


def test_before_enrolment_the_patience_is_said_as_it_is(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    settings = home.settings("http://127.0.0.1:9", patience_s=0.5)
    with pytest.raises(Unreachable):
        Client(settings, home.state).run()
    assert "trying again for 0.5 s" in caplog.text


def stands(home: Home, spec: str, **more: object) -> Membership:
    """How a device would take part in a run with this adapter."""
    terms = replace(home.terms, adapter_spec=spec)
    folder = DataFolder(home.folder / "mine", terms.task)
    return check_ready(home.settings("http://hub", **more), terms, folder)


def test_a_device_takes_the_rank_that_its_owner_allows(home: Home) -> None:
    assert stands(home, "lora:8").most_rank == 0  # the run's, whatever that is
    assert stands(home, "lora:8", limits=Limits(rank=8)).most_rank == 0
    assert stands(home, "lora:8", limits=Limits(rank=3)).most_rank == 3
    assert stands(home, "lora:8/0.q=2", limits=Limits(rank=1)).most_rank == 1
    assert stands(home, "bias", limits=Limits(rank=1)).most_rank == 0
    terms = replace(home.terms, adapter_spec="lora:8")
    assert _terms_text(terms, stands(home, "lora:8", limits=Limits(rank=3))) == ", at rank 3 of 8"
    assert _terms_text(terms, stands(home, "lora:8")) == ""


@pytest.mark.slow
def test_a_device_takes_half_of_the_rank_or_less_where_more_does_not_fit_its_memory(
    home: Home, hub_task: Task
) -> None:
    wide = open_base(str(write_tiny_base(home.folder / "wide", hidden=512)))
    home.base, home.terms = wide, terms_for(wide, hub_task)
    found: list[int] = []
    for budget_bytes in range(64 << 20, 2048 << 20, 32 << 20):
        with suppress(BudgetError):
            asked = "lora:512@q,v,k,o,up,down"
            found.append(stands(home, asked, budget_bytes=budget_bytes).most_rank)
            if found[-1] == 0:
                break
    assert found[-1] == 0 and found[0] < 512
    assert found[:-1] == sorted(found[:-1]) and set(found[:-1]) <= {2**n for n in range(9)}
    assert 256 in found


def test_the_runs_rank_is_that_of_the_modules_that_are_there(home: Home) -> None:
    """Both layers of the base have rank 4: the 16 of the name is nobody's."""
    assert stands(home, "lora:16/0-1=4", limits=Limits(rank=4)).most_rank == 0
    assert stands(home, "lora:16/0-1=4", limits=Limits(rank=3)).most_rank == 3
    assert stands(home, "lora:16/0=4", limits=Limits(rank=4)).most_rank == 4


def test_a_run_with_an_update_step_that_is_not_installed_is_declined_in_one_line(
    home: Home,
) -> None:
    home.terms = replace(home.terms, steps=("sign:0.5",))
    with pytest.raises(StepError, match="update step 'sign' is not known here") as told:
        stands(home, "lora:4")
    assert code_of(told.value) == "engine"


def test_a_run_of_a_rank_that_the_base_does_not_have_is_declined_in_one_line(home: Home) -> None:
    with pytest.raises(AdapterError, match=r"0\.q: rank 17; its matrix has 16 at most"):
        stands(home, "lora:17")


def _idle(method: str, path: str, body: bytes) -> Answer:
    return Door().answer(path, body) or (200, IDLE)


@pytest.mark.parametrize(("was_home", "has_it"), [(True, True), (True, False), (False, False)])
def test_a_run_that_ended_in_an_earlier_life_is_not_waited_for(
    home: Home, was_home: bool, has_it: bool
) -> None:
    home.state.joined.keep(home.terms)
    if was_home:
        home.state.joined.note_home("run")
    if has_it:
        home.state.finished_run("mail").mkdir(parents=True)
    missed = nullcontext() if has_it else pytest.raises(GaveUp, match=MISSED)
    with http_server(_idle) as url, missed:
        summary = Client(home.settings(url), home.state).run()
        assert summary.runs == ("mail",)
        assert summary.adapter == str(home.state.finished_run("mail"))
    assert home.state.joined.terms("run") is None


@pytest.mark.parametrize("was_home", [True, False])
def test_a_run_that_ended_in_an_earlier_life_is_known_by_its_damaged_terms(
    home: Home, was_home: bool
) -> None:
    home.state.joined.keep(home.terms)
    (home.state.joined.folder / "run.json").write_bytes(b"{}")
    if was_home:
        home.state.joined.note_home("run")
        (home.state.folder / "adapter").mkdir()
    why = "run run, whose terms are damaged, is over, or wants"
    missed = nullcontext() if was_home else pytest.raises(GaveUp, match=why)
    with http_server(_idle) as url, missed:
        assert Client(home.settings(url), home.state).run().runs == ("run",)
    assert not list(home.state.joined.folder.iterdir())


def test_a_run_that_is_over_names_a_folder_in_which_its_adapter_may_be(home: Home) -> None:
    """As where the disk was read-only when that was to be noted."""
    home.state.joined.keep(home.terms)
    own = home.state.finished_run("mail")
    own.mkdir(parents=True)
    with http_server(_idle) as url, pytest.raises(GaveUp) as told:
        Client(home.settings(url), home.state).run()
    assert str(told.value).startswith(f"run mail, of which {own} holds an adapter, is over, or ")
    assert own.is_dir()


def test_a_coordinator_that_has_forgotten_a_device_lets_it_in_by_its_token_in_one_line(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate(home.terms)
    home.join(gate)
    before = home.state.identity()
    tokens = []

    def answer(method: str, path: str, body: bytes) -> Answer:
        if path == "/v1/enrol":
            tokens.append(json.loads(body)["token"])
            if not tokens[-1]:
                return 401, b'{"detail": "its key is not known here"}'
        return gate.answer(method, path, body)

    gate.door = Door(home.terms)
    with http_server(answer, port=gate.port) as url, pytest.raises(GaveUp, match=MISSED):
        Client(home.settings(url), home.state).run()
    assert tokens == ["", "token"] and home.state.identity() == before
    assert caplog.text.count("had forgotten this device, which its token has let in") == 1
