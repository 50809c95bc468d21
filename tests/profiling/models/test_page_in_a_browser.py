"""The page in headless Chromium: Debian's, by `apt-get install chromium`, driven by playwright."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jinja2")
pytest.importorskip("playwright")

from smidgen.profiling.models.page import write_pages
from tests.breadth import first_fast
from tests.browser.chromium import (
    CONTRASTS,
    LEGIBLE,
    SMALLEST,
    chromium,
    needs_chromium,
    new_page,
)
from tests.profiling.models.made_up import CONDITIONS, cell, cells

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with all that may happen, among it a base with a name as long as a path."""
    long = replace(cell("bert-base", "onnx", "8G"), base="a-base-with-a-name-" + "x" * 120)
    slow = replace(cell("roberta-base", "nf4"), steps_s=(400.0, 500.0), is_unstable=True)
    return write_pages([*cells(), long, slow], [CONDITIONS], tmp_path_factory.mktemp("page"))[0]


@pytest.mark.parametrize("scheme", first_fast(["light", "dark"]))
@pytest.mark.parametrize("width", first_fast([360, 1280]))
def test_the_page_is_whole_and_legible(browser: Any, file: Path, width: int, scheme: str) -> None:
    found = new_page(browser, width, scheme, java_script_enabled=False)
    found.page.goto(file.as_uri())
    assert found.requests == [file.as_uri()] and found.complaints == []
    assert found.page.locator("table.cells tbody tr").count() == len(cells()) + 1
    assert found.page.locator("th:not([scope])").count() == 0
    assert found.page.locator("meter").count() > len(cells())


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone_and_is_printed_dark_on_white(
    browser: Any, file: Path, scheme: str
) -> None:
    page = new_page(browser, 360, scheme).page
    page.goto(file.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    found = page.evaluate(CONTRASTS).values()
    assert all(ratio >= LEGIBLE and pixels >= SMALLEST for ratio, pixels in found)
    page.emulate_media(media="print", color_scheme="dark")
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == "rgb(255, 255, 255)"
    assert min(ratio for ratio, _ in page.evaluate(CONTRASTS).values()) >= LEGIBLE
