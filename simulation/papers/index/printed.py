"""The four papers' tables and figures, in their order, and what plays each here.

Drawings of how a method works are left out, and tables of settings, which stand in the notes.
"""

from functools import partial

from edge_client.tables import Table
from simulation.papers.fedp2eft import scenarios as fedp2eft
from simulation.papers.few_shot import scenarios as aug_fedprompt
from simulation.papers.few_shot.setting import LISTED, QUICK
from simulation.papers.healthcare import pieces
from simulation.papers.index.entry import READ, SPOKEN, Entry, Given, Printed
from simulation.papers.labelling.label_table import label_table
from simulation.papers.multilingual import scenarios as mfpt
from simulation.papers.multilingual.tables import (
    distance_table,
    stop_table,
    traffic_table,
)
from simulation.papers.published import healthcare
from simulation.papers.published.as_printed import printed_table
from simulation.papers.published.aug_fedprompt import LABELLING_SHARE, LABELS, SYSTEM_COST
from simulation.papers.published.aug_fedprompt import PAPER as AUG
from simulation.papers.published.fedp2eft import PAPER as P2EFT
from simulation.papers.published.mfpt import PAPER as MFPT
from simulation.papers.ranks import ranks_table
from simulation.papers.report import Piece

ADAPTER = "lora:8"
ROUNDS = 6  # of the multilingual ones, as in docs/results/multilingual.md; ten take a day with all


def _few_shot(name: str, dataset: str, given: Given) -> Piece:
    """One of AUG-FedPrompt's, on one data set."""
    size = QUICK if given.quick else LISTED[dataset]
    asked = given.base, dataset, ADAPTER, size, given.bases
    more = label_table if name == "table2" else None
    return Piece(aug_fedprompt.scenario(name, *asked), more)


def _by_set(name: str) -> tuple[Entry, ...]:
    return tuple(
        Entry(f"aug-fedprompt/{name}/{dataset}", partial(_few_shot, name, dataset))
        for dataset in LABELS
    )


def _spoken(name: str, given: Given) -> Piece:
    found = mfpt.scenario(name, given.multilingual, given.quick)
    found = found if given.quick else found.lasting(ROUNDS)
    if name == "distance":
        return Piece(found, partial(distance_table, mixture=given.mixture))
    return Piece(found, stop_table if name == "stopping" else None)


def _of_mfpt(name: str) -> tuple[Entry, ...]:
    return (Entry(f"mfpt/{name}", partial(_spoken, name)),)


def _silos(name: str, given: Given) -> Piece:
    place = given.order.place
    asked = (name, given.multilingual, pieces.WHOLE, given.quick, place)
    return pieces.piece(*asked)


def _of_silos(name: str) -> tuple[Entry, ...]:
    return (Entry(f"healthcare/{name}", partial(_silos, name)),)


def _own(name: str, given: Given) -> Piece:
    rank, lr = fedp2eft.RANK, fedp2eft.LR
    return Piece(
        fedp2eft.scenario(name, given.multilingual, given.quick, rank, (), lr), ranks_table
    )


def _of_own(name: str) -> tuple[Entry, ...]:
    return (Entry(f"fedp2eft/{name}", partial(_own, name)),)


def _traffic() -> Table:
    table, _ = traffic_table()
    return table


