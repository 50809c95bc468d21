import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

from hypothesis import given
from hypothesis import strategies as st

from smidgen.coordinator.rounds.selection import cohort
from smidgen.edge_client.tasks.ready_tasks import AG_NEWS
from smidgen.edge_client.wire.training import Labelling
from smidgen.simulation.experiments.experiment import Experiment, ExperimentError, read_experiment
from smidgen.simulation.experiments.federation.devices import schedule_of
from smidgen.simulation.population.deal import Deal

EXPERIMENT = """
dataset = "ag_news"
adapter = "prompt:4+head"
rounds = 3
[deal]
clients = 40
labelled = 64
labelled_clients = 32
gamma = 0.001
alpha = inf
[training]
lr = 0.01
"""


SCAFFOLD = "[training]\noptimizer = 'sgd'\nscaffold = true\n"
PRODUCT = "[learning]\nlora_mean = 'product'\n"


def test_a_file_says_it_all(tmp_path: Path) -> None:
    path = tmp_path / "skewed.toml"
    path.write_text(EXPERIMENT)
    found = read_experiment(path)
    assert (found.name, found.adapter, found.rounds) == ("skewed", "prompt:4+head", 3)
    assert found.deal == Deal(clients=40, labelled=64, labelled_clients=32, gamma=0.001)
    assert found.training.lr == 0.01 and found.training.epochs == 4


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("colour = 1", "unknown key 'colour'; known are .* dataset"),
        ("adapter = 'lora'", r"adapter 'lora' is unknown; .*, or full, full\+head"),
        ("rounds = -1", "rounds: 0 to 1000000"),
        ("rounds = 'many'", "Expected `int`, got `str`"),
        ("paradigm = 'swarm'", "Invalid enum value 'swarm'"),
        ("[deal]\nclients = 0", "deal.clients: 1 to 1000000"),
        ("[deal]\nclients = 3\nlabelled_clients = 4", "labelled_clients: 0 .all. to the 3 clients"),
        ("[deal]\ngamma = 0.0", "deal.gamma is 0; above 0, or inf"),
        ("[deal]\nbeta = 1.0\nalpha = 1.0", "deal.beta: not together with gamma or alpha"),
        ("[deal]\nwhat = 1", r"\[deal\]: unknown key 'what'"),
        ("[training]\nlr = 0.0", "lr: above 0"),
        (
            "over_selection = 1.5",
            "over_selection: experiments have no clock .*python -m benchmarks waiting` has",
        ),
        ("[asynchronous]\nbuffer = 2", "asynchronous: experiments have no clock"),
        ("patience = -1", "patience: 0 to 1000000"),
        ("patience = 2\nevaluate_every = 0", "patience: counts evaluations of the test texts"),
        ("patience = 2\n[labelling]\ninfer_every = 1", "and no labelling, is expected"),
        ("dev_texts = 5", "dev_texts: patience or keep = best"),
        ("fewer = [['hau', 3]]", "fewer: languages that `languages` names"),
        ("ranks = [2, 8]\n" + SCAFFOLD, "ranks: learning: lora_mean `product`"),
        (SCAFFOLD + PRODUCT, "scaffold: .* leave lora_mean = product out"),
        (
            "[learning]\nselection = 'balance:language'",
            "virtual clients have no memory and no tags",
        ),
        ("adapter = 'full'\n" + PRODUCT, "lora_mean = product: full has no LoRA"),
        ("adapter = 'bias'\n" + PRODUCT, "lora_mean = product: adapter bias: LoRA"),
        ("adapter = 'lora:8/0.q=16:32'\n" + PRODUCT, "without alphas by module, is expected"),
        ("=", "is not TOML"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f"dataset = 'ag_news'\n{line}\n")
    with pytest.raises(ExperimentError, match=message) as refused:
        read_experiment(path)
    assert "\n" not in str(refused.value) or "TOML" in message


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match=r"no experiment at .*none\.toml"):
        read_experiment(tmp_path / "none.toml")


def key(experiment: Experiment, texts: str = "texts", engine: str = "torch") -> str:
    return experiment.key("base", texts, AG_NEWS, engine)


def test_the_key_names_what_numbers_depend_on() -> None:
    first = Experiment("a", "ag_news", adapter="lora:8", languages=("b", "a"))
    same: list[dict[str, Any]] = [{"name": "b"}, {"base": "moved"}, {"adapter": "lora:8@q,v"}]
    same += [{"languages": ("a", "b")}, {"deal": Deal(gamma=math.inf)}]
    assert {key(replace(first, **change)) for change in same} == {key(first)}
    changes: list[dict[str, Any]] = [{"seed": 1}, {"deal": Deal(gamma=1.0)}, {"rounds": 9}]
    others = [key(replace(first, **change)) for change in changes]
    others += [key(first, texts="other"), key(first, engine="onnx")]
    asked = replace(AG_NEWS, patterns=AG_NEWS.patterns[::-1])
    others.append(first.key("base", "texts", asked, "torch"))
    assert len({*others, key(first)}) == 7


def test_whole_numbers_are_numbers() -> None:
    said = [replace(Experiment("a", "b"), deal=Deal(gamma=gamma)) for gamma in (1, 1.0)]
    assert key(said[0]) == key(said[1])


def test_a_pattern_that_is_not_said_names_no_other_result() -> None:
    first = Experiment("a", "ag_news")
    assert key(replace(first, pattern="")) == key(first)
    assert key(replace(first, pattern="[MASK] - {text}")) != key(first)


@given(st.integers(1, 500), st.integers(0, 500))
def test_as_many_are_asked_as_the_cohort_says_or_all_there_are(able: int, asked: int) -> None:
    schedule = schedule_of(Experiment("a", "ag_news", cohort=asked), able)
    names = [f"client-{number}" for number in range(able)]
    found = cohort(names, schedule.fraction, str(schedule.seed), 1, 1)
    assert len(found) == (min(asked, able) if asked else able)


def test_a_preset_stands_beneath_what_an_experiment_says(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text('preset = "silos"\ndataset = "ag_news"\nrounds = 5\n[training]\nlr = 0.1\n')
    found = read_experiment(path)
    assert (found.keep, found.evaluate_share, found.evaluate_every) == ("best", 0.1, 5)
    assert (found.training.lr, found.training.least_samples) == (0.1, 500)
    assert key(found) != key(replace(found, training=replace(found.training, least_samples=100)))


def test_shares_and_the_best_adapter_are_of_test_texts_not_of_a_gate() -> None:
    for said in ({"keep": "best"}, {"evaluate_share": 0.5}):
        with pytest.raises(ExperimentError, match="leave out one of the two"):
            Experiment("a", "ag_news", labelling=Labelling(), **said)


def test_an_experiment_keeps_its_key() -> None:
    """Results on disk are found by it: it changes with `RESULTS_VERSION` and with nothing else."""
    skewed = read_experiment(Path(__file__).parents[3] / "docs" / "examples" / "skewed.toml")
    assert skewed.key("b", "d", AG_NEWS, "onnx") == "d64625426dd83368"
