"""Scenarios by name, ready to be played, with what their TOML files cannot know worked out."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

from benchmarks.papers.grid import (
    Doc,
    Names,
    experiment_of,
    filled,
    grid_of,
    one_of,
    read_file,
    scenario_of,
)
from benchmarks.papers.paired import apart_table
from benchmarks.papers.tables.comparisons import compared_table
from benchmarks.papers.tables.labelling import cost_table, label_table
from benchmarks.papers.tables.languages import (
    EMBEDDED_MIXTURE,
    alpha_table,
    distance,
    distance_table,
    parse_mixture,
    ranks_table,
    stop_table,
)
from benchmarks.papers.tables.silos import (
    curve_table,
    draw_curve,
    lettered,
    ner_tables,
    perplexity_tables,
    personal_tables,
    search_table,
)
from smidgen.edge_client.adapters.spec import IN_EVERY_BASE, parse_adapter
from smidgen.edge_client.bases.base import EMBEDDED, open_base
from smidgen.edge_client.errors import demand
from smidgen.simulation.demo.messages import write_dataset
from smidgen.simulation.experiments.experiment import FULL, ExperimentError
from smidgen.simulation.experiments.runner import Place
from smidgen.simulation.experiments.stage import stage
from smidgen.simulation.report.report import Piece

AUG, SILOS, COMPARISONS = "aug-fedprompt", "healthcare", "comparisons"
FILES = (AUG, "mfpt", SILOS, "fedp2eft", COMPARISONS)
SEEDS = 3  # that tables take where nobody says
PAIRS = ("mnli",)  # which patterns of one text do not ask
QUICK, PATTERN = "quick", "pattern"
MORE: Mapping[str, Callable[..., Any]] = {
    "compared": compared_table,
    "labels": label_table,
    "cost": cost_table,
    "distance": distance_table,
    "stopping": stop_table,
    "ranks": ranks_table,
    "alphas": alpha_table,
    "perplexity": perplexity_tables,
    "curve": curve_table,
    "personalize": personal_tables,
    "ner": ner_tables,
    "search": search_table,
}
NEEDS = {"distance": "pretraining", "perplexity": "sizes", "curve": "sizes"}


def piece_of(
    paper: str,
    name: str,
    place: Place,
    words: Collection[str] = (),
    only: Mapping[str, Sequence[str]] | None = None,
    **given: Any,
) -> Piece:
    """A scenario with its own tables and pictures.

    Args:
        paper: Name of its file.
        name: Of the file's scenarios.
        place: Where texts and results are; bases that are made lie beside the results.
        words: What holds, such as `quick`.
        only: Axis -> the options that are asked for; None: all.
        given: Variables, `base` among them.

    Raises:
        WrongInput: What is given makes no sense, or a base or texts cannot be had.
    """
    own = {"scenario": name, "pretraining": EMBEDDED_MIXTURE, **given}
    if not isinstance(mixture := own["pretraining"], dict):
        own["pretraining"] = parse_mixture(mixture) if mixture else EMBEDDED_MIXTURE
    words, only = {*words, *({FULL[0]} if own.get("adapter") == FULL[0] else ())}, dict(only or {})
    if paper == SILOS:
        kind: str = own["adapter"]
        demand("+head" not in kind, f"adapter={kind}: leave +head out; ner adds it by itself")
        if kind not in FULL:
            parse_adapter(kind)
        own["base"] = _lettered(own["base"], place)
    if paper == COMPARISONS and name.startswith("attacks"):
        own["folder"] = str(write_dataset(place.out.parent / "messages"))
    if paper == AUG:
        own |= _few_shot(name, words, only, own)
    grid, names = grid_of(paper, name, own, words, only)
    if name == "ner":
        names.update(_teachers(words, own, place))
    elif paper == SILOS:
        names.update(_silos(grid, names, place))
    scenario = scenario_of(paper, grid, names)
    more = MORE[called] if (called := grid.get("more")) else None
    if more is not None and called in NEEDS:
        more = partial(more, **{NEEDS[called]: names[NEEDS[called]]})
    if called == "distance":
        for language in scenario.cells[0].experiment.languages:
            distance(language, names["pretraining"])  # all are there, before hours of work
    if called == "compared":
        more = partial(compared_table, compared=filled(grid["compared"], names))
    if called == "curve":
        drawn = partial(draw_curve, sizes=names["sizes"])
        return Piece(scenario, more, drawn, apart_table)
    return Piece(scenario, more, apart=apart_table)


def names_of(bases: Sequence[str]) -> dict[str, str]:
    """What rows call bases: each by the last part of its folder or hub name.

    Raises:
        WrongInput: Two of them are called the same; their rows would be one.
    """
    by_name: dict[str, str] = {}
    for base in bases:
        other = by_name.setdefault(Path(base).name, base)
        demand(
            other == base,
            f"bases {other} and {base} share the name {Path(base).name!r}, which names their rows; "
            f"rename a folder, or leave one out",
        )
    return {base: name for name, base in by_name.items()}


def _few_shot(name: str, words: Collection[str], only: Doc, own: Doc) -> Doc:
    """What AUG-FedPrompt's scenarios need beside: bases, settings, layers of a base."""
    adapter: str = own["adapter"]
    if adapter.endswith("head"):
        raise ExperimentError(f"adapter={adapter} is of the cloze rows; give it without a head")
    more: Doc = {}
    if name == "fig5":
        bases = names_of(tuple(dict.fromkeys(own.get("bases") or (EMBEDDED, own["base"]))))
        ordered = [[upper, lower] for lower, upper in combinations(bases.values(), 2)]
        more = {"bases": {name: {"base": base} for base, name in bases.items()}, "ordered": ordered}
    if name == "cost":
        if not adapter.startswith(("lora:", "bias")) or "/" in adapter:
            raise ExperimentError(f"adapter={adapter}: lora:R or bias is expected, of all layers")
        wide = (
            adapter if adapter == "bias" else f"{adapter.split('@')[0]}@{','.join(IN_EVERY_BASE)}"
        )
        more = {"top": f"{wide}/top{-(-open_base(own['base']).layers // 4)}"}
    if name == "cloze-gap":
        more = _cloze_gap(words, only, own)
    return more


