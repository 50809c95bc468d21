"""The embedded base's folder: fp16 weights, tokenizer, and a card that says what it is.

Everything in the card is counted or measured by the run that writes it.
"""

import copy
import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import BertForMaskedLM

from simulation.pretraining.corpus import SOURCES
from simulation.pretraining.held_out import MaskedScore, ZeroShot


@dataclass(frozen=True)
class CardFacts:
    """One training run, for people (the card) and machines (one JSON object).

    Attributes:
        sources: Sets read.
        absent: Sets that were not there.
        passages: How many taught, by language.
        teacher: Name of the teacher's folder, or empty.
        seed: Root seed.
        steps: Optimizer steps, or rounds.
        batch_tokens: Tokens a step, padding included, about.
        course_batches: Different batches; the run walks them again and again.
        samples: Different texts with masks, in these batches.
        samples_seen: How many were learned from, repetitions counted.
        silos: Samples of each silo, by language; empty where the run was not federated.
        elapsed_s: Seconds of training.
        hardware: What it ran on.
        parameters: Of the base.
        held_out: Masked words of held-out text, by language.
        news: Cloze zero-shot on AG News test rows; empty where the set is absent.
        news_rows: How many rows.
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
    silos: dict[str, int]
    elapsed_s: float
    hardware: str
    parameters: int
    held_out: dict[str, MaskedScore]
    news: tuple[ZeroShot, ...]
    news_rows: int

    def as_json(self) -> dict[str, Any]:
        """Plain values in base units."""
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

    Weights are fp16. A folder that was there before is replaced as a whole.
    """
    partial = out.with_name(f"{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    copy.deepcopy(student).cpu().half().save_pretrained(partial)
    tokenizer.save(str(partial / "tokenizer.json"))
    (partial / "tokenizer_config.json").write_text(json.dumps(_TOKENIZER_CONFIG, indent=2) + "\n")
    (partial / "README.md").write_text(card, encoding="utf-8")
    before = out.with_name(f"{out.name}.before")
    shutil.rmtree(before, ignore_errors=True)
    if out.exists():
        out.rename(before)
    partial.rename(out)
    shutil.rmtree(before, ignore_errors=True)


def card_of(report: CardFacts, student: BertForMaskedLM, command: str) -> str:
    """The model card, Markdown.

    Args:
        report: Of the run.
        student: The trained model.
        command: What was typed, without paths of the machine.
    """
    config = student.config
    parts = [
        "---",
        "license: other",
        "language: [en, es, fr, de]",
        "pipeline_tag: fill-mask",
        "---",
        "# smidgen's embedded base",
        "",
        "A small uncased masked language model for federated prompt and LoRA tuning on small",
        f"devices: BERT, {config.num_hidden_layers} layers, hidden {config.hidden_size}, "
        f"{config.num_attention_heads} heads, feed-forward {config.intermediate_size}, "
        f"{config.vocab_size:,} WordPiece tokens (accents stripped), at most "
        f"{config.max_position_embeddings} positions, tied embeddings, {report.parameters:,} "
        "parameters in fp16. English first, then Spanish and French; a little German.",
        "",
        "## How it was made",
        *_making(report),
        "",
        "```",
        command,
        "```",
        "",
        "## Text and licences",
        *(f"- `{source}`: {SOURCES[source][1]}" for source in report.sources),
        "",
        "Passages taught: "
        + ", ".join(f"{language} {count:,}" for language, count in report.passages.items())
        + ". One passage in 50, chosen by a hash of its text, was held out, translations with it.",
        "AG News, MasakhaNEWS, Yelp, Yahoo, XNLI and E3C were not trained on.",
        "",
        *_LICENCE,
        *(_TEACHER_LICENCE if report.teacher else []),
        "",
        "## Measured",
        "Masked words of held-out text (whole words, 15 %; perplexity over the model's own tokens,",
        "so not to be compared with another vocabulary's):",
        "",
        *score_rows(report),
        *news_rows(report),
        "",
        *_LIMITS,
        "",
    ]
    return "\n".join(parts)


def _making(report: CardFacts) -> list[str]:
    lines = [
        f"- {report.steps:,} steps of about {report.batch_tokens:,} tokens over "
        f"{report.course_batches:,} different batches, AdamW (peak 2e-3, 5 % warm-up, linear "
        "decay to zero, weight decay 0.01, clipping at 1), bf16 autocast, no dropout, "
        f"seed {report.seed}.",
        f"- {report.elapsed_s:,.0f} seconds of training on {report.hardware}.",
        "- 20 % of the words masked whole; a text beside its translation; cloze prompts "
        '("a [MASK] news : ...", "topic : [MASK] . ..." and others) around the same texts.',
    ]
    if not report.teacher:
        return [*lines, "- No teacher: embeddings start from neighbourhood counts."]
    return [
        *lines,
        f"- Teacher: `{report.teacher}`. Where it knows the masked word as one token, 0.7 of the "
        "loss is cross-entropy with its distribution over the shared tokens; prompts are answered "
        "by it alone (for Spanish, French and German texts it reads the English original). In "
        "English the student's middle and last layer also follow the teacher's (mean square "
        "distance on their 192 principal axes, through a linear map that is thrown away).",
        "- **Derived from the teacher's embeddings**: shared tokens start from the first "
        "principal axes of the teacher's word embeddings, and from its output bias. Everything "
        "else starts from random numbers.",
    ]


def score_rows(report: CardFacts, with_passages: bool = False) -> list[str]:
    """A table of what is put under masked words, a line a language."""
    head = ["language", *(["passages taught"] if with_passages else []), "masks", "top-1"]
    head += ["perplexity", "a word", "bits a character"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for language, score in report.held_out.items():
        row = [language, *([f"{report.passages[language]:,}"] if with_passages else [])]
        row += [f"{score.masks:,}", f"{score.top_1:.1%}", f"{score.perplexity:.1f}"]
        row += [f"{score.word_perplexity:,.0f}", f"{score.bits_per_character:.2f}"]
        lines.append("| " + " | ".join(row) + " |")
    return lines


def news_rows(report: CardFacts) -> list[str]:
    """A table of the zero-shot answers, a line a pattern; empty where none were asked for."""
    if not report.news:
        return []
    return [
        "",
        f"AG News zero-shot ({report.news_rows:,} stratified test rows, title and text, label "
        "words world / sports / business / technology; chance 25 %; calibrated: each label's mean "
        "log-probability over these rows, without their labels, taken off):",
        "",
        "| pattern | plain | calibrated |",
        "|---|---|---|",
        *(f"| `{s.pattern}` | {s.plain:.1%} | {s.calibrated:.1%} |" for s in report.news),
    ]


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
_LICENCE = [
    "What is ours in this folder is under Apache-2.0. The weights were learned from text most of",
    "which is CC BY-SA (Wikipedia's authors, through WikiText-103, PAN-X and the PUD treebanks;",
    "also Wikinews and PubMed sentences through TICO-19, and the contributors of MultiNLI and the",
    "OANC). Whether weights are an adaptation of such text is not settled. Who wants to be sure",
    "keeps this attribution with every copy and passes changed weights on under CC BY-SA; no text",
    "is contained in the folder.",
]
_TEACHER_LICENCE = [
    "The teacher is under Apache-2.0: it was trained on from the encoder of",
    "sentence-transformers/all-MiniLM-L6-v2 (Apache-2.0), with an output layer of its own, on",
    "Wikipedia text (CC BY-SA), MultiNLI and TICO-19. It saw some of the English passages that are",
    "held out here.",
]
_LIMITS = [
    "## What it cannot do",
    "- It has read less than a million words. It knows little of the world, and no figure here",
    "  says anything about bases a hundred times its size.",
    "- Spanish and French come from medical sentences, Wikipedia snippets and few news sentences;",
    "  German from snippets. Accents are stripped: words that differ by an accent only are one.",
    "- Not for generating text, not for facts, not for medical or other advice. It repeats the",
    "  leanings of its texts and of its teacher.",
    "- At most 256 tokens; trained on passages up to 96. Token types other than 0 are untrained.",
]
