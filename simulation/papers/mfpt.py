"""Multilingual Federated Prompt Tuning's experiments: one silo per language, local to federated.

Zhao et al., ICLR 2024. The paper trains XLM-R base: LoRA of ranks 1 and 8 (alpha 16), soft prompts
of 1 token by its appendix C (8 fit its count of parameters), all weights; with a classification
head, as here, where LoRA r = 8 is on query and value.
"""

from edge_client.wire.training import Training
from simulation.datasets.dataset import XNLI_LANGUAGES
from simulation.experiments.experiment import FULL, Experiment, Paradigm
from simulation.papers.published.figure import Figure, Table
from simulation.papers.published.mfpt import MASAKHANEWS as MASAKHANEWS_TABLE
from simulation.papers.published.mfpt import NEWS, PROMPT_INIT
from simulation.papers.published.mfpt import XNLI as XNLI_TABLE
from simulation.papers.scenario import Cell, Scenario
from simulation.population.deal import Deal

MASAKHANEWS = ("eng", "fra", "hau", "swa", "yor")
STAND_INS = ("ibo", "lug", "orm", "run", "sna")  # for XGLUE-NC's en, de, es, fr, ru
PROMPT, LORA = "prompt:8+head", "lora:8+head"
XNLI_INIT = "what is this text about"  # ours: the paper has a sentence for news alone
NAMES = ("masakhanews", "nc", "xnli", "data-efficiency", "distance")
MANY = (
    *("amh", "eng", "fra", "hau", "ibo", "lin", "lug", "orm", "run", "sna"),
    *("som", "swa", "tir", "yor"),
)
SHARES = (25, 50, 100, 200)  # labelled texts per language
PARADIGMS = (
    "local LoRA",
    "centralised LoRA",
    "federated LoRA",
    "federated prompt",
    "federated full",
)
METHODS: tuple[tuple[str, Paradigm, str], ...] = (
    ("local LoRA", "local", LORA),
    ("centralised LoRA", "centralised", LORA),
    ("federated LoRA", "federated", LORA),
    ("local prompt", "local", PROMPT),
    ("centralised prompt", "centralised", PROMPT),
    ("federated prompt", "federated", PROMPT),
    ("federated full", "federated", "full+head"),
)
PER_LANGUAGE = 100
# Our row -> the paper's. Its PE_Monolingual and PE_Centralized stand beside prompt and LoRA alike,
# since it does not say which of the two they are.
PRINTED = {
    "masakhanews": {
        "local LoRA": "PE_Monolingual",
        "centralised LoRA": "PE_Centralized",
        "federated LoRA": "PE_FL (LoRA) (Ours)",
        "federated prompt": "PE_FL (Prompt Tuning) (Ours)",
    },
    "xnli": {
        "local LoRA": "PE_Monolingual",
        "centralised LoRA": "PE_Centralized",
        "local prompt": "PE_Monolingual",
        "centralised prompt": "PE_Centralized",
        "federated prompt": "PE_FL (Ours)",
    },
    "IID": {"federated prompt": "PE_FL (IID) (Ours)", "federated full": "FL (IID)"},
    "non-IID": {
        "federated LoRA": "PE_FL (LoRA) (Non-IID) (Ours)",
        "federated prompt": "PE_FL (Prompt Tuning) (Non-IID) (Ours)",
        "federated full": "FL (Non-IID)",
    },
}
MEAN = "Avg"
MINE = "published: XLM-R base; ours: the base and texts named here"
EITHER = (
    "published local and centralised figures: the paper does not say whether by prompt or LoRA; "
    "they stand beside both"
)
DRAWN = "published: figure {} is a drawing whose values are not known"
RECIPE_NOTE = (
    "learning rates: LoRA 0.003, prompt 0.01, chosen on dev texts by federated training on the "
    "embedded base and used for every paradigm and base; all weights 0.0001, not searched"
)


def scenario(name: str, base: str, quick: bool) -> Scenario:
    """One of the paper's experiments.

    Args:
        name: One of `NAMES`.
        base: `embedded`, a folder or a hub name.
        quick: Fewer rounds, texts and methods.
    """
    makers = {
        "masakhanews": masakhanews,
        "nc": news_classification,
        "xnli": xnli,
        "data-efficiency": data_efficiency,
        "distance": language_distance,
    }
    return makers[name](base, quick)


def masakhanews(base: str, quick: bool) -> Scenario:
    """News in five languages, one silo each: local, centralised and federated."""
    texts = 50 if quick else PER_LANGUAGE
    cells = [
        Cell(
            row,
            "mean of languages",
            experiment("masakhanews", MASAKHANEWS, base, adapter, paradigm, quick, texts),
            printed(MASAKHANEWS_TABLE, "masakhanews", row).get(MEAN),
            of_languages=True,
            published_by_language=printed(MASAKHANEWS_TABLE, "masakhanews", row),
        )
        for row, paradigm, adapter in METHODS
        if row in (PARADIGMS[:3] if quick else PARADIGMS)
    ]
    title = f"MasakhaNEWS, {', '.join(MASAKHANEWS)}: accuracy in %"
    told = (*notes(quick, texts), EITHER)
    return Scenario("mfpt masakhanews", title, tuple(cells), told, MASAKHANEWS_TABLE.source)


