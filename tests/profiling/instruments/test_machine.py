from dataclasses import asdict
from pathlib import Path

import psutil

from smidgen.profiling.instruments.environment import this_machine
from tests.edge_client.metering.boards import cores, put

SWAPS = """Filename Type Size Used Priority
/dev/zram0 partition 1024 0 5
/dev/zram1 partition 1024 0 5
/mnt/swap file 4096 0 -2
"""


def test_a_board_says_what_it_is_and_how_it_is_set(tmp_path: Path) -> None:
    cores(tmp_path, {0: (1_200_000, 2_000_000, 2_000_000)})
    put(tmp_path, {"proc/swaps": SWAPS, "proc/sys/vm/swappiness": 60})
    put(tmp_path, {"var/lib/nvpmodel/status": "pmode:0000"})
    put(tmp_path, {"etc/nvpmodel.conf": "< POWER_MODEL ID=0 NAME=MAXN >"})
    model = tmp_path / "proc/device-tree/model"
    model.parent.mkdir()
    model.write_bytes(b"quill\0")
    found = this_machine(tmp_path)
    assert (found.board, found.power_mode, found.governor) == ("quill", "0 MAXN", "schedutil")
    assert (found.zram_bytes, found.swappiness) == (2 << 20, 60)


def test_what_a_machine_does_not_tell_is_unknown(tmp_path: Path) -> None:
    found = asdict(this_machine(tmp_path))
    unknown = ("processor", "board", "governor", "power_mode", "zram_bytes", "swappiness")
    assert {name: found[name] for name in unknown} == dict.fromkeys(unknown)


def test_this_machine_is_the_one_that_runs_this() -> None:
    found = this_machine()
    assert found.memory_bytes == psutil.virtual_memory().total > 1 << 20
    assert found.kernel and found.machine and found.cores >= 1
