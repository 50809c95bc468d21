"""One experiment, completely specified: texts, partition, training, rounds; and its TOML file.

Law: equal experiments on equal texts and an equal base give equal numbers, in one process, several,
or on a Ray cluster of equal processors and libraries; on other processors and on a CUDA device they
are equal up to rounding. It is also a TOML file:

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
import sys
from dataclasses import KW_ONLY, asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec

from smidgen.coordinator.plugins import check_known
from smidgen.coordinator.presets import laid_under
from smidgen.coordinator.rounds.schedule import (
    Learning,
    RunSpec,
    check_net,
    check_private,
    check_together,
)
from smidgen.edge_client.adapters.spec import LORA_ALPHA, AdapterError, AdapterSpec, parse_adapter
from smidgen.edge_client.bases.base import EMBEDDED
from smidgen.edge_client.codecs import AUTO
from smidgen.edge_client.errors import WrongInput, demand
from smidgen.edge_client.personal.methods import FROM_SHARED
from smidgen.edge_client.tasks.task import DEFAULT, Task
from smidgen.edge_client.updates.settings import Updates
from smidgen.edge_client.wire.training import Labelling, Training
from smidgen.simulation.experiments.hostile import Hostile
from smidgen.simulation.experiments.personal_settings import Personal, misfit
from smidgen.simulation.population.deal import Deal

FULL = ("full", "full+head")
RESULTS_VERSION = 1  # another one when the same experiment gives other numbers than before
RIDGE_VERSION = 2  # likewise with `+ridge`; since 2 the last round calibrates
LABELLED_VERSION = 2  # of those that label; since 2 the gate takes texts without labels alone
# Settings that came after the first results, by their table; by default they change no number.
ADDED = {
    "training": (
        *("optimizer", "momentum", "proximal", "scaffold", "adjusted"),
        *("least_samples", "sample_share"),
    ),
    "labelling": ("known_first", "stops_when_found", "settled_after"),
    "updates": ("down", "steps", "secure_aggregation"),
    "personal": ("start", "above", "stages", "by_output"),
    "": (
        *("norm_bound", "max_examples", "is_guarded", "hostile", "learning", "ranks", "updates"),
        *("patience", "evaluate_share", "keep", "personal", "is_judged_by_all", "fewer"),
        *("dev_texts", "pattern", "alone", "privacy"),
    ),
}
Paradigm = Literal["federated", "centralised", "local"]


class ExperimentError(WrongInput):
    """An experiment that cannot be read or makes no sense."""


_demand = partial(demand, kind=ExperimentError)


@dataclass(frozen=True)
class Experiment(RunSpec):
    """One experiment; what is said of runs too is explained in `RunSpec`.

    Attributes:
        name: The experiment's name, for people and file names.
        dataset: The set's name; see `smidgen.simulation.datasets.catalogue.read_dataset`.
        languages: Languages of a set in several, kept sorted; none means all.
        base: `embedded`, a folder or a hub name.
        adapter: Such as `lora:8@q,v`, `prompt:8+head`; or `full`, `full+head`: every weight.
        paradigm: `federated`; `centralised`, one client with all texts; `local`, every client for
            itself.
        deal: How texts are dealt to clients.
        ranks: The most rank that clients take, dealt to them in turn; none: all take the adapter's.
        rounds: Server steps; 0 asks the base as it is (zero-shot).
        cohort: Clients asked in a round, of those that hold labelled texts; 0 for all.
        evaluate_share: Share of its test texts that each client is judged by, drawn in each round;
            after the last round all are asked, and of the adapter that is kept.
        keep: Which adapter an arm ends with: the `last`, or the `best` of those that were judged.
        norm_bound: Norm down to which longer updates are scaled; `adaptive`, as runs have it, or 0
            for none: the papers' FedAvg has no such bound.
        max_examples: Largest weight of a client in a mean; `adaptive`, or 0 for any.
        is_guarded: Whether a new adapter is checked and a run goes back by itself, as runs do.
        hostile: Clients that forge their answers; None where all are honest.
        personal: What every client does for itself in the end, by which it is judged; None: the
            shared adapter is judged.
        gate_texts: With labelling: training texts kept aside, with their labels, on which adapters
            are judged before they label (AUG-FedPrompt's capacity gate); nobody trains on them.
        cache_bytes: Disk for what the layers below the lowest trained one give; 0 for none.
        train_texts: Training texts of each language that there are, drawn by the seed; 0 for all.
        fewer: Languages, and how many training texts they have where that is fewer.
        dev_texts: Training texts of each language kept aside, by which `patience` and `keep` go; 0:
            by the test texts.
        judged_on: `test`, or `dev`: training texts kept aside, to choose settings by.
        test_texts: Texts of each language asked of those, drawn; 0 for all (of `dev` 1000).
        is_judged_by_all: Whether every client of `local` is judged by all test texts, not by its
            own alone.
        alone: Of `local`, the only clients that train and are judged; none: all with test texts.
            The task is that of all.
        pattern: Cloze pattern that is asked in place of the set's own; empty: those.
        taught: Rounds of another experiment that trained every weight of `base`; this one's base
            has the weights that they ended with. None: its own.
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
    _: KW_ONLY
    languages: tuple[str, ...] = ()
    base: str = EMBEDDED
    paradigm: Paradigm = "federated"
    deal: Deal = field(default_factory=Deal)
    ranks: tuple[int, ...] = ()
    cohort: int = 0
    norm_bound: float | Literal["adaptive"] = 0.0
    max_examples: int | Literal["adaptive"] = 0
    is_guarded: bool = False
    hostile: Hostile | None = None
    personal: Personal | None = None
    gate_texts: int = 64
    cache_bytes: int = 0
    train_texts: int = 0
    fewer: tuple[tuple[str, int], ...] = ()
    dev_texts: int = 0
    judged_on: Literal["test", "dev"] = "test"
    test_texts: int = 0
    is_judged_by_all: bool = False
    alone: tuple[str, ...] = ()
    pattern: str = ""
    taught: "Experiment | None" = None
    engine: Literal["auto", "torch", "onnx"] = "auto"
    dtype: Literal["float32", "auto"] = "float32"
    threads: int = 1

    def __post_init__(self) -> None:
        _demand(0 < len(self.name) <= 200 and self.name.isprintable(), "name: 1 to 200 characters")
        self.check_spec(ExperimentError)
        _demand(0 <= self.rounds <= 1_000_000, "rounds: 0 to 1000000")
        _demand(self.cohort >= 0, "cohort: 0 (all clients) or more")
        _demand(
            not self.patience or (self.evaluate_every > 0 and self.labelling is None),
            "patience: counts evaluations of the test texts between rounds; evaluate_every above "
            "0, and no labelling, is expected",
        )
        is_plain = self.keep == "last" and self.evaluate_share == 1.0
        _demand(
            is_plain or self.labelling is None,
            "keep, evaluate_share: are of test texts, and with labelling the gate's texts judge; "
            "leave out one of the two",
        )
        _demand(
            self.hostile is None or self.paradigm == "federated",
            "hostile: paradigm `federated` is expected",
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
        _demand(
            all(texts > 0 and name in self.languages for name, texts in self.fewer),
            "fewer: languages that `languages` names, and 1 or more texts of each",
        )
        _demand(self.dev_texts >= 0, "dev_texts: 0 (none) or more")
        _demand(
            not self.dev_texts or ((self.patience > 0 or self.keep == "best") and not self.hostile),
            "dev_texts: patience or keep = best, of honest clients, is expected: nothing else goes "
            "by them",
        )
        _demand(self.test_texts >= 0, "test_texts: 0 (all) or more")
        _demand(1 <= self.threads <= 1024, "threads: 1 to 1024")
        _demand(
            not self.is_judged_by_all or self.paradigm == "local",
            f"is_judged_by_all: paradigm is {self.paradigm}; local expected",
        )
        _demand(
            not self.alone or self.paradigm == "local",
            f"alone: paradigm is {self.paradigm}; local expected",
        )
        teacher = self.taught
        _demand(
            teacher is None or teacher.trains_a_base_of(self),
            "taught: adapter = full of the same base, by rounds of all together or in one place, "
            "neither taught nor personal, is expected; and no personal phase after it",
        )
        object.__setattr__(self, "languages", tuple(sorted(set(self.languages))))
        object.__setattr__(self, "alone", tuple(sorted(set(self.alone))))
        policy = self.learning.selection
        _demand(
            policy.split(":")[0] not in ("memory", "balance"),
            f"learning: selection = {policy}: virtual clients have no memory and no tags; random, "
            "coverage or utility is expected",
        )
        if self.personal is not None:
            is_plain = self.paradigm == "federated" and not self.labelling and not self.hostile
            silos = len(self.languages) if self.deal.by and not self.deal.clients else 0
            is_full = self.adapter in FULL
            is_plain = is_plain and (not is_full or self.personal.method in FROM_SHARED)
            spec = parse_adapter(self.adapter) if is_plain and not is_full else AdapterSpec()
            lack = misfit(self.personal, spec, is_plain, self.rounds, silos)
            _demand(not lack, f"personal{lack}")
        _demand(self.updates.up != AUTO, "updates: up: a codec by name; no link is measured here")
        said = "hostile: what they would send is masked; leave secure_aggregation out"
        _demand(self.hostile is None or not self.updates.secured, said)
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
            if self.privacy is not None:
                check_private(self)
            if spec.net:
                is_labelling = self.labelling is not None
                check_net(spec.net, self.learning, self.training, is_labelling, keep=self.keep)
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

    def trains_a_base_of(self, other: "Experiment") -> bool:
        """Whether another experiment can begin from the weights that this one ends with."""
        is_whole = self.adapter == FULL[0] and self.rounds > 0 and self.paradigm != "local"
        is_plain = not (self.taught or self.personal or other.personal)
        return is_whole and is_plain and self.base == other.base

    def key(self, base_id: str, dataset_sha256: str, task: Task, engine: str) -> str:
        """Names an experiment's results: equal keys give equal numbers, but for rounding.

        Args:
            base_id: Names the base that `base` was found to be, and who taught it.
            dataset_sha256: SHA-256 of the texts.
            task: How they are asked.
            engine: What `engine` means here.
        """
        asked = asdict(replace(task, patterns=task.asked()))
        for name in ("kind", "masking") if task.kind == DEFAULT else ():
            del asked[name]
        if not task.options:
            del asked["options"]
        found = {"base": base_id, "dataset": dataset_sha256, "task": asked, "engine": engine}
        results = LABELLED_VERSION if self.labelling else RESULTS_VERSION
        said = asdict(self) | found | {"results": results}
        if "+ridge" in self.adapter:
            said["ridge"] = RIDGE_VERSION
        if self.adapter not in FULL:
            said["adapter"] = str(parse_adapter(self.adapter))
        del said["name"], said["taught"]  # of the latter the base's name tells
        default = Experiment(self.name, self.dataset)
        for table, names in ADDED.items():
            settings = getattr(self, table) if table else self
            usual = type(settings) if table else default
            for name in names if settings else ():
                if getattr(settings, name) == getattr(usual, name):
                    del (said[table] if table else said)[name]
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]


if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover - the same library, before it moved into Python
    import tomli as tomllib


def read_experiment(path: Path) -> Experiment:
    """Read an experiment's TOML file.

    Raises:
        ExperimentError: The file is missing, is not TOML, or has an unknown key or a wrong value.
        PresetError: No preset has the name that it says.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ExperimentError(f"no experiment at {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ExperimentError(f"{path} is not TOML: {error}") from error
    for key in ("over_selection", "asynchronous"):  # they go by who answers when
        said = f"{path}: {key}: experiments have no clock to tell who answers first; "
        said += "`python -m benchmarks waiting` has"
        demand(key not in table, said, ExperimentError)
    table = laid_under(table, None)
    _check_tables(table, str(path))
    try:
        experiment = msgspec.convert({"name": path.stem} | table, Experiment)
        check_known(experiment.learning)
        if experiment.taught is not None:
            check_known(experiment.taught.learning)
        return experiment
    except ExperimentError:
        raise
    except WrongInput as error:
        raise ExperimentError(f"{path}: learning: {error}") from error
    except msgspec.ValidationError as error:
        raise ExperimentError(f"{path}: {error}") from error


TABLES = {
    "deal": Deal,
    "training": Training,
    "learning": Learning,
    "updates": Updates,
    "hostile": Hostile,
    "personal": Personal,
    "labelling": Labelling,
}


def _check_tables(table: Any, origin: str) -> None:
    """Refuse a key that an experiment, or a table in it, does not have."""
    _check_keys(table, Experiment, origin)
    for name, kind in TABLES.items():
        _check_keys(table.get(name, {}), kind, f"{origin}: [{name}]")
    if "taught" in table:
        _check_tables(table["taught"], f"{origin}: [taught]")
        table["taught"].setdefault("name", "taught")


def _check_keys(table: Any, kind: type[Any], origin: str) -> None:
    demand(isinstance(table, dict), f"{origin}: a table is expected", ExperimentError)
    names = [item.name for item in fields(kind)]
    for key in sorted(set(table) - set(names)):
        raise ExperimentError(f"{origin}: unknown key {key!r}; known are {', '.join(names)}")
