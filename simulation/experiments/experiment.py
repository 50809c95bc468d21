"""One experiment, said completely: what is trained, on which texts, dealt out how, for how long.

Everything follows from it: two runs of equal experiments on equal texts and an equal base give
equal numbers, in one process, in several or on a Ray cluster of equal processors and libraries. It
is also a TOML file:

    name = "skewed"
    dataset = "ag_news"
    base = "embedded"
    adapter = "lora:8"
    rounds = 20
    cohort = 5
    [deal]
    clients = 1000
    labelled = 64
    labelled_clients = 32
    gamma = 0.001
    [training]
    lr = 0.002
"""

import hashlib
import json
import math
import sys
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from coordinator.plugins import check_known
from coordinator.rounds.learning.settings import Learning, check_net, check_together
from coordinator.rounds.pace.settings import Asynchronous
from edge_client.adapters.ranks import LORA_ALPHA
from edge_client.adapters.spec import AdapterError, AdapterSpec, parse_adapter
from edge_client.bases.base import EMBEDDED
from edge_client.codecs.codec import AUTO
from edge_client.codecs.settings import Updates
from edge_client.errors import WrongInput
from edge_client.texts.tasks import Task
from edge_client.wire.labelling import Labelling
from edge_client.wire.training import Training
from simulation.experiments.hostile import Hostile
from simulation.experiments.personal.settings import Personal, misfit
from simulation.population.deal import Deal

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover - the same library, before it moved into Python
    import tomli as tomllib

FULL = ("full", "full+head")
RESULTS_VERSION = 1  # another one when the same experiment gives other numbers than before
ADDED_LATER = (
    "norm_bound",
    "max_examples",
    "is_guarded",
    "hostile",
    "learning",
    "ranks",
    "updates",
    "patience",
    "personal",
)
CLOCKED = ("over_selection", "asynchronous")  # of run files; they go by who answers when
OF_FACTS = ("memory", "balance")  # selections by what only real devices have
ADDED_TO_TRAINING = ("optimizer", "momentum", "proximal", "scaffold", "adjusted")
ADDED_TO_UPDATES = ("down",)
ADDED_TO_PERSONAL = ("start", "above", "stages", "by_output")
Paradigm = Literal["federated", "centralised", "local"]


class ExperimentError(WrongInput):
    """An experiment that cannot be read or makes no sense."""


def _demand(condition: bool, message: str) -> None:
    if not condition:
        raise ExperimentError(message)


