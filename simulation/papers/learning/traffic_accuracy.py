"""What smaller updates and steps cost in accuracy, and what they save: by codec, paired by seed.

The same texts, dealt the same way, with the same draws: a codec's run differs from float32's of the
same seed in what travels alone. What a difference is worth is told by the 95 % interval of its mean
over seeds (Student's t); nothing is said to be within half a point unless the interval is.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from edge_client.tables import Column, Table, sizes
from edge_client.updates.settings import Updates
from simulation.experiments.experiment import Experiment
from simulation.experiments.result import mean_and_spread
from simulation.papers.learning.setting import AG_NEWS
from simulation.papers.paired import differences, ends, interval
from simulation.papers.scenario import SUMMARY, Cell, Measured, Scenario
from simulation.population.deal import Deal

ROUNDS, QUICK_ROUNDS = 20, 4
PLAIN = "float32"
CODECS = (PLAIN, "int8", "int4", "topk:0.01")
MORE_CODECS = (*CODECS, "int4:128")
WITHIN = 0.005
NOTES = (
    "AG News, 256 labels on 32 clients evenly, 5 clients a round, 2 local epochs, batch 4, AdamW, "
    "lr 0.005, LoRA of rank 8 on queries and values",
    "what a codec leaves out stays with the client and goes into its next update that counts",
    "bytes are those of the files as they would travel, headers and scales among them",
)
FEW = 8  # clients that all take part in each round
ADAPTER_NOTES = (
    f"256 labels on {FEW} clients evenly, all in each round, 2 local epochs, batch 4, AdamW, lr "
    "0.005, rank 8 on queries and values where the adapter does not say otherwise",
    "a client fetches the first adapter whole, then what each round changed, in the same codec",
)
BOTH_WAYS = (
    "both: what a round changed comes down in the same codec; a client that trained a few rounds "
    "ago adds up the steps since then, any other fetches the whole adapter",
)


def traffic_accuracy(
    base: str,
    quick: bool,
    codecs: Sequence[str] = CODECS,
    has_down: bool = False,
    adapters: Sequence[str] = (),
    language: str = "",
) -> Scenario:
    """Every codec on the same texts.

    Args:
        base: `embedded`, a folder or a hub name.
        quick: Fewer rounds and test texts.
        codecs: Rows beside float32.
        has_down: Whether each codec is also used on both ways.
        adapters: Others than `lora:8`; each in every codec on both ways, on a few
            clients that all take part in each round.
        language: Of MasakhaNEWS, in the place of AG News.
    """
    if adapters:
        return _of_adapters(base, quick, codecs, adapters, language)
    plain = experiment(base, quick)
    rows = dict.fromkeys((PLAIN, *codecs))
    cells = [Cell(row, "up", replace(plain, updates=Updates(up=row))) for row in rows]
    both = [row for row in rows if has_down and row != PLAIN]
    cells += [Cell(row, "both", replace(plain, updates=Updates(row, row))) for row in both]
    title = "Smaller updates on AG News: final accuracy in %"
    notes = NOTES + BOTH_WAYS if both else NOTES
    return Scenario("traffic-accuracy", title, tuple(cells), notes)


def _of_adapters(
    base: str, quick: bool, codecs: Sequence[str], adapters: Sequence[str], language: str
) -> Scenario:
    plain = replace(experiment(base, quick), deal=Deal(clients=FEW, labelled=256), cohort=0)
    if language:
        plain = replace(plain, dataset="masakhanews", languages=(language,), pattern="")
    cells = [Cell(f"{plain.adapter} {PLAIN}", "both", plain)]
    for adapter in adapters:
        for codec in codecs:
            one = replace(plain, adapter=adapter, updates=Updates(codec, codec))
            cells.append(Cell(f"{adapter} {codec}", "both", one))
    title = f"Adapters with exact means on {language or 'AG News'}: final accuracy in %"
    return Scenario("traffic-accuracy", title, tuple(cells), ADAPTER_NOTES)


def experiment(base: str, quick: bool) -> Experiment:
    """The experiment that all codecs share."""
    return replace(
        AG_NEWS,
        name="traffic-accuracy",
        base=base,
        deal=Deal(clients=32, labelled=256),
        rounds=QUICK_ROUNDS if quick else ROUNDS,
        cohort=5,
        evaluate_every=0,
        test_texts=100 if quick else 2000,
    )


def traffic_table(found: Sequence[Measured]) -> tuple[Table, Any]:
    """Differences from float32's accuracy, with intervals, beside bytes; the same for machines."""
    plain = [_told(item, found[0]) for item in found]
    ups = sizes([float(one["bytes_up"]) for one in plain])
    downs = sizes([float(one["bytes_down"]) for one in plain])
    rows = [
        [
            str(one["codec"]),
            str(one["ways"]),
            _percent(one["accuracy"][0]),
            _percent(one["difference"], "+"),
            ends(one["interval"], "+.2f"),
            ", ".join(_percent(each, "+") for each in one["difference_by_seed"]),
            str(one["is_within"]),
            up,
            f"{100 * one['share_up']:.1f}",
            down,
            f"{100 * one['share_down']:.1f}",
        ]
        for one, up, down in zip(plain, ups, downs, strict=True)
    ]
    columns = [Column("codec", "text"), Column("ways", "text"), Column("accuracy")]
    columns += [Column(name) for name in ("paired", "95 %", "by seed", "within 0.5", "sent")]
    columns += [Column(name) for name in ("sent, %", "received", "received, %")]
    notes = (
        "in %, bytes in those of float32; paired: minus float32 of the same seed, mean and 95 % "
        "interval (Student's t)",
        "within 0.5: yes, where the whole interval is no more than half a point below float32; no, "
        "where all of it is further; else not shown",
    )
    return Table(columns, rows, "bytes and accuracy by codec", list(notes), SUMMARY), plain


def _told(item: Measured, first: Measured) -> dict[str, Any]:
    gaps = differences(item, first)
    found = interval(gaps)
    up, down = item.total("bytes_up"), item.total("bytes_down")
    return {
        "codec": item.cell.row,
        "ways": item.cell.column,
        "accuracy": item.accuracy(),
        "difference": mean_and_spread(gaps)[0],
        "difference_by_seed": gaps,
        "interval": found,
        "is_within": within(*found) if found else "not shown",
        "bytes_up": round(up),
        "bytes_down": round(down),
        "share_up": up / first.total("bytes_up"),
        "share_down": down / first.total("bytes_down"),
    }


def within(low: float, high: float) -> str:
    """What an interval says of a loss of at most half a point: yes, no, or not shown."""
    if low >= -WITHIN:
        return "yes"
    return "no" if high < -WITHIN else "not shown"


def _percent(value: float, sign: str = "") -> str:
    return f"{100 * value:{sign}.2f}"
