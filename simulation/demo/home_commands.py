"""What people say in four homes, and the command that it means, as conversations to learn from.

    {"messages": [{"role": "user", "content": "kill the hall lamp"},
                  {"role": "assistant", "content": '{"do":"off","what":"lamp","where":"hall"}'}]}

Invented here. Each home has rooms of its own and people with ways of their own to say a thing; the
test texts say things in ways that no home trains on. Which ones follow from a seed alone.
"""

import json
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from smidgen.edge_client.tasks.task import Task, task_toml

TASK = Task("home_commands", kind="chat")
SENTENCE = "please get the lamp in the kitchen going"  # said as no home trains on it
HOMES = {
    "home-1": ("kitchen", "hall", "cellar"),
    "home-2": ("bedroom", "study", "garage"),
    "home-3": ("bathroom", "attic", "porch"),
    "home-4": ("nursery", "workshop", "balcony"),
}
# By what is done: the things it is done to, two ways to say it for each home, and those held out.
WAYS: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "on": (
        ("lamp", "fan", "radio"),
        (
            *("turn on the {what} in the {where}", "{where} {what} on please"),
            *("switch the {where} {what} on", "I need the {what} in the {where}"),
            *("start the {what} in the {where}", "could you put the {where} {what} on"),
            *("power up the {where} {what}", "let the {what} in the {where} run"),
        ),
        ("please get the {what} in the {where} going", "put on the {what} in the {where}"),
    ),
    "off": (
        ("lamp", "fan", "radio"),
        (
            *("turn off the {what} in the {where}", "{where} {what} off please"),
            *("switch the {where} {what} off", "kill the {where} {what}"),
            *("stop the {what} in the {where}", "no more {what} in the {where}"),
            *("shut down the {where} {what}", "nobody needs the {what} in the {where} now"),
        ),
        ("could you turn the {where} {what} off again", "the {what} in the {where} can go off"),
    ),
    "open": (
        ("window", "blind"),
        (
            *("open the {what} in the {where}", "{where} {what} open please"),
            *("raise the {where} {what}", "I want the {where} {what} open"),
            *("let some air in by the {where} {what}", "get the {what} in the {where} open"),
            *("the {where} {what} should be open", "move the {where} {what} up"),
        ),
        ("could you open up the {where} {what}", "open wide the {what} in the {where}"),
    ),
    "close": (
        ("window", "blind"),
        (
            *("close the {what} in the {where}", "{where} {what} closed please"),
            *("lower the {where} {what}", "I want the {where} {what} shut"),
            *("no draught by the {where} {what}", "get the {what} in the {where} closed"),
            *("the {where} {what} should be shut", "move the {where} {what} down"),
        ),
        ("could you shut the {where} {what}", "close up the {what} in the {where}"),
    ),
    "set": (
        ("heating",),
        (
            *("set the {where} to {to} degrees", "{to} degrees in the {where} please"),
            *("heat the {where} to {to}", "I want {to} degrees in the {where}"),
            *("make it {to} in the {where}", "the {where} should have {to} degrees"),
            *("bring the {where} to {to} degrees", "warm up the {where} to {to}"),
        ),
        ("could the {where} be at {to} degrees", "put the {where} heating on {to}"),
    ),
}


def conversation(said: str, command: dict[str, Any]) -> dict[str, Any]:
    """A row of a file: what was said, and the command in compact JSON."""
    contents = {"user": said, "assistant": json.dumps(command, separators=(",", ":"))}
    return {"messages": [{"role": role, "content": one} for role, one in contents.items()]}


def write_homes(folder: Path, train: int = 36, test: int = 16, seed: int = 0) -> list[Path]:
    """Write a data folder for each home: `labelled.jsonl`, `test.jsonl` and `task.toml`.

    Laws: equal arguments write equal bytes; no way to say a thing is in both parts of any home.

    Args:
        folder: Gets a folder for each.
        train: Conversations of a home to train on, at most.
        test: Those to test on, at most.
        seed: Of which ones.
    """
    folders = []
    for number, (name, rooms) in enumerate(HOMES.items()):
        draw = np.random.Generator(np.random.PCG64([seed, number]))
        home = folder / name
        home.mkdir(parents=True)
        own = {act: ways[2 * number : 2 * number + 2] for act, (_, ways, _) in WAYS.items()}
        held_out = {act: ways for act, (_, _, ways) in WAYS.items()}
        for part, ways, most in (("labelled", own, train), ("test", held_out, test)):
            every = [conversation(*one) for one in _said(ways, rooms, draw)]
            chosen = sorted(draw.permutation(len(every))[:most].tolist())
            lines = (json.dumps(every[row]) + "\n" for row in chosen)
            (home / f"{part}.jsonl").write_text("".join(lines), encoding="utf-8")
        (home / "task.toml").write_text(task_toml(TASK), encoding="utf-8")
        folders.append(home)
    return folders


def _said(
    ways: dict[str, tuple[str, ...]], rooms: Sequence[str], draw: np.random.Generator
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Everything that can be said in some ways in some rooms, and what it means."""
    for act, forms in ways.items():
        for form, what, where in product(forms, WAYS[act][0], rooms):
            command: dict[str, Any] = {"do": act, "what": what, "where": where}
            to = int(draw.choice(range(17, 25)))
            command |= {"to": to} if act == "set" else {}
            yield form.format(what=what, where=where, to=to), command
