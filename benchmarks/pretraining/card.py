"""Writes a base's folder: fp16 weights, tokenizer, and a model card.

Everything in the card is counted or measured by the run that writes it.
"""

import copy
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from tokenizers import Tokenizer
from transformers import BertForMaskedLM

from benchmarks.pretraining.held_out import MaskedScore, ZeroShot
from benchmarks.pretraining.recipes import Recipe
from benchmarks.pretraining.student import PEAK_LR_ALONE
from smidgen.edge_client.outputs import new_folder

MARK = "tokenizer.json"
MINE = (
    *("README.md", "config.json", "generation_config.json", "model.safetensors"),
    "tokenizer_config.json",
)


@dataclass(frozen=True)
class CardFacts:
    """One training run, for people (the card) and machines (one JSON object).

    Attributes:
        sources: Sets read.
        absent: Sets that were not there.
        passages: Number of passages taught, by language.
        teacher: Name of the teacher's folder, or empty.
        seed: Root seed.
        steps: Optimizer steps.
        batch_tokens: Tokens per step, padding included, about.
        course_batches: Different batches; the run walks them repeatedly.
        samples: Different texts with masks, in these batches.
        samples_seen: Samples learned from, repetitions counted.
        elapsed_s: Seconds of training.
        hardware: What it ran on.
        parameters: Number of weights of the base.
        held_out: Masked words of held-out text, by language; and of AG News where it is there.
        news: Cloze zero-shot on AG News test rows; empty where the set is absent.
        news_rows: Number of those rows.
    """

    sources: tuple[str, ...]
    absent: tuple[str, ...]
    passages: dict[str, int]
    teacher: str
    seed: int
    steps: int
    batch_tokens: int
    course_batches: int
    samples: int
    samples_seen: int
    elapsed_s: float
    hardware: str
    parameters: int
    held_out: dict[str, MaskedScore]
    news: tuple[ZeroShot, ...]
    news_rows: int

    def as_json(self) -> dict[str, Any]:
        """What `pretrain --json` says of the base."""
        scores = {
            language: {
                **asdict(score),
                "word_perplexity": score.word_perplexity,
                "bits_per_character": score.bits_per_character,
            }
            for language, score in self.held_out.items()
        }
        return {**asdict(self), "held_out": scores}


def write_base(student: BertForMaskedLM, tokenizer: Tokenizer, card: str, out: Path) -> None:
    """Write a Hugging Face folder beside `out`, then put it in its place.

    Weights are fp16. A base that was there before is replaced as a whole.

    Raises:
        OutputError: `out` holds other things than a base.
        Failed: It cannot be written after all.
    """
    with new_folder("--out", out, MARK, MINE) as part:
        copy.deepcopy(student).cpu().half().save_pretrained(part)
        tokenizer.save(str(part / MARK))
        settings = json.dumps(_TOKENIZER_CONFIG, indent=2)
        (part / "tokenizer_config.json").write_text(f"{settings}\n", encoding="utf-8")
        (part / "README.md").write_text(card, encoding="utf-8")


def card_of(facts: CardFacts, recipe: Recipe, student: BertForMaskedLM, command: str) -> str:
    """The model card, Markdown, by the templates in `cards/`.

    Args:
        facts: What the run counted and measured.
        recipe: What the base was made of.
        student: The trained model.
        command: What was typed, without paths of the machine.
    """
    room = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "cards"),
        undefined=StrictUndefined,
        autoescape=False,
        keep_trailing_newline=True,
    )
    card = room.get_template("embedded.md" if recipe.is_embedded else "multilingual.md")
    return card.render(
        facts=facts,
        config=student.config,
        sources=recipe.sources,
        exponent=recipe.exponent,
        peak_lr=PEAK_LR_ALONE,
        command=command,
    )


_TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "model_max_length": 256,
    "do_lower_case": True,
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
    "pad_token": "[PAD]",
}
