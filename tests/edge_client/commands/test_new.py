"""`smidgen new`: what it writes is what the next commands read, for every kind that it can tell."""

import json
import os
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.files import open_to_others
from smidgen.edge_client.tasks.kind import every_files
from smidgen.edge_client.tasks.task import Task, read_task
from smidgen.edge_client.texts.data_folder import check_folder
from smidgen.edge_client.texts.examples import ClientData, read_folder
from tests.command_line import Done, smidgen

TOPICS = ("billing", "delivery")


def studio(text: str, *results: dict[str, Any]) -> dict[str, Any]:
    named = [{"from_name": "answer", "to_name": "text", **one} for one in results]
    annotations = [{"result": named, "was_cancelled": False}] if results else []
    return {"annotations": annotations, "data": {"text": text, "source": "mail"}}


def choices(*labels: str) -> dict[str, Any]:
    return {"type": "choices", "value": {"choices": labels}}


def person(name: str) -> dict[str, Any]:
    span = {"start": 0, "end": len(name), "text": name, "labels": ["PER"]}
    return {"type": "labels", "value": span}


TICKETS = [studio(f"charged {n} times", choices(TOPICS[n % 2])) for n in range(12)]
SEVERAL = [studio(f"late {n}", choices(*TOPICS[: 1 + n % 2])) for n in range(12)]
PEOPLE = [studio(f"Ann left at {n}", person("Ann")) for n in range(6)]
TURNS = [
    {"messages": [{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": "yes"}]}
    for n in range(6)
]
MARKED = [
    {"text": f"rash after drug {n}", "head": [0, 4], "tail": [11, 15], "label": "ab"[n % 2]}
    for n in range(8)
]
CSV = "text,label\n" + "".join(f'"parcel, {n}",{TOPICS[n % 2]}\n' for n in range(8))
FILES = {  # name: what is in it, its kind, and how many texts become labelled, unlabelled, test
    "export.json": (json.dumps([*TICKETS, studio("not yet")]), "labels", (10, 1, 2)),
    "several.json": (json.dumps(SEVERAL), "multilabel", (9, 0, 3)),
    "people.json": (json.dumps([*PEOPLE, studio("Bo came")]), "tagging", (5, 1, 1)),
    "data.csv": (CSV + "nobody knows,\n", "labels", (6, 1, 2)),
    "bars.csv": (CSV.replace("billing\n", "billing|refund\n"), "multilabel", (6, 0, 2)),
    "pairs.jsonl": (
        "".join(f'{{"text_a": "a{n}", "text_b": "b", "label": {n % 2}}}\n' for n in range(8)),
        "labels",
        (6, 0, 2),
    ),
    "words.conll": (
        "".join(f"Ann B-PER\nleft O\n{n} O\n\n" for n in range(5)),
        "tagging",
        (4, 0, 1),
    ),
    "marked.jsonl": ("".join(json.dumps(one) + "\n" for one in MARKED), "relation", (6, 0, 2)),
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def new(name: str, content: str, *more: str) -> Done:
    Path(name).write_text(content, encoding="utf-8")
    return smidgen("new", "mine", "--from", name, *more)


def project() -> tuple[Task, ClientData]:
    task = read_task(Path("mine/task.toml"))
    return task, read_folder(Path("mine/data"), task)


@pytest.mark.parametrize("name", FILES)
def test_a_file_becomes_a_task_of_its_kind_and_texts(name: str) -> None:
    content, kind, counts = FILES[name]
    done = new(name, content, "--json")
    assert done.exit_code == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    task, data = project()
    assert task.kind == said["kind"] == kind
    assert (len(data.labelled), len(data.unlabelled), len(data.test)) == counts
    assert counts == tuple(said[part] for part in ("labelled", "unlabelled", "test"))
    check_folder(Path("mine/data"), every_files())
    heads = [one.read_text().splitlines()[0] for one in Path("mine/data").glob("*.csv")]
    assert {*heads} <= {"text,text_b,label" if "pairs" in name else "text,label", "text"}
    has_table = "[labelling]" in Path("mine/run.toml").read_text()
    assert has_table == (counts[1] > 0 and kind == "labels")


@pytest.mark.parametrize("name", [None, "export.json", "data.csv", "people.json"])
def test_the_commands_of_its_readme_work_as_they_are_pasted(
    name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fastapi")
    pytest.importorskip("cryptography")
    done = smidgen("new", "mine") if name is None else new(name, FILES[name][0])
    assert done.exit_code == 0, done.stderr
    folder, next_line = done.stdout.splitlines()[-1].removeprefix("next  cd ").split(" && ")
    monkeypatch.chdir(folder)
    blocks = re.findall(r"```sh\n(.*?)```", Path("README.md").read_text(), re.DOTALL)
    lines = "".join(blocks).splitlines()
    assert lines[0] == next_line and [line.split()[2] for line in lines] == [
        *("train", "predict", "init", "create", "serve")
    ]
    for line in lines[:4]:
        done = smidgen(*shlex.split(line)[1:])
        assert done.exit_code == 0, f"{line}: {done.stderr}"
    assert re.search(r"^run r\w+ \(mine\): ", done.stdout, re.MULTILINE)
    assert f"{lines[4]}\n" in done.stdout
    pasted = r"SMIDGEN_TOKEN=\S+ smidgen client run --coordinator https://.* --data FOLDER --until"
    assert re.search(pasted, done.stdout)  # with the address that init found
    assert "\nmin_clients = 2 " in Path("run.toml").read_text()


def rows_of(*labels: object) -> str:
    rows = ({"text": f"parcel {n}", "label": label} for n, label in enumerate(labels))
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", CSV.replace("billing\n", "billing|refund\n") + "one,\ntwo,  \nthree,[]\n"),
        ("a.jsonl", rows_of(*["a|b", "b", "a"] * 2, "a", "b", None, "", [])),
    ],
)
def test_no_label_is_no_answer_and_a_list_of_none_is_one(name: str, content: str) -> None:
    done = new(name, content)
    assert done.exit_code == 0 and "\n      1 text with an empty list of labels" in done.stdout
    task, data = project()
    assert task.kind == "multilabel" and len(data.unlabelled) == 2
    assert [one.label for one in data.labelled + data.test].count("") == 1


def test_an_export_whose_labels_are_called_otherwise_says_that_none_applies() -> None:
    names: list[list[str]] = [["a", "b"], ["a"], []]
    rows = [{"id": n, "text": f"parcel {n}", "cats": names[n % 3]} for n in range(9)]
    content = "".join(json.dumps(row) + "\n" for row in rows)
    assert new("doccano.jsonl", content, "--label-column", "cats").exit_code == 0
    task, data = project()
    assert task.kind == "multilabel" and not data.unlabelled


def test_labels_that_differ_in_blanks_are_one() -> None:
    rows = "".join(f"parcel {n},{'a ' if n % 3 else 'a'}\nbill {n}, b\n" for n in range(4))
    assert new("a.csv", f"text,label\n{rows}x, \n").exit_code == 0
    task, data = project()
    assert task.labels == ("a", "b") and [one.text for one in data.unlabelled] == ["x"]


def test_a_conversation_is_for_a_causal_base(smollm2: Path) -> None:
    content = "".join(json.dumps(one) + "\n" for one in TURNS)
    refused = new("turns.jsonl", content)
    assert refused.exit_code == 2 and "or give another --base" in refused.stderr
    assert new("turns.jsonl", content, "--base", str(smollm2)).exit_code == 0
    task, data = project()
    assert task.kind == "chat" and (len(data.labelled), len(data.test)) == (5, 1)
    readme = Path("mine/README.md").read_text()
    assert f"generate --adapter alone --base {smollm2}" in readme


def test_a_base_of_any_name_is_one_that_create_reads(tiny_base: Base, here: Path) -> None:
    pytest.importorskip("fastapi")
    folder = shutil.copytree(tiny_base.folder, here / "base 🐟\x7f")
    task = "text,label\n" + "".join(f"{n},{('weather', 'mail')[n % 2]}\n" for n in range(8))
    assert new("a.csv", task, "--base", str(folder)).exit_code == 0
    done = smidgen("coordinator", "create", "mine/run.toml", "--store", "store")
    assert done.exit_code == 0, done.stderr


def test_texts_that_are_tested_on_are_in_no_other_part() -> None:
    rows = "".join(f"{' Pp'[n % 3]}arcel {n % 5},{TOPICS[n % 5 % 2]}\n" for n in range(45))
    rows += "".join(f'"PARCEL {n} ",\n' for n in range(9))
    assert new("twice.csv", f"text,label\n{rows}").exit_code == 0
    _, data = project()
    parts = [
        {one.text.strip().casefold() for one in part}
        for part in (data.labelled, data.test, data.unlabelled)
    ]
    assert not parts[0] & parts[1] and not parts[1] & parts[2] and "parcel 8" in parts[2]


def test_a_share_of_texts_of_several_labels_is_tested_on_however_these_are_combined() -> None:
    labels = [[f"l{n % 8}", f"l{(n + k) % 8}"] for k in range(1, 4) for n in range(8)]
    assert new("a.jsonl", rows_of(*labels)).exit_code == 0
    assert len(project()[1].test) == 6


def test_no_text_to_test_on_is_told() -> None:
    done = new("a.csv", "text,label\none,a\ntwo,b\nthree,b\n")
    assert done.exit_code == 0 and "nothing to test on: each 4th text" in done.stdout


def test_columns_are_named_and_rows_that_are_left_out_are_told() -> None:
    rows = "".join(f"m {n};{TOPICS[n % 2]}\n" for n in range(8))
    text = f"body;topic\n{rows}m;x;y\n"
    done = new("mail.csv", text, "--text-column", "body", "--label-column", "topic")
    assert done.exit_code == 0 and project()[0].labels == TOPICS


BAD = {
    "nothing": ("no.csv", None, "--from no.csv: there is no such file"),
    "empty": ("a.csv", "", "--from a.csv holds no labelled texts; a table with columns text,label"),
    "no label": ("a.csv", "text,stars\nx,1\n", "no column `label`; found text, stars"),
    "texts alone": ("a.txt", "x\ny\n", "a.txt holds 2 texts, and nobody has labelled"),
    "one label": (
        "a.csv",
        "text,label\nx,1\ny,1\n",
        "different labels; change the labels in --from FILE\n",
    ),
    "no answers": ("a.json", json.dumps([studio("x")] * 2), "holds 2 texts, and nobody has"),
    "empty labels": ("a.csv", "text,label\nx,\n", "holds 1 text, and nobody has labelled any"),
    "not JSON": ("a.json", "[{", "not JSON"),
    "an unknown word": ("a.csv", "text,label\nx,🐟\ny,cat\n", "is unknown to this base's"),
    "an ending": ("a.xyz", "x", "expected"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_nothing_is_written(case: str, here: Path) -> None:
    name, content, said = BAD[case]
    if content is not None:
        (here / name).write_text(content, encoding="utf-8")
    done = smidgen("new", "mine", "--from", name)
    assert done.exit_code == 2 and said in done.stderr and done.stderr.count("\n") == 1
    assert [one.name for one in here.iterdir()] == [name] * (content is not None)


def test_texts_are_closed_to_others(here: Path) -> None:
    os.umask(0o022)
    assert new("data.csv", FILES["data.csv"][0]).exit_code == 0
    assert [*open_to_others(here / "mine")] == []


def test_nothing_is_overwritten(here: Path) -> None:
    for kept in (here / "mine", here / "link"):
        kept.mkdir() if kept.name == "mine" else kept.symlink_to("nowhere")
        done = smidgen("new", kept.name)
        assert done.exit_code == 2 and "is already there; give another name" in done.stderr
    assert not list((here / "mine").iterdir())


def test_a_name_is_that_of_a_run_and_options_are_of_a_file(here: Path) -> None:
    assert "cannot name a run" in smidgen("new", "x" * 70).stderr
    assert "cannot name a run" in smidgen("new", "..").stderr
    assert "describe --from FILE" in smidgen("new", "mine", "--delimiter", ";").stderr
    assert not list(here.iterdir())
