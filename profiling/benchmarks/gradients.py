"""Gradient parity: our engines against plain PyTorch + PEFT holding the dequantized weights.

The reference is Hugging Face's own model with its linears filled from the base's stored weights, an
adapter by PEFT, and the whole head at all positions; it shares nothing with the engines but the
numbers in the file. It is computed in double precision: in single precision plain PyTorch is itself
some 1e-5 from its exact value where queries have small gradients (`plain_error` says how far).

    python -m smidgen.profiling.benchmarks.gradients '{"base": "FOLDER", "adapter": "lora:8", ...}'
"""

import json
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from peft import PeftModel, get_peft_config, get_peft_model
from peft.utils import set_peft_model_state_dict
from torch.nn import functional
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForTokenClassification,
)

from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.peft_folder import peft_config, peft_state
from smidgen.edge_client.adapters.spec import (
    PREFIX,
    WORD_HEAD,
    AdapterSpec,
    head_modules,
    parse_adapter,
)
from smidgen.edge_client.bases.base import Base, open_base
from smidgen.edge_client.engine.opening import find_card
from smidgen.edge_client.engine.torch_backend.network import Network
from smidgen.edge_client.errors import WrongInput, demand
from smidgen.edge_client.planning.plan import Plan, Workload
from smidgen.edge_client.planning.planner import depths
from smidgen.edge_client.tasks.kind import kind_named
from smidgen.edge_client.texts.batches import Batch
from smidgen.edge_client.wire.tensors import AdapterState
from smidgen.profiling.benchmarks.exactness import PlanError
from smidgen.profiling.instruments.stepping import tell
from smidgen.profiling.peers.torch_checkpoint import fill

SOFT_PREFIX = "base_model."  # of a model behind a soft prompt, which PEFT wraps once, not twice


