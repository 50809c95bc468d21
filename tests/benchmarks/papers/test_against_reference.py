"""Every published figure against the papers' own text, where that is at hand."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from benchmarks.papers.grid import read_file
from benchmarks.papers.published import Printed
from smidgen.simulation.report.scenario import Figure
from tests.conftest import SHARED

NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
AUG = "aug-fedprompt.md"
MFPT = "multilingual-federated-prompt-tuning.md"
P2EFT = "fedp2eft.md"
SILOS = "federated-healthcare-nlu.md"


@dataclass(frozen=True)
class Place:
    """Where a table stands in a text: below a line that begins so, its head in one that has it.

    Rows of the text are those of the table in their order.
    """

    table: Printed
    file: str
    head: str
    after: str = ""


def table(paper: str, name: str) -> Printed:
    return read_file(paper)[1].tables[name]


PLACES = {
    "AUG-FedPrompt 2": Place(table("aug-fedprompt", "few_shot"), AUG, "Dataset\t\tAGNEWS"),
    "AUG-FedPrompt 4": Place(table("aug-fedprompt", "system_cost"), AUG, "Model\tALBERT"),
    "MFPT 1": Place(table("mfpt", "news"), MFPT, "Method\ten\tes"),
    "MFPT 2": Place(table("mfpt", "xnli"), MFPT, "Method\ten\tfr"),
    "MFPT 3": Place(table("mfpt", "masakhanews"), MFPT, "Method\teng"),
    "MFPT 4": Place(table("mfpt", "traffic"), MFPT, "\t# Trainable Params"),
    "FedP2EFT seen": Place(table("fedp2eft", "seen"), P2EFT, "Language LoRA", "MasakhaNEWS Text"),
    "FedP2EFT unseen": Place(table("fedp2eft", "unseen"), P2EFT, "Language LoRA", "Unseen Client"),
    "FedP2EFT FedDPA": Place(
        table("fedp2eft", "with_feddpa"), P2EFT, "Language LoRA", "XNLI + FedDPA-T"
    ),
    "healthcare 3": Place(table("healthcare", "perplexity"), SILOS, "lang. FL CL"),
    "healthcare 4": Place(table("healthcare", "entities"), SILOS, "dataset FL CL"),
    "healthcare 5": Place(table("healthcare", "downstream"), SILOS, "Task CL Public"),
    "healthcare 6": Place(table("healthcare", "personalised"), SILOS, "English French"),
}

TEXTS = {"AGNEWS": 120_000, "MNLI": 392_702, "YAHOO": 1_400_000, "YELP-F": 650_000}  # table 1
JOINED = {"healthcare 4", "healthcare 5"}  # whose columns hold several numbers in the paper


def text_of(file: str) -> str:
    path = SHARED / "reference" / "papers" / file
    if not path.is_file():
        pytest.skip(f"no reference/papers/{file} in the shared folder (set SMIDGEN_SHARED)")
    text = path.read_text(encoding="utf-8")
    return re.sub(r"</?b>|\[\d+\]", "", text)


def lines_of(place: Place) -> list[str]:
    """The head and the rows of a table."""
    lines = text_of(place.file).splitlines()
    first = next((n for n, line in enumerate(lines) if line.startswith(place.after)), 0)
    head = next(n for n in range(first, len(lines)) if place.head in lines[n])
    rows = [line for line in lines[head + 1 :] if line.strip()]
    return [lines[head], *rows[: len(place.table.known)]]


def squeezed(text: str) -> str:
    """A text without spaces and marks of formulas."""
    return re.sub(r"[\s$\\]", "", text)


def printed(cells: Mapping[str, Figure]) -> list[float]:
    """The numbers of a row in their order, spreads too."""
    found = []
    for figure in cells.values():
        found += [figure.value, *([] if figure.spread is None else [figure.spread])]
    return found


@pytest.mark.parametrize("name", PLACES)
def test_every_cell_is_as_the_paper_prints_it(name: str) -> None:
    place = PLACES[name]
    _, *rows = lines_of(place)
    for line, (row, cells) in zip(rows, place.table.known.items(), strict=True):
        words = re.sub(r"^(Uniform|Skewed) ", "", row)
        label, _, rest = line.strip().partition(words)
        assert rest and not NUMBER.search(label), f"{name}: row {row!r} is not {line!r}"
        numbers = [float(number.replace(",", "")) for number in NUMBER.findall(rest)]
        assert numbers == printed(cells), f"{name}, {row}"


@pytest.mark.parametrize("name", sorted({*PLACES} - JOINED))
def test_columns_stand_in_the_papers_order(name: str) -> None:
    head, *_ = lines_of(PLACES[name])
    assert squeezed(head).endswith(squeezed("".join(PLACES[name].table.columns)))


def test_settings_and_sentences_are_the_papers() -> None:
    text = squeezed(text_of(AUG))
    for said in (
        "uniform distribution (gamma=100) will be 26% better than skewed distribution",
        "We run every experiment 3 times",
        "up to 50%, 25%, 55%, 38% accuracy improvement separately for 4 datasets",
        "only needs 64, 256, 256 in total for AGNEWS, YAHOO and YELP-F",
        "accounts for up to 87.4% of the total computation time",
        "by pseudo-labeling on unlabeled data is 92.5%",
        "reaching 95.3% at the convergence round",
        "we fix xi as 32",
        "shows a significant improvement (up to 38.2%)",
        "Datapoint: 64 for AGNEWS, 1024 for MNLI, 256 for YAHOO and YELP-F",
    ):
        assert squeezed(said) in text
    lines = [line.split("\t") for line in text_of(AUG).splitlines()]
    blocks = read_file("aug-fedprompt")[0]["common"]["when"].values()
    sets = {
        block["vars"]["set"]: block["vars"]["thousandth"]
        for block in blocks
        if "set" in block["vars"]
    }
    for name, texts in TEXTS.items():
        assert any(line[0].strip() == name and f"{texts:,}" in line for line in lines)
        assert sets[name] == round(texts / 1000)
    text = squeezed(text_of(MFPT))
    news_init = read_file("mfpt")[0]["common"]["vars"]["news_init"]
    assert squeezed("early stopping (5 epochs of no improvement)") in text
    assert squeezed(f"*{news_init}*") in text and squeezed("reduced to 478.93 MB") in text
    assert squeezed("our approach achieves 6.9% higher accuracy") in text
    text = squeezed(text_of(SILOS))
    for silo, cells in table("healthcare", "sizes").known.items():  # sources between the rows
        assert squeezed(f"{silo} {' '.join(map(str, cells.values()))}") in text
    assert squeezed("similar perplexities, of 3.49 (FL) and 3.59 (FL)") in text
    assert squeezed("the interpolation factor α set to 0.9") in text
