"""A run as it goes on, for a screen that is drawn again and again, or line by line.

Made of what the coordinator says of the run (`Console`): its status, and a row per answer.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from edge_client.tables import Column, Table, plain, seconds, share, size, span
from edge_client.tasks.kind import kind_named
from edge_client.wire.figures import Row
from profiling.rounds.bars import step_table
from profiling.rounds.waterfall import WAIT, Step, steps_of_round

Status = Mapping[str, Any]

DEVICES = (
    Column("device", "word"),
    Column("now", "word"),
    Column("last seen", "word", optional=1),
    Column("last answer", "word"),
    Column("work"),
    Column("peak", optional=2),
)
NOW = {"missing": "working", "done": "answered", "failed": "failed", None: "-"}
ENDED = {
    "rounds": "finished",
    "patience": "finished without further improvement",
    "stopped": "stopped by an operator",
}
MOST = 8  # devices, and rounds of accuracy
BAR = 20  # columns


def screen(status: Status, rows: Sequence[Row], now_s: float, width: int) -> list[str | Table]:
    """Paragraphs and tables, the most pressing first.

    Args:
        status: Of the run.
        rows: Answers so far.
        now_s: Unix time.
        width: Columns.
    """
    found: list[str | Table] = [headline(status), *_troubles(status), *_bars(status, now_s)]
    if scores_of(status):
        found.append(f"{_word(status):<11}{_scores(status)}")
    if perplexities := list(status["perplexity_by_round"].items())[-MOST:]:
        told = ", ".join(f"{words:.2f} ({index})" for index, words in perplexities)
        found.append(f"perplexity {told}")
    if status["devices"]:
        found.append(_devices(status, rows, now_s))
    if rows:
        found.append(step_table(_newest(rows), width, most=MOST))
    return found


def headline(status: Status) -> str:
    """The run, and what it does now."""
    step = status["step"]
    if status["phase"] == "finished":
        last = list(scores_of(status).values())[-1:]
        gave = f"; {_word(status)} {share(last[0])}" if last else ""
        doing = f"{ENDED[status['ended']]} after {status['round_index']} rounds{gave}"
    elif status["phase"] == "paused":
        doing = "paused; `smidgen coordinator resume` lets it go on"
    elif step is None:
        here = len(status["devices"])
        doing = f"waits for devices: {here} joined, {status['needed']} needed"
    else:
        before = "before round" if step["kind"] == "label" else "round"
        again = f", attempt {step['attempt']}" if step["attempt"] > 1 else ""
        doing = f"{step['kind']}, {before} {step['round_index']} of {status['rounds']}{again}"
    return f"{plain(status['name'])} ({status['run_id']}): {doing}"


def _troubles(status: Status) -> Iterator[str]:
    if status["trouble"]:
        yield status["trouble"]
    if failing := status["failing"]:
        yield (
            f"every device has failed at it: {failing['kind']}, round {failing['round_index']} "
            f"({', '.join(failing['devices'])}); `smidgen coordinator status` says more"
        )


def news(status: Status, before: Status | None) -> list[str]:
    """What has happened since an earlier look, a line each."""
    told = {} if before is None else scores_of(before)
    found = [
        f"{plain(status['name'])}: {_word(status)} {share(score)} after round {index}"
        for index, score in scores_of(status).items()
        if index not in told
    ]
    if before is None or _now(status) != _now(before):
        found.append(_now(status))
    known = [] if before is None else list(_troubles(before))
    return [*found, *(line for line in _troubles(status) if line not in known)]


def _now(status: Status) -> str:
    if status["step"] is None:
        return headline(status)
    return f"{headline(status)}; {status['answers']} of {status['asked']} answered"


def _bars(status: Status, now_s: float) -> Iterator[str]:
    is_over, step = status["phase"] == "finished", status["step"]
    closed = status["round_index"] - (0 if is_over or step is None else 1)
    closed = min(max(0, closed), status["rounds"])
    yield f"rounds     {_bar(closed, status['rounds'])}  {closed} of {status['rounds']} closed"
    if step is None:
        return
    opened_s, left_s = now_s - step["opened_at_s"], step["closes_at_s"] - now_s
    closes = f"closes in {span(left_s)} at the latest"
    if status["phase"] == "paused":
        closes = "stands still"
    elif left_s < 0:
        closes = f"was to close {span(-left_s)} ago: does `smidgen coordinator serve` run?"
    answered = f"{status['answers']} of {status['asked']}"
    yield f"answered   {_bar(status['answers'], status['asked'])}  {answered}"
    yield f"step       opened {span(opened_s)} ago, {closes}"


def _bar(done: int, of: int) -> str:
    filled = BAR * done // max(1, of)
    return f"[{'=' * filled}{' ' * (BAR - filled)}]"


def scores_of(status: Status) -> Mapping[Any, float]:
    """What the run goes by, by round."""
    told: Mapping[Any, float] = status[f"{kind_named(status['kind']).measure.key}_by_round"]
    return told


def _word(status: Status) -> str:
    return kind_named(status["kind"]).measure.word


def _scores(status: Status) -> str:
    found = list(scores_of(status).items())[-MOST:]
    return ", ".join(f"{share(score)} ({index})" for index, score in found)


def _devices(status: Status, rows: Sequence[Row], now_s: float) -> Table:
    """Those first that the run waits for."""
    newest = {row["device_id"]: row for row in rows}  # rows come in the order of the run
    order = {"missing": 0, "failed": 1, "done": 2, None: 3}
    devices = sorted(status["devices"], key=lambda item: order.get(item["open_work"], 3))
    cells = []
    for item in devices[:MOST]:
        row = newest.get(item["device_id"])
        seen = item["last_seen_s"]
        cells.append(
            [
                item.get("name", item["device_id"]),
                "left" if item["left"] else NOW.get(item["open_work"], "-"),
                "never" if seen is None else f"{span(now_s - seen)} ago",
                _answer(row),
                seconds(_work_s(row)),
                size(row["cost"]["peak_rss_bytes"] or None) if row else "-",
            ]
        )
    more = len(devices) - len(cells)
    notes = [f"and {more} more devices; see `smidgen coordinator status`"] if more else []
    return Table(DEVICES, cells, notes=notes, more="`smidgen coordinator status`")


def _answer(row: Row | None) -> str:
    if row is None:
        return "-"
    late = ", late" if row["is_late"] else ""
    return f"{row['kind']} {row['round_index']}: {row['outcome']}{late}"


def _work_s(row: Row | None) -> float | None:
    if row is None:
        return None
    phases_s: dict[str, float] = row["cost"]["phases_s"]
    return sum(spent for name, spent in phases_s.items() if name != WAIT)


def _newest(rows: Sequence[Row]) -> Step:
    return steps_of_round(rows, max(row["round_index"] for row in rows))[-1]
