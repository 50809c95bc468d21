"""Writes docs/privacy.md: what leaves a device, field by field, from the types of the wire.

    python scripts/privacy_page.py    rewrites the page

Routes come from the table in the docstring of `edge_client.wire.messages`, fields and types from
its dataclasses, meanings from their docstrings. What a field reveals cannot be generated: it stands
in `REVEALS` and `LEARNS` below, and a field without its line there ends in an error that names it.
"""

import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from edge_client.client import state  # noqa: E402
from edge_client.wire import fleet, messages, tensors  # noqa: E402
from edge_client.wire.failures import SAID, Failure  # noqa: E402

PAGE = ROOT / "docs" / "privacy.md"
TENSORS = tensors.Update  # what a safetensors body from a device holds
ROUTE = re.compile(r"^ +(GET|PUT|POST) +(\S+) +(?:(\w+) -> )?(.+)", re.MULTILINE)
ATTRIBUTE = re.compile(r"^ {4}(\w+): ((?:.|\n {5,})+)", re.MULTILINE)
NOT_SENT = ("Update.work_id", "Update.num_examples")  # they travel as `UpdateHeader`

QUERY = {  # what the parts of a query are, which have no docstring
    "wait_s": "Seconds it will wait for an answer.",
    "life": "What it drew at its start.",
}
SAYS_NOTHING = "Nothing of the device."

