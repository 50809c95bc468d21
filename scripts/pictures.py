"""The two pictures of docs/architecture.md that are made from the code; `--check` fails if old.

    python scripts/pictures.py            # writes docs/images/packages.svg and phases.svg
    python scripts/pictures.py --check    # as `make check` does

`packages.svg`: every package below the four and an arrow for each that imports another package, by
the order that tests/test_architecture.py holds. `phases.svg`: the phases of a run and the events
between them, found by following `decide`, `event_of` and `evolve` from a new run on.
"""

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import wrap
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from smidgen.coordinator.config import RunConfig  # noqa: E402
from smidgen.coordinator.rounds.events import Answered, Event, StepClosed  # noqa: E402
from smidgen.coordinator.rounds.machine import decide  # noqa: E402
from smidgen.coordinator.rounds.orders import OrderError, OrderKind, event_of  # noqa: E402
from smidgen.coordinator.rounds.state import State, evolve  # noqa: E402
from smidgen.edge_client.tasks.task import Task  # noqa: E402
from smidgen.edge_client.wire.training import Labelling  # noqa: E402
from tests.test_architecture import ORDER, arrows, inside, room_in  # noqa: E402

STYLE = """text { font: 13px "DejaVu Sans", Verdana, sans-serif; fill: #24292f; }
.head { font-weight: bold; font-size: 15px; } .page { fill: #fff; stroke: #d0d7de; }
.box { fill: #ddf4ff; stroke: #0969da; } .event { fill: #57606a; font-size: 12px; }
.arrow { fill: none; stroke: #57606a; stroke-width: 1.2; marker-end: url(#tip); }"""
TIP = (
    '<marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
    'orient="auto"><path d="M 0 0 L 10 5 L 0 10 z" fill="#57606a"/></marker>'
)
PACKAGES = tuple(name for name in ORDER if "." not in name)
PLACES = {  # of the phases: left, top, width, height
    "waiting": (44, 210, 110, 40),
    "label": (420, 70, 110, 40),
    "train": (420, 210, 110, 40),
    "evaluate": (420, 350, 110, 40),
    "running": (24, 30, 530, 380),  # all of these
    "paused": (700, 110, 110, 40),
    "finished": (700, 310, 110, 40),
}
RUNNING = ("waiting", "label", "train", "evaluate")
ORDERS: tuple[OrderKind, ...] = ("pause", "resume", "stop", "extend")
TASK = Task("t", ("a", "b"), ("[MASK] {text}",), {"a": "a", "b": "b"})
RUN = RunConfig("run", TASK, rounds=2, min_clients=2, labelling=Labelling())
DEVICES = ("a", "b", "c")


def picture(title: str, said: str, width: int, height: int, parts: Sequence[str]) -> str:
    """A page of SVG with its title and a description for those who do not see it."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img" aria-labelledby="title desc">',
            f'<title id="title">{escape(title)}</title>',
            f'<desc id="desc">{escape(said)}</desc>',
            f"<style>{STYLE}</style><defs>{TIP}</defs>",
            f'<rect class="page" x="1" y="1" width="{width - 2}" height="{height - 2}" rx="10"/>',
            *parts,
            "</svg>\n",
        ]
    )


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(words)}</text>'


def packages() -> str:
    """The packages of each of the four, the highest on top, and who imports whom."""
    seen = defaultdict[str, set[str]](set)
    for package in PACKAGES:
        for name in inside(package):
            for target in arrows(name):
                top = target.partition(".")[0]
                if top != package and top in PACKAGES:
                    seen[f"{package} > {top}"].add(room_in(top, target))
    parts, deepest = [], max(len(ORDER[package]) for package in PACKAGES)
    for column, package in enumerate(PACKAGES):
        x = 24 + 188 * column
        parts.append(text(x, 36, f"{package}/", "head"))
        for row, rooms in enumerate(reversed(ORDER[package])):
            y = 52 + 30 * row
            parts.append(f'<rect class="box" x="{x}" y="{y}" width="168" height="22" rx="5"/>')
            words = ", ".join(rooms)
            squeeze = ' textLength="158" lengthAdjust="spacingAndGlyphs"' * (len(words) > 22)
            parts.append(text(x + 6, y + 16, words).replace("<text", f"<text{squeeze}"))
    y = 80 + 30 * deepest
    for pair, rooms in sorted(seen.items()):
        words = f"{pair.replace('>', 'imports of')}/: {', '.join(sorted(rooms))}"
        for line in wrap(words, 120, subsequent_indent="    "):
            parts.append(text(24 + 16 * line.startswith(" "), y, line.strip()))
            y += 22
    said = "Each package by its lines of folders; a line imports only from lines below its own."
    return picture("Packages, and who imports whom", said, 964, y, parts)


def phases() -> Mapping[tuple[str, str], set[str]]:
    """(phase, next phase) -> names of the events that lead from one to the other."""
    found = defaultdict[tuple[str, str], set[str]](set)
    known, open_states = set[str](), [State("first")]
    while open_states:
        state = open_states.pop()
        for event in events(state):
            after = evolve(state, event)
            if after.phase != state.phase:
                found[state.phase, after.phase].add(type(event).__name__)
            key = repr((after.phase, after.round_index, after.evaluated, after.labelled))
            key += repr((after.step and sorted(after.step.answers), after.rounds, after.is_stopped))
            if key not in known:
                known.add(key)
                open_states.append(after)
    return found


def events(state: State) -> Iterator[Event]:
    """What may come next: the machine's own events, an operator's, and devices' answers."""
    for now_s in (1.0, 1e6):  # within a step's deadline, and behind it
        event = decide(RUN, state, DEVICES, "secret", now_s)
        if isinstance(event, StepClosed):
            event = replace(event, adapter_sha256=f"{state.round_index}")
        yield from [event] if event else []
    for kind in ORDERS:
        try:
            yield event_of(kind, RUN.rounds + 1, RUN, state, 1.0)
        except OrderError:
            continue
    for work_id, name in state.step.members.items() if state.step else ():
        yield Answered(work_id, "done", f"u-{name}", 4)
        yield Answered(work_id, "failed", None, 0)


