"""Texts written by a causal language model with an adapter, token by token, without torch."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Annotated, Literal

from msgspec import Meta

from smidgen.edge_client.adapters.spec import AdapterError
from smidgen.edge_client.api.labeller import (
    Asked,
    Place,
    Tell,
    adapter_and_task,
    adapter_or_own,
    check_adapter,
    place_or_none,
)
from smidgen.edge_client.api.predict import found_texts
from smidgen.edge_client.bases.base import EMBEDDED, Base, BaseName, open_base
from smidgen.edge_client.bases.tokenizer import open_tokens
from smidgen.edge_client.engine.generation import Network, Sampling, generated, room_needed
from smidgen.edge_client.engine.opening import load_engine
from smidgen.edge_client.errors import demand
from smidgen.edge_client.planning.allocator import resident_bytes, trim
from smidgen.edge_client.planning.plan import (
    AUTO,
    BudgetError,
    auto_budget,
    parse_budget,
    size_text,
)
from smidgen.edge_client.planning.resources import read_facts
from smidgen.edge_client.tables import size
from smidgen.edge_client.tasks.kind import kind_of
from smidgen.edge_client.tasks.ready_tasks import CONVERSATION
from smidgen.edge_client.texts.prompts.patterns import TaskError
from smidgen.edge_client.texts.tokens import Tokens
from smidgen.edge_client.wire.tensors import Seed

HALF = "\ufffd"  # what the first bytes of a letter decode to


@dataclass(frozen=True)
class GeneratedText:
    """What a model wrote.

    Attributes:
        text: Without the words that ended it.
        tokens: How many tokens it has.
        ended_by: `end`: the model's own end of a text or an answer; `stop`: a stop word; `length`:
            as many tokens as were asked for.
    """

    text: str
    tokens: int
    ended_by: Literal["end", "stop", "length"]


def generate(
    texts: Iterable[str],
    adapter: Place | None = None,
    *,
    personal: Place | None = None,
    task: Asked | None = None,
    base: BaseName = EMBEDDED,
    memory_budget: str = AUTO,
    new_tokens: Annotated[int, Meta(ge=1, le=1_000_000)] = 256,
    temperature: float = 0.0,
    top_p: float = 1.0,
    stop: Sequence[str] = (),
    seed: Seed = 0,
    tell: Tell = lambda line: None,
    on_piece: Callable[[int, str], None] = lambda number, piece: None,
) -> list[GeneratedText]:
    """Answer or continue texts with a causal language model and an adapter of it.

        smidgen.generate(["dim the light"], "adapter", base="model.gguf")[0].text

    A text is a user's message of a task of kind `chat`, which the base's own template frames; of
    one of kind `completion` it is gone on with.

    Args:
        texts: The texts.
        adapter: Exported adapter folder, or one saved by PEFT itself; default: the base alone.
        personal: State folder of a client instead: uses its personal or its shared adapter,
            whichever has the lower perplexity on its test texts.
        task: A task of kind `chat` or `completion`; an exported adapter has its own. The default is
            `chat`.
        base: Base model: folder, hub name or GGUF file.
        memory_budget: Memory limit, such as `512M` or `1.5G`; `auto`: 60 % of what is available.
            Weights that do not fit dense are unpacked again for each token.
        new_tokens: Maximum tokens of an answer; fewer if the base's context is full.
        temperature: Sampling temperature; 0: always take the most likely token.
        top_p: Sample only from the most likely tokens that together have this probability.
        stop: Words that end an answer; they are not part of it.
        seed: Random seed; equal seeds draw equal tokens.
        tell: Told, in a line, how fast it will be.
        on_piece: Told the number of a text, from 1, and each piece of its answer as it comes.

    Raises:
        WrongInput: An empty text, one that is as long as the base reads, no such adapter, one of
            another base or for something else, or a budget that is too small.
        Failed: The engine could not do it.
    """
    sampling = Sampling(temperature, top_p, seed)
    demand(all(stop), "--stop: a word is expected, came an empty one")
    asked, budget = found_texts(texts, has_pairs=False), parse_budget(memory_budget)
    folder = adapter_or_own(place_or_none(adapter), place_or_none(personal))
    check_adapter(folder)
    opened = open_base(str(base))
    own = task if task or folder else CONVERSATION
    chosen, spec, state = adapter_and_task(folder, own, opened)
    kind = kind_of(chosen)
    demand(
        kind.is_causal,
        f"smidgen.generate is not for {chosen.name!r}, a task of kind {kind.name}: take "
        f"{kind.function}",
        AdapterError,
    )
    demand(
        opened.shape.is_decoder,
        f"base {opened.name} is a masked language model ({opened.architecture}), which writes no "
        "texts from left to right; a causal one, such as a llama, is expected",
        TaskError,
    )
    tokens = open_tokens(opened)
    ends = kind.ends(tokens)
    begun = [kind.begun(tokens, one.example.text) for one in asked if one.example]
    room, found = opened.shape.positions - spec.prompt_tokens, list[GeneratedText]()
    for number, ids in enumerate(begun, start=1):
        _check_length(number, len(ids), room, opened)
    if not begun:
        return found
    with closing(load_engine("onnx").open_network(opened, spec, state or {}, None)) as network:
        _hold(network, min(max(map(len, begun)) + new_tokens, room), budget, tell)
        for number, ids in enumerate(begun, start=1):
            most = min(new_tokens, room - len(ids))
            written = generated(network, ids, sampling, most, ends)
            found.append(_written(tokens, written, most, stop, partial(on_piece, number)))
    return found


def _check_length(number: int, tokens: int, room: int, base: Base) -> None:
    demand(tokens > 0, f"text {number} has no token of base {base.name}'s tokenizer", TaskError)
    demand(
        tokens < room,
        f"text {number} has {tokens} tokens; base {base.name} reads {room}, its own answer "
        "included: shorten the text",
        TaskError,
    )


def _hold(network: Network, tokens: int, budget_bytes: int | None, tell: Tell) -> None:
    """Hold as many weights dense as the budget allows.

    Raises:
        BudgetError: It does not allow one matrix at a time.
    """
    trim()
    allowed = (
        auto_budget(read_facts(runtime=0).available_bytes) if budget_bytes is None else budget_bytes
    )
    needed = resident_bytes() + room_needed(network.shape, tokens, network.spec.prompt_tokens)
    if allowed < needed:
        raise BudgetError(
            f"--memory-budget {size_text(allowed)}: {tokens} tokens by this base need "
            f"{size_text(needed)} at least; give more, or fewer --new-tokens"
        )
    began_s = monotonic()
    share = network.keep_dense(allowed - needed)
    took_s = monotonic() - began_s
    if share < 1.0:
        rest_s = took_s / share * (1 - share) if share else None
        each = f"about {rest_s:.1f} s" if rest_s is not None else "long"
        tell(
            f"{share:.0%} of the weights are held dense within {size(allowed)}; the rest is made "
            f"dense anew for each token, which takes {each}: give more --memory-budget"
        )


def _written(
    tokens: Tokens, ids: Iterator[int], most: int, stop: Sequence[str], on_piece: Tell
) -> GeneratedText:
    """A text of tokens, told as they come; the beginning of a stop word is held back.

    Law: the pieces told, one behind the other, are the text.
    """
    found, told, text = list[int](), 0, ""
    held = max(map(len, stop), default=1) - 1
    for id_ in ids:
        found.append(id_)
        text = tokens.text_of(found)
        ends = [place for word in stop if (place := text.find(word)) >= 0]
        if ends:
            on_piece(text[told : min(ends)])
            return GeneratedText(text[: min(ends)], len(found), "stop")
        ready = len(text.rstrip(HALF)) - held
        if ready > told:
            on_piece(text[told:ready])
            told = ready
    on_piece(text[told:])
    return GeneratedText(text, len(found), "end" if len(found) < most else "length")