def reference_model(
    base: Base, spec: AdapterSpec, state: AdapterState, dtype: torch.dtype = torch.float64
) -> PeftModel:
    """Hugging Face's model with the base's dequantized weights, and PEFT's adapter on it.

    With a head it is a token classifier, which PEFT knows a form for behind a soft prompt too.
    """
    demand(
        not base.is_gguf,
        f"base {base.name} is a GGUF file, which transformers' classes do not read as it lies",
    )
    config = AutoConfig.from_pretrained(base.folder, local_files_only=True)
    kind, own = AutoModelForMaskedLM, list[str]()
    if base.shape.is_decoder:
        kind = AutoModelForCausalLM
    elif spec.head:
        kind, own = AutoModelForTokenClassification, list(WORD_HEAD)
        config.num_labels = len(state[f"{PREFIX}{own[0]}.bias"])
    # Softmax of eager attention may be in float32, where a window of padding alone is NaN.
    attention = "sdpa" if base.shape.local_layers else "eager"
    model = kind.from_config(config, dtype=torch.float32, attn_implementation=attention)
    fill(model, base, own)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    without = replace(spec, head=False)
    chosen = peft_config(without, base.name, base.architecture, state) | {"inference_mode": False}
    if spec.head:
        chosen |= {"task_type": "TOKEN_CLS", "auto_mapping": None}
    if spec.head and not spec.prompt_tokens:  # behind a soft prompt PEFT saves it by itself
        chosen["modules_to_save"] = head_modules(base.architecture, is_of_words=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapted = get_peft_model(model, get_peft_config(chosen))
        tensors = {
            name.replace(PREFIX, SOFT_PREFIX) if spec.prompt_tokens else name: torch.from_numpy(
                array
            )
            for name, array in peft_state(spec, base.architecture, state).items()
        }
        set_peft_model_state_dict(adapted, tensors)
    return adapted.to(dtype).train()


def reference_gradients(
    model: PeftModel, spec: AdapterSpec, batch: Batch, words: Sequence[int] | None
) -> tuple[float, dict[str, np.ndarray]]:
    """Loss and the adapter's gradients, named as the adapter's tensors are.

    Args:
        model: The reference.
        spec: The adapter on it.
        batch: Encoded texts.
        words: Token ids of the labels; None: all words, or all tags of a head.
    """
    model.zero_grad()
    ids, attention = torch.from_numpy(batch.ids), torch.from_numpy(batch.attention)
    types = {}
    if batch.segments is not None:
        types = {"token_type_ids": torch.from_numpy(batch.segments)}
    logits = model(input_ids=ids, attention_mask=attention, **types).logits
    texts = torch.arange(len(ids)) if batch.texts is None else torch.from_numpy(batch.texts)
    logits = logits[texts, torch.from_numpy(batch.mask_positions) + spec.prompt_tokens]
    logits = logits if words is None else logits[:, list(words)]
    loss = functional.cross_entropy(logits, torch.from_numpy(batch.labels))
    loss.backward()
    gradients = {
        _plain(name): parameter.grad.numpy().copy()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    return float(loss.detach()), gradients


def _plain(name: str) -> str:
    for part in (".default", ".base_layer", ".modules_to_save"):
        name = name.replace(part, "")
    if name.startswith("prompt_encoder"):
        return "prompt_embeddings"
    return name if name.startswith(PREFIX) else name.replace(SOFT_PREFIX, PREFIX, 1)


TAGS = 9  # of four types of entities


def random_adapter(
    spec: AdapterSpec, base: Base, labels: int, seed: int, *, is_of_words: bool = False
) -> AdapterState:
    generator = np.random.Generator(np.random.PCG64(seed))
    state = initial_adapter(spec, base, labels, seed, is_of_words=is_of_words)
    return {
        name: (tensor + 0.02 * generator.standard_normal(tensor.shape)).astype(np.float32)
        for name, tensor in state.items()
    }


def random_batch(base: Base, batch: int, tokens: int, labels: int, seed: int) -> Batch:
    """Random ids; every row but the first is padded by a few tokens."""
    generator = np.random.Generator(np.random.PCG64(seed))
    ids = generator.integers(5, base.shape.vocabulary, (batch, tokens))
    attention = np.ones_like(ids)
    for row in range(1, batch):
        attention[row, tokens - min(3 * row, tokens // 2) :] = 0
    ids[attention == 0] = base.shape.pad_id
    where = np.full(batch, 3, np.int64)
    return Batch(ids, attention, where, np.arange(batch, dtype=np.int64) % labels)


def random_places(base: Base, batch: Batch, seed: int) -> Batch:
    """The same texts, asked for words at one place of the first, at more of each other."""
    generator = np.random.Generator(np.random.PCG64(seed))
    lengths, texts = batch.attention.sum(axis=1), np.arange(len(batch.ids))
    counts = np.minimum(texts % 4 + 1, lengths)
    of = np.repeat(texts, counts)
    places = [np.sort(generator.permutation(lengths[row])[: counts[row]]) for row in texts]
    labels = generator.integers(0, base.shape.vocabulary, len(of))
    return replace(batch, mask_positions=np.concatenate(places), labels=labels, texts=of)


def random_tags(batch: Batch, seed: int) -> Batch:
    """The same texts, each asked for tags at its first token and at most others of its own."""
    generator = np.random.Generator(np.random.PCG64(seed))
    is_word = (generator.random(batch.ids.shape) < 2 / 3) & (batch.attention == 1)
    is_word[:, 0] = True
    texts, places = np.nonzero(is_word)
    labels = generator.integers(0, TAGS, len(places))
    return replace(batch, mask_positions=places, labels=labels, texts=texts)


def every_plan(base: Base, spec: AdapterSpec, batch: int, tokens: int) -> list[Plan]:
    """One of each way to compute a step in float32: kept, recomputed, split, shallow if it may be.

    See `smidgen.edge_client.planning.planner.depths` for adapters that have no depth of their own.
    """
    layers = base.shape.layers
    whole = Plan("float32", batch, (), layers, tokens)
    plans = [
        whole,
        replace(whole, recompute=tuple(range(layers))),
        replace(whole, recompute=tuple(range(0, layers, 2))),
        replace(whole, recompute=tuple(range(layers // 2))),
        replace(whole, micro_batch=max(1, batch // 2)),
        replace(whole, micro_batch=1, recompute=tuple(range(layers))),
    ]
    if len(depths(Workload(base.shape, base.bits, spec, batch, tokens))) == 1:
        return plans
    return [
        *plans,
        replace(whole, depth=max(1, layers // 2)),
        replace(whole, depth=1, recompute=tuple(range(layers))),
    ]


def plain_error(
    base: Base, spec: AdapterSpec, batch: Batch, words: Sequence[int] | None, tags: int = 0
) -> tuple[str, float]:
    """How far plain PyTorch + PEFT in float32 is from the same in float64: tensor and error."""
    state = random_adapter(spec, base, tags, seed=1, is_of_words=True)
    model = reference_model(base, spec, state, torch.float32)
    _, single = reference_gradients(model, spec, batch, words)
    _, double = reference_gradients(model.double(), spec, batch, words)
    errors = {name: _distance(single[name], exact) for name, exact in double.items()}
    worst = max(errors, key=lambda name: errors[name])
    return worst, errors[worst]


def _distance(got: np.ndarray, wanted: np.ndarray) -> float:
    """|got - wanted| / |wanted|; |got| where nothing is wanted; infinite where one is NaN."""
    distance = float(np.linalg.norm(got - wanted)) / (float(np.linalg.norm(wanted)) or 1.0)
    return distance if math.isfinite(distance) else math.inf


def gradient_errors(
    base: Base,
    spec: AdapterSpec,
    plans: Sequence[Plan],
    batch: Batch,
    words: Sequence[int] | None,
    engine: str = "torch",
    device: str = "cpu",
    tags: int = 0,
) -> Iterator[PlanError]:
    """Compare each plan's gradients with the reference's.

    Args:
        base: A pack or a plain folder.
        spec: Adapter; a head is one that reads words.
        plans: What to compare.
        batch: Encoded texts.
        words: Token ids of the labels; None: all words are asked for, or all of a head's tags.
        engine: Ours, `torch` or `onnx`.
        device: What the torch engine computes on: `cpu` or a CUDA device.
        tags: Rows of the head; 0 without one.
    """
    state = random_adapter(spec, base, tags, seed=1, is_of_words=True)
    model = reference_model(base, spec, state)
    loss, wanted = reference_gradients(model, spec, batch, words)
    del model
    asked = {name: wanted[name] for name in state}  # PEFT trains more biases than we do
    with our_gradients(base, spec, state, words, engine, device) as ours:
        for plan in plans:
            yield _compare(plan, *ours(batch, plan), loss, asked, base)


Ours = Callable[[Batch, Plan], tuple[float, dict[str, np.ndarray]]]


@contextmanager
def our_gradients(
    base: Base,
    spec: AdapterSpec,
    state: AdapterState,
    words: Sequence[int] | None,
    engine: str = "torch",
    device: str = "cpu",
) -> Iterator[Ours]:
    """A function that gives a batch's loss and gradients by one of our engines.

    Args:
        base: A pack or a plain folder.
        spec: Adapter.
        state: The adapter's values.
        words: Token ids of the labels; None: all words are asked for. A head has its own answers.
        engine: Which of them, `torch` or `onnx`.
        device: What the torch engine computes on: `cpu` or a CUDA device.
    """
    asked = None if words is None else [[word] for word in words]
    if engine == "onnx":
        import smidgen.edge_client.engine.onnx_backend.network as onnx_network

        light = onnx_network.Network(base, spec, state, asked, threads=2)
        yield light.backward
        light.close()
        return
    network = Network(base, spec, state, asked, device)

    def gradients(batch: Batch, plan: Plan) -> tuple[float, dict[str, np.ndarray]]:
        for tensor in network.adapter.values():
            tensor.grad = None
        loss = network.backward(batch, plan)
        found = {name: tensor.grad for name, tensor in network.adapter.items()}
        return loss, {name: grad.cpu().numpy() for name, grad in found.items() if grad is not None}

    yield gradients
    network.close()


def _compare(
    plan: Plan,
    ours: float,
    gradients: Mapping[str, np.ndarray],
    loss: float,
    wanted: Mapping[str, np.ndarray],
    base: Base,
) -> PlanError:
    errors, zero = {}, []
    for name, exact in wanted.items():
        got = gradients.get(name)
        if got is None and _is_below(name, plan, base):
            continue
        if (got is None or not got.any()) and exact.any():
            zero.append(name)
        errors[name] = _distance(np.zeros_like(exact) if got is None else got, exact)
    worst = max(errors, key=lambda name: errors[name])
    return PlanError(asdict(plan), abs(ours - loss) / loss, worst, errors[worst], zero)


def _is_below(name: str, plan: Plan, base: Base) -> bool:
    numbers = [int(part) for part in name.split(".") if part.isdigit()]
    return bool(numbers) and numbers[0] < base.shape.layers - plan.depth


def _asked(base: Base, request: Mapping[str, Any]) -> tuple[Batch, Sequence[int] | None, int]:
    seed, words = request["seed"], request["word_ids"]
    batch = random_batch(base, request["batch"], request["tokens"], len(words), seed)
    wants = kind_named(request["task"]).files.wants
    if wants == "text":
        return random_places(base, batch, seed), None, 0
    if wants == "tags":
        return random_tags(batch, seed), None, TAGS
    return batch, words, 0


def main(argument: str) -> None:
    """Compare every plan on one base; one line per plan to the parent."""
    request = json.loads(argument)
    base, spec = open_base(request["base"]), parse_adapter(request["adapter"])
    batch, words, tags = _asked(base, request)
    try:
        find_card(request["device"], base.bits)
    except WrongInput as refused:
        tell("refused", message=str(refused))
        raise SystemExit(2) from refused
    worst, error = plain_error(base, spec, batch, words, tags)
    tell("plain", worst_tensor=worst, worst_error=error)
    plans = every_plan(base, spec, request["batch"], request["tokens"])
    for found in gradient_errors(
        base, spec, plans, batch, words, request["engine"], request["device"], tags
    ):
        tell("plan", **asdict(found))
    tell("done")


if __name__ == "__main__":
    main(sys.argv[1])
