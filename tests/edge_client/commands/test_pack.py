import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from smidgen.edge_client.bases.base import Base, open_base
from smidgen.edge_client.bases.manifest import partial_folder
from tests.command_line import smidgen as in_process

ROOT = Path(__file__).parents[3]


def smidgen(*arguments: object, prefix: str = "") -> "subprocess.CompletedProcess[str]":
    line = [sys.executable, "-m", "smidgen", "pack", *map(str, arguments)]
    if prefix:
        line = ["sh", "-c", f'{prefix}; exec "$@"', "sh", *line]
    return subprocess.run(line, capture_output=True, text=True, cwd=ROOT, check=False)


def refused(code: int, *arguments: object, prefix: str = "") -> str:
    """The one line a wrong call ends in."""
    if prefix:
        process = smidgen(*arguments, prefix=prefix)
        ended, said = process.returncode, process.stderr
    else:
        done = in_process("pack", *map(str, arguments))
        ended, said = done.exit_code, done.stderr
    assert ended == code, said
    lines = said.splitlines()
    assert len(lines) == 1 and lines[0].startswith("smidgen pack: "), said
    return lines[0]


def test_the_last_line_is_one_json_object(tmp_path: Path) -> None:
    done = smidgen("embedded", "--bits", 4, "--out", tmp_path / "p", "--json")
    assert done.returncode == 0 and done.stderr == ""
    result = json.loads(done.stdout.splitlines()[-1])
    base = open_base(str(tmp_path / "p"))
    files = {p for p in (tmp_path / "p").iterdir() if p.name != "manifest.json"}
    elapsed_s = result.pop("elapsed_s")
    assert 0 < elapsed_s < 60
    assert result == {
        "pack": str(tmp_path / "p"),
        "pack_id": base.base_id,
        "bytes": sum(p.stat().st_size for p in files),
        "bits": 4,
        "architecture": "bert",
        "parameters": 5_726_816,
        "warnings": [],
    }


def test_people_read_a_short_summary_and_the_same_pack_is_no_error(tmp_path: Path) -> None:
    arguments = ("--random", "albert-base", "--bits", 8, "--out", tmp_path / "p", "--seed", 7)
    first, second = smidgen(*arguments), smidgen(*arguments)
    assert first.returncode == second.returncode == 0
    assert "albert-base (albert)" in first.stdout and "11.2 M in 8 bits" in first.stdout
    assert re.search(r"^size +[0-9.]+ MiB$", first.stdout, re.MULTILINE), first.stdout
    assert "(was there, the very same)" in second.stdout
    assert open_base(str(tmp_path / "p")).base_id in second.stdout


@pytest.mark.slow
def test_on_a_terminal_a_bar_is_drawn_on_stderr(tmp_path: Path) -> None:
    try:
        ours, theirs = pty.openpty()
    except OSError as error:
        pytest.skip(f"no terminal to be had here: {error}")
    line = [sys.executable, "-m", "smidgen", "pack", "bert-base", "--random", "--bits", "4"]
    with subprocess.Popen(
        [*line, "--out", str(tmp_path / "p"), "--json"],
        stdout=subprocess.PIPE,
        stderr=theirs,
        cwd=ROOT,
        env={**os.environ, "TERM": "xterm"},
    ) as process:
        os.close(theirs)
        drawn = b""
        try:
            while part := os.read(ours, 65536):
                drawn += part
        except OSError:  # the other end is closed
            pass
        assert process.stdout is not None
        assert json.loads(process.stdout.read())["bits"] == 4
    os.close(ours)
    shutil.rmtree(tmp_path / "p")
    assert b"packing" in drawn and b"%" in drawn


