"""`python -m benchmarks pretrain`: the embedded base, or a multilingual one, from open texts."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from smidgen.edge_client.errors import demand
from smidgen.edge_client.outputs import check_out_folder, check_out_parent
from smidgen.edge_client.tables import Column, Table, share, show

if TYPE_CHECKING:
    from benchmarks.pretraining.card import CardFacts
    from benchmarks.pretraining.checkpoint import Progress
    from benchmarks.pretraining.corpus import Corpus
    from benchmarks.pretraining.run import Request


def pretrain(
    data: Annotated[Path, typer.Option(help="Folder of data sets.")],
    out: Annotated[Path, typer.Option(help="Folder of the base; OUT.work holds checkpoints.")],
    teacher: Annotated[Path | None, typer.Option(help="Folder of a BERT to learn from.")] = None,
    languages: Annotated[
        str | None,
        typer.Option(help="A multilingual base instead: all, or names as in amh,en,yor."),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps.")] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Training time, instead of --steps.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Root seed.")] = 0,
    threads: Annotated[int, typer.Option(min=1, max=1024, help="Processor threads.")] = 2,
    json_output: Annotated[
        bool, typer.Option("--json", help="Last line of stdout: one JSON object.")
    ] = False,
) -> None:
    """Train a base; goes on from OUT.work when it was interrupted."""
    check_out_parent("--out", out)  # before what takes seconds to load
    is_here = out.exists() and out.samefile(".")
    demand(not is_here, f"--out {out} is the current folder, and is replaced; name a new folder")
    from benchmarks.pretraining.card import MARK, MINE  # torch, transformers: seconds
    from benchmarks.pretraining.run import Request, read_texts

    check_out_folder("--out", out, MARK, MINE)

    request = Request(
        data=data,
        out=out,
        teacher=teacher,
        languages=languages,
        steps=steps,
        minutes=minutes,
        seed=seed,
        threads=threads,
    )
    corpus = read_texts(request)
    for source in corpus.absent:
        print(f"skipped: no {source} in {data}", file=sys.stderr)
    facts = _train(request, corpus)
    _print(facts)
    if json_output:
        print(json.dumps(facts.as_json()))


def _train(request: "Request", corpus: "Corpus") -> "CardFacts":
    from benchmarks.pretraining.run import pretrain as train

    with Bar(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    ) as bar:
        line = bar.add_task("training", total=1.0, start=False)

        def show(run: "Progress") -> None:
            bar.start_task(line)
            text = f"step {run.step:,}  loss {run.loss:.3f}"
            bar.update(line, completed=run.progress, description=text)

        return train(request, corpus, show)


def _print(facts: "CardFacts") -> None:
    names = ("masks", "right", "perplexity", "per word", "bits per character")
    held_out = Table(
        [Column("held out", "word"), *(Column(name) for name in names)],
        [
            [
                language,
                f"{score.masks:,}",
                share(score.top_1),
                f"{score.perplexity:.1f}",
                f"{score.word_perplexity:,.0f}",
                f"{score.bits_per_character:.2f}",
            ]
            for language, score in facts.held_out.items()
        ],
        notes=[
            "masks: tokens hidden from the model; right: of those, its first guess; perplexity: "
            "of a hidden token, and per word"
        ],
    )
    news = Table(
        [Column("AG News zero-shot", "text"), Column("plain"), Column("calibrated")],
        [[one.pattern, share(one.plain), share(one.calibrated)] for one in facts.news or ()],
    )
    show(held_out, *([news] if facts.news else []))