# What the run's owner learns from a field that leaves a device, and what other devices get of it.
# "" for the latter: nothing.
REVEALS: dict[str, tuple[str, str]] = {
    "Enrol.protocol": ("Which smidgen it may be.", ""),
    "Enrol.token": ("That it was invited. Whoever reads it can enrol devices.", ""),
    "Enrol.name": (
        "Whatever its owner calls it; the host's name unless `--name` is given. A name such as "
        "`annas-phone` says who it is.",
        "The name, while it is waited for, in a run with `tell_names`.",
    ),
    "Enrol.life": ("When it was started anew.", ""),
    "Enrol.tags": (
        "Whatever its owner says with `--tag`; where it stands, in `site=kitchen`.",
        "",
    ),
    "DeviceFacts.machine": ("The kind of processor.", ""),
    "DeviceFacts.cores": ("The class of hardware; with the other facts nearly a fingerprint.", ""),
    "DeviceFacts.memory_bytes": ("The same; exact to the byte, so often unique.", ""),
    "DeviceFacts.python": ("How old its software is, and so what may be wrong with it.", ""),
    "DeviceFacts.smidgen": ("The same.", ""),
    "DeviceFacts.engine": ("Which of its libraries are installed.", ""),
    "DeviceFacts.base_id": (
        "Which base it holds; of a base that only some people have, that it is one of these.",
        "",
    ),
    "DeviceFacts.budget_bytes": ("How much memory its owner lets it take.", ""),
    "DeviceFacts.board": ("Its make and model; with the other facts nearly a fingerprint.", ""),
    "DeviceFacts.is_on_mains": ("Whether it was plugged in when it started.", ""),
    "Membership.state": ("Whether it takes part, and that it has the finished adapter.", ""),
    "Membership.failure": (
        "Why it cannot, of those listed under [failures](#failures): that it holds another base, "
        "too little memory, or texts of other labels.",
        "",
    ),
    "Membership.peak_bytes": ("How much memory it will take, so its engine and its budget.", ""),
    "work.wait_s": (SAYS_NOTHING, ""),
    "work.life": ("When it was started anew, and that its state folder was copied.", ""),
    "UpdateHeader.protocol": (SAYS_NOTHING, ""),
    "UpdateHeader.work_id": (f"{SAYS_NOTHING} The coordinator drew it.", ""),
    "UpdateHeader.num_examples": (
        "How many texts it trained on.",
        "Nothing but its weight in the mean.",
    ),
    "Update.delta": (
        "The most of all: see [updates](#updates) below.",
        "The mean over the round's devices, in the next adapter. In a round of one device that is "
        "its update.",
    ),
    "Report.work_id": (f"{SAYS_NOTHING} The coordinator drew it.", ""),
    "Report.outcome": ("Whether it could do the work.", ""),
    "Report.num_examples": ("How many texts it holds for this kind of work.", ""),
    "Report.loss": (
        "How well the adapter fits its texts; of a device with one text, how well that one.",
        "",
    ),
    "Report.accuracy": (
        "How often the adapter is right there; of a device with one test text, whether it is.",
        "The mean over all devices, by round, when the run is over.",
    ),
    "Cost.phases_s": (
        "How fast it is and how busy. Time grows with the number and length of its texts.",
        "",
    ),
    "Cost.cpu_s": ("The same, and what else ran beside the client.", ""),
    "Cost.peak_rss_bytes": ("How much memory its plan takes; grows with its longest text.", ""),
    "Cost.is_peak_of_work": ("How its kernel is set up.", ""),
    "Cost.peak_phase": ("Which part of the work needs most memory.", ""),
    "Cost.peak_anon_bytes": ("The same as `peak_rss_bytes`.", ""),
    "Cost.peak_file_bytes": ("How much of its base is kept in memory.", ""),
    "Cost.pss_bytes": ("The same, and whether another process uses the same files.", ""),
    "Cost.minor_faults": ("How much memory it took anew.", ""),
    "Cost.major_faults": ("How short of memory the device is.", ""),
    "Cost.disk_read_bytes": ("The same; whether its texts were read from disk again.", ""),
    "Cost.payload_up_bytes": ("Nothing that the coordinator did not see arrive.", ""),
    "Cost.payload_down_bytes": ("Nothing that the coordinator did not send.", ""),
    "Cost.tcp_up_bytes": ("How often it had to send again; how long a proxy's headers are.", ""),
    "Cost.tcp_down_bytes": ("The same of what it received.", ""),
    "Cost.tcp_retransmitted_bytes": ("How good its network is.", ""),
    "Cost.requests": ("How often its connection broke.", ""),
    "Cost.connections": ("The same.", ""),
    "Cost.energy_j": ("What the work took of its battery or supply.", ""),
    "Cost.energy_source": ("Which kind of board it is.", ""),
    "Cost.hottest_c": ("How warm it is where the device stands.", ""),
    "Cost.is_throttled": ("The same.", ""),
    "Cost.power_mode": ("How its owner has set the board.", ""),
    "Cost.accelerator_peak_bytes": ("Whether it computes on a GPU.", ""),
    "Report.failure": (
        "What kind of trouble it has, of those listed under [failures](#failures).",
        "",
    ),
    "Report.is_leaving": ("That its client has stopped.", ""),
    "Report.labelled": ("How many texts its owner has labelled.", ""),
    "Report.pseudo_labels": ("How many of its unlabelled texts the run's adapter is sure of.", ""),
    "Report.mean_log_probabilities": (
        "The mean answer over its test texts, so roughly which labels are frequent there; of a "
        "device with one test text, the answer to that text.",
        "The mean over all devices, as the prior of label work.",
    ),
    "Report.refused_bytes": ("That a proxy between refused its update, and its size.", ""),
    "Report.layer_forwards": (
        "How much it computed: texts times layers, so how many texts were easy.",
        "",
    ),
    "Confidences.texts": ("How many unlabelled texts it holds.", "Sums of it set thresholds."),
    "Confidences.counts": (
        "For each label, how many of its texts the adapter takes for it, and how surely: the "
        "device's mix of topics. Of a device with one text, that text's label and confidence. "
        "Counts before and after a text was added say the same of that text.",
        "Thresholds that follow from the sums over all devices.",
    ),
}

