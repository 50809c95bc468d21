"""FedP2EFT's experiments: every language adapts for itself, by ranks of one's own or even ones.

Lee et al., AAAI 2026 (arXiv:2502.04387). Every language of MasakhaNEWS is one client; it starts
from the base, chooses its ranks by a method, trains them on its own texts and is judged by its own
test texts. The generator is trained federated before that, once for all rank budgets.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from edge_client.personal.way import Method
from edge_client.wire.training import Training
from simulation.datasets.dataset import XNLI_LANGUAGES
from simulation.experiments.experiment import Experiment
from simulation.experiments.personal.settings import GUIDED, Personal
from simulation.papers.multilingual.setting import MANY
from simulation.papers.paired import rows_apart
from simulation.papers.published.fedp2eft import SEEN, UNSEEN, WITH_FEDDPA
from simulation.papers.published.figure import Figure, Table
from simulation.papers.scenario import Cell, Name, Scenario
from simulation.population.deal import Deal

NAMES = ("masakhanews", "unseen", "budgets", "xnli")
RANK, BANK = 2, 16
BUDGETS, QUICK_BUDGETS = (1, 2, 4, 8, 16), (1, 4)
GROUPS, QUICK_GROUPS = 4, 2
BELOW = "lora:8"  # what all train together, of FedDPA-T
STAGES, ROUNDS_ABOVE = 4, 8
QUICK_XNLI = ("en", "es", "ur")
QUICK_LANGUAGES = ("eng", "hau", "orm", "tir")
TEXTS, QUICK_TEXTS = 100, 40
TESTS, QUICK_TESTS = 200, 40
EPOCHS, QUICK_EPOCHS = 8, 2
ROUNDS, QUICK_ROUNDS = 20, 2
NETS: dict[Method, str] = {
    "fedp2eft": "lora:16@q,k,v,o,up,down+generator",
    "fedl2p": "lora:{rank}@q,k,v,o,up,down+rates",
}
BASE, SHARED, PLAIN, OURS = "base alone", "shared alone", "LoRA", "FedP²EFT"
BY_OUTPUT, HEAD = "BT-LoRA by output", "own head"  # which are not the paper's
LEVEL = f"{OURS}, ranks alone"  # its lambdas choose ranks, and do not scale them
ROWS: dict[str, Method] = {
    PLAIN: "lora",
    "uniform ranks": "uniform",
    "random ranks": "random",
    "AdaLoRA": "adalora",
    "BT-LoRA": "bt-lora",
    BY_OUTPUT: "bt-lora",
    HEAD: "head",
    "FedL2P": "fedl2p",
    OURS: "fedp2eft",
    LEVEL: "fedp2eft",
}
LR = 5e-3  # of the training with the ranks that are kept, by every method, where nobody says
# Of a bank's A and B where lambdas are learned. At 5e-3 all lambdas rise alike, most where a module
# has most outputs, and every rank that is kept is of `up`.
SEARCH_LR = 1e-4
COLUMN = "mean of languages"
MINE = (
    "published: the base and its learning rate are not in the summary; ours: the base, texts and "
    "languages named here; read differences between rows, not levels"
)


def scenario(
    name: str, base: str, quick: bool, rank: int, methods: Sequence[str] = (), lr: float = LR
) -> Scenario:
    """One of the paper's experiments.

    Args:
        name: One of `NAMES`.
        base: `embedded`, a folder or a hub name.
        quick: Fewer languages, texts, rounds and methods.
        rank: R of `masakhanews` and `unseen`: kept ranks are R x modules.
        methods: Rows beside LoRA, of `ROWS`; none means all.
        lr: Learning rate of the training with the ranks that are kept, by every method.
    """
    makers: dict[str, Callable[[str, bool, int, float], Scenario]] = {
        "masakhanews": masakhanews,
        "unseen": unseen,
        "budgets": budgets,
        "xnli": xnli,
    }
    found = makers[name](base, quick, rank, lr)
    asked = {BASE, SHARED, PLAIN, *(methods or ROWS)}
    return replace(found, cells=tuple(cell for cell in found.cells if cell.row in asked))


def masakhanews(base: str, quick: bool, rank: int, lr: float) -> Scenario:
    """Every language of MasakhaNEWS that lies here, by every method; all took part in rounds."""
    as_it_is = replace(experiment(base, PLAIN, quick, rank, lr), personal=None)
    cells = [Cell(BASE, COLUMN, as_it_is, of_languages=True)]
    cells += [cell(row, COLUMN, experiment(base, row, quick, rank, lr), SEEN) for row in ROWS]
    title = f"MasakhaNEWS, seen clients, R = {rank}: accuracy in %"
    told, pairs = notes(quick, lr), _apart(cells)
    return Scenario("fedp2eft masakhanews", title, tuple(cells), told, SEEN.source, pairs)


def unseen(base: str, quick: bool, rank: int, lr: float) -> Scenario:
    """The same where nobody's generator has seen its language."""
    groups = QUICK_GROUPS if quick else GROUPS
    chosen = [row for row, method in ROWS.items() if method in ("lora", *GUIDED)]
    cells = [
        cell(row, COLUMN, experiment(base, row, quick, rank, lr, groups), UNSEEN) for row in chosen
    ]
    title = f"MasakhaNEWS, clients that took no part in rounds, R = {rank}: accuracy in %"
    more = f"{groups} groups of languages, drawn once; each is judged by what the others trained"
    told = (*notes(quick, lr), more)
    return Scenario("fedp2eft unseen", title, tuple(cells), told, UNSEEN.source, _apart(cells))