def test_a_model_of_the_hub_is_packed_from_its_cache(tiny_base: Base, tmp_path: Path) -> None:
    model = tmp_path / "hub" / "models--some--model"
    shutil.copytree(tiny_base.folder, model / "snapshots" / "abc")
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text("abc")
    offline = f"export HF_HUB_OFFLINE=1 HF_HUB_CACHE={tmp_path / 'hub'}"
    out = tmp_path / "p"
    done = smidgen("some/model", "--bits", 8, "--out", out, "--licence", "mit", prefix=offline)
    assert done.returncode == 0, done.stderr
    manifest = open_base(str(out)).manifest
    assert manifest is not None and (manifest.name, manifest.licence) == ("some/model", "mit")
    said = refused(2, "no/model", "--bits", 8, "--out", tmp_path / "q", prefix=offline)
    assert "no folder no/model, nor is it in the hub's cache, and HF_HUB_OFFLINE is set" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["embedded", "--bits", 5], "--bits 5 is not one of 4, 8, 16"),
        (["./nowhere", "--bits", 4], "no base at ./nowhere; give a folder, a hub name or"),
        (["bert-huge", "--random", "--bits", 4], "no shape 'bert-huge'; one of albert-base,"),
        (
            ["bert-base", "--random", "--bits", 4, "--licence", "mit"],
            "--licence is of real weights; random ones need none",
        ),
    ],
)
def test_a_wrong_call_is_one_line(tmp_path: Path, arguments: list[object], said: str) -> None:
    assert said in refused(2, *arguments, "--out", tmp_path / "p")
    assert list(tmp_path.iterdir()) == []


def test_a_model_of_no_known_family_is_one_line(tiny_base: Base, tmp_path: Path) -> None:
    model = Path(shutil.copytree(tiny_base.folder, tmp_path / "model"))
    config = json.loads((model / "config.json").read_text()) | {"model_type": "mamba"}
    (model / "config.json").write_text(json.dumps(config))
    said = refused(2, model, "--bits", 8, "--out", tmp_path / "p")
    assert "architecture 'mamba' is not known here; expected one of albert, bert," in said


def test_broken_weights_are_one_line(tiny_base: Base, tmp_path: Path) -> None:
    model = Path(shutil.copytree(tiny_base.folder, tmp_path / "model"))
    os.truncate(model / "model.safetensors", 1000)
    said = refused(2, model, "--bits", 8, "--out", tmp_path / "p")
    assert "model.safetensors" in said and "copy the file again" in said


def test_a_taken_place_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    said = refused(2, "embedded", "--bits", 4, "--out", tmp_path / "p")
    assert "exists and is not a pack; choose another folder or delete it" in said


def test_a_place_below_a_file_is_one_line_before_the_model_is_looked_for(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = refused(2, "./nowhere", "--bits", 8, "--out", tmp_path / "file" / "p")
    assert f"{tmp_path / 'file'} is a file; a folder is expected" in said


def test_no_room_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    out = tmp_path / "p"
    said = refused(1, "embedded", "--bits", 8, "--out", out, prefix="ulimit -f 1000")
    assert f"--out {out} could not be written: File too large" in said
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_leaves_nothing_and_says_so(tmp_path: Path) -> None:
    out = tmp_path / "p"
    line = [sys.executable, "-m", "smidgen", "pack", "bert-base", "--random", "--bits", "4"]
    process = subprocess.Popen(
        [*line, "--out", str(out)], stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    deadline = time.monotonic() + 60
    while not (partial_folder(out, process.pid) / "weights.safetensors").exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said == "smidgen pack: stopped; nothing is left of the attempt\n"
    assert list(tmp_path.iterdir()) == []


def test_the_current_folder_is_one_line_and_the_same_pack_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (".", ".."):
        done = in_process("pack", "embedded", "--bits", "8", "--out", name)
        assert done.exit_code == 2 and done.stderr.count("\n") == 1
        assert f"--out {name} exists and is not a pack; choose another folder" in done.stderr
    assert in_process("pack", "embedded", "--bits", "8", "--out", "p").exit_code == 0
    monkeypatch.chdir(tmp_path / "p")
    done = in_process("pack", "embedded", "--bits", "8", "--out", ".")
    assert done.exit_code == 0 and "(was there, the very same)" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["p"]


def test_the_root_is_one_line() -> None:
    done = in_process("pack", "embedded", "--bits", "8", "--out", "/")
    said = "smidgen pack: --out / is the root folder; give a place below it\n"
    assert (done.exit_code, done.stderr) == (2, said)