# What a device learns of other devices from a field that it receives; "" for nothing.
LEARNS: dict[str, str] = {
    "Enrolled.protocol": "",
    "Enrolled.device_id": "",
    "Enrolled.name": "A number behind the name, as in `kitchen-2`: the name was taken.",
    **{f"Terms.{name}": "" for name in ("run_id", "run_name", "base_id", "base_name")},
    **{f"Terms.{name}": "" for name in ("adapter_spec", "task", "training", "rounds", "labelling")},
    "Terms.min_clients": "",
    **{f"Work.{name}": "" for name in ("protocol", "work_id", "kind", "run_id", "round_index")},
    **{f"Work.{name}": "" for name in ("base_id", "adapter_spec", "adapter_bytes", "task")},
    **{f"Work.{name}": "" for name in ("training", "seed", "labelling", "keep")},
    "Work.adapter_sha256": "Names the adapter, which is the mean of all updates so far.",
    "Work.prior": "The mean over all test texts; of two devices each can work out the other's.",
    "Work.thresholds": "How sure devices are of each label, as one number for all of them.",
    "Work.most": "About how many texts of one class the devices hold.",
    "Waiting.phase": "What others are doing.",
    "Waiting.run_name": "",
    "Waiting.round_index": "",
    "Waiting.rounds": "",
    "Waiting.missing": "How many have not answered yet.",
    "Waiting.asked": "How many were asked.",
    "Waiting.closes_in_s": "",
    "Waiting.names": "Who has not answered yet; only where the run's owner sets `tell_names`.",
    "Over.adapter_sha256": "Names the finished adapter, the mean of all updates.",
    "Over.run_id": "",
    "Over.run_name": "",
    "Over.is_stopped": "",
    "Over.rounds": "",
    "Over.devices": "How many there were.",
    "Over.accuracies": "The mean over all devices; of two, each can work out the other's.",
    "Receipt.accepted": "",
    "Receipt.reason": "",
}

WHEN: dict[str, str] = {
    "Enrol": "Each time its client starts, before anything else; the token until it is known.",
    "work": "Always, as long as its client runs: this is how it waits.",
    "Membership": "When a run wants it and its texts, base and budget were looked at; when a run "
    "is over.",
    "safetensors": "After each training. The header travels in the safetensors file's metadata.",
    "Report": "After each piece of work, done or failed.",
}

HEAD = """
# What leaves a device

The texts stay. What leaves is listed here whole, message by message and field by field. This page
is generated from the types of the wire (`scripts/privacy_page.py`), and a test compares the two: a
field that is new in a message cannot be left out here.

Three parties may learn something:

- **the run's owner**, who has the coordinator, its store and its log, and sees every field below.
  So does whoever they let in as an operator;
- **other devices** of the run, which get what the coordinator makes of all answers;
- **somebody on the wire**. Over TLS (`coordinator init`), which a device checks by the fingerprint
  it was started with, they see addresses, times and sizes: who takes part, when, and for how long.
  Over plain HTTP, which is spoken on loopback or where both sides say `--plain-http`, whoever sits
  on the way reads all that the owner reads, the enrolment token and the device keys included, and
  can change it.
"""

WORDS = """
## What leaves

Only these fields can hold words; all others are numbers and codes. Tokens and ids are those that
the coordinator gave; name, tags and facts have nothing to do with the texts.
"""

NOTES = """
Every request carries `User-Agent: smidgen`, nothing of the system, and as `Authorization` the key
that the device drew before its first one. The coordinator sees the network address it comes from.
"""

REVEALED = """
## What this reveals

There is **no secure aggregation and no differential privacy yet**. The coordinator sees every
device's update and counts by themselves, without noise, and keeps them in its store. Take part only
in a run whose owner you would trust with what follows.

### Updates

An update is the change of the adapter after some passes over the device's texts. It is no text, but
it was computed from texts, and work on this is discouraging:

- Zhu, Liu and Han 2019, "Deep Leakage from Gradients"
  ([arXiv:1906.08935](https://arxiv.org/abs/1906.08935)), recover training inputs, tokens of a
  masked language model among them, from the gradient of one step.
- Balunović et al. 2022, "LAMP" ([arXiv:2202.08827](https://arxiv.org/abs/2202.08827)), recover much
  of the sentences of small batches from gradients of BERT models, helped by a language model.
- Melis et al. 2019, "Exploiting Unintended Feature Leakage in Collaborative Learning"
  ([arXiv:1805.04049](https://arxiv.org/abs/1805.04049)), tell from updates whether a text was
  trained on, and properties of the texts that have nothing to do with the task.
- Fowl et al. 2022, "Decepticons" ([arXiv:2201.12675](https://arxiv.org/abs/2201.12675)), show that
  a server which sends a corrupted transformer, instead of an honest one, gets far more.

smidgen's updates are of a small adapter on a frozen base, summed over several steps and epochs;
embeddings are not trained, so an update has no row per word. All this makes such attacks harder.
Nobody has measured how much harder, so do not count on it. Few texts, few steps and high ranks make
them easier. A coordinator that runs other code than this repository's cannot change the base, but
it chooses the adapter, the patterns and the label words that a device computes with; what that is
worth to it has not been studied here.

The finished adapter is made of all devices' updates. Whoever holds it can ask whether a text was
trained on (membership inference: Shokri et al. 2017,
[arXiv:1610.05820](https://arxiv.org/abs/1610.05820)).

### Counts, means and histograms

Numbers of texts say how much somebody writes, and a report per round says when. Means over many
texts say little of one; over one text they are that text's. The same holds for histograms of
confidences: a device with one unlabelled text tells that text's most probable label, and one that
adds a text between two rounds tells that of the new one. `num_examples` says how many texts stand
behind a mean, so the owner knows which of them to look at.

### Times, facts and names

Times say when a device is on, how fast it is and roughly how much text it has. Its key
makes it one device in all runs of a coordinator. Facts make it recognisable at another one,
together with its address even under another name. Name and
tags are what its owner gave it: give `--name` if the host's name says whose it is.
"""

