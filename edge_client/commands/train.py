"""`smidgen client train`: train an adapter on this device's texts, all by itself."""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from shlex import quote

from edge_client.api.train import TrainedAdapter, train
from edge_client.commands.console import JsonOption
from edge_client.options import options_of
from edge_client.tables import size
from edge_client.tasks.kind import measure_called


@options_of(train, without=("tell",))
def train_alone(call: Callable[..., TrainedAdapter], json_output: JsonOption = False) -> None:
    done = call(tell=_tell)
    print(json.dumps(_answer(done)) if json_output else _table(done))


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _answer(done: TrainedAdapter) -> Mapping[str, object]:
    facts = asdict(done)
    return {"out": str(facts.pop("folder"))} | facts


def _table(done: TrainedAdapter) -> str:
    before, after = done.score_before, done.score_after
    measure = measure_called(done.measure)
    facts = {
        "trained on": f"{done.num_examples} texts, loss {done.loss:.3f} in the last pass",
        measure.name: "not known: no test texts (a test.* beside the others)",
        "peak memory": _memory(done),
        "written to": str(done.folder),
        "next": f"smidgen client {_next(done)}",
    }
    if before is not None and after is not None:
        figures = [measure.in_words(one) for one in (before, after)]
        texts = f"on {done.test_examples} test texts"
        facts[measure.name] = f"{figures[0]} before, {figures[1]} after, {texts}"
    return "\n".join(f"{name:<14} {value}" for name, value in facts.items())


def _next(done: TrainedAdapter) -> str:
    if not done.example:  # it writes texts
        return f"generate --adapter {done.folder} 'a text'"
    return f"predict --adapter {done.folder} {quote(done.example)}"


def _memory(done: TrainedAdapter) -> str:
    """The peak beside its prediction: of this process, or of the card with the process's after."""
    card = done.device_peak
    if card is None:
        return _peak(done.predicted_peak_bytes, done.peak_rss_bytes)
    allocated, process = size(card.allocated_bytes), size(done.peak_rss_bytes)
    if card.is_unified:
        both = _peak(done.predicted_peak_bytes, card.reserved_bytes + done.peak_rss_bytes)
        return f"{both} ({process} of it this process's own, {allocated} in the card's tensors)"
    reserved = _peak(done.predicted_peak_bytes, card.reserved_bytes)
    return f"on the card {reserved} ({allocated} in tensors); this process {process} measured"


def _peak(predicted_bytes: int, measured_bytes: int) -> str:
    told = f"{size(measured_bytes)} measured, {size(predicted_bytes)} predicted"
    if measured_bytes <= predicted_bytes:
        return told
    above = 100 * (measured_bytes / predicted_bytes - 1)
    return f"{told}: {above:.0f} % above the prediction; leave room for it in --memory-budget"
