"""The generator's gradients against torch's autograd in float64."""

import numpy as np
import pytest

from smidgen.edge_client.adapters.banks import IN, IN_BIAS, OUT, OUT_BIAS, SLOPE, Generator
from smidgen.edge_client.personal.generator import pull

torch = pytest.importorskip("torch")


class Straight(torch.autograd.Function):  # type: ignore[name-defined]
    """Clamped forward, as it is backward."""

    @staticmethod
    def forward(ctx: object, x: object) -> object:
        return x.clamp(1e-4, 1000.0)  # type: ignore[attr-defined]

    @staticmethod
    def backward(ctx: object, g: object) -> object:
        return g


@pytest.mark.parametrize("seed", range(5))
def test_gradients_are_autograd_s(seed: int) -> None:
    generator = Generator(("a", "b", "c"), 4, 6)
    draw = np.random.Generator(np.random.PCG64(seed))
    numbers = {
        name: draw.normal(0.0, 0.5, shape).astype(np.float32)
        for name, shape in generator.shapes().items()
    }
    features = draw.normal(0.0, 1.0, 12)
    aims = {name: draw.uniform(1e-4, 2.0, 4).astype(np.float32) for name in generator.modules}
    distance, found = pull(generator, numbers, features, aims)

    wide = {
        name: torch.tensor(one, dtype=torch.float64, requires_grad=True)
        for name, one in numbers.items()
    }
    before = wide[IN] @ torch.tensor(features) + wide[IN_BIAS]
    hidden = torch.nn.functional.prelu(before, wide[SLOPE])
    out = Straight.apply(wide[OUT] @ hidden + wide[OUT_BIAS])
    aim = torch.tensor(np.concatenate([aims[name] for name in "abc"]), dtype=torch.float64)
    loss = (out - aim).abs().mean()
    loss.backward()
    assert distance == pytest.approx(loss.item(), rel=1e-6)
    for name, one in wide.items():
        expected = one.grad.numpy()
        scale = np.abs(expected).max()
        assert scale > 0 and np.abs(found[name] - expected).max() <= 1e-5 * scale, name