CHECK = """
## What stays on the device

The texts, wherever `--data` is, and the state folder. It is as private as the texts: what frozen
layers gave, and readings by text hash, say what the texts were to anybody who can guess them.

{state}

The client's own log stays, too. It names files and may quote a line of them, so read it before you
send it to somebody.

## How to check this

    python -m pytest tests/attacks/test_no_text_leaves.py -m "slow or not slow"

Real clients run with texts, labels, columns, folders and users' names that occur nowhere else, and
meet some sixty kinds of trouble: swapped columns, damaged files, full disks, too little memory. A
relay between client and coordinator keeps every byte. None of those words may be in them, in the
coordinator's store, in its log, or in what its commands print or export, whether in the clear or as
JSON, base64, hexadecimal digits or UTF-16; and one control does send such words, to show that they
would be found. The test does not look for words that somebody computes out of an update. To see the
messages themselves, put any HTTP proxy before `--coordinator`.
"""

SIZES = """
## How large it is

Measured by that relay, in bytes with HTTP's own, in a run of 3 rounds with labelling, one device, 4
labelled texts, 4 to test on and 3 unlabelled ones. Three labels; a histogram grows with them, an
update with the adapter. TLS comes on top.

| request | from the device | to the device |
|---|---|---|
| `POST /v1/enrol` | 554 | 186 |
| `GET /v1/work`, a run's terms | 173 | 546 |
| `POST /v1/runs/.../membership` | 256 to 281 | 154 |
| `GET /v1/work`, work given | 173 to 174 | 739 to 835 |
| `GET /v1/work`, nothing to do | 173 | 153 |
| `GET /v1/adapters/...`, `lora:8` of the embedded base | 233 | 100,862 |
| `PUT /v1/work/.../update`, the same | 100,937 | 154 |
| `POST .../report` after training | 1,000 to 1,002 | 154 |
| `POST .../report` after an evaluation | 1,008 to 1,011 | 154 |
| `POST .../report` after labelling | 1,166 to 1,168 | 154 |
| `GET /v1/work`, run over | 174 | 330 |
| the whole run, 33 requests | 317,631 | 414,790 |
"""


class PageError(Exception):
    """A field, message or line of this file that has no counterpart."""


@dataclass(frozen=True)
class Route:
    """One request of the contract.

    Attributes:
        path: Method and path, without its query.
        query: Names of what the query carries.
        up: Message that the device sends; `safetensors`, or empty for none.
        down: Messages that it may get.
    """

    path: str
    query: tuple[str, ...]
    up: str
    down: tuple[str, ...]


def routes(module: ModuleType = messages) -> list[Route]:
    """The routes in the docstring of the wire's messages."""
    known, found = {"safetensors", *(kind.__name__ for kind in _messages())}, []
    for method, request, up, told in ROUTE.findall(module.__doc__ or ""):
        path, _, query = request.partition("?")
        answers = tuple(word for word in re.findall(r"\w+", told) if word in known)
        names = tuple(part.partition("=")[0] for part in query.split("&") if part)
        found.append(Route(f"{method} {path}", names, up, answers))
    return found


def is_of_the_wire(kind: Any) -> bool:
    """Whether a type is a dataclass of the wire, whose fields are listed one by one."""
    return is_dataclass(kind) and kind.__module__.startswith(messages.__package__ or "")


