"""Texts labelled in a processor second, and the memory that takes: ours beside transformers'.

Each contestant reads the same texts of a data set in a process of its own, on one thread and on the
same weights. transformers is set up as its users would: sdpa, without gradients, batches of texts
of similar length, the head at the mask alone.

    python -m benchmarks.comparisons.labelling '{"who": "onnx", "base": "embedded"}'
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import open_base
from smidgen.edge_client.bases.tokenizer import open_tokens
from smidgen.edge_client.engine.budgeted import open_within
from smidgen.edge_client.errors import demand
from smidgen.edge_client.metering.memory import peak_rss_bytes
from smidgen.edge_client.tasks.encoder import Encoder
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.wire.training import Training
from smidgen.simulation.datasets.catalogue import read_dataset

PEER = "transformers"
WARM = 16  # texts that are read before
ROWS = 8  # texts of full length in a batch; the peer has as many tokens together as we


@dataclass(frozen=True)
class Labelling:
    """What a process reads.

    Attributes:
        who: `onnx`, `torch`, `torch-float32` or `transformers`.
        base: Ours.
        checkpoint: The same as a Hugging Face folder, for the peer.
        texts: How many test texts of the data set.
        together: How many are asked for at once; a label step asks for 8.
        tokens: Most of a text.
        dataset: Its name.
        data: Folder of data sets.
    """

    who: str
    base: str
    checkpoint: str = ""
    texts: int = 1000
    together: int = 1000
    tokens: int = 128
    dataset: str = "ag_news"
    data: str | None = None


@dataclass(frozen=True)
class Labelled:
    """What came of it.

    Attributes:
        processor_s: Of all texts.
        peak_rss_bytes: Of the process.
        answers: The likeliest label of each text.
    """

    processor_s: float
    peak_rss_bytes: int
    answers: list[int]


def measured(asked: Labelling) -> Labelled:
    """Let a new process read.

    Raises:
        WrongInput: It did not end well.
    """
    command = [sys.executable, "-m", __name__, json.dumps(asdict(asked))]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    said = done.stderr.strip().splitlines()
    demand(done.returncode == 0, f"{asked.who} read nothing: {said[-1] if said else 'no reason'}")
    return Labelled(**json.loads(done.stdout.splitlines()[-1]))


def label(asked: Labelling) -> Labelled:
    """Read the texts in this process, after a few of them that do not count.

    Raises:
        WrongInput: No such base or data set, or no memory for a plan.
    """
    data = read_dataset(asked.dataset, None if asked.data is None else Path(asked.data))
    texts = data.test[: asked.texts]
    base, training = open_base(asked.base), Training(batch=ROWS, tokens=asked.tokens)
    if asked.who == PEER:
        encoder = Encoder(open_tokens(base), data.task, cloze=True, limit=asked.tokens)
        read = _peer(asked, encoder)
    else:
        kind, _, dtype = asked.who.partition("-")
        dtypes = (dtype,) if dtype else None
        spec = parse_adapter("lora:8")
        read = open_within(kind, base, data.task, spec, training, None, dtypes=dtypes).predict
    read(texts[:WARM])
    start = time.process_time()
    parts = range(0, len(texts), asked.together)
    rows = np.concatenate([read(texts[part : part + asked.together]) for part in parts])
    spent_s = time.process_time() - start
    return Labelled(spent_s, peak_rss_bytes(), rows.argmax(axis=1).tolist())


def _peer(asked: Labelling, encoder: Encoder) -> Callable[[Sequence[Example]], np.ndarray]:
    import torch
    from transformers import AutoModelForMaskedLM

    from smidgen.profiling.peers.torch_peers import head_of

    model = AutoModelForMaskedLM.from_pretrained(asked.checkpoint, attn_implementation="sdpa")
    model.eval()
    body, head = getattr(model, model.base_model_prefix), head_of(model)
    words = [ids[0] for ids in encoder.tokens.label_word_ids(encoder.task)]

    @torch.inference_mode()
    def read(texts: Sequence[Example]) -> np.ndarray:
        rows = np.empty((len(texts), len(words)), np.float32)
        for chosen, batch in encoder.by_length(texts, ROWS, asked.tokens):
            ids, seen = torch.from_numpy(batch.ids), torch.from_numpy(batch.attention)
            states = body(input_ids=ids, attention_mask=seen).last_hidden_state
            answers = states[torch.arange(len(ids)), torch.from_numpy(batch.mask_positions)]
            rows[chosen] = torch.log_softmax(head(answers)[:, words], dim=-1).numpy()
        return rows

    return read


if __name__ == "__main__":
    print(json.dumps(asdict(label(Labelling(**json.loads(sys.argv[1]))))))
