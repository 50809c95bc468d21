from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from smidgen.edge_client.wire.training import Training
from smidgen.simulation.demo.demo import picture_title
from smidgen.simulation.demo.messages import HOMES, write_client_folders
from smidgen.simulation.demo.setting import Setting


def test_the_picture_says_data_base_adapter_run_and_machine(tmp_path: Path) -> None:
    folders = write_client_folders(tmp_path / "devices", HOMES)
    setting = Setting(tmp_path, "models/tiny", "lora:8", 1, Training(), 0, ("torch",))
    what, where = picture_title(setting, folders, "r0123456789").splitlines()
    assert what == "hub: 1,080 labelled texts on 4 devices; base tiny, lora:8"
    assert where.startswith("run r0123456, 20") and where.endswith(" cores")
