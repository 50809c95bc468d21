"""The healthcare paper's experiments, each with its own tables and pictures, ready to be played."""

from functools import partial
from pathlib import Path

from edge_client.bases.base import open_base
from simulation.experiments.experiment import FULL
from simulation.experiments.runner import Place
from simulation.papers.healthcare.bases import lettered
from simulation.papers.healthcare.curve import curve, curve_table, draw_curve
from simulation.papers.healthcare.ner import ner, ner_tables, teachers
from simulation.papers.healthcare.perplexity import perplexity, perplexity_tables
from simulation.papers.healthcare.personalize import personal_tables, personalize
from simulation.papers.healthcare.search import search, search_table
from simulation.papers.healthcare.setting import federated, scale_of, sizes_of
from simulation.papers.report import Piece

NAMES = ("perplexity", "curve", "personalize", "ner")
WHOLE, SEARCH = FULL[0], "search"


def piece(name: str, base: str, adapter: str, quick: bool, place: Place) -> Piece:
    """One of the paper's experiments.

    Args:
        name: One of `NAMES`, or `SEARCH`.
        base: A folder, `embedded`, or a hub name.
        adapter: What is trained: `full`, or an adapter.
        quick: Less of everything.
        place: Where texts and results are; bases that are made lie beside the results.
    """
    bases = place.out.parent / "bases"
    begun, scale, data = _lettered(base, bases), scale_of(quick), place.data
    asked = (begun, adapter, scale, data)
    if name == SEARCH:
        return Piece(search(*asked), search_table)
    if name == "personalize":
        return Piece(personalize(*asked), personal_tables)
    if name == "ner":
        is_whole = adapter == WHOLE  # else what was trained is no base
        after = teachers(*asked) if is_whole else {}
        return Piece(ner(begun, after, f"{adapter}+head", quick), ner_tables)
    sizes = sizes_of(federated(begun, adapter, scale), data)
    if name == "perplexity":
        return Piece(perplexity(*asked), partial(perplexity_tables, sizes=sizes))
    drawn = partial(draw_curve, sizes=sizes)
    return Piece(curve(*asked), partial(curve_table, sizes=sizes), drawn)


def _lettered(base: str, out: Path) -> str:
    """The base, or a folder of it that knows all letters; named as it was typed if it does."""
    found = open_base(base)
    folder = lettered(found, out)
    return base if folder == found.folder else str(folder)
