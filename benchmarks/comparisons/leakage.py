"""What an adapter, and one device's update, tell of the texts behind them.

Members: the attacker ranks texts by how low their loss is (Yeom et al. 2018, arXiv:1709.01604); by
how far it fell from the base's (Watson et al. 2022, arXiv:2111.08440); and by how likely it is by
adapters of its own, trained in the same way on halves of the same pool, with and without the text
(LiRA, Carlini et al. 2022, arXiv:2112.03570, with few shadows and one variance).

Canaries: texts of random words with random labels, of which half are trained on; nothing but memory
tells the halves apart. Exposure is log2 of how many there are, less log2 of a canary's rank by its
fall among those that were not trained on (Carlini et al. 2019, arXiv:1802.08232); 1.3 bits by
chance.

Updates: a coordinator that holds ten times as many candidates as a device has texts, or as its text
has words, takes those whose gradients point most where the update goes; chance finds a tenth. A sum
of eight devices' updates, all that secure aggregation shows, is an update of eight texts.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from smidgen.coordinator.rounds.accounting import gaussian_multiplier
from smidgen.coordinator.rounds.bounds import norm_of
from smidgen.edge_client.adapters.initial import first_adapter
from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import open_base
from smidgen.edge_client.engine.engine import Engine
from smidgen.edge_client.engine.opening import open_engine
from smidgen.edge_client.engine.trainer import train
from smidgen.edge_client.errors import demand
from smidgen.edge_client.planning.plan import AUTO
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.updates.privacy import ClippedTexts
from smidgen.edge_client.updates.step import Correction
from smidgen.edge_client.wire.tensors import AdapterState, derive_seed
from smidgen.edge_client.wire.training import Training
from smidgen.simulation.datasets.dataset import DataSet
from smidgen.simulation.experiments.virtual.full_backend import open_full

CANARIES = 64  # half of them trained on
CANDIDATES = 10  # for each text of a device, or word of a text
SHADOWS = 4  # adapters that the attacker trains, in pairs of a half and the other
TRIALS = 10  # devices whose update is attacked


@dataclass(frozen=True)
class Attacked:
    """What is trained, and how.

    Attributes:
        adapter: Its name, or `full`.
        training: Over the members.
        texts: Members, and as many others.
        epsilon: Of each text by DP-SGD; 0: without.
        clip: Of each text's gradient.
        delta: Beside epsilon.
        seed: Draws texts, canaries and their order.
    """

    adapter: str
    training: Training
    texts: int = 200
    epsilon: float = 0.0
    clip: float = 1.0
    delta: float = 1e-5
    seed: int = 0


@dataclass(frozen=True)
class Leakage:
    """What attacks found; 0.5 of an area is chance, 0.1 of texts found is.

    Attributes:
        accuracy: On texts that were not trained on.
        by_loss: Area under the curve of members beside others, by loss alone.
        members: By the fall of the loss.
        by_shadows: By adapters of the attacker's own.
        members_sure: Share of members found so where one other in a hundred is taken for one.
        canaries: Area under the curve of canaries trained on beside the others.
        exposure: Mean over canaries trained on, in bits.
        found_of_one: Share of updates of one text whose text was found.
        found_of_eight: Share of texts found by updates of eight.
        words: Share of a text's words found by its update.
    """

    accuracy: float
    by_loss: float
    members: float
    by_shadows: float
    members_sure: float
    canaries: float
    exposure: float
    found_of_one: float
    found_of_eight: float
    words: float


def attack(asked: Attacked, base_name: str, data: DataSet) -> Leakage:
    """Train once, and attack what came of it.

    Raises:
        WrongInput: Too few texts, or an adapter that the base has no room for.
    """
    rng = np.random.default_rng(derive_seed(asked.seed, "leakage"))
    least = max(2 * asked.texts, CANDIDATES * 8)
    demand(len(data.train) >= least, f"{data.name}: {least} training texts or more are expected")
    drawn = [data.train[row] for row in rng.permutation(len(data.train))[:least]]
    members, others = drawn[: asked.texts], drawn[asked.texts : 2 * asked.texts]
    canaries = _canaries(drawn, data.task.labels, rng)
    inside, outside = canaries[::2], canaries[1::2]
    engine, start = _opened(asked, base_name, data)
    every = [*members, *others, *inside, *outside]
    before = _losses(engine, every)
    correct = _correction(asked, asked.training.epochs, asked.training.batch)
    train(engine, [*members, *inside], asked.training, asked.seed, correct=correct)
    after, is_right = _losses(engine, every), engine.judge(others)[1]
    falls = np.split(before - after, np.cumsum([len(members), len(others), len(inside)]))
    pool, count = [*members, *others], len(members)
    likely = _likely(engine, start, asked, pool, after[: len(pool)], rng)
    ranks = 1 + (falls[3][:, None] > falls[2]).sum(0)
    engine.load_adapter(start)
    return Leakage(
        float(is_right.mean()),
        area(-after[:count], -after[count : len(pool)]),
        area(falls[0], falls[1]),
        area(likely[:count], likely[count:]),
        float((likely[:count] > np.quantile(likely[count:], 0.99)).mean()),
        area(falls[2], falls[3]),
        float(np.mean(math.log2(len(outside) + 1) - np.log2(ranks))),
        _found(engine, start, asked, drawn, 1, rng),
        _found(engine, start, asked, drawn, 8, rng),
        _words_found(engine, start, asked, drawn, rng),
    )


def _likely(
    engine: Engine,
    start: AdapterState,
    asked: Attacked,
    pool: Sequence[Example],
    losses: np.ndarray,
    rng: np.random.Generator,
) -> np.ndarray:
    """How much likelier each loss is of an adapter that was trained on the text, (texts,)."""
    odds, is_in = [], []
    for shadow in range(SHADOWS):
        if shadow % 2 == 0:
            chosen = rng.permutation(len(pool)) < len(pool) // 2
        is_in.append(chosen if shadow % 2 == 0 else ~chosen)
        known = replace(asked, seed=derive_seed(asked.seed, "shadow", shadow))
        correct = _correction(known, asked.training.epochs, asked.training.batch)
        engine.load_adapter(start)
        texts = [one for one, is_there in zip(pool, is_in[-1], strict=True) if is_there]
        train(engine, texts, asked.training, known.seed, correct=correct)
        odds.append(_odds(_losses(engine, pool)))
    told, member = np.array(odds), np.array(is_in)
    within, without = (
        np.where(one, told, 0.0).sum(0) / (SHADOWS // 2) for one in (member, ~member)
    )
    likely: np.ndarray = (within - without) * (_odds(losses) - (within + without) / 2.0)
    return likely


def _odds(losses: np.ndarray) -> np.ndarray:
    """The logit of the right label's probability."""
    found: np.ndarray = -losses - np.log(-np.expm1(-np.maximum(losses, 1e-12)))
    return found


