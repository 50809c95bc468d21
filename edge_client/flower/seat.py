"""One device's part in rounds led by another framework's server: adapters in, adapters out.

Adapters have PEFT's own tensor names; training, memory budget and texts are a smidgen device's.
Transport is the caller's.

    seat = Seat(SeatSettings("texts", "512M"), SeatRecipe(adapter="lora:8@q,v"))
    with closing(seat):
        turn = seat.train(adapter, round_index=1, seed=0)
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from smidgen.edge_client.adapters.initial import first_adapter
from smidgen.edge_client.adapters.peft_folder import adapter_state, peft_state
from smidgen.edge_client.adapters.spec import AdapterError, has_peft_form, parse_adapter
from smidgen.edge_client.api.labeller import place, task_for
from smidgen.edge_client.api.plan import ADAPTER
from smidgen.edge_client.api.train import labelled_texts
from smidgen.edge_client.bases.base import EMBEDDED, open_base
from smidgen.edge_client.engine.budgeted import open_within
from smidgen.edge_client.engine.scoring import evaluate
from smidgen.edge_client.engine.trainer import train
from smidgen.edge_client.errors import demand
from smidgen.edge_client.formats.source import Dialect
from smidgen.edge_client.planning.plan import AUTO, parse_budget
from smidgen.edge_client.tasks.scores import Evaluation
from smidgen.edge_client.wire.tensors import AdapterState, derive_seed, shapes_of
from smidgen.edge_client.wire.training import Training

# PEFT's names while a model holds an adapter, `lora_A.default.weight`, and as it saves them.
HELD = re.compile(r"(?:\.modules_to_save)?\.default(?=\.(?:weight|bias)$)")


@dataclass(frozen=True)
class SeatSettings:
    """What a device says of itself; no server changes it.

    Attributes:
        texts: Folder with labelled.csv, test.csv ... as `smidgen client train` reads it.
        memory_budget: Such as `512M`; `auto`: 60 % of what is available now.
        engine: `auto`, `torch` or `onnx`.
    """

    texts: str
    memory_budget: str = AUTO
    engine: str = AUTO


@dataclass(frozen=True)
class SeatRecipe:
    """What a federation says, the same to all its devices.

    Attributes:
        adapter: The adapter whose tensors travel, such as `lora:8@q,v`.
        base: Base model: folder, GGUF file, hub name or `embedded`.
        task: Name of a ready-made task or a file; empty: the task.toml beside the texts.
        training: How a round is trained.
    """

    adapter: str = ADAPTER
    base: str = EMBEDDED
    task: str = ""
    training: Training = field(default_factory=Training)


@dataclass(frozen=True)
class Turn:
    """What a device gives back of a round.

    Attributes:
        adapter: Every tensor that came, trained; under the names with which it came.
        num_examples: Its weight in a mean.
        loss: Mean cross-entropy over the last pass, in nats.
    """

    adapter: AdapterState
    num_examples: int
    loss: float


class Seat:
    """A device's texts and an engine within its budget, for adapters that come from elsewhere.

    Args:
        own: The device.
        recipe: The federation.

    Raises:
        WrongInput: Texts, task, base or adapter do not fit, or no plan fits the budget.
    """

    def __init__(self, own: SeatSettings, recipe: SeatRecipe) -> None:
        self._recipe, self._spec = recipe, parse_adapter(recipe.adapter)
        texts = place(own.texts)
        demand(texts.exists(), f"texts={own.texts}: there is no such folder or file")
        self._base, task = open_base(recipe.base), task_for(recipe.task, texts)
        has_form = has_peft_form(self._spec, task) and not self._spec.net
        demand(has_form, f"adapter {self._spec}: PEFT has no form for it", AdapterError)
        demand(
            not (self._spec.form or self._spec.ridge),
            f"adapter {self._spec}: only smidgen's coordinator has rounds that differ",
            AdapterError,
        )
        self._texts = labelled_texts(texts, task, Dialect())
        tokens = recipe.training.tokens
        self._first = first_adapter(self._base, self._spec, task, "", 0, tokens)
        budget, known = parse_budget(own.memory_budget), (self._base, task, self._spec)
        self._engine = open_within(own.engine, *known, recipe.training, budget)

    def close(self) -> None:
        self._engine.close()

    def train(self, adapter: Mapping[str, np.ndarray], round_index: int, seed: int) -> Turn:
        """Train an adapter on this device's texts.

        Args:
            adapter: PEFT's tensors.
            round_index: The server's round, which draws the order of the texts.
            seed: Of this device.

        Raises:
            AdapterError: Not the tensors of the recipe's adapter.
            TrainingError: The loss is no longer finite.
        """
        self._engine.load_adapter(self._ours(adapter))
        drawn = derive_seed(seed, "train", "seat", round_index)
        trained = train(self._engine, self._texts.labelled, self._recipe.training, drawn)
        after = peft_state(self._spec, self._base.architecture, self._engine.adapter())
        back = {name: after[saved(name)].astype(kind.dtype) for name, kind in adapter.items()}
        self._engine.end_round()
        return Turn(back, trained.num_examples, trained.loss)

    def evaluate(self, adapter: Mapping[str, np.ndarray]) -> Evaluation:
        """How an adapter does on this device's test texts.

        Raises:
            AdapterError: Not the tensors of the recipe's adapter.
            TrainingError: No test texts.
        """
        self._engine.load_adapter(self._ours(adapter))
        return evaluate(self._engine, self._texts.test)

    def _ours(self, adapter: Mapping[str, np.ndarray]) -> AdapterState:
        """The adapter under our names."""
        plain = {saved(name): np.asarray(one, np.float32) for name, one in adapter.items()}
        wanted = shapes_of(peft_state(self._spec, self._base.architecture, self._first))
        odd = sorted(wanted.items() ^ shapes_of(plain).items())
        if odd:
            name = odd[0][0]
            raise AdapterError(
                f"adapter {self._spec}: {len(wanted)} tensors expected, {len(plain)} came; of "
                f"{name} shape {wanted.get(name)} is expected, {shapes_of(plain).get(name)} came"
            )
        return adapter_state(self._spec, plain)


def saved(name: str) -> str:
    """The name under which PEFT saves a tensor that a model holds; a saved one's stays.

    Law: `saved(saved(name)) == saved(name)`.
    """
    return HELD.sub("", name)
