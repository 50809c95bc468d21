"""A base's folder: fp16 weights, tokenizer, and a card that says what it is.

Everything in the card is counted or measured by the run that writes it.
"""

import copy
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import BertForMaskedLM

from edge_client.outputs import new_folder
from simulation.pretraining.federated import CLIENT_LR, SERVER_LR
from simulation.pretraining.held_out import MaskedScore, ZeroShot
from simulation.pretraining.recipes import Recipe
from simulation.pretraining.silo import RECIPE
from simulation.pretraining.student import PEAK_LR_ALONE

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
        steps: Optimizer steps, or rounds.
        batch_tokens: Tokens per step, padding included, about.
        course_batches: Different batches; the run walks them repeatedly.
        samples: Different texts with masks, in these batches.
        samples_seen: Samples learned from, repetitions counted.
        silos: Samples of each silo, by language; empty where the run was not federated.
        elapsed_s: Seconds of training.
        hardware: What it ran on.
        parameters: Number of weights of the base.
        held_out: Masked words of held-out text, by language.
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
    """The model card, Markdown.

    Args:
        facts: What the run counted and measured.
        recipe: What the base was made of.
        student: The trained model.
        command: What was typed, without paths of the machine.
    """
    write = _embedded_card if recipe.is_embedded else _multilingual_card
    return write(facts, recipe, student, command)


def _embedded_card(facts: CardFacts, recipe: Recipe, student: BertForMaskedLM, command: str) -> str:
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
        f"{config.max_position_embeddings} positions, tied embeddings, {facts.parameters:,} "
        "parameters in fp16. English first, then Spanish and French; a little German.",
        "",
        "## How it was made",
        *_embedded_making(facts),
        "",
        "```",
        command,
        "```",
        "",
        "## Text and licences",
        *(f"- `{source}`: {recipe.sources[source][1]}" for source in facts.sources),
        "",
        "Passages taught: "
        + ", ".join(f"{language} {count:,}" for language, count in facts.passages.items())
        + ". One passage in 50, chosen by a hash of its text, was held out, translations with it.",
        "AG News, MasakhaNEWS, Yelp, Yahoo, XNLI and E3C were not trained on.",
        "",
        *_EMBEDDED_LICENCE,
        *(_TEACHER_LICENCE if facts.teacher else []),
        "",
        "## Measured",
        "Masked words of held-out text (whole words, 15 %; perplexity over the model's own tokens,",
        "so not to be compared with another vocabulary's):",
        "",
        *_score_rows(facts),
        *_news_rows(facts),
        "",
        *_EMBEDDED_LIMITS,
        "",
    ]
    return "\n".join(parts)


def _embedded_making(facts: CardFacts) -> list[str]:
    lines = [
        f"- {facts.steps:,} steps of about {facts.batch_tokens:,} tokens over "
        f"{facts.course_batches:,} different batches, AdamW (peak 2e-3, 5 % warm-up, linear "
        "decay to zero, weight decay 0.01, clipping at 1), bf16 autocast, no dropout, "
        f"seed {facts.seed}.",
        f"- {facts.elapsed_s:,.0f} seconds of training on {facts.hardware}.",
        "- 20 % of the words masked whole; a text beside its translation; cloze prompts "
        '("a [MASK] news : ...", "topic : [MASK] . ..." and others) around the same texts.',
    ]
    if not facts.teacher:
        return [*lines, "- No teacher: embeddings start from neighbourhood counts."]
    return [
        *lines,
        f"- Teacher: `{facts.teacher}`. Where it knows the masked word as one token, 0.7 of the "
        "loss is cross-entropy with its distribution over the shared tokens; prompts are answered "
        "by it alone (for Spanish, French and German texts it reads the English original). In "
        "English the student's middle and last layer also follow the teacher's (mean square "
        "distance on their 192 principal axes, through a linear map that is thrown away).",
        "- **Derived from the teacher's embeddings**: shared tokens start from the first "
        "principal axes of the teacher's word embeddings, and from its output bias. Everything "
        "else starts from random numbers.",
    ]


