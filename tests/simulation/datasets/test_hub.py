import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

import pyarrow
from pyarrow import parquet

from smidgen.edge_client.formats.source import DataError
from smidgen.edge_client.tasks.ready_tasks import AG_NEWS, NEWS
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.examples import Example
from smidgen.simulation.datasets.hub import (
    LAYOUTS,
    HubLayout,
    configs_of,
    files_of,
    read_examples,
    read_hub,
)
from tests.simulation.datasets.hub_server import COMMIT, serving

ROOT = Path(__file__).parents[3]
COMMAND = (sys.executable, "-m", "smidgen", "simulate", "data")
TASK = Task("own", ("no", "yes"), ("[MASK] : {text}",), {"no": "bad", "yes": "good"})


def table(columns: Mapping[str, object], names: Sequence[str] = ()) -> bytes:
    """A Parquet file, with the names of its labels where the `datasets` library puts them."""
    made = pyarrow.table(dict(columns))
    if names:
        features = {"info": {"features": {"label": {"names": list(names), "_type": "ClassLabel"}}}}
        made = made.replace_schema_metadata({"huggingface": json.dumps(features)})
    file = io.BytesIO()
    parquet.write_table(made, file)
    return file.getvalue()


def on_disk(folder: Path, name: str, body: bytes) -> Path:
    path = folder / name
    path.write_bytes(body)
    return path


