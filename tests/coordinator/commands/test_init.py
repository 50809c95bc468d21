import json
import os
import shlex
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from smidgen.coordinator.storage.credentials import operator_of_token, tokens
from smidgen.coordinator.storage.store import Store
from smidgen.coordinator.trust.folder import draw_authority, folder_of, sign_server
from smidgen.edge_client.wire.pins import pin_of
from tests.command_line import smidgen
from tests.coordinator.trust.test_making import NOW
from tests.end_to_end.disturbed.wall_clock import WallClock


def test_init_lets_an_operator_in_and_create_prints_the_one_line_for_devices(
    tmp_path: Path,
) -> None:
    store = tmp_path / "store"
    done = smidgen("coordinator", "init", "--store", f"{store}", "--host", "pi.example")
    assert done.exit_code == 0 and "SMIDGEN_TOKEN" not in done.stdout
    ca = pin_of((folder_of(store) / "ca.pem").read_bytes())
    (said,) = [line for line in done.stdout.splitlines() if line.startswith("operator ")]
    with closing(Store(store)) as opened:
        found = operator_of_token(opened, said.split()[1])
        assert found is not None and found.role == "operator" and not tokens(opened.database)
    made = smidgen("coordinator", "create", "--store", f"{store}", "--task", "agnews")
    (line,) = [line for line in made.stdout.splitlines() if "SMIDGEN_TOKEN" in line]
    token, *words = shlex.split(line)
    assert words[:7] == [
        *("smidgen", "client", "run", "--coordinator", "https://pi.example:8700", "--ca", ca)
    ]
    assert words[7:] == ["--data", "FOLDER", "--until", "finished"] and token.startswith(
        "SMIDGEN_TOKEN=s"
    )


def test_init_says_that_create_is_next(tmp_path: Path) -> None:
    store = f"{tmp_path}/my fleet"
    said = smidgen("coordinator", "init", "--store", store).stdout
    assert f"next, here   smidgen coordinator create --store '{store}' --task TASK\n" in said


def test_init_says_the_same_for_machines(tmp_path: Path) -> None:
    done = smidgen("coordinator", "init", "--store", f"{tmp_path}/s", "--port", "9000", "--json")
    said = json.loads(done.stdout)
    assert said["url"].startswith("https://") and said["url"].endswith(":9000")
    assert {"localhost", "127.0.0.1", "::1"} < set(said["names"])
    assert said["operator_token"] and "token" not in said and "line" not in said


def test_a_second_init_is_told_to_renew_and_a_renewal_keeps_the_ca(tmp_path: Path) -> None:
    words = ("coordinator", "init", "--store", f"{tmp_path}/s", "--json")
    first = json.loads(smidgen(*words).stdout)
    again = smidgen(*words)
    assert again.exit_code == 2 and again.stderr.count("\n") == 1 and "--renew" in again.stderr
    renewed = json.loads(smidgen(*words, "--renew", "--days", "9").stdout)
    assert (renewed["ca"], renewed["url"]) == (first["ca"], first["url"])
    assert renewed["valid_until_s"] < first["valid_until_s"] and "token" not in renewed


def test_a_given_certificate_is_taken(tmp_path: Path) -> None:
    pair = sign_server(draw_authority(NOW), ["hub.example"], NOW, 90)
    (tmp_path / "c.pem").write_bytes(pair.certificate)
    (tmp_path / "k.pem").write_bytes(pair.key)
    words = ("coordinator", "init", "--store", f"{tmp_path}/s", "--cert", f"{tmp_path}/c.pem")
    alone = smidgen(*words)
    assert alone.exit_code == 2 and "--cert and --key go together" in alone.stderr
    done = smidgen(*words, "--key", f"{tmp_path}/k.pem", "--json")
    said = json.loads(done.stdout)
    assert (said["ca"], said["url"]) == ("system", "https://hub.example:8700")


def test_a_clock_that_was_never_set_makes_no_certificates(tmp_path: Path) -> None:
    clock = WallClock(tmp_path)
    clock.set(-int(time.time()) + 86400)
    line = [sys.executable, "-m", "smidgen", "coordinator", "init", "--store", f"{tmp_path}/s"]
    environment = {**os.environ, **clock.environment}
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and not (tmp_path / "s").exists()
    assert "this machine's clock says 1970-01-0" in done.stderr and "set it" in done.stderr
    assert len(done.stderr.splitlines()) == 1