def together(found: Mapping[tuple[str, str], set[str]]) -> Mapping[tuple[str, str], set[str]]:
    """With one arrow from or to `running` where all its phases have the same."""
    drawn = dict(found)
    for other in ("paused", "finished"):
        for ends in ([(one, other) for one in RUNNING], [(other, one) for one in RUNNING]):
            names = [found.get(pair) for pair in ends]
            if names[0] and all(one == names[0] for one in names):
                drawn = {pair: one for pair, one in drawn.items() if pair not in ends}
                pair = ends[0]
                drawn[("running", other) if pair[1] == other else (other, "running")] = names[0]
    return drawn


def arrow(phase: str, after: str, words: str) -> list[str]:
    """From one box to another, to the left of an arrow back."""
    (x, y), (u, v) = middle(phase), middle(after)
    length = ((u - x) ** 2 + (v - y) ** 2) ** 0.5
    right, down = 9 * (v - y) / length, -9 * (u - x) / length
    (a, b), (c, d) = boundary(phase, u, v), boundary(after, x, y)
    ends = a + right, b + down, c + right, d + down
    line = "M {:.0f} {:.0f} L {:.0f} {:.0f}".format(*ends)
    place = round((a + c) / 2 + 1.5 * right), round((b + d) / 2 + 2 * down + 4)
    return [f'<path class="arrow" d="{line}"/>', text(*place, words, "event", "middle")]


def middle(phase: str) -> tuple[float, float]:
    x, y, width, height = PLACES[phase]
    return x + width / 2, y + height / 2


def boundary(phase: str, to_x: float, to_y: float) -> tuple[float, float]:
    """Where a line from a box's middle to a point leaves the box."""
    (x, y), (_, _, width, height) = middle(phase), PLACES[phase]
    run, fall = to_x - x, to_y - y
    share = min(width / 2 / abs(run) if run else 9, height / 2 / abs(fall) if fall else 9)
    return x + share * run, y + share * fall


def phases_picture() -> str:
    found = phases()
    drawn, parts = together(found), []
    for phase, (x, y, width, height) in sorted(PLACES.items(), key=lambda one: one[0] != "running"):
        kind, low = ("page", 22) if phase == "running" else ("box", 25)
        size = f'width="{width}" height="{height}"'
        parts.append(f'<rect class="{kind}" x="{x}" y="{y}" {size} rx="8"/>')
        parts.append(text(x + width / 2, y + low, phase, "head", "middle"))
    for (phase, after), names in sorted(drawn.items()):
        parts += arrow(phase, after, ", ".join(sorted(names)))
    told = (
        f"{one} to {other}: {', '.join(sorted(found[one, other]))}" for one, other in sorted(found)
    )
    return picture(
        "The phases of a run", f"Events between them: {'; '.join(told)}.", 840, 430, parts
    )


def main() -> int:
    old = []
    for name, body in (("packages.svg", packages()), ("phases.svg", phases_picture())):
        path = ROOT / "docs" / "images" / name
        if "--check" not in sys.argv:
            path.write_text(body, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != body:
            old.append(str(path.relative_to(ROOT)))
    if old:
        print(f"{', '.join(old)}: not what the code gives; run python scripts/pictures.py")
    return 1 if old else 0


if __name__ == "__main__":
    sys.exit(main())
