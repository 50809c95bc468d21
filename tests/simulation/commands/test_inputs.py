"""No command writes over what it reads, nor over anybody's own files."""

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("rich")

from smidgen.simulation.commands.demo import cleared
from tests.command_line import Done, smidgen

TASK = 'name = "t"\nlabels = ["a", "b"]\npatterns = ["[MASK] : {text}"]\n'


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A folder with texts, their task and something else."""
    folder = tmp_path / "own"
    folder.mkdir()
    rows = [f"text {number},{'ab'[number % 2]}" for number in range(40)]
    (folder / "train.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    (folder / "task.toml").write_text(TASK)
    (folder / "README.md").write_text("mine\n")
    return folder


def held(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def refused(done: Done, said: str) -> None:
    assert done.exit_code == 2 and said in done.stderr and done.stderr.count("\n") == 1, done


def test_a_data_set_is_written_over_nothing_of_ones_own(own: Path, tmp_path: Path) -> None:
    before = held(own)
    line = ("simulate", "data", "--train", str(own / "train.csv"), "--task", str(own / "task.toml"))
    refused(smidgen(*line, "--out", str(own)), "which is read; name another folder")
    other = tmp_path / "other"
    other.mkdir()
    (other / "letter.txt").write_text("mine\n")
    refused(smidgen(*line, "--out", str(other)), "holds other things, such as letter.txt")
    for _ in range(2):  # its own is replaced
        assert smidgen(*line, "--out", str(tmp_path / "set")).exit_code == 0
    again = ("simulate", "data", f"folder:{tmp_path / 'set'}", "--out", str(tmp_path / "set"))
    refused(smidgen(*again), "which is read; name another folder")
    assert held(own) == before


def test_an_earlier_demo_stays_where_a_new_one_cannot_be_made(own: Path, tmp_path: Path) -> None:
    out = tmp_path / "demo"
    out.mkdir()
    (out / ".smidgen-demo").write_text("")
    (out / "adapter").write_text("an earlier one's")
    (out / "texts.csv").write_bytes((own / "train.csv").read_bytes())
    before = held(out)
    line = ("demo", "--task", str(own / "task.toml"), "--out", str(out), "--data")
    refused(smidgen(*line, str(own / "typo.csv")), "typo.csv")
    refused(smidgen(*line, str(out / "texts.csv")), "which is read; name another folder")
    refused(smidgen(*line, str(own / "train.csv"), "--labels", "40"), "no text to test on")
    assert held(out) == before
    assert cleared(out) == ["the earlier demo there is deleted; --out FOLDER keeps it"]
    assert cleared(tmp_path / "new") == []


def test_an_earlier_split_stays_where_a_new_one_cannot_be_made(own: Path, tmp_path: Path) -> None:
    out = tmp_path / "split"
    given = (str(own / "train.csv"), "--task", str(own / "task.toml"), "--out", str(out))
    assert smidgen("simulate", "split", *given, "--clients", "2").exit_code == 0
    before = sorted(out.rglob("*"))
    sites = own / "sites.csv"
    sites.write_text("text,label,site\nx,a,x/y\ny,b,z\n")
    line = ("simulate", "split", str(sites), "--by", "site", "--out", str(out))
    refused(smidgen(*line), "cannot name a folder")
    (out / "texts.csv").write_bytes(sites.read_bytes())
    refused(smidgen("simulate", "split", str(out / "texts.csv"), "--out", str(out)), "is read")
    (out / "texts.csv").unlink()
    assert sorted(out.rglob("*")) == before