def _multilingual_card(
    facts: CardFacts, recipe: Recipe, student: BertForMaskedLM, command: str
) -> str:
    config = student.config
    parts = [
        "---",
        "license: other",
        f"language: [{', '.join(facts.passages)}]",
        "pipeline_tag: fill-mask",
        "---",
        "# smidgen's multilingual base",
        "",
        f"A small uncased masked language model of {len(facts.passages)} languages: BERT, "
        f"{config.num_hidden_layers} layers, hidden {config.hidden_size}, "
        f"{config.num_attention_heads} heads, feed-forward {config.intermediate_size}, "
        f"{config.vocab_size:,} WordPiece tokens, at most {config.max_position_embeddings} "
        f"positions, tied embeddings, {facts.parameters:,} parameters in fp16. No teacher.",
        "",
        "**For research, and not to be passed on as it is**: see the licences below. That is why "
        "it is made by a command and does not come with the package.",
        "",
        "## How it was made",
        *_multilingual_making(facts),
        f"- A language's share of the words is its share in the texts to the power "
        f"{recipe.exponent} (Conneau and Lample 2019), for the vocabulary"
        + (
            "; silos read their own texts, each as many as its size lets it."
            if facts.silos
            else " and for the course: small languages are read more than once, of large ones a "
            "part."
        ),
        *_ACCENTS,
        "",
        "```",
        command,
        "```",
        "",
        "## Text and licences",
        *(f"- `{source}`: {recipe.sources[source][1]}" for source in facts.sources),
        "",
        *_MULTILINGUAL_LICENCE,
        "",
        "## Measured",
        "Masked words of held-out text of the same sets (one passage in 50, chosen by a hash of "
        "its text, translations with it; whole words, 15 %; it is known into how many tokens a "
        "masked word falls). Perplexity per token depends on how finely a language is cut; "
        "perplexity per word and bits per character do not, so these two compare between "
        "vocabularies; between languages they still depend on how long words are and on how much "
        "a letter says.",
        "",
        *_score_rows(facts, with_passages=True),
        *_news_rows(facts),
        "",
        *_MULTILINGUAL_LIMITS,
        "",
    ]
    return "\n".join(parts)


def _multilingual_making(facts: CardFacts) -> list[str]:
    seen = (
        f"{facts.samples_seen:,} samples read ({facts.samples_seen / facts.samples:.2f} times "
        f"the course of {facts.samples:,})"
    )
    common = (
        f"- {facts.elapsed_s:,.0f} seconds of training on {facts.hardware}; seed {facts.seed}.",
        "- Word embeddings start from the texts' own neighbourhood counts (principal axes of the "
        "positive pointwise mutual information, 5 tokens to each side) and output biases from "
        "frequencies; positions start as sinusoids, and the first layer's heads looking 1 to 3 "
        "tokens back and ahead; everything else from random numbers. All of it is trained on.",
        "- 20 % of the words masked whole, always by the mask; where a set has the text in English "
        "too, also the two side by side (translation language modelling). A headline and the text "
        "under it are one passage. Passages of about 42 words, at most 96 tokens.",
    )
    if facts.silos:
        return [*_federation(facts, seen), *common]
    return [
        f"- {facts.steps:,} steps of about {facts.batch_tokens:,} tokens, {seen}; AdamW (peak "
        f"{PEAK_LR_ALONE:g}, 5 % warm-up, linear decay to zero, weight decay 0.01, clipping at "
        "1), bf16 autocast, no dropout.",
        *common,
    ]


def _federation(facts: CardFacts, seen: str) -> list[str]:
    return [
        f"- **Federated**: {len(facts.silos)} silos, one per language, all of them in each of "
        f"{facts.steps:,} rounds; {seen}.",
        f"- In a round a silo makes plain SGD steps (rate {CLIENT_LR}, clipping at 1, batches of "
        f"about {facts.batch_tokens:,} tokens, no state kept) over max({RECIPE.least_samples}, "
        f"{RECIPE.sample_share:g} N) of its N samples, drawn anew and with replacement. The server "
        "takes the mean of what changed, weighted by N, for minus a gradient, and follows it with "
        f"Adam (moments kept from round to round; rate {SERVER_LR}, linear decay to zero). bf16 "
        "autocast, no dropout.",
        "- The vocabulary is the one that the same command makes without `--federated`; a silo "
        "has the English of its parallel texts too.",
    ]


