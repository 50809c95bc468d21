import csv
import gzip
import io
import json
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from pathlib import Path

import pytest

from smidgen import main
from smidgen.edge_client.api import labeller as room
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.tasks import scores
from smidgen.edge_client.tasks.kinds.classification import answers
from smidgen.edge_client.texts.accounting import Accounting
from smidgen.edge_client.texts.examples import Example, Found
from tests.command_line import Done, smidgen
from tests.edge_client.commands.alone import PAIRS, client, refused, train, write_data

TEXTS = ["rain at nine", "the front door", "storm and rain"]


@pytest.fixture(scope="module")
def adapter(tiny_base: Base, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("predict")
    assert train(tiny_base, write_data(folder / "data"), folder / "out").exit_code == 0
    return folder / "out"


def predict(base: Base, adapter: Path, *arguments: object) -> Done:
    return client("predict", base, "--adapter", adapter, *arguments)


def given(base: Base, adapter: Path, *texts: str) -> dict[str, list[object]]:
    """What is said of texts of the command line."""
    done = predict(base, adapter, *texts, "--json")
    answer: dict[str, list[object]] = json.loads(done.stdout.splitlines()[-1])
    return answer


FILES = {
    "a.csv": "text,id\n" + "".join(f"{text},{n}\n" for n, text in enumerate(TEXTS)),
    "a.tsv": "id\ttext\n" + "".join(f"{n}\t{text}\n" for n, text in enumerate(TEXTS)),
    "a.jsonl": "".join(json.dumps({"id": n, "text": t}) + "\n" for n, t in enumerate(TEXTS)),
    "a.txt": "\n".join(TEXTS),
}
ALL = {"rows": 3, "read": 3, "left_out": {}}


@pytest.mark.few
@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("name", FILES)
def test_a_file_gives_what_its_texts_give(
    tiny_base: Base, adapter: Path, tmp_path: Path, name: str, is_packed: bool
) -> None:
    file, body = tmp_path / name, FILES[name].encode()
    if is_packed:
        file, body = tmp_path / f"{name}.gz", gzip.compress(body)
    file.write_bytes(body)
    found = json.loads(predict(tiny_base, adapter, "--file", file, "--json").stdout)
    assert found == given(tiny_base, adapter, *TEXTS) | {"left_out": [], "rows": ALL}


@pytest.mark.few
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
@pytest.mark.parametrize("words", [["-"], ["--file", "-"]])
def test_stdin_gives_what_its_texts_give(
    tiny_base: Base, adapter: Path, monkeypatch: pytest.MonkeyPatch, name: str, words: list[str]
) -> None:
    stdin = io.TextIOWrapper(io.BufferedReader(io.BytesIO(FILES[name].encode())))
    monkeypatch.setattr(sys, "stdin", stdin)
    found = json.loads(predict(tiny_base, adapter, *words, "--json").stdout)
    assert found == given(tiny_base, adapter, *TEXTS) | {"left_out": [], "rows": ALL}


def test_a_csv_of_answers_has_ids_texts_and_each_labels_probability(
    tiny_base: Base, adapter: Path, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text(FILES["a.csv"])
    out = tmp_path / "far" / "out.csv"
    done = predict(tiny_base, adapter, "--file", tmp_path / "a.csv", "--out", out)
    assert done.stdout == f"3 texts labelled, written to {out}\n"
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == ["0", "1", "2"]
    assert [row["text"] for row in rows] == TEXTS
    assert [row["label"] for row in rows] == given(tiny_base, adapter, *TEXTS)["labels"]
    for row in rows:
        shares = [float(row["p(security)"]), float(row["p(weather)"])]
        assert sum(shares) == pytest.approx(1, abs=1e-5)
        assert max(shares) == pytest.approx(float(row["confidence"]), abs=1e-4)


def test_objects_of_answers_read_back_as_texts(
    tiny_base: Base, adapter: Path, tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_text(FILES["a.jsonl"])
    out = tmp_path / "out.jsonl"
    predict(tiny_base, adapter, "--file", tmp_path / "a.jsonl", "--out", out)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["id"], row["text"]) for row in rows] == list(zip("012", TEXTS, strict=True))
    assert set(rows[0]["probabilities"]) == {"security", "weather"}


def test_many_texts_are_labelled_piece_by_piece_in_their_order(
    tiny_base: Base, adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = given(tiny_base, adapter, *TEXTS * 3)["labels"]
    (tmp_path / "a.txt").write_text("\n".join(TEXTS * 3))
    for limit, value in (("PIECE_TEXTS", 2), ("PIECE_CHARACTERS", 30)):
        monkeypatch.setattr(scores, limit, value)
        found = predict(tiny_base, adapter, "--file", tmp_path / "a.txt", "--json").stdout
        assert json.loads(found)["labels"] == whole


def test_no_more_texts_are_read_than_are_labelled_at_once(
    tiny_base: Base, adapter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scores, "PIECE_TEXTS", 2)
    base, taken = str(tiny_base.folder), list[int]()
    labeller = room.open_labeller(adapter, None, base, "onnx", "auto")

    def texts() -> Iterator[Found]:
        for line in range(1, 10**9):
            taken.append(line)
            yield Found(line, {}, Example("rain"))

    found = answers(labeller, texts(), Accounting())
    assert [next(found).found.line for _ in range(4)] == [1, 2, 3, 4] == taken


def test_rows_without_a_text_are_left_out_by_number(
    tiny_base: Base, adapter: Path, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_bytes(b"text\nrain\n \na\0b\n\xe9\nstorm\n")
    done = predict(tiny_base, adapter, "--file", tmp_path / "a.csv", "--json")
    assert json.loads(done.stdout)["left_out"] == [3, 4, 5]
    assert "3 of 5 rows left out (2 unreadable, 1 empty): line 4: a NUL byte" in done.stderr
    (tmp_path / "a.csv").write_text("text\n \n")
    said = refused(predict(tiny_base, adapter, "--file", tmp_path / "a.csv"))
    assert "holds no text to read: 1 of 1 row left out (1 empty)" in said


def test_an_empty_text_is_refused_by_its_number(tiny_base: Base, adapter: Path) -> None:
    assert "text 2 is empty" in refused(predict(tiny_base, adapter, "rain", " "))


def test_a_path_is_no_text(tiny_base: Base, adapter: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    assert predict(tiny_base, adapter, str(file), "x" * 300 + ".txt").exit_code == 0
    file.write_text("rain")
    said = refused(predict(tiny_base, adapter, "rain", str(file)))
    assert f"text 2 is a path; --file {file} reads a file" in said
    assert "text 1 is a path" in refused(predict(tiny_base, adapter, str(tmp_path)))


def test_no_text_writes_to_the_terminal(tiny_base: Base, adapter: Path) -> None:
    done = predict(tiny_base, adapter, "rain\x1b[31m at\r\n nine\u202e", "می\u200cخواهم")
    first, second = done.stdout.splitlines()
    assert first.endswith("rain?[31m at nine?") and second.endswith("می\u200cخواهم")


def test_answers_do_not_replace_the_texts(tiny_base: Base, adapter: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text(FILES["a.csv"])
    said = refused(predict(tiny_base, adapter, "--file", file, "--out", file))
    assert "is the file that is read" in said and file.read_text() == FILES["a.csv"]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ((), "give texts, or --file"),
        (("rain", "--file", "a.txt"), "one of the two"),
        (("--file", "a.txt"), "--file a.txt: there is no such file"),
        (("rain", "--out", "a.txt"), "a name that ends in .csv or .jsonl is expected"),
        (("rain", "--delimiter", ";;"), "one character such as ; or tab"),
    ],
)
def test_wrong_use_is_one_line(
    tiny_base: Base, adapter: Path, words: tuple[str, ...], named: str
) -> None:
    assert named in refused(predict(tiny_base, adapter, *words))


def test_columns_are_looked_at_before_the_adapter(tiny_base: Base, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("grandma is ill,x\ny,z\n")
    said = refused(predict(tiny_base, tmp_path / "none", "--file", tmp_path / "a.csv"))
    assert "line 1 is not a header" in said and "grandma" not in said


def test_pairs_come_from_files(tiny_base: Base, tmp_path: Path) -> None:
    (tmp_path / "task.toml").write_text(PAIRS)
    task, file = ("--task", tmp_path / "task.toml"), tmp_path / "a.csv"
    file.write_text("text_a,text_b\nrain,storm\nrain,\n")
    out = tmp_path / "out.csv"
    done = client("predict", tiny_base, "--file", file, "--out", out, *task)
    assert "line 3: no text_b, which the task's patterns ask for" in done.stderr
    with out.open(newline="") as written:
        row, empty = csv.DictReader(written)
    assert (row["text"], row["text_b"]) == ("rain", "storm")
    assert not any(empty.values())
    said = refused(client("predict", tiny_base, "rain", *task))
    assert "asks of two texts; give --file with text_a and text_b" in said


def test_a_pair_is_not_its_halves_alone(tiny_base: Base, tmp_path: Path) -> None:
    (tmp_path / "task.toml").write_text(PAIRS)
    (tmp_path / "a.jsonl").write_text(
        '{"text_a": "rain", "text_b": "storm"}\n{"text_a": "rain", "text_b": "the door"}\n'
    )
    words = ("--file", tmp_path / "a.jsonl", "--task", tmp_path / "task.toml", "--json")
    one, other = json.loads(client("predict", tiny_base, *words).stdout)["log_probabilities"]
    assert one != other


def test_letters_that_the_terminal_lacks_are_told_by_number(tiny_base: Base, adapter: Path) -> None:
    words = ["--base", str(tiny_base.folder), "--adapter", str(adapter), "\u65e5 caf\xe9"]
    written = io.BytesIO()
    out = io.TextIOWrapper(written, "latin-1", write_through=True)
    with redirect_stdout(out), suppress(SystemExit):
        main(["client", "predict", *words])
    assert written.getvalue().endswith(b"  \\u65e5 caf\xe9\n")


def test_a_folder_without_an_adapter_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "labelled.csv").write_text("text,label\n")
    done = smidgen("client", "predict", "--adapter", str(tmp_path), "x")
    assert done.exit_code == 2 and done.stderr.count("\n") == 1
    assert f"--adapter {tmp_path} holds no adapter (no adapter_config.json)" in done.stderr
