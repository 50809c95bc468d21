import shutil
from pathlib import Path

import pytest

from smidgen.edge_client.bases.base import Base


@pytest.fixture
def model(tiny_base: Base, tmp_path: Path) -> Path:
    """A copy of the tiny model that may be broken."""
    return Path(shutil.copytree(tiny_base.folder, tmp_path / "model"))
