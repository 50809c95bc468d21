"""Bases that taggers begin from: what `perplexity` trained, together and in one place."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from edge_client.wire.tensors import decode_adapter
from simulation.experiments.experiment import Experiment
from simulation.experiments.record import adapter_of, read_rows
from simulation.experiments.runner import Place
from simulation.experiments.stage import stage
from simulation.papers.healthcare.bases import trained
from simulation.papers.healthcare.perplexity import POOLED, TOGETHER
from simulation.papers.healthcare.setting import Scale, central, federated, sizes_of

SEED = 0  # of the runs whose weights taggers of all seeds begin from


def taught(
    base: str,
    adapter: str,
    scale: Scale,
    place: Place,
    out: Path,
    first: Callable[[Sequence[Experiment]], None],
) -> Mapping[str, str]:
    """Run the two with one seed, or take what is there; each way's base as a folder.

    Args:
        base: A Hugging Face folder, or `embedded`.
        adapter: Every weight, so that what was trained is a base.
        scale: As `perplexity` has it.
        place: Where texts and results are.
        out: Folder that bases are written to.
        first: Runs the two.
    """
    together = replace(federated(base, adapter, scale), seed=SEED)
    ways = {TOGETHER: together, POOLED: central(together, sizes_of(together, place.data))}
    first(list(ways.values()))
    found = {}
    for way, asked in ways.items():
        on = stage(asked, place.data)
        folder = place.out / on.key
        state = decode_adapter(adapter_of(folder, read_rows(folder)[-1]))
        found[way] = str(trained(on.base, state, out, f"{way}-{on.key}"))
    return found
