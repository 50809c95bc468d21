"""A published table or figure, and the scenarios that play it here.

Printed("AUG-FedPrompt", "Table 2: ...", (Entry("aug-fedprompt/table2/ag_news", piece),))
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from edge_client.errors import demand
from edge_client.tables import Table
from simulation.papers.index.kept import NOTHING, Kept
from simulation.papers.published.figure import Figure
from simulation.papers.published.figure import Table as PaperTable
from simulation.papers.report import Order, Piece

ENGLISH, SPOKEN = "--base BASE", "--multilingual-base MULTILINGUAL"
MIXTURE = "MIXTURE"
READ = f"{SPOKEN} --pretraining {MIXTURE}"  # of which `Given.mixture` takes the place


@dataclass(frozen=True)
class Given:
    """What entries are played with.

    Attributes:
        base: Of English texts.
        multilingual: Base of texts in several languages.
        bases: What is compared where bases are.
        mixture: Languages that `multilingual` was pretrained on -> their share.
        quick: One seed, less of everything.
        order: How they are played.
        kept: Results of other machines and earlier days.
    """

    base: str
    multilingual: str
    bases: tuple[str, ...]
    mixture: Mapping[str, float]
    quick: bool
    order: Order
    kept: Kept = NOTHING


@dataclass(frozen=True)
class Entry:
    """One scenario.

    Attributes:
        name: `PAPER/SCENARIO`, or `PAPER/SCENARIO/DATASET`.
        make: Puts it together.
    """

    name: str
    make: Callable[[Given], Piece]

    @property
    def last(self) -> str:
        """What tells it from the others of its table."""
        return self.name.rpartition("/")[2]


@dataclass(frozen=True)
class Printed:
    """A table or figure as a paper prints it.

    Attributes:
        paper: The paper's name.
        title: Such as `Table 2: few labels`.
        entries: What plays it; none where nothing is run.
        counted: Makes its table where that is counted, not run.
        told: What has to be said: what cannot be had, or where else it is.
        page: Page of `docs/results` that says more, or empty.
        command: What shows it where nothing of it is run here.
        bases: Options of the command that name its bases.
        tables: The paper's, shown while an entry's own, which stand beside them, are not there.
        figures: The same of what the paper prints in a sentence or a drawing.
    """

    paper: str
    title: str
    entries: tuple[Entry, ...] = ()
    counted: Callable[[], Table] | None = None
    told: tuple[str, ...] = ()
    page: str = ""
    command: str = ""
    bases: str = ENGLISH
    tables: tuple[PaperTable, ...] = ()
    figures: tuple[Figure, ...] = ()


def chosen(printed: Sequence[Printed], only: Sequence[str]) -> list[Entry]:
    """Entries by their names, or by the beginnings of these up to a slash; all, if none is named.

    Raises:
        WrongInput: Nothing is called so.
    """
    every = [entry for one in printed for entry in one.entries]
    for name in only:
        demand(any(_is_of(entry, name) for entry in every), _unknown(name, every))
    return [entry for entry in every if not only or any(_is_of(entry, name) for name in only)]


def _is_of(entry: Entry, name: str) -> bool:
    return f"{entry.name}/".startswith(f"{name.rstrip('/')}/")


def _unknown(name: str, every: Sequence[Entry]) -> str:
    known = ", ".join(entry.name for entry in every)
    return f"--only {name!r}: a name, or its part before a slash, is expected: {known}"
