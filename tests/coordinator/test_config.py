from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec
import pytest

from smidgen.coordinator.config import ConfigError, RunConfig, read_run_config
from smidgen.coordinator.rounds.selection import DeviceFilter
from smidgen.edge_client.adapters.spec import AdapterError
from smidgen.edge_client.texts.prompts.patterns import TaskError
from smidgen.edge_client.wire.messages import encode
from smidgen.edge_client.wire.training import Labelling, Training

NET = "lora:4@q,k,v,o,up,down+rates"
TASK = 'labels = ["mail", "power"]\npatterns = ["{text} [MASK]"]\n'


def written(folder: Path, text: str) -> Path:
    (folder / "task.toml").write_text('name = "hub"\n' + TASK)
    (folder / "run.toml").write_text(text)
    return folder / "run.toml"


def test_a_task_lies_beside_the_run_file(tmp_path: Path) -> None:
    config = read_run_config(written(tmp_path, 'task = "task.toml"\nrounds = 3\n'), {})
    assert config.rounds == 3 and config.name == "hub" and config.task.labels == ("mail", "power")


def test_a_task_may_be_a_table_of_the_run_file(tmp_path: Path) -> None:
    config = read_run_config(written(tmp_path, f'name = "x"\n[task]\n{TASK}'), {})
    assert config.name == "x" and config.task.verbalizer == {"mail": "mail", "power": "power"}


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, 'task = "task.toml"\nrounds = 3\n[training]\nlr = 0.1\nbatch = 2\n')
    config = read_run_config(path, {"rounds": 5, "lr": 0.2, "name": None})
    assert (config.rounds, config.training.lr, config.training.batch) == (5, 0.2, 2)


def test_a_labelling_table_lets_devices_label(tmp_path: Path) -> None:
    path = written(tmp_path, 'task = "task.toml"\n[labelling]\nkeep_last = 0.9\nconfidence = 0.7\n')
    assert read_run_config(path, {}).labelling == Labelling(keep_last=0.9, confidence=0.7)
    flags = {"confidence": 0.8, "labelling": True, "infer_every": None}
    assert read_run_config(path, flags).labelling == Labelling(keep_last=0.9, confidence=0.8)


