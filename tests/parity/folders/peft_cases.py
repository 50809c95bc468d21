"""Every option of PEFT's configurations with values that matter: the same answers, or refused."""

from dataclasses import dataclass
from typing import Any

MASKED, LABELS, TAGS = "MaskedLM", "SequenceClassification", "TokenClassification"
SAME = ""
QV = {"r": 4, "target_modules": ["query", "value"]}
SEQ = {**QV, "task_type": "SEQ_CLS"}
WHOLE = ["pooler", "classifier"]


@dataclass(frozen=True)
class Case:
    """What PEFT is given, what is changed in the file behind its back, and what comes of it.

    Attributes:
        option: The option that it is about.
        made: Arguments of PEFT's configuration.
        said: `SAME`: PEFT's logits; else what the refusal says.
        changed: Keys of `adapter_config.json` that are written over afterwards.
        head: Class of the model.
        has_pooler: Whether the base's checkpoint holds one.
    """

    option: str
    made: dict[str, Any]
    said: str = SAME
    changed: dict[str, Any] | None = None
    head: str = MASKED
    has_pooler: bool = False

    def __str__(self) -> str:
        value = (self.changed or self.made).get(self.option, "")
        return f"{self.option}={value}-{'refused' if self.said else 'same'}"[:70]


def _refused(option: str, *values: Any) -> list[Case]:
    said = f"PEFT option {option} "
    return [Case(option, QV, said, {option: value}) for value in values]


def _same(option: str, *values: Any) -> list[Case]:
    return [Case(option, QV | {option: value}) for value in values]


def _unused(option: str, *values: Any) -> list[Case]:
    """Values in the file that PEFT loads; it may not make them itself here."""
    return [Case(option, QV, changed={option: value}) for value in values]


