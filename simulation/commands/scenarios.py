"""The papers' experiments and our comparisons, a command each: which scenario, by which options."""

from typing import Annotated, Any

import typer

from edge_client.adapters.spec import parse_adapter
from edge_client.errors import demand
from edge_client.personal.way import Way
from simulation.commands.experiments import one_of, plays
from simulation.experiments.experiment import FULL
from simulation.experiments.hostile import ATTACKS
from simulation.papers.grid import Doc, read_file
from simulation.papers.pieces import AUG, COMPARISONS, SILOS, factors_of
from simulation.papers.tables.languages import EMBEDDED_MIXTURE, parse_mixture
from simulation.papers.tables.traffic import traffic_table

P2EFT, MFPT = "fedp2eft", "mfpt"
SETS = tuple(read_file(AUG)[0]["listed"]["printed"][1]["sets"])
POLICIES = ("random", "coverage", "utility")
CODECS = ("float32", "int8", "int4", "topk:0.01")


def _scenarios(paper: str) -> Doc:
    scenarios: Doc = read_file(paper)[0]["scenarios"]
    return scenarios


def _names(paper: str, *others: str) -> tuple[str, ...]:
    return tuple(name for name in _scenarios(paper) if name not in others)


def _only(**chosen: "list[str] | None") -> dict[str, list[str]]:
    return {axis: names for axis, names in chosen.items() if names}


AUG_NAMES, MFPT_NAMES = _names(AUG, "cloze-gap"), (*_names(MFPT), "traffic")
SILO_NAMES, P2EFT_NAMES = _names(SILOS, "search"), _names(P2EFT)
METHODS = tuple(_scenarios(COMPARISONS)["server-learning"]["vars"]["methods"])
OWN_METHODS = tuple(read_file(P2EFT)[0]["common"]["vars"]["methods"])
LEARNED = tuple(_scenarios(COMPARISONS)["server-learning"]["vars"]["datasets"])
MEANS = _scenarios(COMPARISONS)["attacks-by-mean"]["vars"]["means"]
FACTORS = tuple(factors_of())
FEW_SHOT = "table2, fig2 (skew), fig4 (labels), fig5 (bases), rates (on dev texts), cost."
BY_MEAN = f"Forged updates against {', '.join(MEANS)}, without any other defence."


@plays()
def aug_fedprompt_command(
    name: Annotated[str, typer.Argument(metavar="SCENARIO", help=FEW_SHOT)],
    dataset: Annotated[str, typer.Option(help=", ".join(SETS))] = "ag_news",
    adapter: Annotated[
        str, typer.Option(help="Adapter of the cloze rows: lora:8, full ...")
    ] = "lora:8",
) -> dict[str, Any]:
    """Few-shot federated NLP: cloze against a head, skew, numbers of labels."""
    one_of("SCENARIO", [name], AUG_NAMES)
    one_of("--dataset", [dataset], SETS)
    given = {"dataset": dataset, "adapter": adapter}
    return {"paper": AUG, "name": name, "words": {dataset}, **given}


@plays()
def mfpt_command(
    name: Annotated[str, typer.Argument(metavar="SCENARIO", help=", ".join(MFPT_NAMES))],
    pretraining: Annotated[
        str, typer.Option(help="distance: languages the base read, en=0.6,fr=0.4.")
    ] = "",
) -> dict[str, Any]:
    """Multilingual federated prompt tuning: one silo per language, local to federated."""
    one_of("SCENARIO", [name], MFPT_NAMES)
    is_read = not pretraining or name == "distance"
    demand(is_read, f"--pretraining is for `mfpt distance`, not for {name}")
    if name == "traffic":
        return {"name": "mfpt traffic", "counted": traffic_table()}
    mixture = parse_mixture(pretraining) if pretraining else EMBEDDED_MIXTURE
    return {"paper": MFPT, "name": name, "pretraining": mixture}


@plays(without=("rounds",))
def fedp2eft_command(
    name: Annotated[str, typer.Argument(metavar="SCENARIO", help=", ".join(P2EFT_NAMES))],
    rank: Annotated[
        int, typer.Option(min=1, max=Way.bank, help="R: ranks kept are R x modules.")
    ] = Way.rank_budget,
    method: Annotated[
        list[str] | None,
        typer.Option(help=f"Only this one beside LoRA; repeat: {', '.join(OWN_METHODS)}."),
    ] = None,
    lr: Annotated[
        float, typer.Option(min=1e-9, max=100, help="Learning rate of what each keeps, all alike.")
    ] = 5e-3,
) -> dict[str, Any]:
    """An adapter of one's own for each language: which ranks, by a generator or without."""
    one_of("SCENARIO", [name], P2EFT_NAMES)
    one_of("--method", method, OWN_METHODS)
    only = {"row": ["LoRA", *method]} if method else {}
    return {"paper": P2EFT, "name": name, "only": only, "rank": rank, "lr": lr}


