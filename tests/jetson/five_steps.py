"""Five optimizer steps of a tiny pack, for a machine that has nothing but what a board installs.

    python five_steps.py PACK ENGINE OUT.npz [STARTS.npz]

Writes each step's loss, its gradients, and the adapter that it starts from. With STARTS, each step
starts from that file's adapter: so gradients of two machines can be compared at the same place.
"""

import sys
from pathlib import Path

import numpy as np

from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import open_base
from smidgen.edge_client.engine.opening import open_engine
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.wire.training import Training

STEPS, BETA_1 = 5, 0.9
LABELS = ("security", "mail", "family", "weather")
TEXTS = ("the front door opened", "parcel at the gate", "dinner with grandma at seven", "storm")


def main(pack: str, kind: str, out: str, starts: str = "") -> None:
    """Make the steps; AdamW begins anew before each, so its mean is 0.1 of the gradient."""
    task = Task("tiny", LABELS, ("{text} is about [MASK]",), {label: label for label in LABELS})
    base, spec = open_base(pack), parse_adapter("lora:4@q,k,v,o,up,down")
    engine = open_engine(kind, base, task, spec, Training(lr=0.01, tokens=32))
    examples = [Example(text, label=label) for text, label in zip(TEXTS, LABELS, strict=True)]
    encoder = engine.encoder
    batch = encoder.batch(encoder.prompts(examples))
    given = dict(np.load(starts)) if starts else {}
    adapter = initial_adapter(spec, base, len(LABELS), seed=3)
    found: dict[str, np.ndarray] = {}
    for step in range(STEPS):
        if starts:
            adapter = {name: given[f"start/{step}/{name}"] for name in adapter}
        engine.load_adapter(adapter)
        found |= {f"start/{step}/{name}": tensor for name, tensor in adapter.items()}
        found[f"loss/{step}"] = np.array(engine.train_step(batch))
        means = engine.moments().means
        found |= {f"gradient/{step}/{name}": mean / (1 - BETA_1) for name, mean in means.items()}
        adapter = engine.adapter()
    with Path(out).open("wb") as file:
        np.savez(file, allow_pickle=False, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
