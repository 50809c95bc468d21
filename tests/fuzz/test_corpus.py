"""Every decoder takes what was kept for it, and a few bodies made of that; `make fuzz` goes on."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz.ground import Ground
from tests.fuzz.search import search
from tests.fuzz.targets import TARGETS, corpus

FEW, MANY = 5, 500


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    with Ground(tmp_path_factory.mktemp("fuzz")) as ground:
        yield ground


def test_every_corpus_is_a_decoders() -> None:
    folders = {path.name for path in Path(__file__).with_name("corpus").iterdir()}
    assert folders == set(TARGETS)


@pytest.mark.parametrize("name", TARGETS)
def test_what_was_kept_ends_in_a_value_or_in_a_clear_error(name: str, ground: Ground) -> None:
    ends = {file: TARGETS[name].is_value(ground, body) for file, body in corpus(name).items()}
    right = [file for file in ends if file.startswith("right")]
    assert right and all(ends[file] for file in right), ends


@pytest.mark.parametrize("name", TARGETS)
def test_a_few_bodies_made_of_these_do_too(
    name: str, ground: Ground, seed: int, tmp_path: Path
) -> None:
    search(name, ground, seed, FEW, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_many_bodies_made_of_these_do_too(
    name: str, ground: Ground, seed: int, tmp_path: Path
) -> None:
    search(name, ground, seed, MANY, tmp_path)
