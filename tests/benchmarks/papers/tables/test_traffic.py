import json
import warnings

import numpy as np
import pytest

from benchmarks.papers.tables.traffic import (
    BASE,
    CLIENTS,
    COMMUNICATION,
    FULL,
    LABELS,
    LORA,
    PARAMETERS,
    PROMPT,
    ROUNDS,
    TrafficRow,
    base_parameters,
    head_parameters,
    shapes_of,
    traffic_rows,
)
from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.bases.random_models import hub_config
from smidgen.edge_client.wire.tensors import decode_adapter, encode_adapter

CONFIG = hub_config(BASE)


def rows() -> dict[str, TrafficRow]:
    return {row.what: row for row in traffic_rows()}


def test_the_papers_counts_come_out_of_its_settings() -> None:
    found = [row for row in traffic_rows() if row.printed in (PROMPT, LORA)]
    assert [row.parameters for row in found] == [1_202_708, 1_491_476]
    for row in found:
        assert row.parameters == row.published[PARAMETERS].value


def test_the_papers_total_holds_the_head_twice() -> None:
    head = head_parameters(CONFIG, LABELS)
    assert head == 768 * 768 + 768 + 768 * 10 + 10
    assert base_parameters(CONFIG) == 277_453_056
    assert base_parameters(CONFIG) + rows()["prompt, paper's count"].parameters == 278_655_764


def test_the_papers_megabytes_are_shares_of_what_it_says_for_the_whole() -> None:
    base = base_parameters(CONFIG)
    (whole,) = (row for row in traffic_rows() if row.printed == FULL)
    for row in traffic_rows():
        if row.printed in (PROMPT, LORA):
            share = whole.published[COMMUNICATION].value * row.parameters / base
            assert int(share) == row.published[COMMUNICATION].value
    assert round(1.08 * 1024 * CLIENTS * ROUNDS * 2) == 110_592


def test_what_is_really_sent_is_half_of_the_papers_count() -> None:
    found = rows()
    halved = found["prompt, recounted"].run_bytes / found["prompt, paper's count"].run_bytes
    assert halved == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(
    ("name", "what"), [("prompt:8+head", "prompt, recounted"), ("lora:8+head", "LoRA, recounted")]
)
def test_the_same_adapter_costs_smidgen_its_numbers_and_little_else(name: str, what: str) -> None:
    ours, theirs = rows()[f"smidgen {name}"], rows()[what]
    assert ours.parameters == theirs.parameters
    assert ours.is_measured and not theirs.is_measured
    assert theirs.run_bytes < ours.run_bytes < 1.005 * theirs.run_bytes


def test_a_row_counts_five_clients_ten_rounds_and_both_ways() -> None:
    row = rows()["smidgen prompt:8"]
    assert row.run_bytes == 50 * (row.bytes_down + row.bytes_up)
    assert row.run_bytes < 2.6e6


@pytest.mark.parametrize(
    "name", ["lora:8", "lora:3@q,k,up,down", "prompt:5", "head", "lora:2+head"]
)
def test_shapes_from_sizes_are_those_of_a_real_adapter(tiny_base: Base, name: str) -> None:
    config = json.loads((tiny_base.folder / "config.json").read_text())
    spec = parse_adapter(name)
    state = initial_adapter(spec, tiny_base, 3, seed=0)
    expected = {tensor: array.shape for tensor, array in state.items()}
    shapes = shapes_of(spec, config, 3)
    assert shapes == expected
    zeros = {tensor: np.zeros(shape, np.float32) for tensor, shape in shapes.items()}
    assert len(encode_adapter(zeros)) == len(encode_adapter(state))
    assert decode_adapter(encode_adapter(zeros)).keys() == state.keys()


@pytest.mark.slow
def test_against_peft_counts() -> None:
    torch, peft = pytest.importorskip("torch"), pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    config = transformers.XLMRobertaConfig(**CONFIG | {"num_labels": LABELS})
    adapters = {
        "prompt, recounted": peft.PromptTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=8),
        "LoRA, recounted": peft.LoraConfig(task_type="SEQ_CLS", r=8, lora_alpha=16),
    }
    for what, adapter in adapters.items():
        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = transformers.XLMRobertaForSequenceClassification(config)
            trained, total = peft.get_peft_model(model, adapter).get_nb_trainable_parameters()
        row = rows()[what]
        assert trained == row.parameters
        assert total == base_parameters(CONFIG) + row.parameters + head_parameters(CONFIG, LABELS)
