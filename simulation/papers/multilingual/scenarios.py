"""Multilingual Federated Prompt Tuning's tables: local, centralised and federated, by language."""

from simulation.datasets.dataset import XNLI_LANGUAGES
from simulation.papers.multilingual import ablations
from simulation.papers.multilingual.setting import (
    CENTRALISED,
    COLUMN,
    FULL,
    LOCAL,
    MASAKHANEWS,
    MEAN,
    METHODS,
    Method,
    experiment,
    notes,
    printed,
    texts_of,
)
from simulation.papers.paired import columns_apart, rows_apart
from simulation.papers.published.mfpt import MASAKHANEWS as MASAKHANEWS_TABLE
from simulation.papers.published.mfpt import NEWS
from simulation.papers.published.mfpt import XNLI as XNLI_TABLE
from simulation.papers.scenario import Cell, Scenario

STAND_INS = ("ibo", "lug", "orm", "run", "sna")  # for XGLUE-NC's en, de, es, fr, ru
PARADIGMS = (
    "local LoRA",
    "centralised LoRA",
    "federated LoRA",
    "federated prompt",
    "federated full",
)
# Our row -> the paper's. Its PE_Monolingual and PE_Centralized stand beside prompt and LoRA alike,
# since it does not say which of the two they are.
IN_MASAKHANEWS = {
    "local LoRA": "PE_Monolingual",
    "centralised LoRA": "PE_Centralized",
    "federated LoRA": "PE_FL (LoRA) (Ours)",
    "federated prompt": "PE_FL (Prompt Tuning) (Ours)",
}
IN_XNLI = {
    "local LoRA": "PE_Monolingual",
    "centralised LoRA": "PE_Centralized",
    "local prompt": "PE_Monolingual",
    "centralised prompt": "PE_Centralized",
    "federated prompt": "PE_FL (Ours)",
}
IID, HALF, APART, UNMIXED = "alpha 1 (IID)", "alpha 0.5", "alpha 0 (non-IID)", "alone or pooled"
MIXTURES = {IID: 1.0, HALF: 0.5, APART: 0.0}
IN_NEWS = {
    IID: {"federated prompt": "PE_FL (IID) (Ours)", "federated full": "FL (IID)"},
    HALF: {},
    APART: {
        "federated LoRA": "PE_FL (LoRA) (Non-IID) (Ours)",
        "federated prompt": "PE_FL (Prompt Tuning) (Non-IID) (Ours)",
        "federated full": "FL (Non-IID)",
    },
    UNMIXED: {
        "local LoRA": "PE_Monolingual",
        "centralised LoRA": "PE_Centralized",
        "local full": "Monolingual",
        "centralised full": "Centralized",
    },
}
ALONE: tuple[Method, ...] = (
    LOCAL,
    CENTRALISED,
    ("local full", "local", FULL),
    ("centralised full", "centralised", FULL),
)
KINDS, OTHERS = ("LoRA", "prompt"), ("local", "centralised")
EITHER = (
    "published local and centralised figures: the paper does not say whether by prompt or LoRA; "
    "they stand beside both"
)
ASKED_APART = (  # rows of tables 2 and 3 whose order the paper speaks of
    *((f"federated {kind}", f"{other} {kind}") for kind in KINDS for other in OTHERS),
    *((f"centralised {kind}", f"local {kind}") for kind in KINDS),
    ("federated LoRA", "federated prompt"),
    ("federated full", "federated LoRA"),
)
MAKERS = {
    "data-efficiency": ablations.data_efficiency,
    "distance": ablations.language_distance,
    "lengths": ablations.lengths,
    "stopping": ablations.stopping,
}
NAMES = ("masakhanews", "nc", "xnli", *MAKERS)


def scenario(name: str, base: str, quick: bool) -> Scenario:
    """One of the paper's experiments.

    Args:
        name: One of `NAMES`.
        base: `embedded`, a folder or a hub name.
        quick: Fewer rounds, texts and methods.
    """
    tables = {"masakhanews": masakhanews, "nc": news_classification, "xnli": xnli}
    return (tables | MAKERS)[name](base, quick)


