"""Random models: real shapes, random weights and an invented tokenizer, for system benchmarks.

The cost of a step does not depend on the weights' values. Every tensor has its own seed, so the
order in which tensors are drawn does not matter.
"""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.random import PCG64, Generator  # at once: loaded late, it may swallow a Ctrl-C
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors

from smidgen.edge_client.bases.layout import PackError, Tensor
from smidgen.edge_client.wire.tensors import derive_seed

LABEL_WORDS = (
    *("world", "sports", "business", "science"),
    *("good", "bad", "great", "terrible", "yes", "no"),
)

_BERT = {
    "architectures": ["BertForMaskedLM"],
    "model_type": "bert",
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "initializer_range": 0.02,
    "pad_token_id": 0,
    "tie_word_embeddings": True,
}
_LARGE = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
}
_ROBERTA = _BERT | {
    "architectures": ["RobertaForMaskedLM"],
    "model_type": "roberta",
    "vocab_size": 50265,
    "max_position_embeddings": 514,
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-5,
    "bos_token_id": 0,
    "pad_token_id": 1,
    "eos_token_id": 2,
}
_ELECTRA = _BERT | {"architectures": ["ElectraForMaskedLM"], "model_type": "electra"}
_MODERNBERT = {
    "architectures": ["ModernBertForMaskedLM"],
    "model_type": "modernbert",
    "vocab_size": 50368,
    "hidden_size": 768,
    "num_hidden_layers": 22,
    "num_attention_heads": 12,
    "intermediate_size": 1152,
    "max_position_embeddings": 8192,
    "global_attn_every_n_layers": 3,
    "local_attention": 128,
    "global_rope_theta": 160000.0,
    "local_rope_theta": 10000.0,
    "pad_token_id": 50283,
}
_LLAMA_3 = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "tie_word_embeddings": True,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "albert-base": _BERT
    | {
        "architectures": ["AlbertForMaskedLM"],
        "model_type": "albert",
        "vocab_size": 30000,
        "embedding_size": 128,
        "num_hidden_groups": 1,
        "inner_group_num": 1,
        "hidden_act": "gelu_new",
        "bos_token_id": 2,
        "eos_token_id": 3,
    },
    "bert-base": _BERT,
    "bert-large": _BERT | _LARGE,
    "camembert-base": _ROBERTA
    | {
        "architectures": ["CamembertForMaskedLM"],
        "model_type": "camembert",
        "vocab_size": 32005,
        "bos_token_id": 5,
        "eos_token_id": 6,
    },
    "distilbert": {
        "architectures": ["DistilBertForMaskedLM"],
        "model_type": "distilbert",
        "vocab_size": 30522,
        "dim": 768,
        "n_layers": 6,
        "n_heads": 12,
        "hidden_dim": 3072,
        "max_position_embeddings": 512,
        "sinusoidal_pos_embds": False,
        "activation": "gelu",
        "initializer_range": 0.02,
        "pad_token_id": 0,
        "tie_word_embeddings": True,
    },
    "electra-base": _ELECTRA | {"embedding_size": 768},
    "electra-small": _ELECTRA
    | {
        "embedding_size": 128,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "intermediate_size": 1024,
    },
    "llama-3.2-1b": _LLAMA_3,
    "llama-3.2-3b": _LLAMA_3
    | {
        "hidden_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 24,
        "head_dim": 128,
    },
    "mmbert-base": _MODERNBERT | {"vocab_size": 256000, "local_rope_theta": 160000.0},
    "modernbert-base": _MODERNBERT,
    "modernbert-large": _MODERNBERT
    | {
        "hidden_size": 1024,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "intermediate_size": 2624,
    },
    "mpnet-base": _ROBERTA
    | {
        "architectures": ["MPNetForMaskedLM"],
        "model_type": "mpnet",
        "vocab_size": 30527,
        "relative_attention_num_buckets": 32,
    },
    "qwen2.5-0.5b": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": 151936,
        "hidden_size": 896,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "intermediate_size": 4864,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": True,
    },
    "roberta-base": _ROBERTA,
    "roberta-large": _ROBERTA | _LARGE,
    "smollm2-135m": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 49152,
        "hidden_size": 576,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "intermediate_size": 1536,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 100000.0,
        "tie_word_embeddings": True,
    },
    "xlm-roberta-base": _ROBERTA
    | {
        "architectures": ["XLMRobertaForMaskedLM"],
        "model_type": "xlm-roberta",
        "vocab_size": 250002,
    },
    "xlm-v-base": _ROBERTA
    | {
        "architectures": ["XLMRobertaForMaskedLM"],
        "model_type": "xlm-roberta",
        "vocab_size": 901629,
    },
}
# Special tokens and their ids, as the families' public models have them; -1 is the last id.
_BERT_SPECIALS = {
    "pad": ("[PAD]", 0),
    "unk": ("[UNK]", 100),
    "cls": ("[CLS]", 101),
    "sep": ("[SEP]", 102),
    "mask": ("[MASK]", 103),
}
_ROBERTA_SPECIALS = {
    "cls": ("<s>", 0),
    "pad": ("<pad>", 1),
    "sep": ("</s>", 2),
    "unk": ("<unk>", 3),
    "mask": ("<mask>", -1),
}
_DECODER_SPECIALS = {
    "unk": ("<unk>", 0),
    "bos": ("<s>", 1),
    "eos": ("</s>", 2),
    "pad": ("<pad>", 3),
}
_SPECIALS = {
    "bert": _BERT_SPECIALS,
    "electra": _BERT_SPECIALS,
    "distilbert": _BERT_SPECIALS,
    "albert": {
        "pad": ("<pad>", 0),
        "unk": ("<unk>", 1),
        "cls": ("[CLS]", 2),
        "sep": ("[SEP]", 3),
        "mask": ("[MASK]", 4),
    },
    "camembert": {
        "pad": ("<pad>", 1),
        "unk": ("<unk>", 3),
        "cls": ("<s>", 5),
        "sep": ("</s>", 6),
        "mask": ("<mask>", -1),
    },
    "modernbert": {
        "unk": ("[UNK]", 50280),
        "cls": ("[CLS]", 50281),
        "sep": ("[SEP]", 50282),
        "pad": ("[PAD]", 50283),
        "mask": ("[MASK]", 50284),
    },
    "llama": _DECODER_SPECIALS,
    "mpnet": _ROBERTA_SPECIALS | {"unk": ("[UNK]", 104)},
    "qwen2": _DECODER_SPECIALS,
    "roberta": _ROBERTA_SPECIALS,
    "xlm-roberta": _ROBERTA_SPECIALS,
}