def news_classification(base: str, quick: bool) -> Scenario:
    """News classification, languages mixed evenly over the clients (IID) or kept apart."""
    texts = 50 if quick else PER_LANGUAGE
    cells = [
        Cell(
            row,
            column,
            experiment("masakhanews", STAND_INS, base, adapter, paradigm, quick, texts, mixture),
            printed(NEWS, column, row).get(MEAN),
            of_languages=True,
        )
        for row, paradigm, adapter in METHODS
        if paradigm == "federated" and not (quick and adapter in FULL)
        for column, mixture in (("IID", 1.0), ("non-IID", 0.0))
    ]
    title = f"News classification on MasakhaNEWS' {', '.join(STAND_INS)}: accuracy in %"
    more = "XGLUE-NC could not be had: five other languages of MasakhaNEWS stand in for it"
    return Scenario("mfpt nc", title, tuple(cells), (*notes(quick, texts), more), NEWS.source)


def xnli(base: str, quick: bool) -> Scenario:
    """Natural language inference, 15 languages (three with `--quick`)."""
    languages = ("en", "es", "fr") if quick else XNLI_LANGUAGES
    texts = 50 if quick else PER_LANGUAGE
    cells = [
        Cell(
            row,
            "mean of languages",
            experiment("xnli", languages, base, adapter, paradigm, quick, texts),
            printed(XNLI_TABLE, "xnli", row).get(MEAN),
            of_languages=True,
            published_by_language=printed(XNLI_TABLE, "xnli", row),
        )
        for row, paradigm, adapter in METHODS[:6]
        if not quick or paradigm == "federated"
    ]
    title = f"XNLI, {len(languages)} languages: accuracy in %; chance 33.3"
    more = (
        "trained and judged on rows of XNLI's dev set that share no premise; the rest is not here"
    )
    told = (*notes(quick, texts), more, EITHER)
    return Scenario("mfpt xnli", title, tuple(cells), told, XNLI_TABLE.source)


def data_efficiency(base: str, quick: bool) -> Scenario:
    """How much federation helps as texts become few."""
    chosen = SHARES[::2] if quick else SHARES
    rows = METHODS[:3] if quick else METHODS[:6]
    cells = [
        Cell(
            row,
            f"{texts} texts",
            experiment("masakhanews", MASAKHANEWS, base, adapter, paradigm, quick, texts),
            of_languages=True,
        )
        for row, paradigm, adapter in rows
        for texts in chosen
    ]
    title = "MasakhaNEWS, labelled texts of each language: accuracy in %"
    told = (*notes(quick, 0), DRAWN.format(4))
    return Scenario("mfpt data-efficiency", title, tuple(cells), told)


def printed(table: Table, kind: str, row: str) -> dict[str, Figure]:
    """The paper's figures for one of our rows, by language and as `MEAN`; empty if it has none.

    Args:
        table: The paper's table.
        kind: A key of `PRINTED`.
        row: Our row.
    """
    theirs = PRINTED[kind].get(row)
    return table.by_column(theirs) if theirs else {}


def language_distance(base: str, quick: bool) -> Scenario:
    """What federation gives each language, to be set beside its distance from the pretraining."""
    languages = MASAKHANEWS if quick else MANY
    cells = [
        Cell(
            row,
            "mean of languages",
            experiment("masakhanews", languages, base, adapter, paradigm, quick, 100),
            of_languages=True,
        )
        for row, paradigm, adapter in METHODS[:3:2]
    ]
    title = f"MasakhaNEWS, {len(languages)} languages: accuracy in %"
    told = (*notes(quick, 100), DRAWN.format(5))
    return Scenario("mfpt distance", title, tuple(cells), told)


def experiment(
    dataset: str,
    languages: tuple[str, ...],
    base: str,
    adapter: str,
    paradigm: Paradigm,
    quick: bool,
    texts: int,
    mixture: float = 0.0,
) -> Experiment:
    """One experiment, one silo per language.

    Args:
        dataset: Name of the set.
        languages: The data set's languages, one silo each.
        base: `embedded`, a folder or a hub name.
        adapter: What is trained.
        paradigm: Who trains together.
        quick: Fewer rounds and test texts.
        texts: Labelled texts of each language.
        mixture: 0 keeps languages apart, 1 mixes them evenly over as many clients.
    """
    rounds = 4 if quick else 10
    return Experiment(
        name=dataset,
        dataset=dataset,
        languages=languages,
        base=base,
        adapter=adapter,
        prompt_init=(XNLI_INIT if dataset == "xnli" else PROMPT_INIT) if adapter == PROMPT else "",
        paradigm=paradigm,
        deal=Deal(by="language", clients=0, mixture=mixture),
        training=training(adapter),
        rounds=rounds,
        evaluate_every=2 if quick else 5,
        train_texts=texts,
        test_texts=100 if quick else 200,
    )


def training(adapter: str) -> Training:
    """A client's training in one round.

    Learning rates were chosen among three each (0.001 to 0.01, 0.003 to 0.03) on MasakhaNEWS texts
    kept aside from training (`judged_on = "dev"`), by federated training on the embedded base.
    """
    lr = {LORA: 3e-3, PROMPT: 1e-2}.get(adapter, 1e-4)
    return Training(epochs=2, batch=8, lr=lr, tokens=64)


def notes(quick: bool, texts: int) -> tuple[str, ...]:
    """How this differs from the paper."""
    found = [MINE, RECIPE_NOTE]
    if texts:
        found.append(f"{texts} labelled texts of each language, 64 tokens of each")
    if quick:
        found.append("--quick: fewer rounds, texts, test texts and methods")
    return tuple(found)
