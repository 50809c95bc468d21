"""The training benchmark's process for our engine: plans, trains or labels, reports its costs.

It opens the engine as a client does, budget and all. Texts to label go through the tokenizer and
the engine's own reading, as a device's do.

    python -m smidgen.profiling.benchmarks.training_child '{"engine": "torch", ...}'
"""

import sys
from dataclasses import asdict, replace
from hashlib import sha256

import numpy as np

from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import open_base
from smidgen.edge_client.engine.budgeted import open_within, workload
from smidgen.edge_client.engine.engine import Engine
from smidgen.edge_client.engine.opening import engine_name, runtime_bytes
from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.planning.plan import BudgetError, parse_budget
from smidgen.edge_client.planning.planner import options
from smidgen.edge_client.planning.resources import read_facts
from smidgen.edge_client.planning.step_cost import step_flops
from smidgen.edge_client.planning.torch_memory import parts
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.batches import Batch
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.wire.tensors import AdapterState
from smidgen.edge_client.wire.training import Training
from smidgen.profiling.instruments.stepping import (
    Request,
    Texts,
    random_texts,
    read_request,
    run_steps,
    tell,
)

# Whose words have nine tags; a tag follows from the word, so that there is something to learn.
TYPES = ("person", "place", "time", "thing")


def task_of(request: Request) -> Task:
    """What is asked: the given label words, all words, or tags."""
    if request.masked:
        if request.is_causal:
            return Task("benchmark", kind="completion")
        return Task("benchmark", kind="mlm")
    if request.is_tagging:
        return Task("benchmark", TYPES, kind="tagging")
    words = request.words
    return Task("benchmark", words, ("{text} [MASK]",), dict(zip(words, words, strict=True)))


def open_for(request: Request) -> Engine:
    """The engine for a request: base, task, plan for the budget."""
    is_float32 = request.engine.endswith("-float32")
    return open_within(
        request.engine.removesuffix("-float32"),
        open_base(request.base),
        task_of(request),
        parse_adapter(request.adapter),
        Training(batch=request.batch, tokens=request.tokens),
        parse_budget(request.memory_budget),
        dtypes=("float32",) if is_float32 else request.dtypes,
        device=request.device,
        masked=request.masked,
    )


def smallest_plan_bytes(request: Request) -> int:
    base, name = open_base(request.base), engine_name(request.engine.removesuffix("-float32"))
    training = Training(batch=request.batch, tokens=request.tokens)
    work = workload(name, base, task_of(request), parse_adapter(request.adapter), training)
    work = replace(work, masked=request.masked)
    facts = read_facts(runtime=runtime_bytes(name))
    found = options(work, facts.runtime_bytes, facts.nominal)
    return min(option.predicted_peak_bytes for option in found)


def train(request: Request, engine: Engine) -> None:
    """Take the steps and tell the parent."""
    first, received = engine.option, engine.adapter()  # held, as training does for its delta
    started = _fingerprints(received)

    def step(row: Texts) -> float:
        labels = row.labels % (2 * len(TYPES) + 1) if request.is_tagging else row.labels
        of = row.texts if request.masked or request.is_tagging else None
        batch = Batch(row.ids, row.attention, row.mask_positions, labels, texts=of)
        return engine.train_step(batch)

    measured = run_steps(request, random_texts(request), step)
    card = engine.device_peak()
    option, ended = engine.option, _fingerprints(engine.adapter())
    tell(
        "done",
        plan=asdict(option.plan),
        stepped_down_from=asdict(first.plan) if option != first else None,
        predicted_peak_bytes=first.predicted_peak_bytes,
        predicted_parts=dict(parts(first.memory)),
        step_flops=step_flops(option.work, option.plan),
        budget_bytes=engine.budget_bytes,
        device_peak=None if card is None else asdict(card),
        untrained=[name for name in ended if ended[name] == started[name]]
        if request.warmup + request.steps > 1
        else [],  # a LoRA's first factor has no gradient before the second has moved
        trained_tensors=len(ended),
        trained_parameters=sum(tensor.size for tensor in engine.adapter().values()),
        **measured,
    )


def label(request: Request, engine: Engine) -> None:
    """Give texts the label words' log-probabilities, batch by batch, and tell the parent."""
    tokens = engine.encoder.tokens
    texts = [
        [Example(tokens.text_of(np.tile(ids, 2))) for ids in row.ids]  # twice: cut to the length
        for row in random_texts(request)
    ]
    measured = run_steps(request, texts, lambda batch: float(engine.predict(batch).mean()))
    tell("done", plan=asdict(engine.option.plan), budget_bytes=engine.budget_bytes, **measured)


def _fingerprints(state: AdapterState) -> dict[str, str]:
    return {name: sha256(tensor.tobytes()).hexdigest() for name, tensor in state.items()}


if __name__ == "__main__":
    asked = read_request(sys.argv[1])
    try:
        opened = open_for(asked)
    except BudgetError as error:
        tell("refused", message=str(error), needed_bytes=smallest_plan_bytes(asked))
        raise SystemExit(2) from error
    except WrongInput as error:
        tell("refused", message=str(error))
        raise SystemExit(2) from error
    {"train": train, "label": label}[asked.work](asked, opened)
