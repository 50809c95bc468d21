"""Multilingual Federated Prompt Tuning's figures: three tables of accuracy, one of traffic.

PE stands for parameter-efficient. What its rows PE_Monolingual and PE_Centralized train, prompt or
LoRA, the paper does not say; nor what PE_FL (IID) of table 1 trains, which is taken for prompt
tuning here. Figures 4, 5 and 6 are drawings whose values the text does not give.
"""

from simulation.papers.published.figure import Figure, Paper, Setting, read_table

PAPER = Paper("Multilingual Federated Prompt Tuning", "ICLR'24, arXiv:2507.03003")
PROMPT_INIT = "Predict the category given the following news article"  # appendix B
PATIENCE = 5  # epochs without gain that end training, appendix C
_COMMON = (
    f"XLM-R base, learning rate 1e-3, early stopping after {PATIENCE} epochs without gain, 512 "
    "tokens"
)
LANGUAGES = ("en", "es", "fr", "de", "ru")
NEWS = read_table(
    PAPER,
    "table 1",
    Setting(f"XGLUE-NC, 8,000 training texts per language; {_COMMON}"),
    """
                                        | en   | es   | fr   | de   | ru   | Avg
Monolingual                             | 92.4 | 84.7 | 79.5 | 88.3 | 89.0 | 86.8
Centralized                             | 93.9 | 86.7 | 82.9 | 89.5 | 88.6 | 88.3
FL (IID)                                | 94.1 | 86.9 | 82.7 | 89.4 | 88.8 | 88.4
FL (Non-IID)                            | 92.4 | 86.3 | 81.2 | 88.9 | 84.7 | 86.7
PE_Monolingual                          | 82.9 | 59.7 | 47.3 | 71.4 | 60.0 | 64.3
PE_Centralized                          | 89.1 | 76.2 | 67.4 | 78.8 | 75.9 | 77.5
PE_FL (IID) (Ours)                      | 91.2 | 82.2 | 76.5 | 86.4 | 81.6 | 83.6
PE_FL (Prompt Tuning) (Non-IID) (Ours)  | 87.8 | 79.2 | 73.7 | 83.1 | 79.5 | 80.7
PE_FL (LoRA) (Non-IID) (Ours)           | 89.3 | 76.0 | 75.4 | 75.8 | 83.2 | 79.9
""",
    unit="%",
    remarks={
        ("PE_FL (IID) (Ours)", column): "prompt or LoRA is not said; taken for the prompt"
        for column in (*LANGUAGES, "Avg")
    },
)
XNLI = read_table(
    PAPER,
    "table 2",
    Setting(f"XNLI, 2,000 training texts per language, PE_FL is prompt tuning, non-IID; {_COMMON}"),
    """
               |en  |fr  |es  |de  |el  |bg  |ru  |tr  |ar  |vi  |th  |zh  |hi  |sw  |ur  |Avg
PE_Monolingual |39.1|35.1|36.6|35.7|35.3|35.9|35.5|26.2|32.1|31.7|31.5|33.7|31.6|26.0|28.1|32.94
PE_Centralized |35.3|36.9|33.3|35.3|30.5|36.5|33.7|35.7|33.3|40.1|36.1|30.5|37.3|38.6|29.3|34.86
PE_FL (Ours)   |43.2|40.6|42.9|40.2|39.7|40.8|41.1|37.6|39.1|39.9|39.4|39.8|38.2|37.1|37.8|39.83
""",
    unit="%",
)
MASAKHANEWS = read_table(
    PAPER,
    "table 3",
    Setting(f"MasakhaNEWS, 1,433 training texts per language; {_COMMON}"),
    """
                              | eng   | fra   | hau   | swa   | yor   | Avg
PE_Monolingual                | 79.08 | 84.91 | 75.18 | 76.64 | 52.8  | 73.7
PE_Centralized                | 79.81 | 87.10 | 80.78 | 84.18 | 64.48 | 79.3
PE_FL (Prompt Tuning) (Ours)  | 82.99 | 89.81 | 65.96 | 86.16 | 57.20 | 76.4
PE_FL (LoRA) (Ours)           | 87.10 | 85.64 | 76.64 | 83.21 | 72.50 | 81.0
""",
    unit="%",
)
PARAMETERS, COMMUNICATION = "# Trainable Params", "Communication Cost"
FULL, PROMPT, LORA = "Full fine-tuning", "Prompt Tuning (Ours)", "LoRA (Ours)"
TRAFFIC = read_table(
    PAPER,
    "table 4",
    Setting("XLM-R base on XGLUE-NC; 5 clients, 10 rounds (section 5.4)", 0),
    """
                      | # Trainable Params | Communication Cost
Full fine-tuning      | 278,655,764        | 110,592
Prompt Tuning (Ours)  | 1,202,708          | 479
LoRA (Ours)           | 1,491,476          | 594
""",
    units={PARAMETERS: "parameters", COMMUNICATION: "MB"},
    remarks={
        (FULL, PARAMETERS): "equals the whole of the prompt's model, trained or not: the base, a "
        "prompt of 8 x 768, and the classification head twice"
    },
)
GAIN = Figure(
    6.9,
    "%",
    PAPER,
    "abstract",
    "higher accuracy than local tuning",
    "",
    XNLI.setting,
    remark="points, and of XNLI, it seems: table 2 has 39.83 - 32.94",
)
PROMPT_MB = Figure(
    478.93, "MB", PAPER, "section 5.4", "traffic of prompt tuning", "", TRAFFIC.setting
)
