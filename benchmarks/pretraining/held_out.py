"""Evaluation of a masked language model on held-out texts.

Two measures: its predictions for masked words, and how well its answers to a cloze prompt separate
labels without any training (zero-shot).
"""

import csv
import gzip
import hashlib
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import BertForMaskedLM

from benchmarks.pretraining.corpus import Passage
from benchmarks.pretraining.course import Pieces, Sample, encode, mask_words
from benchmarks.pretraining.vocabulary import words_of
from smidgen.edge_client.tasks.encoder import Encoder
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.texts.tokens import Tokens

MASKED_SHARE = 0.15
LONGEST = 128
TOPICS = Task(
    name="agnews",
    labels=("world", "sports", "business", "technology"),
    patterns=("a [MASK] news : {text}", "topic : [MASK] . {text}", "[MASK] : {text}"),
    verbalizer={word: word for word in ("world", "sports", "business", "technology")},
)


@dataclass(frozen=True)
class MaskedScore:
    """Answers under the masks of a language's held-out text.

    Attributes:
        masks: Tokens asked for.
        words: Masked words that these tokens make up.
        characters: Number of characters of all these tokens.
        top_1: Share of the tokens that the model puts first.
        perplexity: exp of the mean negative log-probability, over the model's own vocabulary.
    """

    masks: int
    words: int
    characters: int
    top_1: float
    perplexity: float

    @property
    def word_perplexity(self) -> float:
        """exp of the mean negative log-probability of a masked word, given its number of tokens."""
        return math.exp(math.log(self.perplexity) * self.masks / max(self.words, 1))

    @property
    def bits_per_character(self) -> float:
        """Negative log-probability, base 2, for each masked character."""
        return math.log2(self.perplexity) * self.masks / max(self.characters, 1)


@dataclass(frozen=True)
class ZeroShot:
    """Accuracy of one pattern without training.

    Attributes:
        pattern: The pattern, as in the task.
        plain: Share of texts whose label word is the likeliest.
        calibrated: The same after each label's mean log-probability over the texts is taken off.
    """

    pattern: str
    plain: float
    calibrated: float


@torch.no_grad()
def masked_score(
    model: BertForMaskedLM, tokenizer: Tokenizer, passages: Sequence[Passage], seed: int = 0
) -> MaskedScore:
    """Mask whole words, 15 % of them, and compare. Equal seeds mask the same words."""
    pieces, rng = Pieces(tokenizer), random.Random(seed)
    texts = [words for passage in passages if (words := tuple(words_of(tokenizer, passage.text)))]
    model.eval()
    losses: list[torch.Tensor] = []
    hits: list[torch.Tensor] = []
    gold: list[torch.Tensor] = []
    for start in range(0, len(texts), 32):
        samples = []
        for words in texts[start : start + 32]:
            masked, hidden = mask_words(words, MASKED_SHARE, rng)
            samples.append(Sample(masked, (), tuple((i, -1, word) for i, word in hidden)))
        batch = encode(samples, pieces, None).to(model.device)
        reading = batch.student
        states = model.bert(input_ids=reading.ids, attention_mask=reading.attention)[0]
        logits = model.cls(states[reading.rows, reading.columns]).float()
        losses.append(torch.nn.functional.cross_entropy(logits, batch.gold, reduction="none"))
        hits.append(logits.argmax(-1) == batch.gold)
        gold.append(batch.gold)
    loss, hit = torch.cat(losses), torch.cat(hits)
    asked = [tokenizer.id_to_token(int(index)) or "" for index in torch.cat(gold)]
    return MaskedScore(
        masks=len(hit),
        words=len([token for token in asked if not token.startswith("##")]),
        characters=sum(1 if token == "[UNK]" else len(token.removeprefix("##")) for token in asked),
        top_1=float(hit.float().mean()),
        perplexity=math.exp(float(loss.mean())),
    )


@torch.no_grad()
def label_log_probabilities(
    model: BertForMaskedLM, tokens: Tokens, task: Task, pattern: str, texts: Sequence[str]
) -> np.ndarray:
    """Log-probability of each label word under the mask, shape (texts, labels)."""
    asked = Task(task.name, task.labels, (pattern,), task.verbalizer)
    encoder = Encoder(tokens, asked, cloze=True, limit=LONGEST)
    words = tokens.label_word_ids(asked)
    model.eval()
    rows = []
    for start in range(0, len(texts), 32):
        examples = [Example(text) for text in texts[start : start + 32]]
        batch = encoder.batch(encoder.prompts(examples))
        ids = torch.from_numpy(batch.ids).to(model.device)
        attention = torch.from_numpy(batch.attention).to(model.device)
        states = model.bert(input_ids=ids, attention_mask=attention)[0]
        at_mask = states[torch.arange(len(ids)), torch.from_numpy(batch.mask_positions)]
        answers = model.cls(at_mask).float().log_softmax(-1).cpu().numpy()
        rows.append(np.stack([answers[:, word].mean(axis=1) for word in words], axis=1))
    return np.concatenate(rows)


def zero_shot(
    model: BertForMaskedLM, tokens: Tokens, task: Task, examples: Sequence[Example]
) -> list[ZeroShot]:
    """Ask with every pattern of a task; the examples' labels only judge."""
    gold = np.array([task.labels.index(example.label or "") for example in examples])
    texts = [example.text for example in examples]
    scores = []
    for pattern in task.patterns:
        log_p = label_log_probabilities(model, tokens, task, pattern, texts)
        plain = float((log_p.argmax(1) == gold).mean())
        calibrated = float(((log_p - log_p.mean(0)).argmax(1) == gold).mean())
        scores.append(ZeroShot(pattern, plain, calibrated))
    return scores


def read_news(folder: Path, per_label: int = 250) -> list[Example]:
    """Stratified test rows of AG News under a data folder, empty where the set is absent.

    They judge only; nothing is trained on them.
    """
    path = folder / "ag_news" / "test.csv.gz"
    if not path.is_file():
        return []
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        rows = [
            Example(f"{r['title']} {r['text']}", label=r["label"]) for r in csv.DictReader(file)
        ]
    rows.sort(key=lambda example: hashlib.sha256(example.text.encode()).digest())
    renamed = {"sci/tech": "technology", "sci_tech": "technology", "tech": "technology"}
    rows = [Example(r.text, label=renamed.get(r.label or "", r.label)) for r in rows]
    return [
        example
        for label in TOPICS.labels
        for example in [row for row in rows if row.label == label][:per_label]
    ]
