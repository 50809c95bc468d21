"""The head of all words: a slice of the vocabulary's rows at a time, whoever asks."""

from collections.abc import Callable
from typing import Any

import pytest

from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import Base

torch = pytest.importorskip("torch")
network = pytest.importorskip("smidgen.edge_client.engine.torch_backend.network")

TOGETHER = 300  # several slices, and an uneven last one
Asked = Callable[[Any, Any], Any]
WAYS: dict[str, Asked] = {
    "logits": lambda words, h: words.logits(h),
    "judge": lambda words, h: words.judge(h, torch.tensor([0, 5, 299, 300])),
}


@pytest.mark.parametrize("way", WAYS)
def test_no_more_rows_lie_dense_than_the_planner_counts(
    tiny_base: Base, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    spec = parse_adapter("lora:4")
    opened = network.Network(tiny_base, spec, initial_adapter(spec, tiny_base, 1, 0), None, "cpu")
    asked, words, rows_of = [], opened._head, opened._head._rows

    def noted(start: int, end: int, dtype: Any) -> Any:
        asked.append((start, end))
        return rows_of(start, end, dtype)

    h = torch.linspace(-1, 1, 4 * tiny_base.hidden).view(4, -1)
    whole = WAYS[way](words, h)
    monkeypatch.setattr("smidgen.edge_client.planning.layer_cost.WORD_ROWS", TOGETHER)
    words._rows = noted
    sliced = WAYS[way](words, h)
    torch.testing.assert_close(sliced, whole, rtol=1e-5, atol=1e-5)
    vocabulary = tiny_base.shape.vocabulary
    starts = range(0, vocabulary, TOGETHER)
    assert len(starts) > 2
    assert asked == [(start, min(start + TOGETHER, vocabulary)) for start in starts]
