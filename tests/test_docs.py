"""The pages speak of files and modules that are there."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import NAMES, ROOT

PACKAGES = "edge_client|coordinator|profiling|simulation|benchmarks|tests"
LINK = re.compile(r"\]\(([^)\s]+)\)|^\[[^]]+\]: (\S+)", re.MULTILINE)
PATH = re.compile(rf"(?:{PACKAGES}|docs|scripts|constraints)(?:/[\w.-]+)*/?")
SHORT = re.compile(r"(?!ideas/)[\w-]+(?:/[\w-]+)+\.py")  # a reader makes the folder ideas
MODULES = [
    f"/{path.relative_to(ROOT)}"
    for package in (*PACKAGES.split("|"), "scripts", "smidgen")
    for path in ROOT.glob(f"{package}/**/*.py")
]
DOTTED = re.compile(rf"(?:smidgen\.)?(?:{PACKAGES})(?:\.\w+)+")
# "X is no pack", "once a text", "made again": idioms of another language.
ODD = re.compile(
    r"\bis no (?:JSON|pack|size|file|folder|task|base|matter)\b|\bonce a (?:text|row|round)\b"
    r"|\bmade again\b|\bagain and again\b"
)
CALL = re.compile(r"\([^()]*\)$")


def without_code(page: str) -> str:
    """A page without its blocks of code, indented ones included; inline code stays."""
    text = re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"^ {4}.*$", "", text, flags=re.MULTILINE)


def linked(page: str) -> Iterator[str]:
    for inline, reference in LINK.findall(without_code(page)):
        target = (inline or reference).partition("#")[0]
        if target and "://" not in target:
            yield target


def backticked(page: str) -> list[str]:
    return [" ".join(name.split()) for name in re.findall(r"`([^`]+)`", without_code(page))]


def is_there(name: str) -> bool:
    """Whether a dotted name leads to a module, or to something that a module defines."""
    parts = name.split(".")
    if parts[0] not in ("smidgen", "benchmarks"):
        return False
    for end in range(len(parts), 0, -1):
        place = ROOT.joinpath(*parts[:end])
        if end == len(parts) and place.is_dir():
            return True
        if place.with_suffix(".py").is_file():
            rest, source = parts[end:], place.with_suffix(".py").read_text()
            return not rest or bool(
                re.search(rf"^(?:class |def )?{rest[0]}\b", source, re.MULTILINE)
            )
    return False


@pytest.mark.parametrize("name", NAMES)
def test_relative_links_lead_to_files(name: str) -> None:
    page = ROOT / name
    targets = [(page.parent / one).resolve() for one in linked(page.read_text())]
    assert [one for one in targets if not one.exists()] == []


@pytest.mark.parametrize("name", NAMES)
def test_paths_in_backticks_exist(name: str) -> None:
    paths = [one for one in backticked((ROOT / name).read_text()) if PATH.fullmatch(one)]
    assert [one for one in paths if "/" in one and not (ROOT / one).exists()] == []


@pytest.mark.parametrize("name", NAMES)
def test_short_paths_in_backticks_end_those_of_modules(name: str) -> None:
    short = [one for one in backticked((ROOT / name).read_text()) if SHORT.fullmatch(one)]
    assert [one for one in short if not any(path.endswith(f"/{one}") for path in MODULES)] == []


@pytest.mark.parametrize("name", NAMES)
def test_dotted_names_in_backticks_exist(name: str) -> None:
    names = [CALL.sub("", one) for one in backticked((ROOT / name).read_text())]
    dotted = [one for one in names if DOTTED.fullmatch(one) and not one.endswith(".md")]
    assert [one for one in dotted if not is_there(one)] == []


@pytest.mark.parametrize(
    "picture", sorted(ROOT.glob("docs/images/*-journey.svg")), ids=lambda p: p.name
)
def test_pictures_name_modules_that_exist(picture: Path) -> None:
    named = set(re.findall(r"[\w/]+\.py", picture.read_text()))
    rooms = [ROOT, *(ROOT / package for package in PACKAGES.split("|"))]
    # A name without its room stands after one with it: `labelling/label_journal.py, label_work.py`.
    rooms += [path for room in rooms[1:] for path in room.iterdir() if path.is_dir()]
    assert named and {one for one in named if not any((r / one).is_file() for r in rooms)} == set()


@pytest.mark.parametrize("name", NAMES)
def test_prose_is_at_most_100_columns_wide(name: str) -> None:
    lines = without_code((ROOT / name).read_text()).splitlines()
    assert [one for one in lines if len(one) > 100 and not one.startswith(("|", "[", "* `"))] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_page_has_none_of_the_odd_idioms(name: str) -> None:
    assert ODD.findall((ROOT / name).read_text()) == []


def test_names_that_are_gone_are_told() -> None:
    page = "See `edge_client/torch_engine.py`, `smidgen.edge_client.wire.tensors` and [it](x.md)."
    assert backticked(page)[0] == "edge_client/torch_engine.py" and list(linked(page)) == ["x.md"]
    assert PATH.fullmatch("edge_client/torch_engine.py") and DOTTED.fullmatch("edge_client.gone")
    wire = "smidgen.edge_client.wire"
    assert is_there(wire) and is_there(f"{wire}.tensors.derive_seed")
    assert not is_there(f"{wire}.gone") and not is_there(f"{wire}.tensors.gone")
    assert not is_there(wire.removeprefix("smidgen."))  # no name that Python imports


def test_the_guides_stay_below_25000_words() -> None:
    menu = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2].partition("  - Reference:")[0]
    guides = re.findall(r": (\S+\.md)$", menu, re.MULTILINE)
    words = {name: len((ROOT / "docs" / name).read_text().split()) for name in guides}
    assert len(words) > 20 and sum(words.values()) <= 25_000, words