def budgets(base: str, quick: bool, rank: int, lr: float) -> Scenario:
    """One generator for all rank budgets, beside plain LoRA of each."""
    chosen = [row for row, method in ROWS.items() if method in ("lora", "fedp2eft")]
    cells = [
        cell(row, f"R = {budget}", experiment(base, row, quick, budget, lr))
        for row in chosen
        for budget in (QUICK_BUDGETS if quick else BUDGETS)
    ]
    title = "MasakhaNEWS, seen clients, by rank budget: accuracy in %"
    told, pairs = notes(quick, lr), _apart(cells)
    return Scenario("fedp2eft budgets", title, tuple(cells), told, pairs=pairs)


def xnli(base: str, quick: bool, rank: int, lr: float) -> Scenario:
    """XNLI on top of FedDPA-T: what each language trains lies above a shared adapter of all."""
    rounds, stages = (QUICK_ROUNDS, QUICK_ROUNDS) if quick else (ROUNDS_ABOVE, STAGES)
    languages = QUICK_XNLI if quick else XNLI_LANGUAGES
    cells = []
    for row in (SHARED, PLAIN, HEAD, "FedL2P", OURS, LEVEL):
        usual = experiment(base, PLAIN if row == SHARED else row, quick, rank, lr)
        own = usual.personal
        above = replace(own, above=BELOW, stages=stages) if own and row != SHARED else None
        asked = replace(
            usual,
            dataset="xnli",
            languages=languages,
            adapter=BELOW if row == SHARED else usual.adapter,
            rounds=rounds,
            personal=above,
        )
        cells.append(cell(row, COLUMN, asked, WITH_FEDDPA))
    title = f"XNLI above a shared {BELOW}, R = {rank}: accuracy in %; chance 33.3"
    more = (
        f"the shared one: {rounds} rounds of all languages, one pass each; each language's own is "
        f"trained in {stages} parts above it as it then was, and never sent",
        "nets are trained by the base alone, in as many rounds",
        "trained and judged on rows of XNLI's dev set that share no premise; the rest is not here",
    )
    told = (*notes(quick, lr), *more)
    return Scenario("fedp2eft xnli", title, tuple(cells), told, WITH_FEDDPA.source, _apart(cells))


def _apart(cells: Sequence[Cell]) -> tuple[tuple[Name, Name], ...]:
    """Every method less plain LoRA."""
    methods = [row for row in ROWS if row != PLAIN]
    return rows_apart(cells, *((row, PLAIN) for row in methods))


def cell(row: str, column: str, asked: Experiment, table: Table | None = None) -> Cell:
    """A method, with the paper's figures by language where it has them."""
    published = printed(table, row) if table else {}
    return Cell(row, column, asked, of_languages=True, published_by_language=published)


def printed(table: Table, row: str) -> dict[str, Figure]:
    """The paper's figures for one of our rows, by language; empty if it has none."""
    if row not in table.columns:
        return {}
    found = {language: table.at(language, row) for language in table.rows}
    return {language: figure for language, figure in found.items() if figure is not None}


def experiment(
    base: str, row: str, quick: bool, rank: int, lr: float = LR, groups: int = 0
) -> Experiment:
    """One method.

    Args:
        base: `embedded`, a folder or a hub name.
        row: Of `ROWS`: how every client adapts.
        quick: Fewer languages, texts and rounds.
        rank: R.
        lr: Learning rate of the training with the ranks that are kept.
        groups: Groups of languages that are left out of rounds in turn; 0: none is.
    """
    method = ROWS[row]
    is_guided, is_ours = method in GUIDED, method == "fedp2eft"
    rounds = QUICK_ROUNDS if quick else ROUNDS
    return Experiment(
        "fedp2eft",
        "masakhanews",
        languages=QUICK_LANGUAGES if quick else MANY,
        base=base,
        adapter=NETS.get(method, "lora:1").format(rank=rank),  # without rounds it says nothing
        deal=Deal(by="language", clients=0),
        training=Training(epochs=1, batch=8, lr=SEARCH_LR if is_ours else lr, tokens=64),
        rounds=rounds if is_guided else 0,
        evaluate_every=0,
        personal=Personal(
            method,
            rank_budget=rank,
            bank=BANK,
            lr=lr,
            epochs=QUICK_EPOCHS if quick else EPOCHS,
            search_lr=SEARCH_LR,
            level=row == LEVEL,
            by_output=row == BY_OUTPUT,
            groups=groups if is_guided else 0,
        ),
        train_texts=QUICK_TEXTS if quick else TEXTS,
        test_texts=QUICK_TESTS if quick else TESTS,
    )


def notes(quick: bool, lr: float) -> tuple[str, ...]:
    """How this differs from the paper."""
    texts, epochs = (QUICK_TEXTS, QUICK_EPOCHS) if quick else (TEXTS, EPOCHS)
    found = [
        MINE,
        f"{texts} labelled texts of each language, 64 tokens of each, asked by cloze; {epochs} "
        "passes over them with the kept ranks, by every method",
        f"learning rate {lr:g} for every method; {SEARCH_LR:g} of a bank whose lambdas are learned",
    ]
    if quick:
        found.append("--quick: fewer languages, rounds, texts and test texts")
    return tuple(found)
