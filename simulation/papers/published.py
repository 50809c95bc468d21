"""What the papers print, for the scenarios to show beside what they measure.

Every figure says where it was read. What could be read nowhere is None and is shown as unknown;
nothing here is estimated. Accuracies are in per cent.

    shown(AUG_FEDPROMPT["ag_news"].cloze_skewed)  # "68.4"
"""

from collections.abc import Mapping
from dataclasses import dataclass

UNKNOWN = "not known"
UNPACED_SHARE = 0.874  # of a client's compute that AUG-FedPrompt's labelling takes (its section 4)
AUG_FEDPROMPT_SOURCE = (
    "AUG-FedPrompt, EuroMLSys'23 (arXiv:2212.00192), table 2, RoBERTa-large, 32 labelled of 1,000 "
    "clients, 5 per round; head columns could not be read"
)
AUTHORS_RUNS_SOURCE = (
    "printed by script_data/data_process_new_niid.ipynb of UbiquitousLearning/FeS (d012b51): best "
    "mean of 5 clients over 100 rounds, 100 labels over 10 clients; in no paper's table"
)
MFPT_SOURCE = (
    "Multilingual Federated Prompt Tuning, ICLR'24 (arXiv:2507.03003), XLM-R base, federated; "
    "columns of other paradigms could not be read"
)
MFPT_TRAFFIC_SOURCE = (
    "Multilingual Federated Prompt Tuning, ICLR'24 (arXiv:2507.03003), 5 clients, 10 rounds"
)


@dataclass(frozen=True)
class FewShot:
    """A row of AUG-FedPrompt's table 2.

    Attributes:
        labels: Labelled texts in all.
        head_uniform: FedCLS, a classification head, labels spread evenly (gamma 1).
        head_skewed: The same, skewed (gamma 0.001).
        cloze_uniform: FedPrompt, cloze prompts, labels spread evenly.
        cloze_skewed: The same, skewed.
        augmented_skewed: AUG-FedPrompt, cloze with pseudo-labels, skewed.
    """

    labels: int
    head_uniform: float | None
    head_skewed: float | None
    cloze_uniform: float | None
    cloze_skewed: float | None
    augmented_skewed: float | None


AUG_FEDPROMPT: Mapping[str, FewShot] = {
    "ag_news": FewShot(64, None, None, 87.0, 68.4, 90.2),
    "mnli": FewShot(1024, None, None, 77.6, 42.4, 75.7),
    "yahoo_answers": FewShot(256, None, None, 66.0, 41.8, 66.9),
    "yelp_review_full": FewShot(256, None, None, 61.9, 51.2, 58.2),
}


@dataclass(frozen=True)
class HeadAndCloze:
    """Accuracies that the same authors' notebook prints.

    Attributes:
        head: FedCLS.
        cloze: FedPrompt.
    """

    head: float
    cloze: float


AUTHORS_RUNS: Mapping[str, HeadAndCloze] = {
    "ag_news": HeadAndCloze(85.2, 87.2),
    "mnli": HeadAndCloze(44.6, 47.8),
    "yahoo_answers": HeadAndCloze(17.9, 54.6),
    "yelp_review_full": HeadAndCloze(32.5, 40.6),
}


@dataclass(frozen=True)
class Multilingual:
    """Mean accuracy over languages in Multilingual Federated Prompt Tuning.

    Attributes:
        federated_prompt: Soft prompt, trained together.
        federated_lora: LoRA, trained together.
        local: Each language alone.
        centralised: All texts in one place.
    """

    federated_prompt: float | None
    federated_lora: float | None
    local: float | None
    centralised: float | None


MFPT: Mapping[str, Multilingual] = {
    "nc": Multilingual(80.7, None, None, None),
    "xnli": Multilingual(39.8, None, None, None),
    "masakhanews": Multilingual(76.4, 81.0, None, None),
}


@dataclass(frozen=True)
class Traffic:
    """A row of the same paper's table of parameters and traffic.

    Attributes:
        parameters: Trained ones.
        run_mb: Sent by 5 clients in 10 rounds.
    """

    parameters: int | None
    run_mb: int


MFPT_TRAFFIC: Mapping[str, Traffic] = {
    "full": Traffic(None, 110_592),
    "prompt": Traffic(1_202_708, 479),
    "lora": Traffic(1_491_476, 594),
}


def shown(figure: float | None) -> str:
    """A published figure as people read it; what is not known is said to be so."""
    return UNKNOWN if figure is None else f"{figure:,}"
