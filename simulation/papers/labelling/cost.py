"""What pseudo-labels cost where texts are many and labels few: unpaced labelling, and levers.

AUG-FedPrompt's devices hold fewer than ten labelled and more than a thousand unlabelled texts, and
labelling takes up to 87.4 % of their computing. So here: 8 clients, 8 labels and 1,000 unlabelled
texts each. Unpaced, as the paper labels: before every round every client reads all its texts anew,
through all layers, and trains on a tenth of them, the surest (the paper: 100 per client). The unit
is the layer-forward, counted by the engines; beside the counts stands FeS's own cost model of a
TX2, which is a formula.
"""

import math
from dataclasses import dataclass, replace

from edge_client.adapters.spec import TARGETS
from edge_client.bases.base import open_base
from edge_client.wire.labelling import Labelling
from simulation.experiments.experiment import Experiment, ExperimentError
from simulation.papers.few_shot.setting import experiment, size_of
from simulation.papers.labelling.cost_table import UNPACED
from simulation.papers.published.aug_fedprompt import LABELS
from simulation.papers.scenario import Cell, Scenario

TOGETHER = "all together"
COLUMN = "even labels"
CLIENTS, TEXTS = 8, 8200  # 1,013 unlabelled texts each
GATE_TEXTS, TEST_TEXTS = 32, 600
TOKENS = 32  # what layer-forwards are counted in does not depend on how long texts are
CACHE_BYTES = 1 << 30
FEW_ROUNDS, ROUNDS = 6, 12

EVERYTHING = Labelling(
    keep_first=0.1,
    keep_last=0.1,
    compute_share=1.0,
    early_exit=False,
    stops_when_found=False,
    hardly_moved=0.0,
)


@dataclass(frozen=True)
class Way:
    """How the clients of a row label and train.

    Attributes:
        labelling: How they label; None: nobody does.
        is_top: Whether the top layers alone are trained, and what those below give is kept.
        samples: Texts that each trains on in a round, drawn; 0: all that it is sure of.
        batch: Texts in one step of training.
        rounds: Rounds.
    """

    labelling: Labelling | None
    is_top: bool = False
    samples: int = 0
    batch: int = 4
    rounds: int = ROUNDS


SPARING = Labelling(
    infer_every=2,
    keep_first=0.02,
    keep_last=0.05,
    read_share=0.08,
    known_first=True,
    compute_share=1.0,
    early_exit=False,
    stops_when_found=False,
)
PACED = Way(SPARING, is_top=True, samples=24, batch=2)
# Chosen first, on dev texts of two seeds: whatever is sure once is kept and not read again.
HASTY = replace(
    SPARING,
    read_share=0.02,
    known_first=False,
    early_exit=True,
    stops_when_found=True,
    settled_after=1,
)


WAYS = {
    UNPACED: Way(EVERYTHING, rounds=FEW_ROUNDS),
    "no pseudo-labels": Way(None),
    TOGETHER: PACED,
    "labels at most a quarter": replace(
        PACED, labelling=replace(SPARING, infer_every=4), samples=80
    ),
    "settled at first sight": replace(PACED, labelling=HASTY),
    "all but cached lower layers": replace(PACED, is_top=False),
    "all but known texts first": replace(PACED, labelling=replace(SPARING, known_first=False)),
    "all but k: a tenth": replace(PACED, labelling=replace(SPARING, keep_first=0.1, keep_last=0.1)),
    "all but a sample to train on": replace(PACED, samples=0),
}
QUICK = (UNPACED, TOGETHER)


def cost(base: str, dataset: str, adapter: str, quick: bool) -> Scenario:
    """Unpaced labelling, all levers together, and all but one; `quick`: the first two.

    Raises:
        ExperimentError: The adapter is not one of all layers that has a form for the top ones.
    """
    if not adapter.startswith(("lora:", "bias")) or "/" in adapter:
        raise ExperimentError(f"--adapter {adapter}: lora:R or bias is expected, of all layers")
    wide = adapter if adapter == "bias" else f"{adapter.split('@')[0]}@{','.join(TARGETS)}"
    top = f"{wide}/top{math.ceil(open_base(base).layers / 4)}"
    cells = [
        Cell(row, COLUMN, _experiment(base, dataset, top if way.is_top else adapter, way, quick))
        for row, way in WAYS.items()
        if row in QUICK or not quick
    ]
    title = (
        f"Cost of pseudo-labels on {dataset}: accuracy in % at the end; {CLIENTS} clients of a "
        f"thousand unlabelled texts each, {LABELS[dataset]} labels on all of them together"
    )
    notes = (
        f"{UNPACED}: every client reads all its texts before every round, through all layers, and "
        "trains on a tenth of them, the surest",
        f"cached lower layers: adapter {top}; what lies below is computed once per text and kept",
        "known texts first: a pool of 8 % of a client's texts is read again by every new adapter",
        "labels at most a quarter: they are looked for before every 4th round, and 80 texts are "
        "trained on; settled at first sight: 2 % are read, new ones first, until k labels are "
        "sure, and what was sure once is not read again",
        f"{UNPACED} runs for {_rounds(FEW_ROUNDS, quick)} rounds, the others for "
        f"{_rounds(ROUNDS, quick)}; where --rounds is given, all run for as many as it says",
    )
    return Scenario("aug-fedprompt cost", title, tuple(cells), notes)


def _experiment(base: str, dataset: str, adapter: str, way: Way, quick: bool) -> Experiment:
    """A row's experiment."""
    said = experiment(base, dataset, adapter, size_of(quick), labelling=way.labelling)
    texts = TEXTS // 8 if quick else TEXTS
    training = replace(
        said.training, epochs=1, tokens=TOKENS, batch=way.batch, least_samples=way.samples
    )
    return replace(
        said,
        deal=replace(said.deal, clients=CLIENTS, labelled_clients=CLIENTS),
        training=training,
        rounds=_rounds(way.rounds, quick),
        evaluate_every=1,
        train_texts=texts,
        test_texts=TEST_TEXTS // 2 if quick else TEST_TEXTS,
        cache_bytes=CACHE_BYTES if way.is_top else 0,
        gate_texts=GATE_TEXTS,
    )


def _rounds(rounds: int, quick: bool) -> int:
    return rounds // 2 if quick else rounds