@dataclass(frozen=True)
class Experiment:
    """One experiment.

    Attributes:
        name: The experiment's name, for people and file names.
        dataset: The set's name; see `simulation.datasets.catalogue.read_dataset`.
        languages: Languages of a set in several, kept sorted; none means all.
        base: `embedded`, a folder or a hub name.
        adapter: Such as `lora:8@q,v`, `prompt:8+head`; or `full`, `full+head`: every weight.
        prompt_init: Text a soft prompt starts from; empty for random words.
        paradigm: `federated`; `centralised`, one client with all texts; `local`, every client for
            itself.
        deal: How texts are dealt to clients.
        training: A client's training in one round.
        learning: What becomes of a round's updates.
        ranks: The most rank that clients take, dealt to them in turn; none: all take the adapter's.
        updates: In how many bytes updates and steps travel.
        rounds: Server steps; 0 asks the base as it is (zero-shot).
        cohort: Clients asked in a round, of those that hold labelled texts; 0 for all.
        evaluate_every: Rounds between evaluations; 0 for only before the first and after the last.
        patience: Evaluations in a row without an improvement that end an arm; 0: none do.
        norm_bound: Norm down to which longer updates are scaled; `adaptive`, as runs have it, or 0
            for none: the papers' FedAvg has no such bound.
        max_examples: Largest weight of a client in a mean; `adaptive`, or 0 for any.
        is_guarded: Whether a new adapter is checked and a run goes back by itself, as runs do.
        hostile: Clients that forge their answers; None where all are honest.
        personal: What every client does for itself in the end, by which it is judged; None: the
            shared adapter is judged.
        labelling: How clients label their own texts; None if they do not.
        gate_texts: With labelling: training texts kept aside, with their labels, on which adapters
            are judged before they label (AUG-FedPrompt's capacity gate); nobody trains on them.
        cache_bytes: Disk for what the layers below the lowest trained one give; 0 for none.
        train_texts: Training texts of each language that there are, drawn by the seed; 0 for all.
        judged_on: `test`, or `dev`: training texts kept aside, to choose settings by.
        test_texts: Texts of each language asked of those, drawn; 0 for all (of `dev` 1000).
        seed: Root seed of deal, first adapter, cohorts and the order of texts.
        engine: `auto`, `torch` or `onnx`.
        dtype: `float32`, or `auto`: whatever a client on this machine would choose, so that
            another machine may give other numbers.
        threads: Threads of an engine; part of the experiment, since sums depend on them.

    Raises:
        ExperimentError: A value outside its range; names it.
    """

    name: str
    dataset: str
    languages: tuple[str, ...] = ()
    base: str = EMBEDDED
    adapter: str = "lora:8@q,v"
    prompt_init: str = ""
    paradigm: Paradigm = "federated"
    deal: Deal = field(default_factory=Deal)
    training: Training = field(default_factory=Training)
    learning: Learning = field(default_factory=Learning)
    ranks: tuple[int, ...] = ()
    updates: Updates = field(default_factory=Updates)
    rounds: int = 10
    cohort: int = 0
    evaluate_every: int = 1
    patience: int = 0
    norm_bound: float | Literal["adaptive"] = 0.0
    max_examples: int | Literal["adaptive"] = 0
    is_guarded: bool = False
    hostile: Hostile | None = None
    personal: Personal | None = None
    labelling: Labelling | None = None
    gate_texts: int = 64
    cache_bytes: int = 0
    train_texts: int = 0
    judged_on: Literal["test", "dev"] = "test"
    test_texts: int = 0
    seed: int = 0
    engine: Literal["auto", "torch", "onnx"] = "auto"
    dtype: Literal["float32", "auto"] = "float32"
    threads: int = 1

    def __post_init__(self) -> None:
        _demand(0 < len(self.name) <= 200 and self.name.isprintable(), "name: 1 to 200 characters")
        _demand(0 <= self.rounds <= 1_000_000, "rounds: 0 to 1000000")
        _demand(self.cohort >= 0, "cohort: 0 (all clients) or more")
        _demand(self.evaluate_every >= 0, "evaluate_every: 0 or more")
        _demand(0 <= self.patience <= 1_000_000, "patience: 0 to 1000000")
        _demand(
            not self.patience or (self.evaluate_every > 0 and self.labelling is None),
            "patience: counts evaluations of the test texts between rounds; evaluate_every above "
            "0, and no labelling, is expected",
        )
        _demand(
            self.norm_bound == "adaptive" or 0.0 <= self.norm_bound < 1e38,
            "norm_bound: `adaptive`, a number above 0, or 0 for none",
        )
        _demand(
            self.max_examples == "adaptive" or 0 <= self.max_examples <= 10**9,
            "max_examples: `adaptive`, 1 to 10^9, or 0 for any",
        )
        _demand(
            self.hostile is None or (self.paradigm == "federated" and self.labelling is None),
            "hostile: paradigm `federated` without labelling is expected",
        )
        _demand(self.gate_texts >= 0, "gate_texts: 0 or more")
        _demand(self.cache_bytes >= 0, "cache_bytes: 0 (none) or more")
        _demand(
            self.labelling is None or self.adapter not in FULL,
            f"labelling: adapter is {self.adapter}; one that leaves the base as it is expected",
        )
        _demand(
            self.labelling is None or self.paradigm == "federated",
            f"labelling: paradigm is {self.paradigm}; federated expected",
        )
        _demand(self.train_texts >= 0, "train_texts: 0 (all) or more")
        _demand(self.test_texts >= 0, "test_texts: 0 (all) or more")
        _demand(0 <= self.seed < 2**63, "seed: 0 to 2^63 - 1")
        _demand(1 <= self.threads <= 1024, "threads: 1 to 1024")
        object.__setattr__(self, "languages", tuple(sorted(set(self.languages))))
        policy = self.learning.selection
        _demand(
            policy.split(":")[0] not in OF_FACTS,
            f"learning: selection = {policy}: virtual clients have no memory and no tags; random, "
            "coverage or utility is expected",
        )
        if self.personal is not None:
            is_plain = self.paradigm == "federated" and not self.labelling and not self.hostile
            silos = len(self.languages) if self.deal.by and not self.deal.clients else 0
            is_plain = is_plain and self.adapter not in FULL
            spec = parse_adapter(self.adapter) if is_plain else AdapterSpec()
            lack = misfit(self.personal, spec, is_plain, self.rounds, silos)
            _demand(not lack, f"personal{lack}")
        _demand(self.updates.up != AUTO, "updates: up: a codec by name; no link is measured here")
        is_product = self.learning.lora_mean != "factors"
        if self.adapter in FULL:
            _demand(not is_product, f"learning: lora_mean = product: {self.adapter} has no LoRA")
            return
        try:
            spec = parse_adapter(self.adapter)
        except AdapterError as error:
            raise ExperimentError(f"{error}, or {', '.join(FULL)}") from error
        _demand(
            not self.ranks or (is_product and self.labelling is None),
            "ranks: learning: lora_mean `product`, and no labelling, is expected",
        )
        is_scaled = any(one.alpha != LORA_ALPHA for one in spec.ranks)
        _demand(
            not is_product or (spec.rank > 0 and not is_scaled),
            f"learning: lora_mean = product: adapter {spec}: LoRA, without alphas by module, is "
            "expected",
        )
        try:
            check_together(self.learning, self.training, self.updates, self.rounds)
            if spec.net:
                check_net(spec.net, self.learning, self.training, self.labelling is not None)
        except ValueError as error:
            raise ExperimentError(str(error)) from None
        _demand(
            all(1 <= rank <= spec.largest_rank for rank in self.ranks),
            f"ranks: 1 to {spec.largest_rank}",
        )

    @property
    def is_trained(self) -> bool:
        """Whether anything is: in rounds, or by every client for itself."""
        return self.rounds > 0 or self.personal is not None

    def key(self, base_id: str, dataset_sha256: str, task: Task, engine: str) -> str:
        """Names an experiment's results: equal keys give equal numbers.

        Args:
            base_id: SHA-256 of the base that `base` was found to be.
            dataset_sha256: SHA-256 of the texts.
            task: How they are asked.
            engine: What `engine` means here.
        """
        asked = asdict(replace(task, patterns=task.asked()))
        found = {"base": base_id, "dataset": dataset_sha256, "task": asked, "engine": engine}
        said = asdict(self) | found | {"results": RESULTS_VERSION}
        if self.adapter not in FULL:
            said["adapter"] = str(parse_adapter(self.adapter))
        del said["name"]
        default = Experiment(self.name, self.dataset)
        for name in ADDED_TO_UPDATES:
            if getattr(self.updates, name) == getattr(Updates, name):
                del said["updates"][name]
        for name in ADDED_TO_PERSONAL if self.personal else ():
            if getattr(self.personal, name) == getattr(Personal, name):
                del said["personal"][name]
        for name in ADDED_LATER:  # as they are by default they change no number
            if getattr(self, name) == getattr(default, name):
                del said[name]
        for name in ADDED_TO_TRAINING:
            if getattr(self.training, name) == getattr(Training, name):
                del said["training"][name]
        text = json.dumps(said, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Rounds:
    """An experiment's `coordinator.rounds.schedule.Schedule` for as many clients as can train.

    With labelling adapters are evaluated whenever they are scored (every `score_every` rounds) or
    may be labelled with.
    """

    rounds: int
    fraction: float
    evaluate_every: int
    seed: int
    min_clients: int = 1
    min_updates: int = 1
    deadline_s: float = math.inf
    adaptive_deadline: bool = False
    labelling: Labelling | None = None
    labels: tuple[str, ...] = ()
    max_cohort: int = 0
    over_selection: float = 1.0
    patience: int = 0
    asynchronous: Asynchronous | None = None
    evaluate_cohort: int = 0
    score_every: int = 1
    norm_bound: float | Literal["adaptive"] = 0.0
    max_examples: int | Literal["adaptive"] = 0
    is_guarded: bool = False
    training: Training = field(default_factory=Training)
    learning: Learning = field(default_factory=Learning)
    updates: Updates = field(default_factory=Updates)
    hostile: Hostile | None = None

    def is_gated(self, round_index: int) -> bool:
        """Whether clients label right after a round, so that its adapter is judged before."""
        every = self.labelling.infer_every if self.labelling else 0
        return every > 0 and round_index % every == 0 and round_index < self.rounds

    def is_scored(self, round_index: int) -> bool:
        """Whether an adapter that is evaluated after a round is scored on the test texts too."""
        every = self.score_every
        is_due = round_index % every == 0 if every else round_index == 0
        return is_due or round_index == self.rounds


def schedule_of(experiment: Experiment, clients: int, labels: tuple[str, ...] = ()) -> Rounds:
    """When whom is asked: the cohort, or all where fewer clients hold labelled texts.

    With labelling, adapters are evaluated whenever somebody is about to label too.

    Args:
        experiment: What is run.
        clients: That can train from the beginning.
        labels: The task's labels; needed with labelling.
    """
    labelling, cohort = experiment.labelling, experiment.cohort
    fraction = min(1.0, cohort / max(1, clients)) if cohort else 1.0
    rounds = Rounds(
        experiment.rounds,
        fraction,
        experiment.evaluate_every,
        experiment.seed,
        min_updates=experiment.learning.least,
        patience=experiment.patience,
        norm_bound=experiment.norm_bound,
        max_examples=experiment.max_examples,
        is_guarded=experiment.is_guarded,
        training=experiment.training,
        learning=experiment.learning,
        updates=experiment.updates,
        hostile=experiment.hostile,
        labels=labels if experiment.hostile else (),
    )
    if labelling is None:
        return rounds
    return replace(
        rounds,
        fraction=1.0,
        evaluate_every=math.gcd(labelling.infer_every, experiment.evaluate_every),
        labelling=labelling,
        labels=labels,
        max_cohort=cohort,
        score_every=experiment.evaluate_every,
    )


def read_experiment(path: Path) -> Experiment:
    """Read an experiment's TOML file.

    Raises:
        ExperimentError: The file is missing, is not TOML, or has an unknown key or a wrong value.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ExperimentError(f"no experiment at {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ExperimentError(f"{path} is not TOML: {error}") from error
    for key in CLOCKED:
        said = "experiments have no clock to tell who answers first; `smidgen simulate waiting` has"
        _demand(key not in table, f"{path}: {key}: {said}")
    _check_keys(table, Experiment, str(path))
    _check_keys(table.get("deal", {}), Deal, f"{path}: [deal]")
    _check_keys(table.get("training", {}), Training, f"{path}: [training]")
    _check_keys(table.get("learning", {}), Learning, f"{path}: [learning]")
    _check_keys(table.get("updates", {}), Updates, f"{path}: [updates]")
    _check_keys(table.get("hostile", {}), Hostile, f"{path}: [hostile]")
    _check_keys(table.get("personal", {}), Personal, f"{path}: [personal]")
    _check_keys(table.get("labelling", {}), Labelling, f"{path}: [labelling]")
    try:
        experiment = msgspec.convert({"name": path.stem} | table, Experiment)
        check_known(experiment.learning)
        return experiment
    except ExperimentError:
        raise
    except WrongInput as error:
        raise ExperimentError(f"{path}: learning: {error}") from error
    except msgspec.ValidationError as error:
        raise ExperimentError(f"{path}: {error}") from error


def _check_keys(table: Any, kind: type[Any], origin: str) -> None:
    _demand(isinstance(table, dict), f"{origin}: a table is expected")
    names = [item.name for item in fields(kind)]
    for key in sorted(set(table) - set(names)):
        raise ExperimentError(f"{origin}: unknown key {key!r}; known are {', '.join(names)}")