LORA = [
    Case("peft_type", QV, "PEFT type ADALORA is not", {"peft_type": "ADALORA"}),
    Case("peft_type", QV, "PEFT type .*list", {"peft_type": ["list"]}),
    *_unused("peft_version", "0.99.0", None),
    *_unused("base_model_name_or_path", "org/other", None),
    *_unused("revision", "main"),
    *_unused("inference_mode", False),
    Case("task_type", QV | {"task_type": "FEATURE_EXTRACTION"}),
    Case("task_type", SEQ, head=LABELS, has_pooler=True),
    Case("task_type", QV | {"task_type": "TOKEN_CLS"}, head=TAGS),
    *_refused("task_type", "CAUSAL_LM", "SEQ_2_SEQ_LM", "QUESTION_ANS", "OTHER"),
    Case("auto_mapping", QV, changed={"auto_mapping": None}),
    Case(
        "auto_mapping",
        QV,
        "auto_mapping names the class BertForQuestionAnswering",
        {"auto_mapping": {"base_model_class": "BertForQuestionAnswering"}},
    ),
    Case("auto_mapping", QV | {"modules_to_save": WHOLE}, head=LABELS),
    Case("r", {"r": 1, "target_modules": ["query"]}),
    Case("r", {"r": 16, "target_modules": ["query"]}),
    *_same("lora_alpha", 1, 16, 32),
    Case("lora_alpha", QV, changed={"lora_alpha": 2.5}),
    Case("lora_alpha", QV, changed={"lora_alpha": -3}),
    *_same("use_rslora", True, False),
    *_same(
        "rank_pattern", {"query": 2}, {"^bert.encoder.layer.0.*": 3, "value": 1}, {"nothing": 9}
    ),
    *_same("alpha_pattern", {"value": 3}, {"layer.1.attention.self.query": 1, r".*\.1\..*": 40}),
    Case("rank_pattern", QV | {"rank_pattern": {"query": 2}, "use_rslora": True}),
    *_same(
        "target_modules",
        ["query"],
        ["attention.self.query", "bert.encoder.layer.1.output.dense"],
        ["intermediate.dense", "attention.output.dense"],
        r".*encoder.*(query|value|key)",
        r"bert\.encoder\.layer\.0\..*\.query|.*1.attention.output.dense",
    ),
    Case("target_modules", {"target_modules": ["dense"]}, "LoRA on cls.predictions.transform"),
    Case("target_modules", {"target_modules": "all-linear"}, "LoRA on cls.predictions.transform"),
    Case("target_modules", {"target_modules": ["word_embeddings"]}, "LoRA on bert.embeddings"),
    Case("target_modules", {"target_modules": ["decoder", "query"]}, "LoRA on cls.predictions.dec"),
    Case("target_modules", SEQ | {"target_modules": "all-linear"}, head=LABELS, has_pooler=True),
    Case("target_modules", SEQ | {"target_modules": ["dense"]}, head=LABELS, has_pooler=True),
    Case(
        "target_modules", SEQ | {"target_modules": ["pooler.dense"]}, head=LABELS, has_pooler=True
    ),
    Case(
        "target_modules",
        SEQ
        | {
            "target_modules": "all-linear",
            "use_rslora": True,
            "rank_pattern": {"pooler.dense": 3},
            "alpha_pattern": {"pooler.dense": 5},
        },
        head=LABELS,
        has_pooler=True,
    ),
    Case(
        "target_modules",
        QV,
        "target_modules is missing|target_modules is None",
        {"target_modules": None},
    ),
    Case("target_modules", QV, "not explained by target_modules", {"target_modules": ["query"]}),
    Case(
        "target_modules",
        QV,
        r"layer.0.attention.self.key.lora_A.weight is missing",
        {"target_modules": ["query", "value", "key"]},
    ),
    Case("target_modules", QV, "names as regular expressions", {"target_modules": "("}),
    Case("exclude_modules", QV | {"exclude_modules": ["layer.0.attention.self.query"]}),
    Case("exclude_modules", QV | {"exclude_modules": r".*layer\.1.*"}),
    Case("exclude_modules", QV, "not explained by target_modules", {"exclude_modules": ["query"]}),
    Case("exclude_modules", QV, "exclude_modules is 3", {"exclude_modules": 3}),
    *_same("layers_to_transform", 1, [0], [0, 1], []),
    Case("layers_to_transform", QV, "not explained by", {"layers_to_transform": [1]}),
    Case("layers_to_transform", QV, "layers_to_transform is", {"layers_to_transform": ["1"]}),
    Case("layers_pattern", QV | {"layers_to_transform": [1], "layers_pattern": "layer"}),
    Case("layers_pattern", QV | {"layers_to_transform": [0], "layers_pattern": ["h", "layer"]}),
    Case("modules_to_save", SEQ | {"modules_to_save": WHOLE}, head=LABELS),
    Case(
        "modules_to_save", SEQ | {"modules_to_save": ["classifier"]}, head=LABELS, has_pooler=True
    ),
    Case(
        "modules_to_save",
        SEQ,
        r"neither the adapter nor base .* holds bert.pooler.dense.*"
        r'modules_to_save=\["pooler", "classifier"\]',
        head=LABELS,
    ),
    Case("modules_to_save", QV | {"modules_to_save": ["cls"]}, "not explained by modules_to_save"),
    Case(
        "modules_to_save", QV | {"modules_to_save": ["LayerNorm"]}, "not explained by modules_to_s"
    ),
    Case(
        "modules_to_save",
        SEQ,
        "classifier.*is missing|pooler.*is missing",
        {"modules_to_save": WHOLE},
        head=LABELS,
        has_pooler=True,
    ),
    *_unused("lora_dropout", 0.5),
    Case("target_modules", {"target_modules": "(?i).*QUERY"}),
    Case("target_modules", QV, "target_modules is .*regular expressions", {"target_modules": ")("}),
    Case("exclude_modules", QV, "exclude_modules is .*regular expr", {"exclude_modules": ")("}),
    Case("modules_to_save", QV, "modules_to_save is .*regular expr", {"modules_to_save": ["("]}),
    Case("modules_to_save", QV, "modules_to_save is 'a'; names", {"modules_to_save": "a"}),
    Case(
        "layers_pattern",
        QV | {"layers_to_transform": [1], "layers_pattern": ["(layer|h)"]},
    ),
    Case(
        "layers_pattern", QV, "layers_pattern is .*regular expr", {"layers_pattern": "(?P<idx>a)"}
    ),
    *_unused("fan_in_fan_out", True),
    *_refused("bias", "all", "lora_only"),
    *_same("init_lora_weights", False, "gaussian", "orthogonal", "mica"),
    *_unused("init_lora_weights", "eva", None),
    *_refused(
        "init_lora_weights", "pissa", "pissa_niter_4", "olora", "corda", "loftq", "lora_ga", 1
    ),
    *_unused("megatron_core", "other.core"),
    *_refused("megatron_config", {"a": 1}),
    *_refused("trainable_token_indices", [3], {"word_embeddings": [3]}),
    *_unused("loftq_config", {"loftq_bits": 4}),
    *_unused("eva_config", {"rho": 2.0}),
    *_unused("corda_config", {"corda_method": "kpm"}),
    *_unused("lora_ga_config", {"stable_gamma": 16}),
    *_refused("use_dora", True),
    *_refused("velora_config", {"num_groups": 8}),
    *_refused("alora_invocation_tokens", [3]),
    *_refused("use_qalora", True),
    *_unused("qalora_group_size", 8),
    *_refused("monteclora_config", {"num_samples": 8}),
    *_refused("layer_replication", [[0, 1], [0, 2]]),
    *_unused("runtime_config", {"ephemeral_gpu_offload": True}),
    *_refused("lora_bias", True),
    *_refused("target_parameters", ["a"]),
    *_refused("use_bdlora", {"nblocks": 2}),
    *_refused("arrow_config", {"top_k": 3}),
    *_refused("kasa_config", {"beta": 1e-4}),
    *_unused("ensure_weight_tying", True),
    *_refused("made_up_in_2030", {"a": 1}, 0, "", 16),
    *_unused("made_up_in_2030", None, False),
]

