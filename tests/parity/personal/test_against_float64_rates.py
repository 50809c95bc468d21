"""A held-out loss's gradient at the factors of rates, by both engines, against float64 differences.

The reference is transformers' own model in float64, the trained adapter beside its linears by
hooks; the loss is taken a little above and below each factor.
"""

from collections.abc import Callable

import numpy as np
import pytest

from smidgen.edge_client.adapters.banks import SCALING, bank_spec
from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.spec import PREFIX, parse_adapter
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.engine.opening import open_engine
from smidgen.edge_client.personal.bank import modules_of
from smidgen.edge_client.personal.fitting import FitTerms, rated_fit, slopes_of
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.tokens import Tokens
from smidgen.edge_client.updates.forms import LORA_A, LORA_B
from smidgen.edge_client.wire.training import Training
from tests.edge_client.engine.engines import KINDS, TEXTS, batch_of

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

STEP = 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_slopes_of_both_engines_are_numerical_differences(
    tiny_base: Base, hub_task: Task, kind: str
) -> None:
    spec = bank_spec(parse_adapter("lora:2@q,v,up"), tiny_base.shape)
    engine = open_engine(kind, tiny_base, hub_task, spec, Training(tokens=48))
    adapter, draw = initial_adapter(spec, tiny_base, 6, seed=3), np.random.default_rng(0)
    adapter = {n: t + draw.normal(0, 0.1, t.shape).astype(np.float32) for n, t in adapter.items()}
    factors = {name: 0.25 * (1 + place % 5) for place, name in enumerate(adapter)}
    fitted, _ = rated_fit(engine, adapter, factors, TEXTS, FitTerms(steps=5, batch=3, lr=0.05), 7)
    loss, slopes = slopes_of(engine, fitted.numbers, TEXTS, len(TEXTS))

    model = transformers.AutoModelForMaskedLM.from_pretrained(tiny_base.folder).double().eval()
    starts = {name: torch.tensor(one).double() for name, one in adapter.items()}
    ways = {name: torch.tensor(one).double() for name, one in fitted.numbers.items()}
    now = dict(factors)

    def beside(module: str) -> Callable[..., object]:
        def added(_: object, x: object, y: object) -> object:
            a, b = (starts[n] + now[n] * ways[n] for n in (module + LORA_A, module + LORA_B))
            return y + SCALING * x[0] @ a.T @ b.T  # type: ignore[index]

        return added

    for module in modules_of(adapter):
        model.get_submodule(module.removeprefix(PREFIX)).register_forward_hook(beside(module))
    batch, words = batch_of(engine), Tokens(tiny_base.folder).label_word_ids(hub_task)
    ids, seen = torch.from_numpy(batch.ids), torch.from_numpy(batch.attention)
    rows, places = torch.arange(len(ids)), torch.from_numpy(batch.mask_positions)

    def value() -> float:
        with torch.no_grad():
            at_mask = model(input_ids=ids, attention_mask=seen).logits[rows, places]
        asked = torch.stack([at_mask[:, word].mean(dim=1) for word in words], dim=1)
        entropy = torch.nn.functional.cross_entropy(asked, torch.from_numpy(batch.labels))
        return float(entropy)

    assert loss == pytest.approx(value(), rel=1e-5)
    exact = []
    for name in slopes:
        sides = []
        for step in (STEP, -STEP):
            now[name] = factors[name] + step
            sides.append(value())
        now[name] = factors[name]
        exact.append((sides[0] - sides[1]) / (2 * STEP))
    error = np.linalg.norm(np.array(list(slopes.values())) - exact) / np.linalg.norm(exact)
    assert error <= 1e-5
