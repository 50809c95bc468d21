"""Multilingual Federated Prompt Tuning's figures and its appendix: one thing changed at a time."""

from dataclasses import replace

from simulation.experiments.experiment import Experiment, Paradigm
from simulation.papers.multilingual.setting import (
    CENTRALISED,
    COLUMN,
    DRAWN,
    FEDERATED,
    LOCAL,
    LORA,
    MANY,
    MASAKHANEWS,
    METHODS,
    PROMPT,
    experiment,
    notes,
    texts_of,
)
from simulation.papers.paired import columns_apart, rows_apart
from simulation.papers.published.mfpt import PATIENCE
from simulation.papers.scenario import Cell, Scenario

REDUCED = "yor"  # of whose training texts the whole file is here; the paper reduces German
OTHERS, QUICK_OTHERS = 200, 40
LEFT, QUICK_LEFT = (10, 30, 100, 200), (10, 40)
LENGTHS = (1, 2, 8)  # tokens of a prompt
RANKS = (1, 8)
FIXED, STOPPED = "fixed number of rounds", "early stopping"
DEV_TEXTS, QUICK_DEV_TEXTS = 50, 20
MOST_ROUNDS, QUICK_MOST_ROUNDS = 40, 6


def data_efficiency(base: str, quick: bool) -> Scenario:
    """One language has ever fewer texts, the others all: alone against with them."""
    others = QUICK_OTHERS if quick else OTHERS
    cells = [
        Cell(
            row,
            f"{left} texts",
            _reduced(base, adapter, row.startswith("local"), quick, left, others),
            language=REDUCED,
        )
        for row, paradigm, adapter in METHODS[:6]
        if paradigm != "centralised" and not (quick and adapter == PROMPT)
        for left in (QUICK_LEFT if quick else LEFT)
    ]
    title = f"MasakhaNEWS, {REDUCED} with fewer texts: accuracy in % on {REDUCED} alone"
    told = (
        *notes(quick, 0),
        f"the other languages ({', '.join(one for one in MASAKHANEWS if one != REDUCED)}) have "
        f"{others} texts each; the paper reduces German from 8,000 texts to 30, by prompt tuning",
        DRAWN.format(4),
    )
    pairs = (
        *rows_apart(cells, ("federated LoRA", "local LoRA"), ("federated prompt", "local prompt")),
        *columns_apart(cells, (f"{others} texts", f"{QUICK_LEFT[0] if quick else LEFT[0]} texts")),
    )
    return Scenario("mfpt data-efficiency", title, tuple(cells), told, pairs=pairs)


def _reduced(
    base: str, adapter: str, is_alone: bool, quick: bool, left: int, others: int
) -> Experiment:
    paradigm: Paradigm = "local" if is_alone else "federated"
    usual = experiment("masakhanews", MASAKHANEWS, base, adapter, paradigm, quick, others)
    asked = replace(usual, alone=(REDUCED,)) if is_alone else usual
    return replace(asked, fewer=((REDUCED, left),)) if left < others else asked


def language_distance(base: str, quick: bool) -> Scenario:
    """What federation gives each language, to be set beside its distance from the pretraining."""
    languages, texts = (MASAKHANEWS if quick else MANY), texts_of(quick)
    cells = [
        Cell(
            row,
            COLUMN,
            experiment("masakhanews", languages, base, adapter, paradigm, quick, texts),
            of_languages=True,
        )
        for row, paradigm, adapter in (LOCAL, FEDERATED)
    ]
    title = f"MasakhaNEWS, {len(languages)} languages: accuracy in %"
    told = (*notes(quick, texts), DRAWN.format(5))
    pairs = rows_apart(cells, (FEDERATED[0], LOCAL[0]))
    return Scenario("mfpt distance", title, tuple(cells), told, pairs=pairs)


def lengths(base: str, quick: bool) -> Scenario:
    """Prompts of 1, 2 and 8 tokens, LoRA of ranks 1 and 8; all federated."""
    texts = texts_of(quick)
    tried = {f"prompt, {tokens} token{'s' if tokens > 1 else ''}": tokens for tokens in LENGTHS}
    adapters = {row: f"prompt:{tokens}+head" for row, tokens in tried.items()}
    adapters |= {f"LoRA, rank {rank}": f"lora:{rank}+head" for rank in RANKS}
    cells = [
        Cell(
            row,
            "federated",
            experiment("masakhanews", MASAKHANEWS, base, adapter, "federated", quick, texts),
            of_languages=True,
        )
        for row, adapter in adapters.items()
    ]
    title = "MasakhaNEWS, lengths of prompts and ranks of LoRA: accuracy in %, mean of languages"
    told = (
        *notes(quick, texts),
        "published: appendix C has prompts of 1 token and LoRA of ranks 1 and 8, section 5.4 "
        "prompts of 2 x 768, and table 4's count of parameters fits 8 x 768; which of its figures "
        "are of which is not said, and no accuracy by length or rank is printed",
    )
    ordered = list(adapters)
    pairs = rows_apart(cells, *zip(ordered[1:], ordered, strict=False))
    return Scenario("mfpt lengths", title, tuple(cells), told, pairs=pairs)


def stopping(base: str, quick: bool) -> Scenario:
    """Training that ends by texts kept aside, beside a fixed number of rounds."""
    texts = texts_of(quick)
    prompt = next(method for method in METHODS if method[0] == "federated prompt")
    cells = []
    for row, paradigm, adapter in (LOCAL, CENTRALISED, FEDERATED, prompt):
        if quick and adapter != LORA:
            continue
        usual = experiment("masakhanews", MASAKHANEWS, base, adapter, paradigm, quick, texts)
        cells.append(Cell(row, FIXED, usual, of_languages=True))
        cells.append(Cell(row, STOPPED, stopped(usual, quick), of_languages=True, is_fixed=True))
    most = QUICK_MOST_ROUNDS if quick else MOST_ROUNDS
    aside = QUICK_DEV_TEXTS if quick else DEV_TEXTS
    title = "MasakhaNEWS, early stopping: accuracy in %, mean of languages"
    told = (
        *notes(quick, texts),
        f"{STOPPED}: rounds of one pass, at most {most}; {PATIENCE} in a row without a gain on "
        f"{aside} texts of each language, which nobody trains on, end it, as {PATIENCE} epochs do "
        "in the paper's appendix C, and the best adapter by them is kept. The other column, as all "
        f"other experiments, has rounds of {usual.training.epochs} passes and keeps the last one",
    )
    pairs = (
        *columns_apart(cells, (STOPPED, FIXED)),
        *rows_apart(cells, (FEDERATED[0], LOCAL[0]), (FEDERATED[0], CENTRALISED[0])),
    )
    return Scenario("mfpt stopping", title, tuple(cells), told, pairs=pairs)


def stopped(usual: Experiment, quick: bool) -> Experiment:
    """The experiment as the paper ends its own."""
    return replace(
        usual,
        rounds=QUICK_MOST_ROUNDS if quick else MOST_ROUNDS,
        training=replace(usual.training, epochs=1),
        evaluate_every=1,
        patience=PATIENCE,
        keep="best",
        dev_texts=QUICK_DEV_TEXTS if quick else DEV_TEXTS,
    )
