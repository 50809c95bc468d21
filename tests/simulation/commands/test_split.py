import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

from smidgen.edge_client.texts.examples import read_folder
from smidgen.edge_client.texts.parts import Labels
from tests.command_line import Done, smidgen

LANGUAGES = ("eng", "hau", "swa")
TASK = """
labels = ["a", "b"]
patterns = ["[MASK] : {text}"]
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rows = [f"text {i},{'ab'[i % 2]},{LANGUAGES[i % 3]},home {i % 5}" for i in range(120)]
    path = tmp_path / "train.csv"
    path.write_text(
        "\n".join(["text,label,language,home", *rows, ",a,eng,blank texts are left out"])
    )
    (tmp_path / "task.toml").write_text(TASK)
    return path


def run(*words: str | Path) -> Done:
    return smidgen("simulate", "split", *map(str, words))


def said(*words: str | Path) -> str:
    """The one line with which wrong input is refused."""
    result = run(*words)
    assert result.exit_code == 2 and not result.stdout
    (line,) = result.stderr.splitlines()
    return line.removeprefix("smidgen simulate: ")


@pytest.mark.slow
def test_clients_without_any_text_are_told_apart_from_those_that_hold_unlabelled_ones(
    data: Path,
) -> None:
    out = data.parent / "out"
    task = ("--task", data.parent / "task.toml", "--out", out)
    few = ("--labels", "1", "--labelled-clients", "1", "--clients", "3")
    alone = run(data, *task, *few)
    assert alone.exit_code == 0, alone.output
    assert "2 clients hold unlabelled texts alone" in " ".join(alone.stdout.split())
    result = run(data, *task, "--clients", "4", "--beta", "0.01", "--json")
    summary = json.loads(result.stdout.splitlines()[-1])
    empty = [one for one in out.iterdir() if one.is_dir() and not list(one.glob("*.csv"))]
    assert summary["clients_empty"] == len(empty) and summary["clients_unlabelled"] == 0
    assert f"{len(empty)} clients hold no text and cannot take" in " ".join(result.stderr.split())


@pytest.mark.slow
def test_few_shot_folders_hold_what_the_last_line_says(data: Path) -> None:
    out = data.parent / "out"
    few = ("--labels", "12", "--labelled-clients", "3", "--clients", "8", "--alpha", "1")
    task = ("--task", data.parent / "task.toml", "--test", data)
    result = run(data, *task, *few, "--out", out, "--json")
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout.splitlines()[-1])
    folders = sorted(path for path in out.iterdir() if path.is_dir())
    found = [read_folder(folder, Labels(("a", "b"))) for folder in folders]
    assert len(found) == summary["clients"] == 8
    assert [bool(client.labelled) for client in found] == [True] * 3 + [False] * 5
    assert sum(len(client.labelled) for client in found) == summary["labelled"] == 12
    assert sum(len(client.unlabelled) for client in found) == summary["unlabelled"] == 108
    assert sum(len(client.test) for client in found) == summary["test"] == 120
    assert summary["clients_unlabelled"] == 0
    assert Path(summary["picture"]).read_bytes().startswith(b"\x89PNG")


def test_a_language_is_a_silo_and_is_kept_in_the_files(data: Path) -> None:
    out = data.parent / "out"
    assert run(data, "--test", data, "--by", "language", "--out", out).exit_code == 0
    for language in LANGUAGES:
        silo = read_folder(out / language, Labels(("a", "b")))
        assert {example.language for example in (*silo.labelled, *silo.test)} == {language}
        assert len(silo.labelled) == len(silo.test) == 40


@pytest.mark.slow
def test_any_column_can_make_silos(data: Path) -> None:
    out = data.parent / "out"
    assert run(data, "--by", "home", "--out", out).exit_code == 0
    homes = sorted(path.name for path in out.iterdir() if path.is_dir())
    assert homes == [f"home {number}" for number in range(5)]
    assert len(read_folder(out / "home 3", Labels(("a", "b"))).labelled) == 24


@pytest.mark.slow
def test_several_files_are_one_set_and_the_same_twice(data: Path) -> None:
    outs = [data.parent / "x", data.parent / "y"]
    for out in outs:
        assert run(data, data, "--clients", "4", "--labels", "9", "--out", out).exit_code == 0
    files = [sorted(path.relative_to(out) for path in out.rglob("*.csv")) for out in outs]
    assert files[0] == files[1]
    for file in files[0]:
        assert (outs[0] / file).read_bytes() == (outs[1] / file).read_bytes()


@pytest.mark.slow
def test_clients_of_unlabelled_texts_alone_are_counted(data: Path) -> None:
    few = ("--clients", "6", "--labels", "4", "--labelled-clients", "2")
    result = run(data, *few, "--out", data.parent / "out")
    assert "4 clients hold unlabelled texts alone" in result.stdout


@pytest.mark.slow
def test_the_picture_may_go_into_a_folder_that_is_not_there(data: Path) -> None:
    picture = data.parent / "new" / "folder" / "p.png"
    assert run(data, "--out", data.parent / "out", "--picture", picture).exit_code == 0
    assert picture.is_file()


@pytest.mark.few(1)
@pytest.mark.parametrize(("name", "start"), [("p.pdf", b"%PDF"), ("picture", b"\x89PNG")])
def test_a_picture_is_in_the_format_of_its_name(data: Path, name: str, start: bytes) -> None:
    out = data.parent / "out"
    assert run(data, "--out", out, "--picture", out / "deep" / name).exit_code == 0
    assert (out / "deep" / name).read_bytes().startswith(start)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "why"), [("", "Is a directory"), ("train.csv/p", "File exists")])
def test_a_picture_that_cannot_be_written_is_named(data: Path, name: str, why: str) -> None:
    out, picture = data.parent / "out", data.parent / name
    assert run(data, "--clients", "9", "--out", out).exit_code == 0
    line = f"--picture {picture} cannot be written: {why}"
    assert said(data, "--out", out, "--picture", picture) == line
    assert len(list(out.rglob("labelled.csv"))) == 9  # the earlier split is left as it was


def test_its_own_folder_is_made_again_and_no_other(data: Path) -> None:
    out = data.parent / "out"
    assert run(data, "--clients", "9", "--out", out).exit_code == 0
    assert run(data, "--clients", "3", "--out", out).exit_code == 0
    assert len(list(out.rglob("labelled.csv"))) == 3
    assert (
        said(data, "--out", data.parent)
        == f"--out {data.parent} holds other files; name a new folder"
    )
    assert "is a file; name a new folder" in said(data, "--out", data)
    assert data.is_file()


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ("--labels 121", "--labels is 121; 1 to 120 expected, there are 120 training texts"),
        ("--labelled-clients 11", "--labelled-clients: 0 (all) to the 10 clients"),
        ("--gamma 0", "--gamma is 0; above 0, or inf"),
        ("--clients 0", "--clients: 1 to 1000000"),
        ("--by hospital", "no column 'hospital' to go --by; found text, label, language, home"),
        ("--by home --alpha 1", "--alpha has no effect with --by; leave one out"),
        ("--beta 1 --labelled-clients 2", "--labelled-clients has no effect with --beta"),
        ("--mixture 0.5", "--mixture needs --by, such as --by language"),
        ("--by home --mixture 2", "--mixture: 0 to 1"),
        ("--task none.toml", "no task file at none.toml"),
        ("--test none.csv", "none.csv cannot be read"),
    ],
)
def test_wrong_wishes_are_one_line_and_write_nothing(data: Path, options: str, line: str) -> None:
    out = data.parent / "out"
    assert line in said(data, *options.split(), "--out", out)
    assert not out.exists()


@pytest.mark.slow
def test_the_current_folder_is_filled(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (data.parent / "here").mkdir()
    monkeypatch.chdir(data.parent / "here")
    task = ("--task", data.parent / "task.toml", "--clients", "2")
    for _ in range(2):
        result = run(data, *task, "--out", ".")
        assert result.exit_code == 0, result.output
        assert len([path for path in Path().iterdir() if path.is_dir()]) == 2


def test_a_column_to_go_by_that_is_no_text_is_named_by_its_type(data: Path) -> None:
    rows = data.parent / "rows.jsonl"
    rows.write_text('{"text": "a", "label": "a", "home": ["x"]}\n')
    line = said(rows, "--by", "home", "--out", data.parent / "out")
    assert line.endswith("line 1: `home` is a list; a string is expected to go --by")
