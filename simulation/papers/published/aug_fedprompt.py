"""AUG-FedPrompt's figures: accuracy by few-shot setting, cost on a board, and its sentences.

Figures 2, 4 and 5 of the paper are drawings; of them only what its text says is known.
"""

from profiling.estimates.published import OUT_OF_MEMORY, TABLE_4
from simulation.papers.published.figure import Figure, Paper, Setting, read_table

PAPER = Paper("AUG-FedPrompt", "EuroMLSys'23, arXiv:2212.00192, doi 10.1145/3578356.3592575")
COLUMN = {  # our name of a data set -> the paper's
    "ag_news": "AGNEWS",
    "mnli": "MNLI",
    "yahoo_answers": "YAHOO",
    "yelp_review_full": "YELP-F",
}
LABELS = {"ag_news": 64, "mnli": 1024, "yahoo_answers": 256, "yelp_review_full": 256}  # table 2
CLIENTS = 1000  # table 1
LABELLED_CLIENTS = 32  # xi, note 1
COHORT = 5  # section 4.1
ALPHA = 1.0  # table 1
TEXTS = {  # training texts, table 1
    "ag_news": 120_000,
    "mnli": 392_702,
    "yahoo_answers": 1_400_000,
    "yelp_review_full": 650_000,
}
THOUSANDTH = {name: round(texts / 1000) for name, texts in TEXTS.items()}  # figure 5's labels
UNIFORM, SKEWED = 100.0, 0.001  # gamma, section 2
SKEWS = (100.0, 10.0, 1.0, 0.1, 0.01, 0.001)  # gamma, figure 1

ACCURACY = Setting(
    "RoBERTa-large; 1,000 clients, labels on at most 32, 5 per round, batch 4, 256 tokens, "
    "learning rate 1e-5; that all weights are trained is taken from what is sent, the entire "
    "model; the table says only Uniform and Skewed, section 2 calls gamma 100 uniform and 0.001 "
    "skewed; what ± is the table does not say",
    3,
)
FEW_SHOT = read_table(
    PAPER,
    "table 2",
    ACCURACY,
    """
                    | AGNEWS    | MNLI     | YAHOO     | YELP-F
Uniform FedCLS      | 66.1±12.8 | 60.1±0.4 | 57.6±1.9  | 54.0±0.1
Uniform FedPrompt   | 87.0±0.8  | 77.6±0.8 | 66.0±0.1  | 61.9±0.7
Skewed FedCLS       | 64.8±3.1  | 37.7±5.6 | 24.4±10.3 | 38.3±8.8
Skewed FedPrompt    | 68.4±2.4  | 42.4±5.8 | 41.8±4.3  | 51.2±1.8
Skewed w/ augment   | 90.2±0.5  | 75.7±1.2 | 66.9±1.1  | 58.2±2.4
""",
    unit="%",
)

BOARD = Setting("NVIDIA TX2 with 8 GB, batch 4")
SYSTEM_COST = read_table(
    PAPER,
    "table 4",
    BOARD,
    TABLE_4,
    units={"Memory (GB)": "GB", "Latency (s)": "s per batch", "Param. (M)": "million parameters"},
    remarks={
        ("Memory (GB)", model): "printed `OOM`, with this number in brackets; of RoBERTa-large the "
        "paper says that a central server has measured it (note 3)"
        for model in OUT_OF_MEMORY
    },
)


def _said(what: str, value: float, place: str, unit: str = "%", remark: str = "") -> Figure:
    return Figure(value, unit, PAPER, place, what, "", SENTENCE, remark=remark)


SENTENCE = Setting("a sentence, which does not say of which base and data but where it is told")
PERCENT = "whether points or per cent of the lower one is not said"


# A client's computing time that labelling takes, and pseudo-labels that are right (100 texts
# labelled on each client of a round, AG News).
LABELLING_SHARE = _said("inference in all computation time, at most", 87.4, "section 5")
RIGHT_EARLY = _said("pseudo-labels that are right, first three rounds", 92.5, "section 4.3")
RIGHT_LATE = _said("pseudo-labels that are right, at convergence", 95.3, "section 4.3")
SKEW_COSTS = _said(
    "uniform (gamma 100) better than skewed (gamma 0.001) by, 1,024 labels of YAHOO",
    26,
    "section 2, of figure 2",
    remark=PERCENT,
)
# Figure 4: the largest gap between AUG-FedPrompt and FedCLS over numbers of labels, and how many
# labels reach 90 % of what training on the whole set gives. The text names no sets: its four
# numbers are taken to go by the tables' columns.
LARGEST_GAP = {
    name: _said(
        f"largest gap to FedCLS, {COLUMN[name]}", gap, "section 4.2, of figure 4", remark=PERCENT
    )
    for name, gap in zip(COLUMN, (50, 25, 55, 38), strict=True)
}
USABLE_LABELS: dict[str, Figure | None] = {
    "ag_news": _said("labels to be usable, AGNEWS", 64, "section 4.2", "labels"),
    "mnli": None,
    "yahoo_answers": _said("labels to be usable, YAHOO", 256, "section 4.2", "labels"),
    "yelp_review_full": _said("labels to be usable, YELP-F", 256, "section 4.2", "labels"),
}
BASES_DRAWN = _said(
    "RoBERTa-large outperforms all other models",
    38.2,
    "section 5, of figure 5",
    remark=PERCENT,
)