@plays(without=("rounds",))
def healthcare_command(
    name: Annotated[str, typer.Argument(metavar="SCENARIO", help=", ".join(SILO_NAMES))],
    adapter: Annotated[
        str, typer.Option(help="What is trained: full (every weight), lora:8 ...; ner adds a head.")
    ] = FULL[0],
    is_search: Annotated[
        bool, typer.Option("--search", help="perplexity: dev perplexity by learning rate instead.")
    ] = False,
) -> dict[str, Any]:
    """Silos of very unequal sizes: masked words together, in one place or alone; entities."""
    one_of("SCENARIO", [name], SILO_NAMES)
    demand(not is_search or name == "perplexity", f"--search is for `perplexity`, not for {name}")
    if adapter not in FULL:
        parse_adapter(adapter)
    demand("+head" not in adapter, f"--adapter {adapter}: leave +head out; ner adds it by itself")
    search = {"name": "search", "seeds": 1} if is_search else {}
    return {"paper": SILOS, "name": name, "adapter": adapter, **search}


@plays()
def interpolate_command() -> dict[str, Any]:
    """Each language's way from the shared adapter to its own, and how far it goes by itself."""
    return {"paper": COMPARISONS, "name": "interpolate"}


@plays(without=("data", "ray", "quick"))
def attacks_command(
    attack: Annotated[
        list[str] | None, typer.Option(help=f"Only this one; repeat: {', '.join(ATTACKS)}.")
    ] = None,
    by_mean: Annotated[bool, typer.Option("--by-mean", help=BY_MEAN)] = False,
) -> dict[str, Any]:
    """Hostile devices in a run: without the defences and with them, or by mean."""
    demand(not (by_mean and attack), "--by-mean takes its own attacks; leave --attack out")
    one_of("--attack", attack, ATTACKS)
    asked = [name for name in ATTACKS if name in (ATTACKS[0], *(attack or ATTACKS))]
    name = "attacks-by-mean" if by_mean else "attacks"
    return {"paper": COMPARISONS, "name": name, "attacks": asked}


@plays()
def mixed_ranks_command() -> dict[str, Any]:
    """Devices of ranks 4, 8 and 16 in one run: the exact mean, and others beside it."""
    return {"paper": COMPARISONS, "name": "mixed-ranks"}


@plays()
def server_learning_command(
    method: Annotated[
        list[str] | None,
        typer.Option(help=f"Only this one beside FedAvg; repeat: {', '.join(METHODS)}."),
    ] = None,
    dataset: Annotated[
        list[str] | None, typer.Option(help=f"Only this one; repeat: {', '.join(LEARNED)}.")
    ] = None,
) -> dict[str, Any]:
    """Server optimizers, FedProx and SCAFFOLD: rounds to FedAvg's accuracy."""
    one_of("--method", method, METHODS)
    one_of("--dataset", dataset, LEARNED)
    only = _only(method=[METHODS[0], *method] if method else None, dataset=dataset)
    return {"paper": COMPARISONS, "name": "server-learning", "only": only}


@plays()
def cloze_gap_command(
    dataset: Annotated[str, typer.Option(help=", ".join(SETS))] = "ag_news",
    factor: Annotated[
        list[str] | None, typer.Option(help=f"Only this one; repeat: {'; '.join(FACTORS)}.")
    ] = None,
    beside: Annotated[
        list[str] | None, typer.Option(help="Another base, as a setting of its own; repeat.")
    ] = None,
) -> dict[str, Any]:
    """What makes cloze better than a head where labels are few: one thing at a time."""
    one_of("--dataset", [dataset], SETS)
    one_of("--factor", factor, FACTORS)
    given = {
        "dataset": dataset,
        "adapter": "lora:8",
        "factors": factor or (),
        "others": beside or (),
    }
    return {"paper": AUG, "name": "cloze-gap", "words": {dataset}, **given}


@plays()
def selections_command(
    selection: Annotated[
        list[str] | None,
        typer.Option(help=f"Only this one beside random; repeat: {', '.join(POLICIES)}."),
    ] = None,
) -> dict[str, Any]:
    """Whom rounds ask where labels are few: policies beside random."""
    one_of("--selection", selection, POLICIES)
    only = _only(policy=[POLICIES[0], *selection] if selection else None)
    return {"paper": COMPARISONS, "name": "selections", "only": only}


@plays(seeds=5)
def traffic_accuracy_command(
    codec: Annotated[
        list[str] | None,
        typer.Option(help=f"Only this one beside float32; repeat: {', '.join(CODECS)}."),
    ] = None,
    down: Annotated[
        bool, typer.Option("--down", help="Each codec also on both ways: steps come down coded.")
    ] = False,
) -> dict[str, Any]:
    """Updates and steps as int8, int4 or their largest numbers: bytes and accuracy."""
    one_of("--codec", codec, CODECS)
    only = _only(codec=[CODECS[0], *codec] if codec else None)
    words = {"down"} if down else set()
    return {"paper": COMPARISONS, "name": "traffic-accuracy", "words": words, "only": only}


@plays()
def adapter_forms_command() -> dict[str, Any]:
    """Forms of LoRA with exact means beside LoRA, in float32 and int4: bytes and accuracy."""
    return {"paper": COMPARISONS, "name": "adapter-forms"}