def masakhanews(base: str, quick: bool) -> Scenario:
    """News in five languages, one silo each: local, centralised and federated."""
    texts = texts_of(quick)
    cells = [
        Cell(
            row,
            COLUMN,
            experiment("masakhanews", MASAKHANEWS, base, adapter, paradigm, quick, texts),
            printed(MASAKHANEWS_TABLE, IN_MASAKHANEWS, row).get(MEAN),
            of_languages=True,
            published_by_language=printed(MASAKHANEWS_TABLE, IN_MASAKHANEWS, row),
        )
        for row, paradigm, adapter in METHODS
        if row in (PARADIGMS[:3] if quick else PARADIGMS)
    ]
    title = f"MasakhaNEWS, {', '.join(MASAKHANEWS)}: accuracy in %"
    told = (*notes(quick, texts), EITHER)
    pairs = rows_apart(cells, *ASKED_APART)
    return Scenario("mfpt masakhanews", title, tuple(cells), told, MASAKHANEWS_TABLE.source, pairs)


def news_classification(base: str, quick: bool) -> Scenario:
    """News classification: languages mixed evenly over the clients (IID), by half, or kept apart.

    Beside these, who trains alone and what is trained in one place, where nothing is mixed.
    """
    texts = texts_of(quick)
    asked: list[tuple[Method, str, float]] = [(method, UNMIXED, 0.0) for method in ALONE]
    asked += [
        (method, column, mixture)
        for method in METHODS
        if method[1] == "federated"
        for column, mixture in MIXTURES.items()
    ]
    cells = [
        Cell(
            row,
            column,
            experiment("masakhanews", STAND_INS, base, adapter, paradigm, quick, texts, mixture),
            printed(NEWS, IN_NEWS[column], row).get(MEAN),
            of_languages=True,
        )
        for (row, paradigm, adapter), column, mixture in asked
        if not (quick and adapter == FULL)
    ]
    title = f"News classification on MasakhaNEWS' {', '.join(STAND_INS)}: accuracy in %"
    more = (
        "XGLUE-NC could not be had: five other languages of MasakhaNEWS stand in for it",
        "which alpha its rows IID and Non-IID have the paper does not say: a uniform mixture is 1, "
        "languages apart come with values closer to 0",
        EITHER,
    )
    pairs = (
        *(
            ((f"federated {kind}", mixed), (f"{other} {kind}", UNMIXED))
            for kind in ("LoRA", "full")
            for other in OTHERS
            for mixed in MIXTURES
        ),
        *rows_apart(cells, ("federated LoRA", "federated prompt")),
        *columns_apart(cells, (IID, APART)),
        *rows_apart(cells, ("centralised LoRA", "local LoRA"), ("centralised full", "local full")),
    )
    told = (*notes(quick, texts), *more)
    return Scenario("mfpt nc", title, tuple(cells), told, NEWS.source, pairs)


def xnli(base: str, quick: bool) -> Scenario:
    """Natural language inference, 15 languages (three with `--quick`)."""
    languages, texts = ("en", "es", "fr") if quick else XNLI_LANGUAGES, texts_of(quick)
    cells = [
        Cell(
            row,
            COLUMN,
            experiment("xnli", languages, base, adapter, paradigm, quick, texts),
            printed(XNLI_TABLE, IN_XNLI, row).get(MEAN),
            of_languages=True,
            published_by_language=printed(XNLI_TABLE, IN_XNLI, row),
        )
        for row, paradigm, adapter in METHODS[:6]
        if not quick or paradigm == "federated"
    ]
    title = f"XNLI, {len(languages)} languages: accuracy in %; chance 33.3"
    more = (
        "trained and judged on rows of XNLI's dev set that share no premise; the rest is not here"
    )
    told = (*notes(quick, texts), more, EITHER)
    pairs = rows_apart(cells, *ASKED_APART)
    return Scenario("mfpt xnli", title, tuple(cells), told, XNLI_TABLE.source, pairs)
