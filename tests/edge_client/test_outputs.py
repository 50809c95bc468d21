"""Where a command writes to: refused before the work, or in place as a whole after it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from smidgen.edge_client import outputs
from smidgen.edge_client.errors import Failed
from smidgen.edge_client.outputs import (
    OutputError,
    check_out_file,
    check_out_folder,
    check_out_parent,
    home_folder,
    new_file,
    new_folder,
)
from tests.command_line import homeless

MARK, MINE = "mark.json", ("weights",)
FROM_HERE = os.environ | {"PYTHONPATH": str(Path(outputs.__file__).parents[2])}


def ours(folder: Path, body: str = "old") -> Path:
    folder.mkdir(parents=True)
    (folder / MARK).write_text(body)
    (folder / "weights").write_text(body)
    return folder


def write(folder: Path, body: str) -> None:
    with new_folder("--out", folder, MARK, MINE) as part:
        (part / MARK).write_text(body)
        (part / "weights").write_text(body)


def read(folder: Path) -> set[str]:
    return {path.read_text() for path in folder.iterdir()}


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_new_an_empty_and_an_own_folder_are_written(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    ours(tmp_path / "own")
    for name in ("new", "empty", "own", "far/below"):
        write(tmp_path / name, "new")
        assert read(tmp_path / name) == {"new"}
        assert [path.name for path in (tmp_path / name).parent.glob(".*")] == []


def test_a_folder_of_other_things_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (ours(tmp_path / "mixed") / "letters.txt").write_text("mine")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "weights").write_text("PEFT's own")
    for name, thing in (("mixed", "letters.txt"), ("other", "weights")):
        with pytest.raises(OutputError, match=f"holds other things, such as {thing}"):
            write(tmp_path / name, "new")
        assert "new" not in read(tmp_path / name)


@pytest.mark.parametrize("below", ["", "/below", "/far/below"])
def test_a_file_in_the_way_is_named(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"file is a file; a folder is expected"):
        check_out_folder("--out", Path(f"{tmp_path}/file{below}"), MARK)


@pytest.mark.parametrize("name", ["x" * 300, "x" * 250, f"far/{'x' * 300}/below"])
def test_a_name_that_no_disk_takes_is_refused_before_the_work(tmp_path: Path, name: str) -> None:
    with pytest.raises(OutputError, match="File name too long"):
        check_out_folder("--out", tmp_path / name, MARK)
    with pytest.raises(OutputError, match="File name too long"):
        check_out_file("--out", tmp_path / name)


def test_looking_makes_nothing(tmp_path: Path) -> None:
    check_out_folder("--out", tmp_path / "far" / "below", MARK)
    check_out_file("--out", tmp_path / "far" / "below.csv", (".csv",))
    assert not list(tmp_path.iterdir())


def cut_folder(folder: Path) -> None:
    with new_folder("--out", folder, MARK, MINE) as part:
        (part / MARK).write_text("new")
        raise KeyboardInterrupt


def cut_file(path: Path) -> None:
    with new_file("--out", path) as text:
        text.write("new")
        raise KeyboardInterrupt


def test_work_that_is_cut_leaves_the_old(tmp_path: Path) -> None:
    own, file = ours(tmp_path / "own"), tmp_path / "a.csv"
    file.write_text("old")
    with pytest.raises(KeyboardInterrupt):
        cut_folder(own)
    with pytest.raises(KeyboardInterrupt):
        cut_file(file)
    assert read(own) == {"old"} and file.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "own"]


def test_folders_that_cannot_be_exchanged_in_one_step_are_in_two(tmp_path: Path) -> None:
    own, part = ours(tmp_path / "own"), ours(tmp_path / ".part", "new")
    outputs._replace(part, own)
    assert read(own) == {"new"} and read(part) == {"old"}


def test_a_link_to_a_folder_stays_a_link(tmp_path: Path) -> None:
    ours(tmp_path / "own")
    (tmp_path / "link").symlink_to(tmp_path / "own")
    write(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and read(tmp_path / "own") == {"new"}


def fill_the_disk(folder: Path) -> None:
    with new_folder("--out", folder, MARK):
        Path("/dev/full").write_text("x" * 99)


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(Failed, match=r"--out .*own cannot be written: No space left"):
        fill_the_disk(tmp_path / "own")
    assert not list(tmp_path.iterdir())


def test_a_file_has_one_of_the_endings(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"ends in \.csv or \.jsonl is expected"):
        check_out_file("--out", tmp_path / "a.txt", (".csv", ".jsonl"))
    with pytest.raises(OutputError, match="is a folder"):
        check_out_file("--out", tmp_path)


WRITE = """
import sys
from pathlib import Path
from smidgen.edge_client.outputs import new_folder
with new_folder("--out", Path(sys.argv[1]), "mark.json", ("weights", "old")) as part:
    (part / "mark.json").write_text("new")
    (part / "weights").write_text("new")
