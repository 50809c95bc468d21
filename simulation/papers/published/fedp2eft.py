"""FedP2EFT's figures, as far as a summary of the paper gives them: three excerpts of its tables.

The summary numbers no table and shows a few languages of each; rows and columns are as it has them.
"""

from simulation.papers.published.figure import Paper, Setting, read_table

PAPER = Paper(
    "FedP2EFT",
    "AAAI'26, arXiv:2502.04387",
    "read from a summary of the paper, which gives a few rows of each table and no table numbers",
)
SEEN = read_table(
    PAPER,
    "MasakhaNEWS, seen clients",
    Setting("16 African languages, LoRA, r = 2"),
    """
     | LoRA | AdaLoRA | BT-LoRA | FedL2P | FedP²EFT
eng  | 90.4 | 89.9    | 89.9    | 90.7   | 92.0
amh  | 45.7 | 45.2    | 45.2    | 45.7   | 52.0
tir  | 44.9 | 44.9    | 44.9    | 45.3   | 63.5
orm  | 64.2 | 64.0    | 64.0    | 64.4   | 72.2
fra  | 88.6 | 88.6    | 88.6    | 89.1   | 93.5
""",
    unit="%",
)
UNSEEN = read_table(
    PAPER,
    "MasakhaNEWS, unseen clients",
    Setting(
        "clients that took no part in training; data set taken from the languages; rank not said"
    ),
    """
     | LoRA | FedL2P | FedP²EFT
xho  | 64.2 | 64.4   | 78.5
tir  | 41.9 | 41.9   | 58.3
orm  | 62.0 | 62.2   | 73.0
run  | 82.0 | 82.6   | 88.4
""",
    unit="%",
)
WITH_FEDDPA = read_table(
    PAPER,
    "XNLI with FedDPA-T",
    Setting("on top of FedDPA-T, a method of personalised federated learning; rank not said"),
    """
    | LoRA | FedL2P | FedP²EFT
ur  | 41.9 | 44.8   | 63.7
bg  | 45.8 | 47.5   | 64.4
hi  | 42.8 | 44.5   | 57.8
""",
    unit="%",
)