PROMPT = {"num_virtual_tokens": 3, "task_type": "FEATURE_EXTRACTION"}
TAGGER = PROMPT | {"task_type": "TOKEN_CLS"}
TEXT = {"prompt_tuning_init": "TEXT", "prompt_tuning_init_text": "a", "tokenizer_name_or_path": "b"}


def _prompt_unused(option: str, *values: Any) -> list[Case]:
    return [Case(option, PROMPT, changed={option: value}) for value in values]


PROMPTS = [
    Case("peft_type", PROMPT, "PEFT type P_TUNING is not", {"peft_type": "P_TUNING"}),
    Case("task_type", PROMPT),
    Case("task_type", TAGGER, head=TAGS),
    Case("task_type", PROMPT | {"task_type": "SEQ_CLS"}, "reads the prompt in PEFT", head=LABELS),
    Case(
        "task_type", PROMPT, "task_type is missing.*leaves a soft prompt out", {"task_type": None}
    ),
    Case("task_type", PROMPT, "PEFT option task_type = CAUSAL_LM", {"task_type": "CAUSAL_LM"}),
    Case("num_virtual_tokens", PROMPT | {"num_virtual_tokens": 1}),
    Case("num_virtual_tokens", PROMPT, "prompt_embeddings is", {"num_virtual_tokens": 2}),
    Case(
        "num_transformer_submodules",
        PROMPT,
        "PEFT option num_transformer_submodules",
        {"num_transformer_submodules": 2},
    ),
    Case("num_transformer_submodules", PROMPT | {"num_transformer_submodules": 1}),
    Case(
        "modules_to_save",
        PROMPT | {"modules_to_save": ["cls"]},
        "reads the prompt|no place|explained",
    ),
    Case("prompt_tuning_init", PROMPT | {"prompt_tuning_init": "SAMPLE_VOCAB"}),
    *_prompt_unused("prompt_tuning_init_text", "a text"),
    *_prompt_unused("tokenizer_name_or_path", "org/other"),
    Case("tokenizer_kwargs", PROMPT, changed=TEXT | {"tokenizer_kwargs": {"use_fast": True}}),
    Case("modules_to_save", TAGGER | {"modules_to_save": ["classifier"]}, head=TAGS),
    *_prompt_unused("token_dim", 16),
    *_prompt_unused("num_attention_heads", 1),
    *_prompt_unused("num_layers", 9),
    *_prompt_unused("auto_mapping", None),
    *_prompt_unused("peft_version", "0.99.0"),
    *_prompt_unused("base_model_name_or_path", "org/other"),
    *_prompt_unused("revision", "main"),
    *_prompt_unused("inference_mode", False),
    Case("made_up_in_2030", PROMPT, "PEFT option made_up_in_2030", {"made_up_in_2030": [1]}),
]