def _score_rows(facts: CardFacts, with_passages: bool = False) -> list[str]:
    """A table of how masked words are read, one line per language."""
    head = ["language", *(["passages taught"] if with_passages else []), "masks", "top-1"]
    head += ["perplexity", "per word", "bits per character"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for language, score in facts.held_out.items():
        row = [language, *([f"{facts.passages[language]:,}"] if with_passages else [])]
        row += [f"{score.masks:,}", f"{score.top_1:.1%}", f"{score.perplexity:.1f}"]
        row += [f"{score.word_perplexity:,.0f}", f"{score.bits_per_character:.2f}"]
        lines.append("| " + " | ".join(row) + " |")
    return lines


def _news_rows(facts: CardFacts) -> list[str]:
    """A table of the zero-shot answers, one line per pattern; empty where none were asked for."""
    if not facts.news:
        return []
    return [
        "",
        f"AG News zero-shot ({facts.news_rows:,} stratified test rows, title and text, label "
        "words world / sports / business / technology; chance 25 %; calibrated: each label's mean "
        "log-probability over these rows, without their labels, taken off):",
        "",
        "| pattern | plain | calibrated |",
        "|---|---|---|",
        *(f"| `{s.pattern}` | {s.plain:.1%} | {s.calibrated:.1%} |" for s in facts.news),
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
_EMBEDDED_LICENCE = [
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
_EMBEDDED_LIMITS = [
    "## What it cannot do",
    "- It has read less than a million words. It knows little of the world, and no figure here",
    "  says anything about bases a hundred times its size.",
    "- Spanish and French come from medical sentences, Wikipedia snippets and few news sentences;",
    "  German from snippets. Accents are stripped: words that differ by an accent only are one.",
    "- Not for generating text, not for facts, not for medical or other advice. It repeats the",
    "  leanings of its texts and of its teacher.",
    "- At most 256 tokens; trained on passages up to 96. Token types other than 0 are untrained.",
]
_ACCENTS = [
    "- Lower case, and accents stripped, in every language: Yoruba's tone marks and underdots,",
    "  Igbo's dots, Arabic's hamza on its carriers and Hebrew's points go too. With so little text",
    "  a word must not be four words, news sites write these marks unevenly, and the embedded base",
    "  does the same. The price: words that differ by a mark only are one (Yoruba has many): the",
    "  base can tell topics, but cannot spell. Hausa's hooked letters and Ethiopic are kept.",
]
_MULTILINGUAL_LICENCE = [
    "Weights are ours; the texts are not. MasakhaNEWS holds publishers' news articles that are to",
    "be used for research, and states no licence itself, so the weights learned from them are for",
    "research too; Wikipedia's text (PAN-X, PUD, WikiText-103) is CC BY-SA, whose attribution goes",
    "with every copy. Whether weights are an adaptation of text is not settled. MasakhaNEWS' dev",
    "and test files were not learned from, nor were sentences of its training files that these",
    "have too; the same holds of PAN-X. No labels were read. Parts of PUD and TICO-19 were.",
]
_MULTILINGUAL_LIMITS = [
    "## What it cannot do",
    "- It has read about five million words. A language has 75,000 to 600,000 of them: it knows",
    "  frequent words and what they keep company with, and little of the world.",
    "- European languages, Arabic and Hebrew come from Wikipedia snippets and medical sentences,",
    "  African ones from news only. Figures of two such languages are of different kinds of text.",
    "- Not for generating text, not for facts, not for medical or other advice.",
    "- At most 256 tokens; trained on passages up to 96. Token types other than 0 are untrained.",
]
