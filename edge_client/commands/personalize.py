"""`smidgen client personalize`: an adapter of this device's own, of the ranks that it needs."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from edge_client.api.personalize import PersonalAdapter, personalize
from edge_client.commands.console import JsonOption
from edge_client.options import options_of
from edge_client.tables import Column, Table, show, size
from edge_client.tasks.kind import measure_called

HEAD = "none of its own: a classification head"


@options_of(personalize, generator={"metavar": "FOLDER"}, shared={"metavar": "FOLDER"})
def personalize_command(
    call: Callable[..., PersonalAdapter], shared: Path | None, json_output: JsonOption = False
) -> None:
    done = call()
    if json_output:
        print(json.dumps({"out": str(done.folder)} | _plain(done)))
        return
    if done.ranks:
        show(_ranks(done.ranks), file=Console().file)
    print(_facts(done, shared))


def _plain(done: PersonalAdapter) -> dict[str, object]:
    facts = asdict(done)
    del facts["folder"]
    return facts


def _ranks(ranks: Mapping[str, int]) -> Table:
    """Who got which rank: a row for each layer, a column for each linear."""
    names = [name.split(".") for name in ranks]
    layers, linears = dict.fromkeys(one[0] for one in names), dict.fromkeys(one[1] for one in names)
    columns = [Column("layer", "text"), *(Column(one) for one in linears)]
    rows = [[layer, *(str(ranks.get(f"{layer}.{one}", "")) for one in linears)] for layer in layers]
    return Table(columns, rows, "its own ranks; 0: none there")


def _facts(done: PersonalAdapter, shared: Path | None) -> str:
    whose = "the shared adapter" if shared else "the base alone"
    measure = measure_called(done.measure)
    kept, modules = sum(done.ranks.values()), sum(map(bool, done.ranks.values()))
    how = f"{kept} in {modules} of {len(done.ranks)} modules, by {done.method}"
    if not done.ranks:
        how = HEAD if done.method == "head" else f"those of the shared adapter, {done.method}"
    facts = {
        "ranks": how if done.alpha is None else f"{how}; alpha {done.alpha:g} of 1",
        "trained on": f"{done.num_examples} texts, loss {done.loss:.3f} in the last pass",
        measure.name: "not known: no test texts (a test.* beside the others)",
        "peak memory": f"{size(done.peak_rss_bytes)} measured, {size(done.predicted_peak_bytes)} "
        "predicted",
        "written to": str(done.folder),
        "next": f"smidgen client predict --adapter {done.folder} 'a text'",
    }
    if done.score is not None:
        own, texts = measure.in_words(done.score), f"on {done.test_examples} test texts"
        facts[measure.name] = f"{own}, {texts}; give --shared FOLDER to compare with it"
    if done.score is not None and done.score_shared is not None:
        other = measure.in_words(done.score_shared)
        facts[measure.name] = f"{own}, {whose} {other}, {texts}"
        better = f"this one, not {whose}" if done.is_better else f"{whose}: keep to it"
        said = "right more often" if done.measure == "accuracy" else "better"
        facts[said] = better if done.score != done.score_shared else "neither"
    return "\n".join(f"{name:<16} {value}" for name, value in facts.items())
