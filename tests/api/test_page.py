"""What shows `import smidgen`: docs/python.md and peft.md block by block, the example notebook."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("fastapi")
pytest.importorskip("matplotlib")

from tests.docs.pages import HOOK

ROOT = Path(__file__).parents[2]
PAGE = "".join(
    HOOK["filled"]((ROOT / "docs" / one).read_text()) for one in ("python.md", "peft.md")
)
NOTEBOOK = ROOT / "docs" / "examples" / "first_run.ipynb"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}


@pytest.mark.slow
def test_the_blocks_of_the_page_run_one_after_the_other(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    blocks = "".join(BLOCK.findall(PAGE))
    code = blocks.replace("folder = Path()", 'folder = Path("exported")')
    (tmp_path / "embedded").symlink_to(ROOT / "edge_client" / "embedded" / "base")
    line = [sys.executable, "-c", code]
    done = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path, env=environment())
    assert done.returncode == 0, done.stderr
    said = done.stdout
    assert "Plan(dtype=" in said and "Prediction(label='repair'" in said
    assert any(line in PAGE for line in said.splitlines() if line.startswith("--"))  # the error
    assert "'repair': 0." in said.splitlines()[-1]  # by PEFT alone


@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    import nbformat
    from nbclient import NotebookClient

    notebook: Any = nbformat.read(NOTEBOOK, as_version=4)
    place = {"metadata": {"path": str(tmp_path)}}
    client = NotebookClient(notebook, timeout=240, kernel_name="python3", resources=place)
    cells = [cell for cell in client.execute().cells if cell.cell_type == "code"]
    outputs = [output for cell in cells for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert (tmp_path / "attic" / "adapter" / "adapter_config.json").is_file()


def test_the_committed_notebook_is_small_and_names_no_machine() -> None:
    body = NOTEBOOK.read_text()
    cells = json.loads(body)["cells"]
    assert len(body) < 40_000 and all(c["outputs"] for c in cells if "serve(" in str(c["source"]))
    assert not re.search(r"/(tmp|home|root|work|usr)/|https?://", body)
    assert "token=" not in body
