"""Fixed point and secret sharing beside flwr's, run in flwr's own environment.

flwr 1.42 rounds at random, and clips what lies beyond its range; ours rounds to the nearest level,
and sends later what was left out.
"""

import subprocess
from pathlib import Path

import numpy as np
import pytest

from smidgen.edge_client.updates import shamir
from smidgen.edge_client.updates.secure_sum import BITS, levels_of
from smidgen.edge_client.updates.step import DeviceContext
from smidgen.edge_client.wire.tensors import Update
from smidgen.edge_client.wire.training import Training
from smidgen.profiling.peers import flwr
from tests.edge_client.updates.masked import MOST, REACH, ring_of, secret_of, step_of, unmasked

DEVICES, NUMBERS, HOLDERS, THRESHOLD = 6, 400, 9, 5
LEVELS = levels_of(BITS["int8"])
SECRET = bytes(range(100, 116))


def draws() -> np.ndarray:
    """Rounds, devices, numbers: two rounds of which some is beyond the range, and an empty one."""
    draw = np.random.default_rng(11)
    deltas = draw.normal(0, 0.4 * REACH, (3, DEVICES, NUMBERS))
    deltas[:2, :, :8] = 1.5 * REACH
    deltas[2] = 0.0
    return deltas.astype(np.float32)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    if reason := flwr.missing():
        pytest.skip(f"flwr: {reason}")
    folder = tmp_path_factory.mktemp("secagg")
    told = {"reach": REACH, "target": 2 * LEVELS, "threshold": THRESHOLD, "holders": HOLDERS}
    secret = np.frombuffer(SECRET, np.uint8)
    np.savez(folder / "in.npz", deltas=draws(), secret=secret, **told)  # type: ignore[arg-type]
    line = [flwr.environment() / "bin" / "python", Path(__file__).with_name("secagg.py")]
    files = [folder / "in.npz", folder / "out.npz"]
    subprocess.run([*line, *files], check=True, timeout=300, env=flwr.QUIET)
    with np.load(folder / "out.npz") as found:
        return {name: found[name] for name in found.files}


def ours() -> np.ndarray:
    steps, means = [step_of() for _ in range(DEVICES)], []
    for number, deltas in enumerate(draws()):
        ring, updates = ring_of(DEVICES, float(number)), dict[int, Update]()
        for place, (step, delta) in enumerate(zip(steps, deltas, strict=True)):
            step.take(ring.body)
            context = DeviceContext(Training(), 3, None, 0, secret_of(place), "run")
            updates[place] = step.outgoing(Update("w", MOST, {"a": delta}), context)
        means.append(unmasked(ring, updates, shapes={"a": (NUMBERS,)}))
    return np.array(means)


@pytest.mark.slow
def test_a_mean_is_flwr_s_to_its_rounding_and_nothing_beyond_the_range_is_lost(
    theirs: dict[str, np.ndarray],
) -> None:
    found, exact, level = ours(), draws().mean(1, dtype=np.float64), REACH / LEVELS
    inside = np.abs(draws()[0]).max(0) <= REACH
    assert np.abs(found[0] - theirs["means"][0])[inside].max() < 1.5 * level
    # Over all rounds flwr's sum lacks what was clipped; ours has it but for the last rounding.
    lost = np.abs(theirs["means"].sum(0) - exact.sum(0))
    assert lost[:8].min() > 0.9 * REACH
    assert np.abs(found.sum(0) - exact.sum(0))[:8].max() < level


@pytest.mark.slow
def test_a_secret_comes_back_from_as_many_shares_as_flwr_s(theirs: dict[str, np.ndarray]) -> None:
    assert bool(theirs["is_recovered"])
    dealt = shamir.share([SECRET], HOLDERS, THRESHOLD, b"key")
    weights = shamir.weights_of(range(1, THRESHOLD + 1))
    assert shamir.recover(dealt[:THRESHOLD], weights) == SECRET
    # flwr pads a secret of 16 bytes to 32, beside four bytes of the holder's number.
    assert int(theirs["share_bytes"]) > shamir.SHARE_BYTES