def area(inside: np.ndarray, outside: np.ndarray) -> float:
    """Chance that one of the first is above one of the others, ties by half."""
    above = (inside[:, None] > outside).mean() + 0.5 * (inside[:, None] == outside).mean()
    return float(above)


def _canaries(
    texts: Sequence[Example], labels: Sequence[str], rng: np.random.Generator
) -> list[Example]:
    words = np.array([word for one in texts for word in one.text.split()])
    return [
        Example(" ".join(rng.choice(words, 12)), label=str(rng.choice(list(labels))))
        for _ in range(CANARIES)
    ]


def _opened(asked: Attacked, base_name: str, data: DataSet) -> tuple[Engine, AdapterState]:
    base, training = open_base(base_name), asked.training
    if asked.adapter == "full":
        engine = open_full(base, data.task, training, has_head=False, seed=asked.seed)
        return engine, engine.adapter()
    spec = parse_adapter(asked.adapter)
    engine = open_engine(AUTO, base, data.task, spec, training)
    start = first_adapter(base, spec, data.task, "", asked.seed, training.tokens)
    engine.load_adapter(start)
    return engine, start


def _correction(
    asked: Attacked, passes: int, batch: int
) -> Callable[[AdapterState], Correction | None] | None:
    """DP-SGD over so many passes; None without an epsilon."""
    if not asked.epsilon:
        return None
    multiplier = gaussian_multiplier(asked.epsilon, asked.delta) * math.sqrt(passes)
    secret = derive_seed(asked.seed, "noise").to_bytes(8, "big")
    return partial(Correction, rule=ClippedTexts(asked.clip, multiplier, batch, secret))


