import json
import os
import shlex
import subprocess
import sys
import time
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


def test_init_makes_all_and_its_last_line_is_what_is_pasted(tmp_path: Path) -> None:
    store = tmp_path / "store"
    done = smidgen("coordinator", "init", "--store", f"{store}", "--host", "pi.example")
    assert done.exit_code == 0, done.stderr
    ca = pin_of((folder_of(store) / "ca.pem").read_bytes())
    token, *words = shlex.split(done.stdout.splitlines()[-1])
    assert words[:3] == ["smidgen", "client", "run"]
    assert words[3:7] == ["--coordinator", "https://pi.example:8700", "--ca", ca]
    opened = Store(store)
    (row,) = tokens(opened.database)
    assert row.expires_at_s and row.expires_at_s - row.created_at_s == 30 * 86400
    assert token.startswith("SMIDGEN_TOKEN=s") and not row.lack(row.created_at_s)
    (said,) = [line for line in done.stdout.splitlines() if line.startswith("operator ")]
    found = operator_of_token(opened, said.split()[1])
    opened.close()
    assert found is not None and found.role == "operator"


def test_init_says_that_create_is_next(tmp_path: Path) -> None:
    store = f"{tmp_path}/my fleet"
    said = smidgen("coordinator", "init", "--store", store).stdout
    assert f"next, here   smidgen coordinator create --store '{store}' --task TASK\n" in said


def test_init_says_the_same_for_machines(tmp_path: Path) -> None:
    done = smidgen("coordinator", "init", "--store", f"{tmp_path}/s", "--port", "9000", "--json")
    said = json.loads(done.stdout)
    assert said["url"].startswith("https://") and said["url"].endswith(":9000")
    assert {"localhost", "127.0.0.1", "::1"} < set(said["names"])
    assert said["token"] in said["line"] and said["ca"] in said["line"]
    assert said["operator_token"] not in said["line"]


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


def test_create_tells_devices_of_the_coordinator_as_init_did(tmp_path: Path) -> None:
    store = f"{tmp_path}/s"
    ca = json.loads(smidgen("coordinator", "init", "--store", store, "--json").stdout)["ca"]
    made = smidgen("coordinator", "create", "--store", store, "--task", "agnews")
    assert f"--ca {ca} --data FOLDER\n" in made.stdout
    plain = smidgen("coordinator", "create", "--store", f"{tmp_path}/p", "--task", "agnews")
    assert "--coordinator http://127.0.0.1:8700" in plain.stdout


def test_a_clock_that_was_never_set_makes_no_certificates(tmp_path: Path) -> None:
    clock = WallClock(tmp_path)
    clock.set(-int(time.time()) + 86400)
    line = [sys.executable, "-m", "smidgen", "coordinator", "init", "--store", f"{tmp_path}/s"]
    environment = {**os.environ, **clock.environment}
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and not (tmp_path / "s").exists()
    assert "this machine's clock says 1970-01-0" in done.stderr and "set it" in done.stderr
    assert len(done.stderr.splitlines()) == 1
