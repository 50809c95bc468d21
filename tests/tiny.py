"""A tiny base made on the spot: a random BERT of width 16 with a real WordPiece tokenizer."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

HIDDEN, LAYERS, POSITIONS = 16, 2, 64
SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = (
    "security mail power weather family health world sports business technology the a is was this "
    "about of at on in to and you for with home door camera opened parcel gate dinner grandma "
    "seven bring cake please storm heating used twelve units today take pills rain nine front saw "
    "on somebody your way will be there noon good bad great terrible news final cup : . , ?"
)


def write_tiny_base(
    folder: Path, words: Sequence[str] = (), seed: int = 0, hidden: int = HIDDEN
) -> Path:
    """Write config.json, tokenizer.json and model.safetensors of a random BertForMaskedLM.

    Args:
        folder: Made if it is not there.
        words: Whole words to add to the vocabulary.
        seed: Seed of the weights.
        hidden: Width of a token's state; twice as much inside the feed-forward.
    """
    folder.mkdir(parents=True, exist_ok=True)
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    pieces = [*letters, *(f"##{letter}" for letter in letters), *"0123456789"]
    entries = [*SPECIALS, *(f"[unused{n}]" for n in range(1000)), *WORDS.split(), *words, *pieces]
    vocabulary = {entry: index for index, entry in enumerate(dict.fromkeys(entries))}
    _tokenizer(vocabulary).save(str(folder / "tokenizer.json"))
    names = dict(zip(("pad", "unk", "cls", "sep", "mask"), SPECIALS, strict=True))
    config = {f"{name}_token": token for name, token in names.items()}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps(_config(len(vocabulary), hidden), indent=2))
    weights = _weights(len(vocabulary), seed, hidden)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def _tokenizer(vocabulary: dict[str, int]) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    specials = [("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=specials
    )
    tokenizer.add_special_tokens(list(SPECIALS))
    return tokenizer


def _config(size: int, hidden: int) -> dict[str, object]:
    return {
        "architectures": ["BertForMaskedLM"],
        "model_type": "bert",
        "vocab_size": size,
        "hidden_size": hidden,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 2,
        "intermediate_size": 2 * hidden,
        "max_position_embeddings": POSITIONS,
        "type_vocab_size": 2,
        "pad_token_id": 0,
        "tie_word_embeddings": True,
    }


def _weights(size: int, seed: int, hidden: int) -> dict[str, np.ndarray]:
    generator = np.random.Generator(np.random.PCG64(seed))
    tensors: dict[str, np.ndarray] = {}

    def linear(name: str, rows: int, columns: int) -> None:
        draw = generator.normal(0.0, 0.2, (rows, columns))
        tensors[f"{name}.weight"] = draw.astype(np.float32)
        tensors[f"{name}.bias"] = np.zeros(rows, np.float32)

    def norm(name: str) -> None:
        tensors[f"{name}.weight"] = np.ones(hidden, np.float32)
        tensors[f"{name}.bias"] = np.zeros(hidden, np.float32)

    for name, rows in (("word", size), ("position", POSITIONS), ("token_type", 2)):
        draw = generator.normal(0.0, 0.5, (rows, hidden))
        tensors[f"bert.embeddings.{name}_embeddings.weight"] = draw.astype(np.float32)
    norm("bert.embeddings.LayerNorm")
    for layer in range(LAYERS):
        prefix = f"bert.encoder.layer.{layer}"
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            linear(f"{prefix}.attention.{part}", hidden, hidden)
        norm(f"{prefix}.attention.output.LayerNorm")
        linear(f"{prefix}.intermediate.dense", 2 * hidden, hidden)
        linear(f"{prefix}.output.dense", hidden, 2 * hidden)
        norm(f"{prefix}.output.LayerNorm")
    linear("cls.predictions.transform.dense", hidden, hidden)
    norm("cls.predictions.transform.LayerNorm")
    tensors["cls.predictions.bias"] = np.zeros(size, np.float32)
    return tensors
