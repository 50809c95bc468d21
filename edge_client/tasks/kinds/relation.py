"""Relation classification: two marked spans of a text and their relation, such as drug and effect.

Markers are put around the spans as text (entity markers, Soares et al. 2019, arXiv:1906.03158,
which a frozen base reads as letters); they include the spans' types where the file names any:

    {"text": "rash after amoxicillin", "head": [11, 22], "tail": [0, 4], "label": "causes"}
    [E2] rash [/E2] after [E1] amoxicillin [/E1]

A file gives spans in characters, the first and the one after the last: `head` and `tail` as lists
(or objects with `start`, `end` and `type`), or columns `head_start`, `head_end`, `tail_start`,
`tail_end`, and `head_type`, `tail_type`. Or its texts have markers already, as above or `<e1>` and
`<e2>` (SemEval-2010 task 8). A text that is too long is cut around the spans; all markers stay.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, TypeAlias

from smidgen.edge_client.errors import demand
from smidgen.edge_client.tasks.kind import Inputs
from smidgen.edge_client.tasks.kinds.classification import Classification, asked
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.accounting import Fault
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.texts.parts import Files
from smidgen.edge_client.texts.prompts.patterns import TaskError
from smidgen.edge_client.texts.tokens import Prompt

SPANS = {"head": "E1", "tail": "E2"}
MARKED = re.compile(r"\[(E[12](?::[^\[\]\s]+)?)\] (?=\S).*? \[/\1\]", re.S)
LOOSE = re.compile(r"\[(E[12](?::[^\[\]\s]+)?)\]\s*(.*?)\s*\[/\1\]", re.S)
SEMEVAL = re.compile(r"<e([12])>(.*?)</e\1>", re.S)
MARKER = re.compile(r"\[/?E[12](?::[^\[\]\s]+)?\]|</?e[12]>")  # one of a pair or not
TYPE = re.compile(r"[^\[\]\s]{1,60}")  # of a span
SPARE = 2  # tokens: a text has one more or less beside other words
EXPECTED = (
    "its first character and the one behind the last are expected, or [E1] ... [/E1] and "
    "[E2] ... [/E2] in the text"
)
Span: TypeAlias = tuple[int, int, str]  # of a text, and its type or nothing


def marked(text: str, row: Mapping[str, Any]) -> str | Fault:
    """A row's text with markers around its two spans, or why it has none."""
    text = LOOSE.sub(r"[\1] \2 [/\1]", SEMEVAL.sub(r"[E\1]\2[/E\1]", text))
    spans = {mark: _span(row, name) for name, mark in SPANS.items()}
    told = [one for one in spans.values() if isinstance(one, str)]
    if MARKER.search(text):  # beside which places would be marked so that nobody can tell
        found = sorted(one[1].partition(":")[0] for one in MARKED.finditer(text))
        said = "[E1] and [E2] expected once, each around words, and no `head` and `tail` beside"
        return text if found == sorted(SPANS.values()) and told else Fault("spans", said)
    if told:
        return Fault("spans", told[0])
    known = sorted((one, mark) for mark, one in spans.items() if not isinstance(one, str))
    for (first, last, _), mark in known:
        name = next(one for one in SPANS if SPANS[one] == mark)
        if not (0 <= first < last <= len(text) and text[first:last].strip()):
            return Fault(
                "spans",
                f"`{name}`: {first} to {last}; words of its {len(text)} characters are expected",
            )
    if known[0][0][1] > known[1][0][0]:
        return Fault("spans", "`head` and `tail` overlap; two spans apart are expected")
    parts, last = [], 0
    for (start, stop, kind), mark in known:
        name = f"{mark}:{kind}" if kind else mark
        parts += [text[last:start], f"[{name}] {text[start:stop].strip()} [/{name}]"]
        last = stop
    return "".join([*parts, text[last:]])