"""
MOUNTS = ["mount -t tmpfs none own", "mount --bind other own", "cp -r own k; mount --bind k own"]


@pytest.mark.parametrize("mount", MOUNTS)
def test_a_mount_point_is_filled(tmp_path: Path, mount: str) -> None:
    alone = ["unshare", "--map-root-user", "--mount"]
    try:
        subprocess.run([*alone, "mount", "-t", "tmpfs", "none", tmp_path], check=True, timeout=60)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this system lets nobody mount here")
    (ours(tmp_path / "own") / "old").write_text("old")
    (tmp_path / "other").mkdir()
    script = f'{mount} && "{sys.executable}" -c "$0" own && ls -A own && cat own/*'
    command = [*alone, "sh", "-c", script, WRITE]
    done = subprocess.run(
        command, cwd=tmp_path, env=FROM_HERE, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("mark.json\nweights\nnewnew", "")
    assert names(tmp_path) - {"k"} == {"other", "own"}


# Root, too, is asked for permissions: without its capabilities (of all numbers, none is set).
AS_A_USER = """
import ctypes, struct
assert ctypes.CDLL(None).capset(struct.pack("Ii", 0x20080522, 0), bytes(24)) == 0
"""


def test_a_folder_of_ours_below_one_that_is_not_is_filled(tmp_path: Path) -> None:
    above = tmp_path / "above"
    own = ours(above / "own")
    above.chmod(0o555)
    try:
        done, refused = (
            subprocess.run(
                [sys.executable, "-c", AS_A_USER + WRITE, path],
                env=FROM_HERE,
                capture_output=True,
                text=True,
                timeout=60,
            )
            for path in (own, above / "absent")
        )
    finally:
        above.chmod(0o755)
    assert done.stderr == "" and read(own) == {"new"} and names(own) == {MARK, *MINE}
    assert f"{above} cannot be written to" in refused.stderr


def test_the_folder_that_the_shell_is_in_stays_the_same_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    before = Path().stat().st_ino
    for body in ("first", "second"):
        write(Path(), body)
        assert read(Path()) == {body}
    assert Path().stat().st_ino == (tmp_path / "here").stat().st_ino == before
    assert names(tmp_path) == {"here"}


def test_a_folder_whose_filling_was_cut_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = ours(tmp_path / "own")
    (own / MARK).rename(own / "kept")
    (own / f"{outputs.INSIDE}1").mkdir()
    (own / "kept").rename(own / f"{outputs.INSIDE}1" / MARK)
    monkeypatch.chdir(own)
    write(own, "new")
    assert (own / MARK).read_text() == (own / "weights").read_text() == "new"


def meet_a_file(folder: Path) -> None:
    with new_folder("--out", folder, MARK, MINE) as part:
        (part / MARK).write_text("new")
        folder.write_text("of another program")


def test_what_cannot_be_put_in_place_is_kept_and_named(tmp_path: Path) -> None:
    part = tmp_path / f".own.part-{os.getpid()}"
    with pytest.raises(Failed, match=f"cannot be written: .*; what was written is kept in {part}"):
        meet_a_file(tmp_path / "own")
    assert (part / MARK).read_text() == "new"


def test_the_old_that_a_killed_process_set_aside_is_put_back(tmp_path: Path) -> None:
    for number in (7, 8):
        ours(tmp_path / f".own.old-{number}", str(number))
        os.utime(tmp_path / f".own.old-{number}", (number, number))
    check_out_folder("--out", tmp_path / "own", MARK, MINE)
    assert read(tmp_path / "own") == {"8"}
    write(tmp_path / "own", "new")
    assert read(tmp_path / "own") == {"new"} and read(tmp_path / ".own.old-7") == {"7"}


def write_file(path: Path, body: str) -> None:
    with new_file("--out", path) as file:
        file.write(body)


# Of streams that are the test's own: were they replaced, nothing of the machine would be.
def test_a_pipe_is_written_to_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "link").symlink_to(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    for name in ("pipe", "link"):
        write_file(tmp_path / name, "new")
        assert os.read(reader, 99) == b"new" and pipe.is_fifo()
    os.close(reader)
    assert names(tmp_path) == {"pipe", "link"}
    assert outputs._is_stream(Path("/dev/null"))


def test_standard_output_is_written_to(tmp_path: Path) -> None:
    script = "from smidgen.edge_client.outputs import *; from pathlib import Path\n"
    script += 'with new_file("--out", Path("stdout")) as file: file.write("new")'
    (tmp_path / "stdout").symlink_to("/proc/self/fd/1")  # as /dev/stdout is
    command = [sys.executable, "-c", script]
    done = subprocess.run(
        command, cwd=tmp_path, env=FROM_HERE, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("new", "")
    assert (tmp_path / "stdout").is_symlink()


def test_a_link_to_a_file_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    for name in ("there", "not-yet"):
        (tmp_path / "far" / "there").write_text("old")
        (tmp_path / name).symlink_to(tmp_path / "far" / name)
        write_file(tmp_path / name, "new")
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / "far" / name).read_text() == "new"
    assert names(tmp_path / "far") == {"there", "not-yet"}


def test_a_file_of_somebodys_own_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "labelled.csv").write_text("text,label\nrain,weather\n")
    with pytest.raises(OutputError, match=r"labelled\.csv is there and was not written by this"):
        check_out_file("--out", tmp_path / "labelled.csv", sign="confidence")
    (tmp_path / "ours.csv").write_text("text,label,confidence\nrain,weather,0.9\n")
    (tmp_path / "empty.csv").write_text("")
    for name in ("ours.csv", "empty.csv", "new.csv"):
        check_out_file("--out", tmp_path / name, sign="confidence")


def test_the_root_is_refused_in_one_line() -> None:
    with pytest.raises(OutputError, match=r"^--out / is the root folder; give a place below it$"):
        check_out_parent("--out", Path("/"))


def test_the_folder_of_another_name_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for name in (".", "..", "../new"):
        check_out_parent("--out", Path(name))


def test_a_user_without_a_home_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert home_folder("set HOME") == Path("/home/me")
    with homeless(), pytest.raises(OutputError, match=r"^this user has no home folder; set HOME$"):
        home_folder("set HOME")
