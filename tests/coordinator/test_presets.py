"""Presets: what they say, and that whatever else is said goes before them."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.coordinator.config import ConfigError, RunConfig, read_run_config
from smidgen.coordinator.presets import PRESETS, PresetError, laid_under
from smidgen.coordinator.rounds.schedule import Learning
from smidgen.edge_client.wire.training import Training

KEYS = st.sampled_from(["keep", "rounds", "evaluate_every", "seed"])
INNER = st.dictionaries(st.sampled_from(["lr", "batch", "epochs"]), st.integers(1, 9))
TABLES = st.builds(
    lambda plain, training, has: plain | ({"training": training} if has else {}),
    st.dictionaries(KEYS, st.integers(0, 9)),
    INNER,
    st.booleans(),
)


@given(TABLES)
def test_what_a_table_says_goes_before_the_preset(table: dict[str, Any]) -> None:
    found = laid_under(table, "silos")
    said = {key: value for key, value in table.items() if key != "training"}
    assert said.items() <= found.items()
    assert table.get("training", {}).items() <= found["training"].items()
    assert found["training"].keys() >= PRESETS["silos"]["training"].keys()
    assert laid_under(found, "silos") == found == laid_under(table | {"preset": "silos"}, None)
    assert laid_under(table, None) == table


def test_an_unknown_preset_names_those_that_are_known() -> None:
    for named in ("silo", "", "x" * 99):
        with pytest.raises(PresetError, match=r"preset 'x*.*': one of silos is expected"):
            laid_under({"preset": named}, None)
    with pytest.raises(PresetError, match="preset '3': one of silos is expected"):
        laid_under({"preset": 3}, None)


def test_silos_is_the_recipe_of_the_paper() -> None:
    """Table 2, and section 2.4 for how silos are weighed and validated."""
    config = read_run_config(None, {"preset": "silos", "task": "agnews"})
    training = Training(epochs=1, lr=1e-4, optimizer="sgd", least_samples=500, sample_share=0.8e-4)
    assert config.training == training
    rates = config.learning.rates
    assert (config.learning.mean, config.learning.optimizer) == ("fedavg", "fedadam")
    assert (rates.lr, rates.decay, rates.is_corrected) == (3e-4, 1e-3, True)
    assert (config.evaluate_every, config.evaluate_share, config.keep) == (5, 0.1, "best")
    assert config.norm_bound == config.max_examples == 0


def test_the_rest_of_a_run_is_as_without_the_preset() -> None:
    config = read_run_config(None, {"preset": "silos", "task": "agnews"})
    changed = set(PRESETS["silos"])
    plain = asdict(RunConfig(config.name, config.task))
    found = asdict(config)
    assert {key for key in plain if plain[key] != found[key]} == changed


def test_a_file_and_then_flags_go_before_it(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    text = 'preset = "silos"\ntask = "agnews"\n[training]\nleast_samples = 100\nlr = 0.5\n'
    path.write_text(text)
    config = read_run_config(path, {"lr": 0.25})
    expected = (100, 0.25, 0.8e-4)
    training = config.training
    assert (training.least_samples, training.lr, training.sample_share) == expected
    path.write_text(text.replace("silos", "silo"))
    assert read_run_config(path, {"preset": "silos"}).training == replace(training, lr=0.5)
    with pytest.raises(PresetError, match="preset 'silo': one of silos is expected"):
        read_run_config(path, {})


@pytest.mark.parametrize("optimizer", ["fedavg", "fedavgm", "fedadagrad", "fedyogi"])
def test_another_server_optimizer_comes_with_its_own_numbers(
    tmp_path: Path, optimizer: str
) -> None:
    path = tmp_path / "run.toml"
    text = f'preset = "silos"\ntask = "agnews"\n[learning]\noptimizer = "{optimizer}"\n'
    path.write_text(text)
    assert read_run_config(path, {}).learning == Learning(optimizer=optimizer)
    path.write_text(f"{text}lr = 0.5\n")
    assert read_run_config(path, {}).learning == Learning(optimizer=optimizer, lr=0.5)


def test_another_optimizer_of_devices_and_no_draw_leave_what_goes_with_them_out() -> None:
    said = {"training": {"optimizer": "adamw", "least_samples": 0}}
    found = laid_under(said, "silos")
    assert found["training"] == said["training"] | {"epochs": 1}
    assert Training(**found["training"]).lr == Training().lr
    assert laid_under(found, "silos") == found
    same = laid_under({"learning": {"optimizer": "fedadam", "tau": 1e-3}}, "silos")["learning"]
    assert same == PRESETS["silos"]["learning"] | {"tau": 1e-3}


@pytest.mark.parametrize("lr", [None, 0.25])
def test_a_flag_s_optimizer_leaves_the_preset_s_rate_out_as_a_file_s_does(
    tmp_path: Path, lr: float | None
) -> None:
    path = tmp_path / "run.toml"
    path.write_text('preset = "silos"\ntask = "agnews"\n[training]\noptimizer = "adamw"\n')
    said = {"preset": "silos", "task": "agnews", "optimizer": "adamw", "lr": lr}
    found = read_run_config(None, said).training
    assert found == read_run_config(path, {"lr": lr}).training
    assert found.lr == (Training().lr if lr is None else lr)


def test_a_run_that_is_too_long_for_its_decay_is_refused() -> None:
    flags = {"preset": "silos", "task": "agnews", "rounds": 999}
    assert read_run_config(None, flags).learning.decay == 1e-3
    with pytest.raises(ConfigError, match=r"decay: 0\.001 x 1000 rounds leave no learning rate"):
        read_run_config(None, flags | {"rounds": 1000})


def test_every_preset_makes_sense() -> None:
    for table in PRESETS.values():
        Training(**table.get("training", {}))
        Learning(**table.get("learning", {}))
