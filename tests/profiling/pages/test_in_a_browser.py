"""The page in headless Chromium: Debian's, by `apt-get install chromium`, driven by playwright."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jinja2")
pytest.importorskip("playwright")

from profiling.pages.models_page import write_pages
from tests.browser.chromium import (
    CONTRASTS,
    LEGIBLE,
    Opened,
    check_legible,
    chromium,
    needs_chromium,
    new_page,
)
from tests.profiling.pages.made_up import CONDITIONS, RATES, cell, cells

pytestmark = needs_chromium
WIDTHS = {"phone": 360, "desktop": 1280}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with all that may happen, among it a base with a name as long as a path."""
    long = replace(cell("bert-base", "onnx", "8G"), base="a-base-with-a-name-" + "x" * 120)
    slow = replace(cell("roberta-base", "nf4"), steps_s=(400.0, 500.0), is_unstable=True)
    folder = tmp_path_factory.mktemp("page")
    return write_pages([*cells(), long, slow], [CONDITIONS], folder, RATES)[0]


def opened(browser: Any, file: Path, width: int, scheme: str, **more: Any) -> Opened:
    found = new_page(browser, width, scheme, **more)
    found.page.goto(file.as_uri())
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_the_page_is_whole_and_legible(browser: Any, file: Path, width: int, scheme: str) -> None:
    found = opened(browser, file, width, scheme)
    assert found.requests == [file.as_uri()] and found.complaints == []
    assert found.page.evaluate("document.documentElement.scrollWidth") == width
    sizes = found.page.evaluate(
        "[...document.querySelectorAll('figure svg')].map(one => one.getBoundingClientRect())"
        ".map(one => [one.width, one.height])"
    )
    assert len(sizes) == 3 * 8 and min(map(min, sizes)) > 50
    check_legible(found.page)


def test_dark_and_light_have_colours_of_their_own(browser: Any, file: Path) -> None:
    script = "getComputedStyle(document.body).backgroundColor"
    shown = [opened(browser, file, 1280, one).page.evaluate(script) for one in ("light", "dark")]
    assert shown[0] != shown[1]


def test_it_is_printed_dark_on_white_whatever_the_screen_shows(browser: Any, file: Path) -> None:
    page = opened(browser, file, 1280, "dark").page
    page.emulate_media(media="print", color_scheme="dark")
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == "rgb(255, 255, 255)"
    assert min(ratio for ratio, _ in page.evaluate(CONTRASTS).values()) >= LEGIBLE


def test_the_page_is_whole_without_scripts(browser: Any, file: Path) -> None:
    page = opened(browser, file, 360, "light", java_script_enabled=False).page
    assert page.locator("table.cells tbody tr").count() == len(cells()) + 1
    assert page.locator("figure svg").count() == 24


def test_a_column_is_sorted_by_its_figures(browser: Any, file: Path) -> None:
    page = opened(browser, file, 1280, "light").page
    head = page.locator("table.cells thead th", has_text="peak memory")
    place = head.evaluate("one => one.cellIndex")
    for order in ("ascending", "descending"):
        head.locator("button").click()
        assert head.get_attribute("aria-sort") == order
        values = page.locator("table.cells tbody tr").evaluate_all(
            f"rows => rows.map(row => row.cells[{place}].dataset.value)"
        )
        known = [int(value) for value in values if value]
        assert known == sorted(known, reverse=order == "descending")
        assert values[len(known) :] == [""] * (len(values) - len(known))  # unknown ones last


def test_tables_and_pictures_say_what_they_are(browser: Any, file: Path) -> None:
    page = opened(browser, file, 1280, "light").page
    assert page.locator("th:not([scope])").count() == 0
    nameless = page.locator("figure svg").evaluate_all(
        "all => all.filter(one => !one.querySelector('title').textContent"
        " || !one.querySelector('desc').textContent).length"
    )
    assert nameless == 0
    assert page.locator("figure svg >> text=onnx 256M").count() >= 3  # words, not outlines
