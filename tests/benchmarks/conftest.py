"""All of these tests are slow, but for the checks of what the papers' files say."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent
FAST = {
    *(HERE / "papers" / name for name in ("test_published.py", "test_paired.py")),
    *(HERE / "comparisons" / f"test_{name}.py" for name in ("flwr", "labelling", "waiting")),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and item.path not in FAST:
            item.add_marker(pytest.mark.slow)