def parts_of(hint: Any) -> list[Any]:
    """The wire's dataclasses inside a type."""
    if is_of_the_wire(hint):
        return [hint]
    return [part for inner in get_args(hint) for part in parts_of(inner)]


def said_of(hint: Any) -> str:
    """A type in words."""
    plain = {str: "text", int: "whole number", float: "number", bool: "true or false"}
    origin, inside = get_origin(hint), get_args(hint)
    if hint is NoneType:
        return "null"
    if hint == tensors.AdapterState:
        return "float32 tensors by name"
    if hint in plain:
        return plain[hint]
    if origin is Literal:
        return "one of " + ", ".join(f"`{value}`" for value in inside)
    if origin in (Union, UnionType):
        return " or ".join(map(said_of, inside))
    if origin is tuple:
        return f"list of: {said_of(inside[0])}"
    if origin is dict:
        return f"{said_of(inside[1])} for each {said_of(inside[0])}"
    return getattr(hint, "__name__", str(hint))


def meanings(kind: type[Any]) -> dict[str, str]:
    """What a dataclass's docstring says of each field."""
    _, _, attributes = inspect.cleandoc(kind.__doc__ or "").partition("Attributes:\n")
    return {name: " ".join(text.split()) for name, text in ATTRIBUTE.findall(attributes)}


def fields_of(kind: type[Any]) -> Iterator[tuple[str, str, str]]:
    """Key, type and meaning of each field, those of dataclasses within one by one.

    Raises:
        PageError: A field has no meaning in its docstring.
    """
    hints, told = get_type_hints(kind), meanings(kind)
    for field in fields(kind):
        hint, key = hints[field.name], f"{kind.__name__}.{field.name}"
        if field.name not in told:
            raise PageError(f"{key} has no line under `Attributes:`")
        for part in parts_of(hint):
            yield from fields_of(part)
        if not parts_of(hint) and key not in NOT_SENT:
            yield key, failure_or(hint), told[field.name]


def failure_or(hint: Any) -> str:
    """A type in words; the codes of failures have a table of their own."""
    inner = get_args(hint)
    return "code or null" if Failure in inner else said_of(hint)


def kinds_of(name: str) -> tuple[type[Any], ...]:
    """The dataclasses behind a name in the contract's table."""
    if name == "safetensors":
        return tensors.UpdateHeader, TENSORS
    return (message(name),)


def line(key: str, table: Mapping[str, Any], name: str) -> Any:
    """What is said of a field.

    Raises:
        PageError: Nothing is; names the field and where to say it.
    """
    if key not in table:
        raise PageError(
            f"{key} has no line in {name} of scripts/privacy_page.py; say what it tells"
        )
    return table[key]