def _cloze_gap(words: Collection[str], only: Doc, own: Doc) -> Doc:
    """Settings that are asked for, other bases among them, and the papers' own gaps."""
    dataset, factors = own["dataset"], own["factor"]
    for factor in factors:
        one_of("factor", factor, factors_of())
    is_fit = PATTERN not in factors or dataset not in PAIRS
    demand(
        is_fit, f"factor={PATTERN}: its patterns ask one text, and {dataset} has two in each row"
    )
    known = read_file(AUG)[0]["scenarios"]["cloze-gap"]["vars"]["settings"]
    every = [one for one in factors_of() if one != PATTERN or dataset not in PAIRS]
    chosen = factors or (("rate, both slower", "rounds") if QUICK in words else every)
    bases = {f"base: {name}": {"base": base} for base, name in names_of(own["beside"]).items()}
    reference, *others = known
    names = [name for name in others if name.partition(": ")[0] in chosen]
    only["setting"] = [reference, *bases, *names]
    note = f"{PATTERN}: where a folder keeps two fields apart, it asks the first of them alone"
    return {
        "settings": {reference: {}, **bases, **{name: known[name] for name in names}},
        "note_pattern": note if PATTERN in chosen else "",
        "printed_gaps": printed_gaps(dataset),
    }


def factors_of() -> list[str]:
    settings = read_file(AUG)[0]["scenarios"]["cloze-gap"]["vars"]["settings"]
    return ["none", *dict.fromkeys(name.partition(": ")[0] for name in settings if ": " in name)]


def printed_gaps(dataset: str) -> list[list[str]]:
    """What the papers print: AUG-FedPrompt's row, and PET's of the same model in one place."""
    doc, printed = read_file(AUG)
    known = doc["common"]["when"][dataset]["vars"]
    few, pet = printed.tables["few_shot"], printed.tables["in_one_place"]
    rows = [
        (f"{known['paper_labels']} labels on clients", few, "Uniform FedPrompt", "Uniform FedCLS")
    ]
    rows += [
        (f"{labels} labels in one place", pet, f"{labels} PET", f"{labels} supervised")
        for labels in ("10", "50", "100", "1000")
    ]
    lines = []
    for where, table, cloze, head in rows:
        column = known["set"] if table is few else known["pet"]
        upper, lower = table[cloze][column], table[head][column]
        first = "-" if table is few else str(table["untrained"][column])
        gap = f"{upper.value - lower.value:+.1f}"
        named = ["published", f"RoBERTa-large, {where}"]
        lines.append([*named, first, str(upper), str(lower), gap, *["-"] * 4])
    return lines


def _lettered(base: str, place: Place) -> str:
    """The base, or a folder of it that knows all letters; named as it was typed if it does."""
    found = open_base(base)
    folder = lettered(found, place.out.parent / "bases")
    return base if folder == found.folder else str(folder)


def _silos(grid: Doc, names: Names, place: Place) -> Doc:
    """What silos hold and draw, and what others train on so that they see as many samples."""
    together = experiment_of(grid, names, {"like": ["federated"]})
    population = stage(together, place.data).population
    sizes = {client.name: len(client.labelled) for client in population}
    draws, rounds, looks = together.training, together.rounds, names["looks"]
    largest, smallest = max(sizes.values()), min(sizes.values())
    drawn = sum(map(draws.samples_of, sizes.values()))
    level = replace(draws, least_samples=round(drawn / len(sizes)), sample_share=0.0)
    central = rounds * drawn // looks
    return {
        "sizes": sizes,
        "largest": largest,
        "smallest": smallest,
        "drawn_of_largest": draws.samples_of(largest),
        "drawn_of_smallest": draws.samples_of(smallest),
        "central_samples": central,
        "alone_share": min(1.0, round(looks * central / sum(sizes.values()), 4)),
        "often_least": rounds * draws.least_samples,
        "often_share": min(1.0, rounds * draws.sample_share),
        "level_least": level.least_samples,
        "level_samples": rounds * len(sizes) * level.samples_of(smallest) // looks,
    }


def _teachers(words: Collection[str], own: Doc, place: Place) -> Doc:
    """What trains the bases that taggers of all seeds begin from: `perplexity`'s, with seed 0."""
    if FULL[0] not in words:  # what was trained is no base
        return {}
    grid, names = grid_of(SILOS, "curve", own, words)
    names.update(_silos(grid, names, place))
    return {
        f"taught_{like}": asdict(experiment_of(grid, names, {"like": [like]}))
        for like in ("federated", "central")
    }
