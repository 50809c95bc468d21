"""Which modules carry LoRA, and with which rank: PEFT's own rules over drawn configurations."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.adapters.peft_options import check_targets, is_target, matching
from smidgen.edge_client.bases.families import FAMILIES

peft = pytest.importorskip("peft")
tuners_utils = pytest.importorskip("peft.tuners.tuners_utils")
other = pytest.importorskip("peft.utils.other")

ENCODERS = ("bert", "roberta", "albert", "distilbert", "electra", "mpnet")
MODULES = [
    *(
        FAMILIES[name].linear(layer, one)
        for name in ENCODERS
        for layer in (0, 1, 10)
        for one in FAMILIES[name].linears
    ),
    *("bert.pooler.dense", "albert.pooler", "classifier", "classifier.dense", "pre_classifier"),
    *("cls.predictions.transform.dense", "bert.embeddings.word_embeddings", "lm_head.dense"),
]
PIECES = sorted({part for module in MODULES for part in module.split(".")} | {"self.query", "h"})
NAMES = st.one_of(
    st.sampled_from(MODULES),
    st.sampled_from(PIECES),
    st.builds(".".join, st.lists(st.sampled_from(PIECES), min_size=2, max_size=3)),
    st.sampled_from(MODULES).flatmap(
        lambda one: st.integers(0, len(one) - 1).map(lambda n: one[n:])
    ),
)
PATTERNS = st.one_of(
    NAMES,
    NAMES.map(lambda name: f".*{name}"),
    NAMES.map(re.escape),
    st.builds("{}|{}".format, NAMES, NAMES),
    st.builds(r".*\.{}\..*({})".format, st.integers(0, 10), NAMES),
)
SOME = st.lists(NAMES, max_size=4)
LAYERS = st.one_of(st.none(), st.integers(0, 10), st.lists(st.integers(0, 10), max_size=3))
OPTIONS = st.fixed_dictionaries(
    {"target_modules": st.one_of(PATTERNS, st.lists(NAMES, min_size=1, max_size=4))},
    optional={
        "exclude_modules": st.one_of(PATTERNS, SOME),
        "modules_to_save": SOME,
        "task_type": st.sampled_from([None, "SEQ_CLS", "TOKEN_CLS", "FEATURE_EXTRACTION"]),
    },
)
BESIDE_LISTS = st.fixed_dictionaries(
    {"target_modules": st.lists(NAMES, min_size=1, max_size=4), "layers_to_transform": LAYERS},
    optional={
        "layers_pattern": st.one_of(st.sampled_from(PIECES), st.lists(st.sampled_from(PIECES)))
    },
)


def as_loaded(options: dict[str, Any]) -> Any:
    """The configuration as PEFT has it when a model is made: classifiers are modules to save."""
    config = peft.LoraConfig(**options)
    if config.task_type in ("SEQ_CLS", "TOKEN_CLS"):
        config.modules_to_save = [*(config.modules_to_save or []), "classifier", "score"]
    return config


@given(st.one_of(OPTIONS, BESIDE_LISTS))
def test_lora_is_expected_where_peft_puts_it(options: dict[str, Any]) -> None:
    if options.get("layers_pattern") and options.get("layers_to_transform") in (None, []):
        return  # PEFT refuses it
    check_targets(options)
    config = as_loaded(options)
    for module in MODULES:
        theirs = tuners_utils.check_target_module_exists(config, module)
        assert is_target(options, module) == bool(theirs), module


@given(st.dictionaries(PATTERNS, st.integers(1, 9), max_size=4))
def test_the_first_pattern_that_matches_counts(patterns: dict[str, float]) -> None:
    for module in MODULES:
        theirs = patterns.get(other.get_pattern_key(patterns, module), 99)
        assert matching(patterns, module, 99) == theirs, module
