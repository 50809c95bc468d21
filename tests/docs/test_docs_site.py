"""The pages as a site: built without a warning, every link and anchor leads somewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mkdocs")

from tests.docs.pages import MADE

ROOT = Path(__file__).parents[2]


def build(config: Path, out: Path) -> "subprocess.CompletedProcess[str]":
    line = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    where = ["--config-file", str(config), "--site-dir", str(out)]
    return subprocess.run([*line, *where], capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` does."""
    out = tmp_path_factory.mktemp("site")
    done = build(ROOT / "mkdocs.yml", out)
    assert done.returncode == 0, done.stderr
    return out


def test_every_page_is_built(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs") for path in ROOT.glob("docs/**/*.md")}
    pages |= set(map(Path, MADE))
    assert {page for page in pages if not (site / page.with_suffix(".html")).is_file()} == set()


def test_a_page_loads_nothing_from_another_host(site: Path) -> None:
    loaded = re.compile(r"<(?:script|link|img|iframe)\b[^>]*(?:src|href)=\"https?://[^\"]+")
    found = {name: loaded.findall(name.read_text()) for name in site.glob("**/*.html")}
    assert len(found) > 25 and {name.name for name, hits in found.items() if hits} == set()


def test_a_broken_link_or_anchor_fails_the_build(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# It\n\n[gone](gone.md) [nowhere](#nowhere)\n")
    config, _, _ = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")
    (tmp_path / "mkdocs.yml").write_text(config)
    done = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert done.returncode != 0
    assert "gone.md" in done.stderr and "#nowhere" in done.stderr
