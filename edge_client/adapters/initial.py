"""Initial adapter of a run, drawn from a seed; checks that an adapter's tensors fit a base."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from smidgen.edge_client.adapters.banks import net_of
from smidgen.edge_client.adapters.spec import (
    PREFIX,
    AdapterError,
    AdapterSpec,
    adapted_layers,
    check_top,
    head_sizes,
    layer_pattern,
    lora_modules,
)
from smidgen.edge_client.bases.architectures import Rotary
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.bases.families import family_of
from smidgen.edge_client.bases.tokenizer import open_tokens
from smidgen.edge_client.bases.weights import Weights
from smidgen.edge_client.errors import demand
from smidgen.edge_client.tasks.encoder import Encoder
from smidgen.edge_client.tasks.kind import TaskKind, kind_of
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.updates.forms import first_of
from smidgen.edge_client.updates.ridge import WEIGHT, WIDEST
from smidgen.edge_client.wire.tensors import AdapterState, derive_seed

NAMELESS = 1000  # tokens at a vocabulary's beginning, special ones and single letters


def initial_adapter(
    spec: AdapterSpec,
    base: Base,
    num_labels: int,
    seed: int,
    prompt_ids: Sequence[int] = (),
    *,
    is_of_words: bool = False,
) -> AdapterState:
    """Draw the adapter a run starts from.

    LoRA's A is uniform in +-1/sqrt(inputs) and B zero, as PEFT draws them, or of a form A is zero
    and B drawn, so the adapted model starts as the base itself. A soft prompt starts from the
    embeddings of `prompt_ids`, repeated to its length, or of random words of the vocabulary. Biases
    start from the base's own (BitFit, Ben Zaken et al. 2022, arXiv:2106.10199). Equal arguments
    give equal bytes.

    Args:
        spec: What to build.
        base: The frozen base; only its headers and the embedding rows are read.
        num_labels: Rows of a classification head.
        seed: Seed of the draws.
        prompt_ids: Token ids of `--prompt-init TEXT`.
        is_of_words: Whether the head reads each word, as of tagging.

    Raises:
        AdapterError: The base's architecture is not known here, or has no such top layers.
    """
    check_top(spec, base.shape)
    if spec.net:
        return net_of(spec, base.shape).first(seed)
    generator = np.random.Generator(np.random.PCG64(seed))
    state: AdapterState = {}
    with base.open_weights() as weights:
        if spec.rank:
            state |= _initial_lora(spec, base, weights, generator)
        if spec.prompt_tokens:
            words = f"{family_of(base.architecture).words}.weight"
            state["prompt_embeddings"] = _initial_prompt(
                spec, weights, words, generator, prompt_ids
            )
        if spec.bias:
            state |= _initial_bias(spec, base, weights)
    if spec.head:
        linears = head_sizes(base.architecture, is_of_words=is_of_words)
        state |= _initial_head(linears, base.hidden, num_labels, generator)
    if spec.ridge:
        state[WEIGHT] = np.zeros((num_labels, base.hidden + 1), np.float32)
    return first_of(spec.form, state) if spec.form else state


def _initial_lora(
    spec: AdapterSpec, base: Base, weights: Weights, generator: np.random.Generator
) -> AdapterState:
    modules = lora_modules(spec, base.shape)
    state: AdapterState = {}
    for name in sorted(weights.names):
        if one := modules.get(name.removesuffix(".weight")):
            rows, columns = weights.shape(name)
            bound = 1 / math.sqrt(columns)
            module = PREFIX + name.removesuffix(".weight")
            draw = generator.uniform(-bound, bound, (one.rank, columns))
            state[f"{module}.lora_A.weight"] = draw.astype(np.float32)
            state[f"{module}.lora_B.weight"] = np.zeros((rows, one.rank), np.float32)
    if not state:
        raise AdapterError(
            f"adapter {spec}: the base has none of the linears {', '.join(spec.adapted)}"
        )
    return state


def _initial_prompt(
    spec: AdapterSpec,
    weights: Weights,
    words: str,
    generator: np.random.Generator,
    prompt_ids: Sequence[int],
) -> np.ndarray:
    vocabulary = weights.shape(words)[0]
    first = NAMELESS if vocabulary > NAMELESS else vocabulary // 2
    ids = list(prompt_ids) or list(generator.integers(first, vocabulary, spec.prompt_tokens))
    chosen = [int(ids[index % len(ids)]) for index in range(spec.prompt_tokens)]
    return weights.rows(words, chosen)


def _initial_bias(spec: AdapterSpec, base: Base, weights: Weights) -> AdapterState:
    """The base's own biases, linears' and normalizations', of the adapted layers.

    But for keys that are not turned by their positions: their bias adds the same to all scores of
    a query, so softmax does not see it, its gradient is zero and AdamW would follow rounding noise.
    """
    layers = adapted_layers(spec, base.layers)
    pattern = re.compile(layer_pattern(base.architecture, layers) + r"(.*)\.bias")
    family = family_of(base.architecture)
    keys = "" if family.has(Rotary) else family.linears["k"]
    state: AdapterState = {}
    for name in sorted(weights.names):
        match = pattern.fullmatch(name)
        if match and match[1] != keys:
            state[PREFIX + name] = weights.vector(name)
    if not state:
        raise AdapterError(f"adapter bias: the layers of a {base.architecture} have no biases")
    return state


def _initial_head(
    linears: Mapping[str, tuple[str, str]],
    hidden: int,
    num_labels: int,
    generator: np.random.Generator,
) -> AdapterState:
    sizes = {"hidden": hidden, "labels": num_labels}
    state: AdapterState = {}
    for name, (rows, columns) in linears.items():
        draw = generator.normal(0.0, 0.02, (sizes[rows], sizes[columns]))
        state[f"{PREFIX}{name}.weight"] = draw.astype(np.float32)
        state[f"{PREFIX}{name}.bias"] = np.zeros(sizes[rows], np.float32)
    return state


def first_adapter(
    base: Base, spec: AdapterSpec, task: Task, prompt_init: str, seed: int, longest: int
) -> AdapterState:
    """The adapter a run starts from.

    Args:
        base: The frozen base.
        spec: The adapter.
        task: Its label words must be known to the base, unless a head is trained, and its
            patterns leave room for a text.
        prompt_init: Text a soft prompt starts from; empty for random words.
        seed: The run's root seed.
        longest: Longest input in tokens.

    Raises:
        AdapterError: The adapter does not fit the base.
        TaskError: A label word is unknown to the base's tokenizer, or a pattern too long.
    """
    tokens = open_tokens(base)
    prompt_ids, draw = tokens.encode(prompt_init), derive_seed(seed, "adapter")
    check_asked(spec, task, base)
    head = kind_of(task).head(task)
    state = initial_adapter(spec, base, head.rows, draw, prompt_ids, is_of_words=head.is_of_words)
    if head.answers == "label words" and not spec.head:
        tokens.label_word_ids(task)
    Encoder(tokens, task, not spec.head, min(longest, base.shape.positions - spec.prompt_tokens))
    return state


def most_bytes(spec: AdapterSpec, base: Base, task: Task) -> int:
    """The longest file of a run's adapter, or of a state with its tensors, that can be right.

    Four bytes for each number, and what names and shapes take; whatever a coordinator says.

    Args:
        spec: The adapter.
        base: The frozen base.
        task: Says what a head tells apart.

    Raises:
        AdapterError: The base has no such adapter.
    """
    head = kind_of(task).head(task)
    state = initial_adapter(spec, base, head.rows, seed=0, is_of_words=head.is_of_words)
    return 4096 + sum(one.nbytes + len(name) + 128 for name, one in state.items())


def takes_net(spec: AdapterSpec, kind: TaskKind) -> bool:
    """Whether a net of this spec learns from texts of a kind: rates go by labels."""
    return kind.is_one_label or (kind.is_causal and spec.net == "generator")


def check_asked(spec: AdapterSpec, task: Task, base: Base) -> None:
    """Refuse a base or an adapter that cannot answer what a task asks.

    Raises:
        AdapterError: Says which can.
    """
    name, kind = str(spec), kind_of(task)
    head, is_decoder = kind.head(task), base.shape.is_decoder
    if spec.ridge:
        is_fit = kind.is_one_label and not task.ensemble
        said = f"adapter {name}: ridge regression is for tasks with one label per text, without "
        demand(is_fit, f"{said}`ensemble`; leave +ridge out for task {task.name!r}", AdapterError)
        wide = base.hidden + len(task.labels)
        said = f"adapter {name}: base {base.name} and task {task.name!r} have {wide} numbers of a "
        said += f"state and its label, ridge regression takes {WIDEST} at most; leave +ridge out"
        demand(wide <= WIDEST, said, AdapterError)
    if head.answers != "label words" and kind.is_causal != is_decoder:
        has, asked = ("causal", "masked") if is_decoder else ("masked", "causal")
        such = "roberta" if is_decoder else "llama"
        raise AdapterError(
            f"base {base.name} is a {has} language model ({base.architecture}); a task of kind "
            f"{task.kind} is asked of a {asked} one, such as {such}"
        )
    instead = str(replace(spec, head=False)) or "lora:8"
    if is_decoder and spec.head and head.can_train:
        raise AdapterError(
            f"adapter {name}: base {base.name} is a causal language model ({base.architecture}), "
            f"which has no classifier here and answers by label words; take {instead}"
        )
    if head.answers is None and not spec.head:
        more = "" if spec.net else f"; {name}+head does"
        what = "tags words, which " if head.is_of_words else ""
        raise AdapterError(f"adapter {name}: task {task.name!r} {what}needs a head{more}")
    if not head.can_train and spec.head:
        raise AdapterError(
            f"adapter {name}: task {task.name!r} asks for {kind.measure.asked}, which the base's "
            f"own head answers; take {instead}"
        )
    if not spec.head and not base.has_head:
        instead = "another base" if not head.can_train else f"{name}+head, or another base"
        raise AdapterError(
            f"adapter {name}: base {base.name} cannot answer by words, since its checkpoint has no "
            f"language-model head{family_of(base.architecture).headless}; take {instead}"
        )
    if spec.net and not takes_net(spec, kind):
        raise AdapterError(
            f"adapter {name}: +{spec.net} is for tasks of labels, +generator also for those of "
            f"causal language models; task {task.name!r} is of kind {kind.name}"
        )


def fitting(
    folder: Path, spec: AdapterSpec, base: Base, task: Task, state: AdapterState
) -> AdapterState:
    """The tensors in our order.

    Args:
        folder: Where they come from, for messages.
        spec: The adapter.
        base: The base it is for.
        task: What it is to answer: says what a head reads, and tells apart.
        state: The tensors.

    Raises:
        AdapterError: It cannot answer such a task, or one of them is missing, of another shape, or
            has no place in the base.
    """
    check_asked(spec, task, base)
    head = kind_of(task).head(task)
    like = initial_adapter(spec, base, head.rows, 0, is_of_words=head.is_of_words)
    wanted = {name: tensor.shape for name, tensor in like.items()}
    for name, shape in wanted.items():
        if name not in state:
            raise AdapterError(f"{folder}: no tensor {name}, which base {base.name} wants")
        if state[name].shape != shape:
            raise AdapterError(
                f"{folder}: {name} is {state[name].shape}, base {base.name} wants {shape}"
            )
    if extra := sorted(set(state) - set(wanted)):
        raise AdapterError(f"{folder}: tensor {extra[0]} has no place in base {base.name}")
    return {name: state[name] for name in wanted}
