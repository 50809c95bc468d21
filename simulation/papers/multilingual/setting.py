"""Multilingual Federated Prompt Tuning's setting as experiments here: one silo per language.

Zhao et al., ICLR 2024. The paper trains XLM-R base: LoRA of ranks 1 and 8 (alpha 16), soft prompts
of 1 token by its appendix C (8 fit its count of parameters), all weights; with a classification
head, as here, where LoRA r = 8 is on query and value.
"""

from edge_client.wire.training import Training
from simulation.experiments.experiment import Experiment, Paradigm
from simulation.papers.published.figure import Figure, Table
from simulation.papers.published.mfpt import PROMPT_INIT
from simulation.population.deal import Deal

MASAKHANEWS = ("eng", "fra", "hau", "swa", "yor")
MANY = (
    *("amh", "eng", "fra", "hau", "ibo", "lin", "lug", "orm", "run", "sna"),
    *("som", "swa", "tir", "yor"),
)
PROMPT, LORA, FULL = "prompt:8+head", "lora:8+head", "full+head"
XNLI_INIT = "what is this text about"  # ours: the paper has a sentence for news alone
Method = tuple[str, Paradigm, str]  # row, who trains together, what is trained
METHODS: tuple[Method, ...] = (
    ("local LoRA", "local", LORA),
    ("centralised LoRA", "centralised", LORA),
    ("federated LoRA", "federated", LORA),
    ("local prompt", "local", PROMPT),
    ("centralised prompt", "centralised", PROMPT),
    ("federated prompt", "federated", PROMPT),
    ("federated full", "federated", FULL),
)
LOCAL, CENTRALISED, FEDERATED = METHODS[:3]  # by LoRA
PER_LANGUAGE, QUICK_TEXTS = 100, 50
RATES = {"lora": 3e-3, "prompt": 1e-2, "full": 1e-4}
COLUMN, MEAN = "mean of languages", "Avg"
MINE = "published: XLM-R base; ours: the base and texts named here"
RECIPE_NOTE = (
    "learning rates: LoRA 0.003, prompt 0.01, chosen on dev texts by federated training on the "
    "embedded base and used for every paradigm and base; all weights 0.0001, not searched"
)
DRAWN = "published: figure {} is a drawing whose values are not known"


def texts_of(quick: bool) -> int:
    """Labelled texts of each language."""
    return QUICK_TEXTS if quick else PER_LANGUAGE


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
    is_prompt = adapter.startswith("prompt")
    return Experiment(
        name=dataset,
        dataset=dataset,
        languages=languages,
        base=base,
        adapter=adapter,
        prompt_init=(XNLI_INIT if dataset == "xnli" else PROMPT_INIT) if is_prompt else "",
        paradigm=paradigm,
        deal=Deal(by="language", clients=0, mixture=mixture),
        training=training(adapter),
        rounds=4 if quick else 10,
        evaluate_every=2 if quick else 5,
        train_texts=texts,
        test_texts=50 if quick else 200,
    )


def training(adapter: str) -> Training:
    """A client's training in one round.

    Learning rates were chosen among three each (0.001 to 0.01, 0.003 to 0.03) on MasakhaNEWS texts
    kept aside from training (`judged_on = "dev"`), by federated training on the embedded base.
    """
    kind = adapter.split("+")[0].split(":")[0]
    return Training(epochs=2, batch=8, lr=RATES[kind], tokens=64)


def printed(table: Table, rows: dict[str, str], row: str) -> dict[str, Figure]:
    """The paper's figures for one of our rows, by language and as `MEAN`; empty if it has none.

    Args:
        table: The paper's table.
        rows: Our rows -> the paper's.
        row: Our row.
    """
    theirs = rows.get(row)
    return table.by_column(theirs) if theirs else {}


def notes(quick: bool, texts: int) -> tuple[str, ...]:
    """How this differs from the paper."""
    found = [MINE, RECIPE_NOTE]
    if texts:
        found.append(f"{texts} labelled texts of each language, 64 tokens of each")
    if quick:
        found.append("--quick: fewer rounds, texts, test texts and methods")
    return tuple(found)
