"""docs/privacy.md says of every field that leaves a device what it is and what it reveals.

Routes come from the table in the docstring of `smidgen.edge_client.wire.messages`, fields and
meanings from its dataclasses; the page has a row for each, with two cells that only people can
fill.
"""

import inspect
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from smidgen.edge_client.client import state
from smidgen.edge_client.wire import fleet, messages, tensors
from smidgen.edge_client.wire.reports import SAID

PAGE = (Path(__file__).parents[2] / "docs" / "privacy.md").read_text(encoding="utf-8")
ROUTE = re.compile(r"^ +(GET|PUT|POST) +(\S+) +(?:(\w+) -> )?(.+)", re.MULTILINE)
ATTRIBUTE = re.compile(r"^ {4}(\w+): ((?:.|\n {5,})+)", re.MULTILINE)
UPDATE = "safetensors"  # a message whose header travels as `UpdateHeader`
IN_HEADER = {f"Update.{name}" for name in ("work_id", "num_examples", "steps", "codec", "coded")}
OF_THE_RUN = {  # what a device gets that says nothing of others
    "Enrolled": {"protocol", "device_id"},
    "Terms": {
        *("run_id", "run_name", "base_id", "base_name", "adapter_spec", "task", "training"),
        *("rounds", "labelling", "min_clients", "pack", "steps"),
    },
    "Outdated": {"minimum"},
    "Work": {
        *("protocol", "work_id", "kind", "run_id", "round_index", "base_id", "adapter_spec"),
        *("adapter_bytes", "task", "training", "seed", "labelling", "keep", "test_share"),
    },
    "Waiting": {"run_name", "round_index", "rounds", "closes_in_s"},
    "Over": {"run_id", "run_name", "ended", "rounds", "kept_round"},
    "Receipt": {"accepted", "reason", "next"},
}


def section(title: str) -> list[list[str]]:
    """Cells of the rows of the table under a heading."""
    _, _, rest = PAGE.partition(f"\n{title}\n")
    assert rest, f"docs/privacy.md has no {title!r}"
    lines = [line for line in re.split(r"\n##+ ", rest)[0].splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[1:]]


def every_message() -> dict[str, type[Any]]:
    modules = [messages, fleet, fleet]
    own = {module.__name__ for module in modules}
    every = [kind for module in modules for kind in vars(module).values()]
    return {
        kind.__name__: kind
        for kind in every
        if isinstance(kind, type) and is_dataclass(kind) and kind.__module__ in own
    }


def parts_of(hint: Any) -> list[type[Any]]:
    """The wire's dataclasses inside a type."""
    if isinstance(hint, type) and is_dataclass(hint):
        own = ("smidgen.edge_client.wire", "smidgen.edge_client.tasks.counts")
        return [hint] if hint.__module__.startswith(own) else []
    return [part for inner in get_args(hint) for part in parts_of(inner)]


def inner(kind: type[Any]) -> list[str]:
    return [part.__name__ for hint in get_type_hints(kind).values() for part in parts_of(hint)]


def leaves(kind: type[Any]) -> Iterator[tuple[str, Any, str]]:
    """Key, type and meaning of each field, those of dataclasses within one by one."""
    hints = get_type_hints(kind)
    _, _, attributes = inspect.cleandoc(kind.__doc__ or "").partition("Attributes:\n")
    meanings = {name: " ".join(said.split()) for name, said in ATTRIBUTE.findall(attributes)}
    for field in fields(kind):
        key, parts = f"{kind.__name__}.{field.name}", parts_of(hints[field.name])
        for part in parts:
            yield from leaves(part)
        if not parts and key not in IN_HEADER:
            yield key, hints[field.name], meanings[field.name]


def sent(message: str) -> list[tuple[str, Any, str]]:
    if message == UPDATE:
        return [*leaves(tensors.UpdateHeader), *leaves(tensors.Update)]
    return list(leaves(every_message()[message])) if message else []


def has_text(hint: Any) -> bool:
    return hint is str or any(map(has_text, get_args(hint)))


def free_texts() -> list[str]:
    """Fields in which a device could say anything at all; codes and tensors' names are none."""
    codes = {"Report.failure", "Membership.failure", "Membership.mask_key", "Update.delta"}
    return [key for key, hint in HINTS.items() if has_text(hint) and key not in codes]


ROUTES = ROUTE.findall(messages.__doc__ or "")
SENDING = [one for one in ROUTES if one[2] or "?" in one[1]]
HINTS = {key: hint for *_, up, _ in SENDING for key, hint, _ in sent(up)}


@pytest.mark.parametrize(("method", "request_line", "up", "_"), SENDING, ids=lambda one: str(one))
def test_a_field_that_leaves_has_its_row(method: str, request_line: str, up: str, _: str) -> None:
    path, _, query = request_line.partition("?")
    rows = section(f"### `{method} {path}`{f': {up}' if up else ''}")
    asked = [(f"work.{part.partition('=')[0]}", None) for part in query.split("&") if part]
    wanted = [*asked, *((key, meaning) for key, _, meaning in sent(up))]
    assert [row[0] for row in rows] == [f"`{key}`" for key, _ in wanted]
    for row, (key, meaning) in zip(rows, wanted, strict=True):
        assert len(row) == 5 and all(row), f"{key}: say what its owner and other devices learn"
        said = row[2].replace("\\|", "|")
        assert meaning in (None, said), f"{key}: what it is, by its docstring: {meaning}"


def test_a_field_that_comes_in_has_its_row_or_is_the_runs_own() -> None:
    known, carried = every_message(), inner(messages.Next)
    named = {name for *_, down in ROUTES for name in re.findall(r"\w+", down) if name in known}
    down = sorted(named - {"Next"} | set(carried))
    wanted = {f"`{name}.{field.name}`" for name in down for field in fields(known[name])}
    own = {f"`{name}.{field}`" for name, some in OF_THE_RUN.items() for field in some}
    rows = {row[0] for row in section("## What devices learn of each other")} - {"adapter"}
    assert own <= wanted, own - wanted
    assert rows == wanted - own


def test_a_message_has_a_route() -> None:
    named = {name for *_, up, down in ROUTES for name in (up, *re.findall(r"\w+", down))}
    within = {name for kind in every_message().values() for name in inner(kind)}
    assert not set(every_message()) - named - within


def test_a_field_that_may_hold_words_is_listed_as_one() -> None:
    _, _, rest = PAGE.partition("\n## What leaves\n")
    listed = re.findall(r"^- `(.+)`$", rest.partition("\n### ")[0], re.MULTILINE)
    assert listed == free_texts()


def test_a_report_holds_no_words_of_the_device() -> None:
    others = [key for key in free_texts() if not key.startswith(("Enrol.", "DeviceFacts."))]
    assert others == ["UpdateHeader.work_id", "Report.work_id"]


def test_failures_are_those_of_the_wire() -> None:
    assert section("### Failures") == [[f"`{code}`", said] for code, said in SAID.items()]


def test_the_state_folder_is_as_its_module_says() -> None:
    files = re.findall(r"^(\S+(?:, \S+)?) {2,}(.+)$", state.__doc__ or "", re.MULTILINE)
    assert section("## What stays on the device") == [[f"`{name}`", what] for name, what in files]
