"""`smidgen client evaluate`: how an adapter does on texts whose answers are known."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

from edge_client.api.evaluate import evaluate as score
from edge_client.commands.console import JsonOption, progress
from edge_client.options import options_of
from edge_client.tables import show
from edge_client.tasks.kind import kind_named
from edge_client.tasks.scores import Scores


@options_of(score, without=("advance",))
def evaluate(
    call: Callable[..., Scores], out: Path | None, json_output: JsonOption = False
) -> None:
    with progress(is_shown=True) as advance:
        scores = call(advance=advance)
    kind = kind_named(scores.kind)
    for note in scores.notes:
        print(f"{scores.data}: {note}", file=sys.stderr)
    if json_output:
        facts = {name: getattr(scores, name) for name in ("texts", "rows", "accuracy", "loss")}
        facts |= {"data": str(scores.data), "left_out": list(scores.left_out)}
        written = {"out": None if out is None else str(out)}
        print(json.dumps(facts | kind.scores_json(scores) | written))
        return
    show(*kind.report(scores))
    if out is not None:
        print(f"\neach text's answer written to {out}")
