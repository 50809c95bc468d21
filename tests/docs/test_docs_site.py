"""The pages as a site: built without a warning, every link and anchor leads somewhere."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mkdocs")

from tests.browser.chromium import chromium, needs_chromium, new_page

ROOT = Path(__file__).parents[2]


def build(config: Path, out: Path) -> "subprocess.CompletedProcess[str]":
    line = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    where = ["--config-file", str(config), "--site-dir", str(out)]
    return subprocess.run([*line, *where], capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` does."""
    out = tmp_path_factory.mktemp("site")
    done = build(ROOT / "mkdocs.yml", out)
    assert done.returncode == 0, done.stderr
    return out


def test_every_page_is_built(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs") for path in ROOT.glob("docs/**/*.md")}
    assert {page for page in pages if not (site / page.with_suffix(".html")).is_file()} == set()


def test_a_page_loads_nothing_from_another_host(site: Path) -> None:
    loaded = re.compile(r"<(?:script|link|img|iframe)\b[^>]*(?:src|href)=\"https?://[^\"]+")
    found = {name: loaded.findall(name.read_text()) for name in site.glob("**/*.html")}
    assert len(found) > 25 and {name.name for name, hits in found.items() if hits} == set()


WIDER = """() => [...document.querySelectorAll("table")].filter(table => {
    let place = table;
    while (place !== document.body && getComputedStyle(place).overflowX !== "auto")
        place = place.parentElement;
    return place === document.body && table.getBoundingClientRect().right > window.innerWidth + 1;
}).length"""


@needs_chromium
@pytest.mark.slow
@pytest.mark.parametrize("width", [1400, 390])
def test_no_table_and_no_page_is_cut(browser: Any, site: Path, width: int) -> None:
    opened = new_page(browser, width, "light")
    page = opened.page
    tables = 0
    for name in {*site.glob("**/*.html")} - {site / "404.html"}:  # a server's own page
        page.goto(name.as_uri())
        tables += page.locator("table").count()
        assert page.evaluate(WIDER) == 0, name
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 1, name
    assert tables > 200 and opened.complaints == []
    assert not [one for one in opened.requests if not one.startswith("file:")]


@needs_chromium
@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_searched_in_a_folder_without_a_server(browser: Any, site: Path, scheme: str) -> None:
    page = new_page(browser, 1400, scheme).page
    page.goto((site / "results" / "hostile.html").as_uri())
    shade = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", shade)[:3])) > 384) == (scheme == "light")
    # As a person types: the theme reads the field when a key goes up, and `fill` presses none.
    page.locator("input[name=query]").press_sequentially("robust means")
    found = page.locator(".md-search-result__item", has_text="Robust means").first
    found.wait_for(timeout=120_000)  # every page is indexed first, in seconds of a busy processor


def test_a_broken_link_or_anchor_fails_the_build(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# It\n\n[gone](gone.md) [nowhere](#nowhere)\n")
    config, _, _ = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")
    (tmp_path / "mkdocs.yml").write_text(config)
    done = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert done.returncode != 0
    assert "gone.md" in done.stderr and "#nowhere" in done.stderr
