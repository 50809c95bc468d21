"""What is said of guesses at masked words, and of how well texts are known."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edge_client.api.guesser import TOP, FilledText, Guessing, guessings
from edge_client.api.labeller import Labeller
from edge_client.api.scores import Scores
from edge_client.commands.answers import write_json
from edge_client.commands.console import shown
from edge_client.commands.kinds.telling import Skipped
from edge_client.formats.annotation.answers import Proposal
from edge_client.outputs import check_out_file, new_file
from edge_client.tables import Column, Table, share
from edge_client.texts.accounting import Accounting
from edge_client.texts.examples import Found
from edge_client.texts.tasks import MASK


@dataclass(frozen=True)
class GuessTelling:
    """See `Telling`.

    Attributes:
        labeller: The adapter, or the base alone.
        top: Guesses for each mask.
    """

    labeller: Labeller
    top: int = TOP
    done: str = "read"
    can_propose: bool = False

    def check(self, out: Path | None) -> None:
        if out is not None:
            check_out_file("--out", out, (".jsonl",), sign='"perplexity"')

    def answers(self, texts: Iterable[Found], accounting: Accounting) -> Iterator[Guessing]:
        return guessings(self.labeller, texts, accounting, self.top)

    @contextmanager
    def results(
        self, out: Path | None, *, has_id: bool
    ) -> Iterator[Callable[[Guessing | Skipped], None]]:
        """Writes an answer per row as JSONL, an empty one for `Skipped`; without `out`, nothing."""
        if out is None:
            yield lambda answer: None
            return
        with new_file("--out", out) as file:
            yield lambda answer: write_json(
                file,
                answer.as_json("perplexity", "text")
                if isinstance(answer, Skipped)
                else _row(answer),
            )

    def proposal(self, answer: Guessing) -> Proposal:
        raise NotImplementedError("guesses are neither labels nor spans")

    def line(self, answer: Guessing) -> str:
        """A text's masked words and what may stand there, or its perplexity."""
        told = answer.told
        if told.perplexity is not None:
            return f"perplexity {told.perplexity:.1f}  {shown(told.text)}"
        others = [
            ", ".join(f"{one.word} {one.probability:.2f}" for one in guesses)
            for guesses in told.guesses
        ]
        ranked = [f"  {number}: {shown(line)}" for number, line in enumerate(others, start=1)]
        return "\n".join([_filled(told), *ranked])

    def counted(self, answer: Guessing) -> Sequence[str]:
        return ["with a mask" if answer.told.guesses else "without"]

    def collected(self, kept: Sequence[Guessing]) -> dict[str, Any]:
        return {"answers": [asdict(answer.told) for answer in kept]}

    def summary(self, counts: Mapping[str, int]) -> dict[str, Any]:
        return {"with_a_mask": counts.get("with a mask", 0)}


def _filled(told: FilledText) -> str:
    """A text in one line, the likeliest words in brackets."""
    first, *rest = told.text.split(MASK)
    pairs = zip(told.guesses, rest, strict=True)
    return shown(first + "".join(f"[{guesses[0].word}]{part}" for guesses, part in pairs))


def _row(answer: Guessing) -> dict[str, Any]:
    told = asdict(answer.told)
    first = {"perplexity": told.pop("perplexity")}  # by which a file of ours is known
    return first | ({"id": answer.found.id} if answer.found.id else {}) | told


def scores_json(scores: Scores) -> dict[str, Any]:
    """Figures for machines."""
    return {
        "tokens": scores.answers,
        "perplexity": scores.perplexity,
        "languages": [asdict(one) for one in scores.languages],
    }


def report(scores: Scores) -> list[Table]:
    """Figures for people: of each language, and of all."""
    rows = [
        [
            shown(one.language) or "none named",
            str(one.texts),
            str(one.answers),
            f"{one.perplexity:.2f}",
            share(one.accuracy),
        ]
        for one in scores.languages
    ]
    every = [str(scores.texts), str(scores.answers), f"{scores.perplexity:.2f}"]
    rows.append(["all", *every, share(scores.accuracy)])
    heads = ("texts", "masked tokens", "perplexity", "guessed")
    title = f"perplexity {scores.perplexity:.2f}, loss {scores.loss:.3f}"
    return [Table([Column("language", "word"), *map(Column, heads)], rows, title)]
