"""The Python in an export's card gives smidgen's own answers, with nothing of smidgen imported."""

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import smidgen
from smidgen.edge_client.adapters.card import SNIPPET
from smidgen.edge_client.bases.base import Base
from tests.command_line import smidgen as command
from tests.parity.snippet.scenes import (
    ONE,
    PROMPTS,
    SCENES,
    TEXTS,
    Scene,
    byte_base,
    export,
    piece_base,
    with_segments,
)

pytest.importorskip("torch")
pytest.importorskip("peft")
pytest.importorskip("transformers")

EVERY = SCENES | PROMPTS
ASKED = {"labels": "predict", "tagging": "tag", "mlm": "fill"}
# Run in a process of its own: in each folder its own card's lines, then its texts.
RUN = """
import json, os, sys
for folder, code, asked, texts in json.load(open(sys.argv[1])):
    os.chdir(folder)
    known = {"__name__": "card"}
    exec(code, known)
    print(json.dumps([known[asked](*([one] if isinstance(one, str) else one)) for one in texts]))
assert not {name.split(".")[0] for name in sys.modules} & {"smidgen"}
"""


@pytest.fixture(scope="module")
def bases(tiny_base: Base, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Base]:
    place = tmp_path_factory.mktemp("bases")
    return {
        "words": tiny_base,
        "segments": with_segments(tiny_base, place / "segments"),
        "bytes": byte_base(place / "bytes"),
        "pieces": piece_base(place / "pieces"),
        "causal": byte_base(place / "causal", "llama"),
    }


@pytest.fixture(scope="module")
def folders(bases: dict[str, Base], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An export of each scene."""
    place = tmp_path_factory.mktemp("exports")
    found = {name: place / f"{number}" for number, name in enumerate(EVERY)}
    for name, scene in EVERY.items():
        export(scene, bases[scene.base], found[name])
    return found


def code_in(folder: Path) -> str:
    """The card's first block of Python: the lines without the example behind them."""
    found = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.S)
    return str(found[0])


@pytest.fixture(scope="module")
def answers(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the cards' own lines answer, by scene, in a process of their own."""
    asked = [
        (str(folders[name]), code_in(folders[name]), ASKED[one.task.kind], one.texts)
        for name, one in EVERY.items()
    ]
    path = tmp_path_factory.mktemp("answers") / "asked.json"
    path.write_text(json.dumps(asked))
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    line = [sys.executable, "-I", "-c", RUN, str(path)]
    more: Any = {"capture_output": True, "text": True, "env": env | {"HF_HUB_OFFLINE": "1"}}
    done = subprocess.run(line, timeout=300, cwd=path.parent, check=False, **more)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(zip(EVERY, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.fixture
def theirs(answers: dict[str, Any], name: str) -> list[Any]:
    """What the card's lines answered in a scene."""
    found: list[Any] = answers[name]
    return found


def check(scene: Scene, base: Base, folder: Path, theirs: list[Any]) -> None:
    known: Any = {"adapter": folder, "base": base.folder, "engine": "torch"}
    if scene.task.kind == "labels":
        ours = smidgen.predict(scene.texts, **known)
        for one, other in zip(ours, theirs, strict=True):
            assert one.label == max(other, key=lambda label: other[label])
            assert list(one.probabilities) == list(other)
            assert one.probabilities == pytest.approx(other, abs=1e-4)
    elif scene.task.kind == "tagging":
        for text, words in zip(smidgen.tag(scene.texts, **known), theirs, strict=True):
            tagged = list(zip(text.tokens, text.tags, strict=True))
            assert tagged == [(word, tag) for word, tag, _ in words]
            for entity in text.entities:
                sure = [probability for _, _, probability in words[entity.start : entity.end]]
                assert entity.probability == pytest.approx(math.prod(sure), abs=1e-4)
    else:
        for filled, masks in zip(smidgen.fill(scene.texts, **known), theirs, strict=True):
            for guesses, others in zip(filled.guesses, masks, strict=True):
                assert [guess.word for guess in guesses] == [word for word, _ in others]
                sure = [guess.probability for guess in guesses]
                assert sure == pytest.approx([probability for _, probability in others], abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENES)
def test_the_lines_of_the_card_answer_as_smidgen_does(
    bases: dict[str, Base], folders: dict[str, Path], theirs: list[Any], name: str
) -> None:
    check(SCENES[name], bases[SCENES[name].base], folders[name], theirs)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROMPTS)
def test_they_read_pairs_control_words_and_bytes_as_smidgen_does(
    bases: dict[str, Base], folders: dict[str, Path], theirs: list[Any], name: str
) -> None:
    check(PROMPTS[name], bases[PROMPTS[name].base], folders[name], theirs)


@pytest.mark.slow
def test_the_command_gives_these_answers_too(
    bases: dict[str, Base], folders: dict[str, Path], answers: dict[str, Any]
) -> None:
    name = "words of several tokens"
    line = ["client", "predict", "--json", "--adapter", str(folders[name])]
    done = command(*line, "--base", str(bases["words"].folder), *TEXTS)
    assert done.exit_code == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    rows = np.exp(said["log_probabilities"])
    assert said["labels"] == [max(one, key=lambda label: one[label]) for one in answers[name]]
    np.testing.assert_allclose(rows, [list(one.values()) for one in answers[name]], atol=1e-4)


def test_card_and_page_hold_the_very_lines(folders: dict[str, Path]) -> None:
    lines = SNIPPET.read_text()
    assert all(code_in(folder) == lines for folder in folders.values())
    root = Path(__file__).parents[3]
    page = (root / "docs" / "peft.md").read_text()
    assert f"\n{{{{ {SNIPPET.resolve().relative_to(root)} }}}}\n" in page


def test_words_are_written_as_the_tokenizer_has_them(folders: dict[str, Path]) -> None:
    known = json.loads((folders["words of several tokens"] / "smidgen.json").read_text())
    assert set(known["words"]) == set(ONE.labels) and len(known["words"]["power"]) == 2
    assert known["format"] == 2 and known["tokens"] == 64