HERE = "healthcare.md"
PRINTED: tuple[Printed, ...] = (
    Printed(
        AUG.name,
        "Figure 1: how skew deals labels out",
        told=("a picture of 32 clients by 10 labels, without values; `simulate split` draws ours",),
        command="smidgen simulate split FILE --clients 32 --labels 1024 --gamma 0.001 --alpha 1",
    ),
    Printed(
        AUG.name,
        "Table 2: cloze against a head; labels even, skewed, and skewed with pseudo-labels",
        _by_set("table2"),
        page="few-shot.md",
    ),
    Printed(
        AUG.name,
        "Figure 2: number of labels and skew",
        (Entry("aug-fedprompt/fig2", partial(_few_shot, "fig2", "yahoo_answers")),),
    ),
    Printed(AUG.name, "Figure 4: accuracy by number of labels", _by_set("fig4")),
    Printed(
        AUG.name,
        "Figure 5: bases",
        _by_set("fig5"),
        bases="--base BASE --more-base OTHER",
    ),
    Printed(
        AUG.name,
        "Table 4: what training takes on a board",
        counted=partial(printed_table, SYSTEM_COST),
        told=(
            "of an NVIDIA TX2, which is not here: nothing stands beside them; what training takes "
            "on a machine at hand `smidgen profile train` measures",
        ),
    ),
    Printed(
        AUG.name,
        "Section 5: what labelling costs",
        told=(f"{LABELLING_SHARE.row}: {LABELLING_SHARE} %",),
        page="pseudo-labels.md",
        command="smidgen simulate aug-fedprompt cost --base BASE --data DATA",
    ),
    Printed(
        MFPT.name,
        "Table 1: news classification, languages mixed or apart",
        _of_mfpt("nc"),
        bases=SPOKEN,
    ),
    Printed(MFPT.name, "Table 2: XNLI", _of_mfpt("xnli"), bases=SPOKEN),
    Printed(
        MFPT.name,
        "Table 3: MasakhaNEWS",
        _of_mfpt("masakhanews"),
        page="multilingual.md",
        bases=SPOKEN,
    ),
    Printed(
        MFPT.name,
        "Figure 4: data efficiency",
        _of_mfpt("data-efficiency"),
        bases=SPOKEN,
    ),
    Printed(
        MFPT.name,
        "Figure 5: distance from the pretraining",
        _of_mfpt("distance"),
        bases=READ,
    ),
    Printed(
        MFPT.name,
        "Appendix C: lengths of prompts, ranks of LoRA",
        _of_mfpt("lengths"),
        bases=SPOKEN,
    ),
    Printed(MFPT.name, "Appendix C: early stopping", _of_mfpt("stopping"), bases=SPOKEN),
    Printed(
        MFPT.name,
        "Table 4 and figure 6: parameters and traffic",
        counted=_traffic,
        command="smidgen simulate mfpt traffic",
        page="multilingual.md",
    ),
    Printed(
        healthcare.PAPER.name,
        "Table 3: perplexity by silo; table 1: what silos hold",
        _of_silos("perplexity"),
        page=HERE,
        bases=SPOKEN,
        tables=(healthcare.PERPLEXITY, healthcare.SIZES),
    ),
    Printed(
        healthcare.PAPER.name,
        "Figure 2: perplexity by samples seen",
        _of_silos("curve"),
        page=HERE,
        bases=SPOKEN,
        figures=tuple(healthcare.CONVERGED.values()),
    ),
    Printed(
        healthcare.PAPER.name,
        "Table 4: named entities",
        _of_silos("ner"),
        told=("i2b2 2009, the third row, is not open: it cannot be had",),
        page=HERE,
        bases=SPOKEN,
        tables=(healthcare.ENTITIES,),
    ),
    Printed(
        healthcare.PAPER.name,
        "Table 5: tasks of a company's own texts",
        counted=partial(printed_table, healthcare.DOWNSTREAM),
        told=("these texts cannot be had: nothing stands beside them",),
    ),
    Printed(
        healthcare.PAPER.name,
        "Table 6 and figure 3: personalization",
        _of_silos("personalize"),
        page=HERE,
        bases=SPOKEN,
        tables=(healthcare.PERSONALISED,),
        figures=(healthcare.BEST_ALPHA,),
    ),
    *(
        Printed(P2EFT.name, title, _of_own(name), page="personal.md", bases=SPOKEN)
        for name, title in (
            ("masakhanews", "MasakhaNEWS, seen clients"),
            ("unseen", "MasakhaNEWS, unseen clients"),
            ("budgets", "Rank budgets"),
            ("xnli", "XNLI with FedDPA-T"),
        )
    ),
)
