import numpy as np
import pytest

from smidgen.coordinator.rounds.learning.exact import handed, spec_at_rank
from smidgen.edge_client.wire.tensors import encode_adapter

ADAPTER = {
    "m.lora_A.weight": np.ones((8, 5), np.float32),
    "m.lora_B.weight": np.ones((7, 8), np.float32),
    "n.lora_A.weight": np.ones((2, 5), np.float32),
    "n.lora_B.weight": np.ones((7, 2), np.float32),
    "head.bias": np.ones(3, np.float32),
}


@pytest.mark.parametrize(
    ("spec", "rank", "expected"),
    [
        ("lora:8", 4, "lora:4@q,v"),
        ("lora:8@q", 8, "lora:8@q"),
        ("lora:8", 0, "lora:8"),
        ("lora:8", 16, "lora:8"),
        ("lora:16@q,v/top2+head", 1, "lora:1@q,v/top2+head"),
        ("lora:8/0=16/1=2", 12, "lora:8@q,v/0=12/1=2"),
        ("lora:8/0=16/1=2", 4, "lora:4@q,v/1=2"),
        ("bias", 4, "bias"),
    ],
)
def test_an_adapter_of_a_lower_rank_has_its_name(spec: str, rank: int, expected: str) -> None:
    assert spec_at_rank(spec, rank) == expected


def test_a_device_gets_the_tensors_that_its_name_says() -> None:
    found = handed(ADAPTER, "lora:4")
    assert {name: one.shape for name, one in found.items()} == {
        "m.lora_A.weight": (4, 5),
        "m.lora_B.weight": (7, 4),
        "n.lora_A.weight": (2, 5),
        "n.lora_B.weight": (7, 2),
        "head.bias": (3,),
    }
    assert (found["m.lora_B.weight"] == 0.5).all()  # its scaling alpha / r is twice the run's
    assert encode_adapter(found) == encode_adapter(handed(ADAPTER, "lora:4@q,v"))


def test_whoever_takes_the_runs_rank_gets_the_run_s_own_adapter() -> None:
    assert handed(ADAPTER, "lora:8") is ADAPTER
    weights = {"encoder.weight": ADAPTER["head.bias"]}
    assert handed(weights, "full") is weights