def _span(row: Mapping[str, Any], name: str) -> Span | str:
    """Where a span lies, and its type; in words why that is not known."""
    value = row.get(name)
    if isinstance(value, Mapping):
        value = [value.get("start"), value.get("end"), value.get("type")]
    if value is None:
        value = [row.get(f"{name}_{part}") for part in ("start", "end", "type")]
    start, stop, kind = [*value, None, None, None][:3] if isinstance(value, list) else (None,) * 3
    try:
        places = int(str(start)), int(str(stop))
    except ValueError:
        return f"`{name}`: no span; {EXPECTED}"
    said = f"`{name}`: its type is one word of 60 characters at most"
    return said if kind and not TYPE.fullmatch(str(kind)) else (*places, str(kind or ""))


class Relation(Classification):
    """Pairs of marked spans that get one relation each."""

    name = "relation"
    files = Files(
        "relation",
        lacks="put a labelled.jsonl there, with text, label and the spans `head` and `tail` as "
        "characters, or with [E1] ... [/E1] and [E2] ... [/E2] in the text",
        what="a folder with labelled.jsonl (text, head, tail, label)",
        tests="put a test.jsonl with text, head, tail and label",
        marked=marked,
    )
    card = Classification.card._replace(
        answers="It tells in which of these relations two marked spans of a text stand, `[E1] ... "
        "[/E1]` and `[E2] ... [/E2]`, in this order:",
        example="[E2] rash [/E2] after [E1] amoxicillin [/E1]",
    )

    def check(self, task: Task) -> None:
        super().check(task)
        demand(
            "{text_a}" not in "".join(task.patterns),
            f"task {task.name!r} of kind {self.name}: a pattern holds {{text}}, one text with "
            f"both spans",
            TaskError,
        )

    def prompts(
        self, inputs: Inputs, examples: Sequence[Example], draw: int, first: int
    ) -> list[Prompt]:
        """Cut around the spans, see `around`."""
        tokens, limit = inputs.tokens, inputs.limit
        pattern = inputs.task.asked(inputs.tokens.is_causal)[inputs.pattern] if inputs.cloze else ""
        room = tokens.room(pattern, limit) if inputs.cloze else tokens.plain_room(limit)

        def fits(text: str) -> bool:
            return tokens.count(text, room) <= room - SPARE

        kept = [replace(one, text=around(one.text, fits)) for one in examples]
        return asked(inputs, kept, [[label] for label in inputs.labels(examples)])


KIND = Relation()


def around(text: str, fits: Callable[[str], bool]) -> str:
    """A marked text, or what fits of it: both spans, then words between, then words around them.

    Laws: what is kept is words of the text in their order; all markers are kept, and a word of each
    span, if those fit at all; one that fits is kept whole.

    Args:
        text: With both spans marked; another is left as it is.
        fits: Whether a text does.
    """
    found = list(MARKED.finditer(text))
    if fits(text) or len(found) != len(SPANS):
        return text
    ends = [0, *found[0].span(), *found[1].span(), len(text)]
    parts = [text[start:stop].split() for start, stop in pairwise(ends)]
    before, first, between, second, behind = parts

    def kept(own: int, inner: int, outer: int) -> str:
        """With so many words of each span, between them and around them."""
        left, right = _shared(outer, len(before), len(behind))
        front = inner // 2
        middle = [*between[:front], *between[len(between) - inner + front :]]
        spans = [[*span[: min(own, len(span) - 2) + 1], span[-1]] for span in (first, second)]
        words = [*before[len(before) - left :], *spans[0], *middle, *spans[1], *behind[:right]]
        return " ".join(words)

    longest = max(len(first), len(second)) - 2
    own = _largest(1, longest, lambda count: fits(kept(count, 0, 0)))
    most = len(between) if own == longest else 0
    inner = _largest(0, most, lambda count: fits(kept(own, count, 0)))
    most = len(before) + len(behind) if own == longest and inner == len(between) else 0
    return kept(own, inner, _largest(0, most, lambda count: fits(kept(own, inner, count))))


def _shared(count: int, left: int, right: int) -> tuple[int, int]:
    """So many words, half of them on each side, or more where the other has fewer."""
    half = min(left, max(count // 2, count - right))
    return half, min(right, count - half)


def _largest(least: int, most: int, is_fine: Callable[[int], bool]) -> int:
    """The largest number that is fine, where smaller ones are too; the least in any case."""
    while least < most:
        middle = (least + most + 1) // 2
        least, most = (middle, most) if is_fine(middle) else (least, middle - 1)
    return least
