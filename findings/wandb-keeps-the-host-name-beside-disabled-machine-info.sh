#!/usr/bin/env bash
# Weights & Biases' client told to leave out machine info, metadata, statistics, code and git still
# writes the machine's host name into its run record, which `wandb sync` would send: only the setting
# `host` replaces it. Seen with wandb 0.31.0, offline: the record's host equals socket.gethostname(),
# and with host="elsewhere" it is that.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet wandb==0.31.0
cd "$place"
WANDB_MODE=offline "$place/venv/bin/python" - <<'PYTHON'
import socket
from pathlib import Path

import wandb
from wandb.proto.wandb_internal_pb2 import Record


def host_kept(name, **more):
    settings = wandb.Settings(
        silent=True, console="off", disable_code=True, disable_git=True, x_disable_meta=True,
        x_disable_machine_info=True, x_disable_stats=True, **more,
    )
    with wandb.init(project="p", dir=name, settings=settings) as run:
        run.log({"loss": 1.0})
    (path,) = Path(name).rglob("*.wandb")
    data, at, hosts = path.read_bytes(), 7, []
    while at + 7 <= len(data):  # LevelDB's log format; no record here crosses a block
        size = int.from_bytes(data[at + 4 : at + 6], "little")
        hosts.append(Record.FromString(data[at + 7 : at + 7 + size]).run.host)
        at += 7 + size
    return next(host for host in hosts if host)


for name in ("plain", "told"):
    Path(name).mkdir()
plain, told = host_kept("plain"), host_kept("told", host="elsewhere")
print("kept is the host name:", plain == socket.gethostname(), "| with host set:", told)
assert plain == socket.gethostname() and told == "elsewhere"
PYTHON
