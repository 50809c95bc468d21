import pytest

from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.client.runs.own import rate_of
from smidgen.edge_client.personal.methods import Way
from smidgen.edge_client.wire.training import Training


@pytest.mark.parametrize(
    ("adapter", "training", "expected"),
    [
        ("lora:2", Training(lr=3e-4), 3e-4),
        ("lora:2", Training(lr=0.1, optimizer="sgd"), Way.lr),
        ("lora:2", Training(lr=1e-4, optimizer="sgd"), Way.lr),
        ("lora:4@q,k,v,o,up,down+generator", Training(lr=3e-4), Way.lr),
        ("lora:4@q,k,v,o,up,down+rates", Training(lr=3e-4), 3e-4),
    ],
)
def test_an_adapter_of_ones_own_is_trained_at_adamw_s_rate(
    adapter: str, training: Training, expected: float
) -> None:
    assert rate_of(parse_adapter(adapter), training) == expected
