"""The multilingual base's card: how it was made, from whose texts, how well it reads each language.

Everything in it is counted or measured by the run that writes it.
"""

from transformers import BertForMaskedLM

from simulation.pretraining.card import CardFacts, news_rows, score_rows
from simulation.pretraining.federated import SERVER_LR
from simulation.pretraining.recipes import Recipe
from simulation.pretraining.silo import CLIENT_LR, LEAST_SAMPLES, SHARE_OF_SAMPLES
from simulation.pretraining.student import PEAK_LR_ALONE


def multilingual_card(
    report: CardFacts, recipe: Recipe, student: BertForMaskedLM, made: str
) -> str:
    """The model card, Markdown.

    Args:
        report: Of the run.
        recipe: What it was made of.
        student: The trained model.
        made: The command, without paths of the machine.
    """
    config = student.config
    parts = [
        "---",
        "license: other",
        f"language: [{', '.join(report.passages)}]",
        "pipeline_tag: fill-mask",
        "---",
        "# smidgen's multilingual base",
        "",
        f"A small uncased masked language model of {len(report.passages)} languages: BERT, "
        f"{config.num_hidden_layers} layers, hidden {config.hidden_size}, "
        f"{config.num_attention_heads} heads, feed-forward {config.intermediate_size}, "
        f"{config.vocab_size:,} WordPiece tokens, at most {config.max_position_embeddings} "
        f"positions, tied embeddings, {report.parameters:,} parameters in fp16. No teacher.",
        "",
        "**For research, and not to be passed on as it is**: see the licences below. That is why "
        "it is made by a command and does not come with the package.",
        "",
        "## How it was made",
        *_making(report),
        f"- A language's share of the words is its share in the texts to the power "
        f"{recipe.exponent} (Conneau and Lample 2019), for the vocabulary and for the course: "
        "small languages are read more than once, of large ones a part.",
        *_ACCENTS,
        "",
        "```",
        made,
        "```",
        "",
        "## Text and licences",
        *(f"- `{source}`: {recipe.sources[source][1]}" for source in report.sources),
        "",
        *_LICENCE,
        "",
        "## Measured",
        "Masked words of held-out text of the same sets (one passage in 50, chosen by a hash of "
        "its text, translations with it; whole words, 15 %; it is known into how many tokens a "
        "masked word falls). Perplexity a token depends on how finely a language is cut; "
        "perplexity a word and bits a character do not, so these two compare between "
        "vocabularies; between languages they still depend on how long words are and on how much "
        "a letter says.",
        "",
        *score_rows(report, with_passages=True),
        *news_rows(report),
        "",
        *_LIMITS,
        "",
    ]
    return "\n".join(parts)


def _making(report: CardFacts) -> list[str]:
    seen = (
        f"{report.samples_seen:,} samples read ({report.samples_seen / report.samples:.2f} times "
        f"the course of {report.samples:,})"
    )
    common = (
        f"- {report.elapsed_s:,.0f} seconds of training on {report.hardware}; seed {report.seed}.",
        "- Word embeddings start from the texts' own neighbourhood counts (principal axes of the "
        "positive pointwise mutual information, 5 tokens to each side) and output biases from "
        "frequencies; positions start as sinusoids, and the first layer's heads looking 1 to 3 "
        "tokens back and ahead; everything else from random numbers. All of it is trained on.",
        "- 20 % of the words masked whole, always by the mask; where a set has the text in English "
        "too, also the two side by side (translation language modelling). A headline and the text "
        "under it are one passage. Passages of about 42 words, at most 96 tokens.",
    )
    if report.silos:
        return [*_federation(report, seen), *common]
    return [
        f"- {report.steps:,} steps of about {report.batch_tokens:,} tokens, {seen}; AdamW (peak "
        f"{PEAK_LR_ALONE:g}, 5 % warm-up, linear decay to zero, weight decay 0.01, clipping at "
        "1), bf16 autocast, no dropout.",
        *common,
    ]


def _federation(report: CardFacts, seen: str) -> list[str]:
    return [
        f"- **Federated**: {len(report.silos)} silos, one a language, all of them in each of "
        f"{report.steps:,} rounds; {seen}.",
        f"- In a round a silo makes plain SGD steps (rate {CLIENT_LR}, clipping at 1, batches of "
        f"about {report.batch_tokens:,} tokens, no state kept) over max({LEAST_SAMPLES}, "
        f"{SHARE_OF_SAMPLES:g} N) of its N samples. The server takes the mean of what changed, "
        "weighted by N, for minus a gradient, and follows it with Adam (moments kept from round "
        f"to round; rate {SERVER_LR}, linear decay to zero). bf16 autocast, no dropout.",
        "- The vocabulary is the one that the same command makes without `--federated`; a silo "
        "has the English of its parallel texts too.",
    ]


_ACCENTS = [
    "- Lower case, and accents stripped, in every language: Yoruba's tone marks and underdots,",
    "  Igbo's dots, Arabic's hamza on its carriers and Hebrew's points go too. With so little text",
    "  a word must not be four words, news sites write these marks unevenly, and the embedded base",
    "  does the same. The price: words that differ by a mark only are one (Yoruba has many): the",
    "  base can tell topics, but cannot spell. Hausa's hooked letters and Ethiopic are kept.",
]
_LICENCE = [
    "Weights are ours; the texts are not. MasakhaNEWS holds publishers' news articles that are to",
    "be used for research, and states no licence itself, so the weights learned from them are for",
    "research too; Wikipedia's text (PAN-X, PUD, WikiText-103) is CC BY-SA, whose attribution goes",
    "with every copy. Whether weights are an adaptation of text is not settled. MasakhaNEWS' dev",
    "and test files were not learned from, nor were sentences of its training files that these",
    "have too; the same holds of PAN-X. No labels were read. Parts of PUD and TICO-19 were.",
]
_LIMITS = [
    "## What it cannot do",
    "- It has read about five million words. A language has 75,000 to 600,000 of them: it knows",
    "  frequent words and what they keep company with, and little of the world.",
    "- European languages, Arabic and Hebrew come from Wikipedia snippets and medical sentences,",
    "  African ones from news only. Figures of two such languages are of different kinds of text.",
    "- Not for generating text, not for facts, not for medical or other advice.",
    "- At most 256 tokens; trained on passages up to 96. Token types other than 0 are untrained.",
]