@pytest.mark.parametrize(
    ("table", "flags", "labelling"),
    [
        ("", {}, None),
        ("", {"labelling": False}, None),
        ("", {"labelling": True}, Labelling()),
        ("", {"keep_first": 0.2}, Labelling(keep_first=0.2)),
        ("[labelling]", {"labelling": False}, Labelling()),
    ],
)
def test_labelling_is_on_where_a_table_or_a_flag_says_so(
    tmp_path: Path, table: str, flags: dict[str, Any], labelling: Labelling | None
) -> None:
    path = written(tmp_path, f'task = "task.toml"\n{table}\n')
    assert read_run_config(path, flags).labelling == labelling


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ('keep = "newest"', "Invalid enum value 'newest'"),
        ("evaluate_share = 0.0", "evaluate_share: above 0 to 1"),
        ("evaluate_share = 1.5", "evaluate_share: above 0 to 1"),
        ("[training]\nsample_share = 0.5", "sample_share: least_samples of 1 or more beside it"),
        (
            f'adapter = "{NET}"\nkeep = "best"\n[training]\nleast_samples = 9',
            "leave out keep = best, least_samples",
        ),
    ],
)
def test_what_the_recipe_for_silos_sets_is_checked(
    tmp_path: Path, said: str, expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        read_run_config(written(tmp_path, f'task = "task.toml"\n{said}\n'), {})


def test_a_stored_run_gives_its_labelling_back(tmp_path: Path) -> None:
    text = 'task = "task.toml"\nmax_cohort = 3\n[labelling.confidences]\nmail = 0.8\n'
    config = read_run_config(written(tmp_path, text), {})
    assert config.labelling == Labelling(confidences={"mail": 0.8})
    assert msgspec.json.decode(encode(config), type=RunConfig) == config


def test_the_example_says_every_key_and_its_default() -> None:
    path = Path(__file__).parents[2] / "docs" / "examples" / "run.toml"
    config, text = read_run_config(path, {}), path.read_text()
    assert config.labelling == Labelling() and config.training == Training()
    assert config.devices == DeviceFilter()
    for kind in (Labelling, Training, DeviceFilter):
        for item in fields(kind):
            assert f"\n{item.name.removesuffix('_bytes')} = " in text


def test_flags_override_the_choice_of_devices_and_tags_go_beside(tmp_path: Path) -> None:
    text = """task = "task.toml"
[devices]
tags = { site = "hall", language = "en" }
least_memory = "2G"
share = 0.5
"""
    flags = {"tags": {"site": "attic"}, "least_memory": "512M"}
    config = read_run_config(written(tmp_path, text), flags)
    tags = {"site": "attic", "language": "en"}
    assert config.devices == DeviceFilter(tags, least_memory_bytes=512 << 20, share=0.5)
    assert msgspec.json.decode(encode(config), type=RunConfig) == config


def test_flags_alone_are_a_run(tmp_path: Path) -> None:
    written(tmp_path, "")
    config = read_run_config(None, {"task": str(tmp_path / "task.toml")})
    assert config.base == "embedded" and config.min_clients == 2


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("round = 3", "run.toml: unknown key 'round'"),
        ('rounds = "3"', r"Expected `int`, got `str` - at `\$.rounds`"),
        ("rounds = 0", "rounds: 1 to 1000000"),
        (f"min_clients = 1{'0' * 400}", "min_clients: 1 to 1000000"),
        ("min_updates = 1000001", "min_updates: 1 to 1000000"),
        ("fraction = 1.5", "fraction: above 0"),
        ("fraction = nan", "fraction: above 0"),
        ("min_updates = 3", "cohort of 2"),
        ("min_updates = 2\nmax_cohort = 1", "min_updates 2 is more than max_cohort 1"),
        ("max_cohort = -1", "max_cohort: 0 to"),
        ("deadline_s = 0", "deadline_s"),
        ('name = "a\\nb"', "name: 1 to 64"),
        ("training = 3", r"\[training\]: a table is expected"),
        ("training = {lrr = 1}", r"\[training\]: unknown key 'lrr'"),
        ("training = {lr = 0}", "lr: above 0"),
        ("labelling = true", r"\[labelling\]: a table is expected"),
        ("labelling = {keep = 1}", r"\[labelling\]: unknown key 'keep'; known are infer_every, "),
        ("labelling = {weight = 0.0}", "weight: above 0"),
        ("labelling = {keep_first = 8}", "keep_first: above 0 and at most 1"),
        ("labelling = {class_floor = 0.2}", "class_floor: 0.5 to below 1"),
        ("labelling = {confidences = {spam = 0.5}}", "'spam' is not a label .* are mail, power"),
        ("devices = 3", r"\[devices\]: a table is expected"),
        ("devices = {tag = {}}", r"\[devices\]: unknown key 'tag'; known are tags, least_memory"),
        ("devices = {tags = 3}", r"run.toml: \[devices\]: tags: a table is expected, such as"),
        ("adapter = 3", "run.toml: adapter: a text is expected, such as"),
        ('adapter = ["lora:8"]', "run.toml: adapter: a text is expected, such as"),
        ("devices = {tags = {site = 3}}", r"Expected `str`, got `int`"),
        ("devices = {tags = {'a=b' = ''}}", "tag 'a=b': 1 to 64 characters without `=`"),
        ("devices = {least_memory = 3}", r"least_memory '3' is not a size; expected such as 512M"),
        ("devices = {engine = 'tf'}", "Invalid enum value 'tf'"),
        ("devices = {is_on_mains = 1}", "Expected `bool`"),
        ("devices = {share = 0.0}", "share: above 0 and at most 1"),
        ("rounds = ", "is not TOML"),
    ],
)
def test_a_wrong_run_file_is_named(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_run_config(written(tmp_path, f'{line}\ntask = "task.toml"\n'), {})


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("rounds", 0, "--rounds 0: 1 to 1000000 is expected"),
        ("lr", 0.0, "--lr 0.0: above 0 and below 100 is expected"),
        ("deadline_s", -1.0, "--deadline -1.0: above 0 is expected"),
        ("infer_every", 0, "--infer-every 0: 1 to 1000000 is expected"),
        ("share", 2.0, "--share 2.0: above 0 and at most 1 is expected"),
        ("optimizer", "adam", "--optimizer adam: adamw or sgd is expected"),
        ("proximal", -1.0, "--proximal -1.0: 0 to 10000 is expected"),
        ("momentum", 0.9, "--momentum 0.9: 0 (adamw has its own), or optimizer sgd is expected"),
    ],
)
def test_a_wrong_flag_is_named_as_it_is_typed(
    tmp_path: Path, name: str, value: float | str, said: str
) -> None:
    path = written(tmp_path, 'task = "task.toml"\n')
    with pytest.raises(ConfigError) as caught:
        read_run_config(path, {name: value})
    assert str(caught.value) == said


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no task; add"):
        read_run_config(written(tmp_path, ""), {})
    with pytest.raises(ConfigError, match="no run file at"):
        read_run_config(tmp_path / "none.toml", {})
    with pytest.raises(TaskError, match="no task file at"):
        read_run_config(written(tmp_path, 'task = "none.toml"'), {})
    with pytest.raises(AdapterError, match="'lora' is unknown; did you mean"):
        read_run_config(written(tmp_path, 'adapter = "lora"\ntask = "task.toml"'), {})


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ('adapter = "lora:8"\n[learning]\nlora_mean = "exact"', "one of factors, product"),
        ('adapter = "lora:8"\n[learning]\nlora_mean = "padded"', "one of factors, product"),
        ('adapter = "bias"\n[learning]\nlora_mean = "product"', "adapter bias has no LoRA"),
        (
            'adapter = "lora:8/0.q=16:32"\n[learning]\nlora_mean = "product"',
            "leave alphas by module",
        ),
        ('[learning]\nlora_mean = "product"\nmean = "median"', "needs mean and optimizer fedavg"),
        ('[learning]\nlora_mean = "product"\nlr = 0.5', "lr 1 and no decay"),
        ('[learning]\nlora_mean = "product"\n[asynchronous]', "leave the table .asynchronous. out"),
    ],
)
def test_a_mean_of_products_that_cannot_be_is_refused_in_a_line(
    tmp_path: Path, said: str, expected: str
) -> None:
    (tmp_path / "run.toml").write_text(f'task = "agnews"\n{said}')
    with pytest.raises(ConfigError, match=expected) as refused:
        read_run_config(tmp_path / "run.toml", {})
    assert "\n" not in str(refused.value)


