import shlex
from contextlib import closing
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from smidgen.coordinator.api.create import create_run, join_line
from smidgen.coordinator.api.stores import open_store
from smidgen.coordinator.config import RunConfig
from smidgen.coordinator.rounds.selection import DeviceFilter
from smidgen.coordinator.storage.credentials import tokens
from smidgen.coordinator.storage.runs import config_of
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.options import arguments_of
from smidgen.edge_client.wire.training import Labelling, Training
from tests.command_line import smidgen

DEFAULTS = {
    field.name: field.default
    for kind in (RunConfig, Training, Labelling)
    for field in fields(kind)
    if field.default is not MISSING
}
NAMES = ("adapter", "rounds", "fraction", "min_clients", "epochs", "batch", "lr", "tokens")
MORE = ("seed", "infer_every", "infer_clients", "keep_first", "keep_last", "confidence")


@pytest.mark.parametrize("name", [*NAMES, *MORE])
def test_help_names_the_default_that_holds(name: str) -> None:
    said = arguments_of(create_run)[name]
    assert f"default {DEFAULTS[name]:g}" in said if name != "adapter" else DEFAULTS[name] in said


def test_help_says_what_to_give_and_what_it_does() -> None:
    text = smidgen("coordinator", "create", "--help-all").stdout
    words = " ".join(text.replace("│", " ").split())
    assert "Share of its texts a device may label before round 1, above 0 to 1" in words
    assert f"default {DEFAULTS['deadline_s']:g}" in arguments_of(create_run)["deadline"]
    assert f"default {DEFAULTS['keep_last']:g}" in arguments_of(create_run)["keep_last"]


def test_a_tag_that_is_no_pair_is_named(tmp_path: Path) -> None:
    for tag, said in (("kitchen", "KEY=VALUE is expected"), ("=x", "KEY=VALUE is expected")):
        store = ("--store", str(tmp_path / "store"))
        done = smidgen("coordinator", "create", *store, "--task", "agnews", "--tag", tag)
        assert done.exit_code == 2 and f"--tag {tag!r}: {said}" in done.stderr
        assert not (tmp_path / "store").exists()


def test_the_last_line_is_pasted_as_it_is(tmp_path: Path, tiny_base: Base) -> None:
    store, base = f"{tmp_path}/my fleet", tmp_path / "tiny one"
    base.symlink_to(tiny_base.folder)
    what = ("--task", "agnews", "--base", str(base), "--adapter", "head")
    done = smidgen("coordinator", "create", "--store", store, *what)
    assert done.exit_code == 0, done.stderr
    run, here, where, line = done.stdout.splitlines()
    assert run.endswith(f"(ag_news): head of {base}, 10 rounds, the first with 2 devices")
    assert where.startswith("on this machine (`init` is for others); FOLDER holds its texts")
    assert here == f"next, here  smidgen coordinator serve --store '{store}'"
    url = "http://127.0.0.1:8700"
    token, *words = shlex.split(line)
    assert token.startswith("SMIDGEN_TOKEN=s") and words == [
        *("smidgen", "client", "run", "--coordinator", url),
        *("--base", f"FOLDER-OF-{tiny_base.folder.resolve().name}", "--data", "FOLDER"),
        *("--until", "finished"),
    ]


def test_a_line_names_a_base_of_the_hub_and_not_the_default() -> None:
    url = "https://hub:8700"
    assert " --base google/tiny --data" in join_line("t", url, "system", "google/tiny")
    assert "--base" not in join_line("t", url, "system")


def test_tags_and_memory_are_told_to_the_run(tmp_path: Path, tiny_base: Base) -> None:
    what = ("--task", "agnews", "--base", str(tiny_base.folder), "--adapter", "head")
    which = ("--tag", "site=hall", "--tag", "language=en", "--least-memory", "2G", "--share", "0.5")
    done = smidgen("coordinator", "create", "--store", str(tmp_path), *what, *which)
    assert done.exit_code == 0, done.stderr
    with closing(open_store(tmp_path)) as store:
        devices = config_of(store.runs()[0]).devices
        assert devices == DeviceFilter({"site": "hall", "language": "en"}, 2 << 30, share=0.5)
        assert tokens(store.database)[0].tags == devices.tags  # who comes with it is asked


@pytest.mark.parametrize("tags", ['["site=kitchen"]', '"site=kitchen"', "3"])
def test_tags_of_a_run_file_that_are_no_table_are_refused(tmp_path: Path, tags: str) -> None:
    (tmp_path / "run.toml").write_text(f'task = "agnews"\n[devices]\ntags = {tags}\n')
    for option in ((), ("--tag", "site=hall")):
        what = ("--store", str(tmp_path / "store"), *option, str(tmp_path / "run.toml"))
        done = smidgen("coordinator", "create", *what)
        assert done.exit_code == 2 and len(done.stderr.strip().splitlines()) == 1
        said = '[devices]: tags: a table is expected, such as { site = "kitchen" }'
        assert said in done.stderr
        assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("task", "adapter", "said"),
    [
        (
            'kind = "tagging"\nlabels = ["Drug"]',
            "lora:2",
            "which needs a head; lora:2@q,v+head does",
        ),
        ('kind = "mlm"', "lora:2+head", "which the base's own head answers; take lora:2@q,v"),
        ('kind = "mlm"', "head", "which the base's own head answers; take lora:8"),
        ('kind = "mlm"', "lora:4@q,k,v,o,up,down+generator", "is for tasks of labels"),
    ],
)
def test_an_adapter_that_cannot_answer_is_refused_before_there_is_a_run(
    tmp_path: Path, tiny_base: Base, task: str, adapter: str, said: str
) -> None:
    (tmp_path / "task.toml").write_text(f'name = "drugs"\n{task}\n')
    what = ("--task", str(tmp_path / "task.toml"), "--base", str(tiny_base.folder))
    store = ("--store", str(tmp_path / "store"))
    done = smidgen("coordinator", "create", *store, *what, "--adapter", adapter)
    assert done.exit_code == 2 and said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_run_that_tags_goes_on_from_one_that_tagged(tmp_path: Path, tiny_base: Base) -> None:
    (tmp_path / "task.toml").write_text('name = "drugs"\nkind = "tagging"\nlabels = ["Drug"]\n')
    what = ("--task", str(tmp_path / "task.toml"), "--base", str(tiny_base.folder))
    store = ("--store", str(tmp_path / "store"))
    first = smidgen("coordinator", "create", *store, *what, "--adapter", "lora:2+head")
    assert first.exit_code == 0, first.stderr
    again = ("--from", "drugs@0", "--name", "again")
    done = smidgen("coordinator", "create", *store, *what, *again)
    assert done.exit_code == 0, done.stderr
    with closing(open_store(tmp_path / "store")) as opened:
        one, other = opened.runs()
    assert one.adapter_sha256 == other.adapter_sha256
    assert config_of(other).adapter == "lora:2@q,v+head"


def test_a_run_without_an_evaluation_has_no_best_adapter_to_start_from(
    tmp_path: Path, tiny_base: Base
) -> None:
    what = ("--store", str(tmp_path), "--task", "agnews", "--base", str(tiny_base.folder))
    assert smidgen("coordinator", "create", *what, "--name", "old").exit_code == 0
    for told in ("best", "last"):
        done = smidgen("coordinator", "create", *what, "--name", told, "--from", f"old@{told}")
        assert done.exit_code == (2 if told == "best" else 0)
        said = "--from old@best: no round was evaluated on any text yet"
        assert (said in done.stderr) == (told == "best")