def hub_config(name: str) -> dict[str, Any]:
    """The Hugging Face configuration of a public model's shape.

    Raises:
        PackError: No such shape here; the message lists them.
    """
    if name not in CONFIGS:
        raise PackError(f"--random knows no shape {name!r}; one of {', '.join(CONFIGS)}")
    return dict(json.loads(json.dumps(CONFIGS[name])))


def draw_blocks(tensor: Tensor, seed: int, block_rows: int) -> Iterator[np.ndarray]:
    """A tensor's rows in order: biases 0, normalizations 1, all else normal with deviation 0.02.

    The size of the blocks changes no number.

    Args:
        tensor: What to draw.
        seed: Root seed of the model.
        block_rows: Rows drawn at once.
    """
    generator = Generator(PCG64(derive_seed(seed, tensor.name)))
    for first in range(0, tensor.shape[0], block_rows):
        size = (min(block_rows, tensor.shape[0] - first), *tensor.shape[1:])
        if len(size) == 1:
            yield np.full(size, 0.0 if tensor.name.endswith("bias") else 1.0, np.float32)
        else:
            yield generator.standard_normal(size, np.float32) * np.float32(0.02)


def tokenizer_files(config: dict[str, Any]) -> dict[str, bytes]:
    """tokenizer.json and tokenizer_config.json of one word per token, as many as the model has.

    The words are the label words above and `w12`, `w13` ...; specials have the family's usual
    names and ids.
    """
    size, specials = int(config["vocab_size"]), _SPECIALS[config["model_type"]]
    ids = {name: index % size for name, index in specials.values()}
    names = {kind: name for kind, (name, _) in specials.items()}
    tokenizer = Tokenizer(models.WordLevel(_vocabulary(ids, size), names["unk"]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if "cls" in names:
        first, last = names["cls"], names["sep"]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{first} $A {last}",
            pair=f"{first} $A {last} $B {last}",
            special_tokens=[(first, ids[first]), (last, ids[last])],
        )
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in ids])
    settings = {f"{kind}_token": name for kind, name in names.items()}
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    return {
        "tokenizer.json": tokenizer.to_str().encode(),
        "tokenizer_config.json": json.dumps(settings, indent=2, sort_keys=True).encode(),
    }


def _vocabulary(specials: dict[str, int], size: int) -> dict[str, int]:
    taken, words = set(specials.values()), iter(LABEL_WORDS)
    ids = (index for index in range(size) if index not in taken)
    return specials | {next(words, f"w{index}"): index for index in ids}
