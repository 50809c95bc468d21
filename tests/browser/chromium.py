"""Debian's Chromium without a screen, driven by playwright, and what every page of ours is held to.

It comes by `apt-get install chromium`; where it is not there, `needs_chromium` skips.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium: apt-get install chromium"
)
LEGIBLE = 4.5  # WCAG's AA for text of this size
SMALLEST = 11.0  # pixels
# Of every text that is shown: its contrast with what lies behind it.
CONTRASTS = """() => {
  const parts = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (rgb) => rgb.slice(0, 3).map((c) => c / 255)
    .map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const rgb = parts(getComputedStyle(node).backgroundColor);
      if (rgb.length < 4 || rgb[3] > 0) return rgb;
    }
    return [255, 255, 255];
  };
  const found = {};
  for (const node of document.body.querySelectorAll("*:not(script):not(title):not(desc)")) {
    if (!node.checkVisibility()) continue;
    if (![...node.childNodes].some((c) => c.nodeType === 3 && c.textContent.trim())) continue;
    const style = getComputedStyle(node);
    const ink = parts(node.closest("svg") ? style.fill : style.color);
    const [a, b] = [light(ink), light(behind(node))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const drawing = node.closest("svg");
    const drawn = drawing ? drawing.getBoundingClientRect().width : 1;
    const size = parseFloat(style.fontSize) * drawn / (drawing?.viewBox.baseVal.width || 1);
    const name = `${node.tagName}.${node.getAttribute("class")}`;
    const [least, smallest] = found[name] || [99, 99];
    found[name] = [Math.min(ratio, least), Math.min(size, smallest)];
  }
  return found;
}"""


@dataclass(frozen=True)
class Opened:
    """A page in a browser, and what it did meanwhile."""

    page: Any
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser of its own."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


def new_page(browser: Any, width: int, scheme: str, **more: Any) -> Opened:
    """An empty page in a context of its own, without cookies of others."""
    viewport = {"width": width, "height": 800}
    opened = Opened(browser.new_context(viewport=viewport, color_scheme=scheme, **more).new_page())
    opened.page.on("request", lambda one: opened.requests.append(one.url))
    opened.page.on("console", lambda one: opened.complaints.append(one.text))
    opened.page.on("pageerror", lambda one: opened.complaints.append(str(one)))
    return opened


def check_legible(page: Any) -> None:
    """Every text that is shown stands out from what lies behind it, and is large enough."""
    texts = page.evaluate(CONTRASTS)
    assert len(texts) > 15
    faint = {name: ratio for name, (ratio, _) in texts.items() if ratio < LEGIBLE}
    small = {name: size for name, (_, size) in texts.items() if size < SMALLEST}
    assert not faint and not small