def row(*cells: str) -> str:
    escaped = (cell.replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"


def leaving(found: list[Route], reveals: Mapping[str, tuple[str, str]]) -> Iterator[str]:
    """A section for each request that carries something."""
    header = [row("field", "type", "what it is", "the run's owner learns", "other devices get")]
    header.append("|---|---|---|---|---|")
    for route in found:
        keys = [(f"work.{name}", "in the query", QUERY.get(name, "")) for name in route.query]
        if route.up:
            keys += [entry for kind in kinds_of(route.up) for entry in fields_of(kind)]
        if not keys:
            continue
        yield f"\n### `{route.path}`{f': {route.up}' if route.up else ''}\n"
        yield line(route.up or "work", WHEN, "WHEN") + "\n"
        yield from header
        for key, kind, meaning in keys:
            owner, others = line(key, reveals, "REVEALS")
            yield row(f"`{key}`", kind, meaning, owner, others or "nothing")


def coming(found: list[Route], learns: Mapping[str, str]) -> Iterator[str]:
    """A table of what devices get that others have a part in."""
    yield row("field", "type", "what it is", "what it tells of others")
    yield "|---|---|---|---|"
    for name in answers(found):
        if name == "safetensors":
            told = "All updates so far, averaged; in a round of one device, that device's."
            yield row("adapter", said_of(tensors.AdapterState), "The run's adapter.", told)
            continue
        kind = message(name)
        hints, told_of = get_type_hints(kind), meanings(kind)
        for field in fields(kind):
            key = f"{name}.{field.name}"
            learnt = line(key, learns, "LEARNS")
            if learnt:
                yield row(f"`{key}`", said_of(hints[field.name]), told_of[field.name], learnt)


def free_texts(found: list[Route]) -> list[str]:
    """The fields in which a device could say anything at all."""
    kinds = [kind for route in found if route.up for kind in kinds_of(route.up)]
    keys = [key for kind in kinds for key, said, _ in fields_of(kind) if "text" in said.split()]
    return list(dict.fromkeys(keys))


def failures() -> str:
    rows = [row(f"`{code}`", said) for code, said in SAID.items()]
    head = "### Failures\n\nOf an error the coordinator hears a code, never its message.\n"
    return "\n".join([head, row("code", "what the owner reads"), "|---|---|", *rows])


def state_folder() -> str:
    """The files of the state folder, from the docstring of the module that writes them."""
    found = re.findall(r"^(\S+(?:, \S+)?) {2,}(.+)$", state.__doc__ or "", re.MULTILINE)
    if not found:
        raise PageError("edge_client.client.state names no files in its docstring")
    return "\n".join(
        [row("file", "what it holds"), "|---|---|", *(row(f"`{n}`", t) for n, t in found)]
    )


def check_all_listed(found: list[Route], told: Iterable[str]) -> None:
    """Every message has a route, and every line here a field.

    Args:
        found: The routes.
        told: Keys of the lines.

    Raises:
        PageError: Names what has none.
    """
    named = {name for route in found for name in (route.up, *route.down)}
    inner = {part.__name__ for kind in _messages() for part in _inside(kind)}
    if lost := sorted({kind.__name__ for kind in _messages()} - named - inner):
        raise PageError(f"{lost[0]} is in no route in the docstring of edge_client.wire.messages")
    up = {key for r in found if r.up for kind in kinds_of(r.up) for key, _, _ in fields_of(kind)}
    asked = {f"work.{name}" for route in found for name in route.query}
    names = set(answers(found)) - {"safetensors"}
    down = {f"{name}.{field.name}" for name in names for field in fields(message(name))}
    if idle := sorted(set(told) - up - asked - down):
        raise PageError(f"{idle[0]} has a line in scripts/privacy_page.py, but does not travel")


def message(name: str) -> type[Any]:
    """The dataclass of a message."""
    return next(kind for kind in _messages() if kind.__name__ == name)


def answers(found: list[Route]) -> list[str]:
    """What a device may get, each once; of `Next` what it carries one of."""
    told: dict[str, None] = {}
    for name in (name for route in found for name in route.down):
        carried = _inside(messages.Next) if name == "Next" else []
        told |= dict.fromkeys([kind.__name__ for kind in carried] or [name])
    return list(told)


def _messages() -> list[type[Any]]:
    modules = [messages, fleet]
    found = [kind for module in modules for kind in vars(module).values()]
    kinds = dict.fromkeys(kind for kind in found if isinstance(kind, type))
    own = {module.__name__ for module in modules}
    return [kind for kind in kinds if is_dataclass(kind) and kind.__module__ in own]


def _inside(kind: type[Any]) -> list[type[Any]]:
    return [part for hint in get_type_hints(kind).values() for part in parts_of(hint)]


def page(
    reveals: Mapping[str, tuple[str, str]] = REVEALS, learns: Mapping[str, str] = LEARNS
) -> str:
    """The whole page.

    Raises:
        PageError: A field without its line here, or a line without its field.
    """
    found = routes()
    check_all_listed(found, [*reveals, *learns])
    sections = [
        HEAD.lstrip(),
        WORDS,
        *(f"- `{key}`" for key in free_texts(found)),
        "",
        NOTES.strip(),
        *leaving(found, reveals),
        "",
        failures(),
        "\n## What devices learn of each other\n",
        "A device receives these, in which others have a part; the rest is the run's own making.\n",
        *coming(found, learns),
        REVEALED,
        CHECK.strip().format(state=state_folder()),
        SIZES,
    ]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(sections)).rstrip() + "\n"


if __name__ == "__main__":
    try:
        PAGE.write_text(page(), encoding="utf-8")
    except PageError as error:
        sys.exit(f"privacy_page: {error}")