def _losses(engine: Engine, texts: Sequence[Example]) -> np.ndarray:
    return np.array([losses.mean() for losses, _ in engine.judge_each(texts)])


def _found(
    engine: Engine,
    start: AdapterState,
    asked: Attacked,
    texts: Sequence[Example],
    count: int,
    rng: np.random.Generator,
) -> float:
    """Share of a device's texts among the candidates whose gradients are nearest its update.

    It takes one step of SGD over all of its texts, from the adapter that everybody starts with.
    """
    found = []
    for trial in range(TRIALS):
        engine.load_adapter(start)
        pool = [texts[row] for row in rng.choice(len(texts), CANDIDATES * count, replace=False)]
        near = list(_nearness(engine, pool, _update(engine, pool[:count], asked, trial)))
        best = np.argsort(near)[-count:]
        found.append((best < count).mean())
    return float(np.mean(found))


def _words_found(
    engine: Engine,
    start: AdapterState,
    asked: Attacked,
    texts: Sequence[Example],
    rng: np.random.Generator,
) -> float:
    """Share of a text's words among the candidates that alone give gradients nearest its update.

    The attacker knows the label, which an update of one text tells.
    """
    known, found = sorted({word for one in texts for word in one.text.split()}), []
    for trial in range(TRIALS // 2):  # each asks for hundreds of gradients
        engine.load_adapter(start)
        mine = texts[int(rng.integers(len(texts)))]
        inside = sorted(set(mine.text.split()))
        outside = [word for word in rng.permutation(known) if word not in inside]
        words = [*inside, *outside[: (CANDIDATES - 1) * len(inside)]]
        pool = [replace(mine, text=str(word)) for word in words]
        near = list(_nearness(engine, pool, _update(engine, [mine], asked, trial)))
        found.append((np.argsort(near)[-len(inside) :] < len(inside)).mean())
    return float(np.mean(found))


def _update(engine: Engine, mine: Sequence[Example], asked: Attacked, trial: int) -> AdapterState:
    """The mean gradient that one step of SGD on a device's texts tells."""
    batch = engine.encoder.batch(engine.encoder.prompts(list(mine)))
    correct = _correction(
        replace(asked, seed=derive_seed(asked.seed, "trial", trial)), 1, len(mine)
    )
    held = engine.adapter()
    if correct is None:
        return engine.gradients(batch)[1]
    rule = correct(held)
    assert rule is not None and rule.rule is not None
    return rule.rule.gradients(len(mine), lambda text: engine.gradients(batch.some([text])), held)[
        1
    ]


def _nearness(engine: Engine, pool: Sequence[Example], update: AdapterState) -> Iterator[float]:
    """The cosine of each candidate's gradient and the update."""
    length = norm_of(update) or 1.0
    batch = engine.encoder.batch(engine.encoder.prompts(list(pool)))
    for row in range(len(pool)):
        _, own = engine.gradients(batch.some([row]))
        dot = sum(float((own[name] * one).sum()) for name, one in update.items())
        yield (
            dot
            / length
            / (math.sqrt(sum(float(np.square(one).sum()) for one in own.values())) or 1)
        )
