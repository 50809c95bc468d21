"""Relations of two spans: read with their markers, cut around them, and trained."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.engine.scoring import evaluate
from smidgen.edge_client.engine.trainer import train
from smidgen.edge_client.formats.source import DataError
from smidgen.edge_client.tasks.kinds.relation import MARKED, around, marked
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.accounting import Fault
from smidgen.edge_client.texts.examples import Example, read_file
from smidgen.edge_client.wire.training import Training
from tests.edge_client.engine.engines import KINDS, engine_of

TASK = Task(
    "adverse",
    ("causes", "treats"),
    ("{text} . [MASK]",),
    {"causes": "security", "treats": "family"},
    kind="relation",
)
TEXT = "rash after amoxicillin"
WANTED = "[E2] rash [/E2] after [E1] amoxicillin [/E1]"
TYPED = "[E2:Effect] rash [/E2:Effect] after [E1:Drug] amoxicillin [/E1:Drug]"
WORDS = st.lists(st.sampled_from(["a", "bc", "def"]), max_size=12)


@pytest.mark.parametrize(
    ("row", "wanted"),
    [
        ({"head": [11, 22], "tail": [0, 4]}, WANTED),
        ({"head": [11, 22, "Drug"], "tail": [0, 4, "Effect"]}, TYPED),
        (
            {
                "head": {"start": 11, "end": 22, "type": "Drug"},
                "tail": {"start": 0, "end": 4, "type": "Effect"},
            },
            TYPED,
        ),
        ({"head_start": "11", "head_end": "22", "tail_start": "0", "tail_end": "4"}, WANTED),
    ],
)
def test_spans_get_their_markers(row: dict[str, object], wanted: str) -> None:
    assert marked(TEXT, row) == wanted


def test_texts_that_are_marked_already_are_taken_as_they_are() -> None:
    assert marked("<e2>rash</e2> after <e1>amoxicillin</e1>", {}) == WANTED
    assert marked(WANTED, {}) == WANTED and marked(TYPED, {}) == TYPED
    assert marked("[E2]rash[/E2] after [E1]amoxicillin[/E1]", {}) == WANTED


@pytest.mark.parametrize(
    ("text", "row", "said"),
    [
        (TEXT, {}, "[E1] ... [/E1]"),
        (TEXT, {"head": [11, 22]}, "`tail`: no span"),
        (TEXT, {"head": [0, 4], "tail": [2, 9]}, "overlap"),
        (TEXT, {"head": [0, 4], "tail": [11, 99]}, "`tail`: 11 to 99"),
        (TEXT, {"head": [4, 0], "tail": [11, 22]}, "`head`: 4 to 0"),
        (TEXT, {"head": "x", "tail": [11, 22]}, "`head`: no span"),
        (TEXT, {"head": [0, 4, "two words"], "tail": [11, 22]}, "its type"),
        ("[E1] rash [/E1] after", {}, "expected once"),
        ("[E1] [/E1] and [E2] rash [/E2]", {}, "expected once"),
        (TEXT, {"head": [4, 5], "tail": [11, 22]}, "`head`: 4 to 5"),
        ("a [E1] rash after x", {"head": [18, 19], "tail": [7, 11]}, "expected once"),
        ("a </e2> rash after x", {"head": [19, 20], "tail": [8, 12]}, "expected once"),
        (WANTED, {"head": [0, 4], "tail": [18, 23]}, "expected once"),
    ],
)
def test_a_row_without_two_spans_is_left_out_with_a_reason(
    text: str, row: dict[str, object], said: str
) -> None:
    found = marked(text, row)
    assert isinstance(found, Fault) and said in found.said and "rash" not in found.said


@given(WORDS, WORDS, WORDS, st.integers(6, 50))
def test_what_is_kept_of_a_long_text_has_both_spans_and_words_in_their_order(
    before: list[str], between: list[str], behind: list[str], room: int
) -> None:
    words = [*before, "[E1]", "x", "y", "[/E1]", *between, "[E2:T]", "z", "[/E2:T]", *behind]
    found = around(" ".join(words), lambda text: len(text.split()) <= room).split()
    assert len(MARKED.findall(" ".join(found))) == 2
    assert len(found) <= max(room, 6)
    left = iter(words)
    assert all(word in left for word in found)  # in order
    if len(words) <= room:
        assert found == words


@pytest.mark.parametrize("adapter", ["lora:4", "lora:4+head"])
@pytest.mark.parametrize("kind", KINDS)
def test_both_spans_of_a_long_text_are_read(tiny_base: Base, kind: str, adapter: str) -> None:
    engine = engine_of(kind, tiny_base, TASK, adapter)
    tokens = engine.encoder.tokens
    long = "the front door opened " * 60
    text = f"{long}[E1] storm [/E1] {long}[E2] grandma [/E2] {long}"
    (prompt,) = engine.encoder.prompts([Example(text, label="causes")])
    read = tokens.text_of(prompt.ids)
    assert len(prompt.ids) <= engine.encoder.limit
    assert "storm" in read and "grandma" in read


def test_a_relation_is_learned(tiny_base: Base) -> None:
    words = {"causes": ("storm", "rain"), "treats": ("pills", "cake")}
    texts = [
        Example(f"[E1] {one} [/E1] brings [E2] grandma [/E2]", label=label)
        for label, some in words.items()
        for one in some
    ]
    engine = engine_of("onnx", tiny_base, TASK, "lora:4+head", lr=0.02)
    train(engine, texts, Training(batch=4, epochs=40, lr=0.02, tokens=64), seed=1)
    assert evaluate(engine, texts).accuracy == 1.0


def test_files_of_relations_are_read_and_others_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(
        '{"text": "rash after x", "head": [11, 12], "tail": [0, 4], "label": "causes"}\n'
    )
    (found,) = read_file(path, TASK, labelled=True)
    assert (found.text, found.label) == ("[E2] rash [/E2] after [E1] x [/E1]", "causes")
    path.write_text('{"text": "rash after x", "label": "causes"}\n')
    with pytest.raises(DataError, match="`head`: no span"):
        read_file(path, TASK, labelled=True)