SCAFFOLD = '[training]\noptimizer = "sgd"\nscaffold = true\n'


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (SCAFFOLD + '[learning]\nmean = "median"', "scaffold: control variates are not robust"),
        (SCAFFOLD + '[updates]\nup = "topk:0.01"', "with up = topk:0.01 control variates diverge"),
        (SCAFFOLD + '[updates]\ndown = "topk:0.01"', "with down = topk:0.01 nobody has tried it"),
        ('[learning]\nselection = "balanc:x"', "known are random, .*, memory, balance:TAG"),
        (SCAFFOLD + '[learning]\nlora_mean = "product"', "leave lora_mean = product out"),
        ('[learning]\nmean = "median"\n[updates]\nup = "topk:0.1"', "take int8 or int4"),
        ('[learning]\nmean = "trimmed:0.4"\n[updates]\nup = "topk:0.1"', "take int8 or int4"),
        ("rounds = 30\n[learning]\ndecay = 0.1", "0.1 x 30 rounds leave no learning rate"),
        ("patience = 3\nevaluate_every = 0", "counts evaluations between rounds"),
        ("fraction = 0.5\nmin_clients = 4\n[asynchronous]", "leave fraction out"),
        ("max_cohort = 5\n[asynchronous]", "leave max_cohort out"),
        ('[learning]\nmean = "trimmed:1e-9"', "a share from 0.001"),
        ('[learning]\nmean = "trimmed:1e-309"', "a share from 0.001"),
        ('[learning]\nmean = "trimmed:nan"', "a share from 0.001"),
    ],
)
def test_what_would_learn_nothing_or_something_wrong_together_is_refused(
    tmp_path: Path, said: str, expected: str
) -> None:
    (tmp_path / "run.toml").write_text(f'task = "agnews"\nmin_updates = 2\n{said}')
    with pytest.raises(ConfigError, match=expected) as refused:
        read_run_config(tmp_path / "run.toml", {})
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("said", ['"int8"', '"int4"', '"auto"'])
def test_control_variates_travel_beside_small_updates(tmp_path: Path, said: str) -> None:
    (tmp_path / "run.toml").write_text(f'task = "agnews"\n{SCAFFOLD}[updates]\nup = {said}')
    assert read_run_config(tmp_path / "run.toml", {}).training.scaffold


TAGGED = '[task]\nname = "drugs"\nkind = "tagging"\nlabels = ["Drug", "Dose"]\n'
MASKED = '[task]\nname = "notes"\nkind = "mlm"\n[task.masking]\nshare = 0.25\n'


def test_a_run_file_has_a_task_of_every_kind(tmp_path: Path) -> None:
    tagged = read_run_config(written(tmp_path, TAGGED), {})
    assert (tagged.kind, tagged.name, tagged.labels) == ("tagging", "drugs", ("Drug", "Dose"))
    masked = read_run_config(written(tmp_path, MASKED), {})
    assert (masked.kind, masked.labels, masked.task.masking.share) == ("mlm", (), 0.25)
    for config in (tagged, masked):
        assert msgspec.json.decode(encode(config), type=RunConfig) == config


@pytest.mark.parametrize(("task", "kind"), [(TAGGED, "tagging"), (MASKED, "mlm")])
@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("[labelling]", "labelling"),
        ("[training]\nadjusted = true", "adjusted"),
        ('[learning]\nselection = "coverage"', "selection = coverage"),
        ("[labelling]\n[training]\nadjusted = true", "labelling, adjusted"),
    ],
)
def test_what_goes_by_labels_of_texts_is_refused_without_any(
    tmp_path: Path, task: str, kind: str, table: str, said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read_run_config(written(tmp_path, f"{task}{table}\n"), {})
    assert f"a task of kind {kind} has no labels of texts: leave out {said}" in str(caught.value)
    assert "\n" not in str(caught.value)