def ask(endpoint: str, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a fresh interpreter: the hub's library reads its endpoint at import."""
    settings = {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HF_")} | settings
    return subprocess.run(
        [*COMMAND, *arguments, "--json"],
        cwd=ROOT,
        env=environment | {"HF_HUB_DISABLE_PROGRESS_BARS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def figures(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_a_known_set_comes_over_http_with_licence_and_revision(tmp_path: Path) -> None:
    news = {"text": ["a war", "a goal", "a bank", "a chip"], "label": [0, 1, 2, 3]}
    files = {
        "README.md": b"card",
        "data/train-00000-of-00001.parquet": table(news),
        "data/test-00000-of-00001.parquet": table({"text": ["A goal!"], "label": [1]}),
    }
    card = {"license": ["unknown"], "language": ["en"]}
    with serving("fancyzhx/ag_news", {"main": files}, card) as endpoint:
        found = figures(ask(endpoint, tmp_path, "hub:fancyzhx/ag_news"))
    assert found["name"] == "ag_news" and found["licence"] == "unknown"
    assert found["origin"] == f"hub fancyzhx/ag_news@{COMMIT[:12]}"
    assert found["labels"]["train"] == {"world": 1, "sports": 0, "business": 1, "sci_tech": 1}
    assert found["notes"][-1] == "1 training texts left out: they are test texts"


@pytest.mark.slow
def test_without_parquet_what_the_hub_converted_is_read(tmp_path: Path) -> None:
    rows = {"headline": ["H", "I"], "text": ["t", "u"], "label": [2, 5]}
    converted = {
        "hau/train/0000.parquet": table(rows, NEWS.labels),
        "hau/test/0000.parquet": table(rows | {"text": ["v", "w"]}, NEWS.labels),
    }
    revisions = {"main": {"masakhanews.py": b"print()"}, "refs/convert/parquet": converted}
    with serving("masakhane/masakhanews", revisions, {"license": "afl-3.0"}) as endpoint:
        done = ask(endpoint, tmp_path, "hub:masakhane/masakhanews", "--languages", "hau")
    found = figures(done)
    assert found["labels"]["train"] == {"health": 1, "sports": 1}
    assert found["languages"] == {"train": {"hau": 2}, "test": {"hau": 2}}
    assert found["licence"] == "afl-3.0"


@pytest.mark.slow
def test_a_set_that_the_hub_has_not_ends_in_one_line(tmp_path: Path) -> None:
    with serving("someone/else", {"main": {}}, {}) as endpoint:
        done = ask(endpoint, tmp_path, "hub:fancyzhx/ag_news")
    assert done.returncode == 2
    assert "the hub does not give fancyzhx/ag_news: " in done.stderr and "404" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_a_set_of_ones_own_needs_a_task_and_its_columns(tmp_path: Path) -> None:
    task = tmp_path / "task.toml"
    task.write_text('labels = ["no", "yes"]\npatterns = ["[MASK] : {text}"]\n')
    rows = b"title,body,spam\nBuy,now,yes\nHi,you,no\n"
    files = {"all/train.csv": rows, "all/validation.csv": rows.replace(b"now", b"soon")}
    columns = ("--task", str(task), "--text", "title,body", "--label", "spam")
    with serving("me/spam", {"main": files}, {"license": "mit"}) as endpoint:
        without = ask(endpoint, tmp_path, "hub:me/spam")
        found = figures(ask(endpoint, tmp_path, "hub:me/spam", *columns))
    assert without.returncode == 2 and "give --task FILE" in without.stderr
    assert found["labels"]["train"] == {"no": 0, "yes": 1}
    assert found["licence"] == "mit"


def test_labels_are_names_or_their_numbers(tmp_path: Path) -> None:
    layout = HubLayout(TASK)
    by_number = on_disk(tmp_path, "a.parquet", table({"text": ["x", "y"], "label": [1, 0]}))
    renamed = on_disk(
        tmp_path, "b.parquet", table({"text": ["x", "y"], "label": [1, 0]}, ("yes", "no"))
    )
    by_name = on_disk(tmp_path, "c.csv", b"text,label\nx,yes\ny,no\n")
    assert [e.label for e in read_examples(by_number, layout, "")] == ["yes", "no"]
    assert [e.label for e in read_examples(renamed, layout, "")] == ["no", "yes"]
    assert [e.label for e in read_examples(by_name, layout, "")] == ["yes", "no"]


def test_rows_without_text_or_label_are_left_out(tmp_path: Path) -> None:
    rows = {"text": ["x", None, " ", "y"], "label": [0, 1, 1, -1]}
    path = on_disk(tmp_path, "a.parquet", table(rows))
    assert read_examples(path, HubLayout(TASK), "en") == [Example("x", "", "no", "en")]


def test_a_pair_keeps_both_texts(tmp_path: Path) -> None:
    rows = {"premise": ["p"], "hypothesis": ["h"], "label": [2]}
    path = on_disk(tmp_path, "a.parquet", table(rows))
    expected = [Example("p", "h", "contradiction", "sw")]
    assert read_examples(path, LAYOUTS["facebook/xnli"], "sw") == expected


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (table({"text": ["x"], "topic": [0]}), "a.parquet: no column 'label'; found text, topic"),
        (table({"text": ["x"], "label": [7]}), "label '7' is not one of no, yes or their numbers"),
        (b"no parquet at all", "a.parquet is not a Parquet file"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, body: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_examples(on_disk(tmp_path, "a.parquet", body), HubLayout(TASK), "")


@pytest.mark.parametrize(
    ("paths", "config", "expected"),
    [
        (["data/train-0-of-2.parquet", "data/train-1-of-2.parquet", "data/test-0.parquet"], "", 2),
        (["en/xnli-train.parquet", "sw/xnli-train.parquet"], "sw", 1),
        (["hau/train/0000.parquet", "hau/train/index.duckdb"], "hau", 1),
        (["trainers.csv", "train.csv.gz"], "", 1),
    ],
)
def test_split_files_are_found_by_their_names(paths: list[str], config: str, expected: int) -> None:
    assert len(files_of(paths, config, ("train",), "o/n")) == expected


def test_the_first_split_that_is_there_is_the_test_part() -> None:
    paths = ["d/validation-0.parquet", "d/train-0.parquet"]
    assert files_of(paths, "", LAYOUTS["fancyzhx/ag_news"].test, "o/n") == paths[:1]


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (["a/train.csv", "b/train.csv"], "has train files in a, b; name one with --config"),
        (["README.md"], "has no train file .*it has no tables at all"),
        (["test.csv"], "has no train file .*it has test.csv"),
    ],
)
def test_files_that_cannot_be_told_apart_are_named(paths: list[str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        files_of(paths, "", ("train",), "o/n")


def test_languages_choose_configurations() -> None:
    xnli = LAYOUTS["facebook/xnli"]
    assert configs_of(xnli, ["sw", "en", "sw"], "o/n") == [("sw", "sw"), ("en", "en")]
    assert len(configs_of(xnli, [], "o/n")) == 15
    assert configs_of(LAYOUTS["nyu-mll/glue"], [], "o/n") == [("mnli", "en")]
    with pytest.raises(DataError, match="hub:o/n has no language 'xx'; it has ar, bg"):
        configs_of(xnli, ["xx"], "o/n")


def test_an_unknown_set_names_the_known_ones() -> None:
    with pytest.raises(DataError, match=r"hub:me/mine is not known here \(fancyzhx/ag_news, "):
        read_hub("me/mine")


def test_known_layouts_ask_for_what_the_folders_hold() -> None:
    assert LAYOUTS["fancyzhx/ag_news"].task == AG_NEWS
    assert len({layout.task.name for layout in LAYOUTS.values()}) == len(LAYOUTS)
