"""Chooses the adapter that answers on a device, its own or the shared one, by its own test texts.

STATE/personal/adapter       its newest own one, a PEFT folder
STATE/personal/choice.json   which of the two scores better, and what the shared one is
"""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import msgspec

from smidgen.edge_client.adapters.spec import AdapterError
from smidgen.edge_client.files import from_json, write_atomically
from smidgen.edge_client.personal.making import Made
from smidgen.edge_client.tasks.kind import measure_called
from smidgen.edge_client.wire.reports import Failure

FOLDER, ADAPTER, CHOICE = "personal", "adapter", "choice.json"


@dataclass(frozen=True)
class Choice:
    """Which of two adapters answers.

    Attributes:
        run: Name of the run after which one's own was made.
        use: `shared` where that does at least as well, else `personal`, also without test texts.
        shared: Folder of the shared one, within the state folder if it lies there; empty for the
            base alone.
        method: How one's own was made.
        accuracy: Share of right answers of one's own; None without test texts.
        accuracy_shared: That of the shared one.
        test_examples: Test texts.
        failure: Why one's own could not be made, so that the shared one answers; a code, or empty.
        measure: What they are compared by, where that is not accuracy.
        score: That figure of one's own; None where that is accuracy, or without test texts.
        score_shared: That of the shared one.
    """

    run: str
    use: Literal["personal", "shared"]
    shared: str
    method: str
    accuracy: float | None
    accuracy_shared: float | None
    test_examples: int
    failure: str = ""
    measure: str = "accuracy"
    score: float | None = None
    score_shared: float | None = None

    def __str__(self) -> str:
        shared = "the shared adapter" if self.shared else "the base alone"
        if self.failure:
            why = f"none of this device's own could be made after run {self.run} ({self.failure})"
            return f"{why}: {shared} answers"
        if self.accuracy is None or self.accuracy_shared is None:
            return f"this device's own adapter ({self.method}); no test texts tell which is better"
        answers = "its own" if self.use == "personal" else shared
        if self.score is not None and self.score_shared is not None:
            measure = measure_called(self.measure)
            own, other = (measure.in_words(one) for one in (self.score, self.score_shared))
            said = f"{measure.name} on {self.test_examples} test texts {own} with this "
            said += f"device's own adapter ({self.method}), {other} with {shared}"
            return f"{said}: {answers} answers"
        right = [round(one * self.test_examples) for one in (self.accuracy, self.accuracy_shared)]
        said = f"of {self.test_examples} test texts {right[0]} right with this device's own "
        said += f"adapter ({self.method}), {right[1]} with {shared}"
        return f"{said}: {answers} answers"


def choose(folder: Path, run: str, shared: str, made: Made) -> Choice:
    """Write down which one answers.

    Args:
        folder: A client's state folder.
        run: Name of the run.
        shared: Folder of the shared adapter; empty for the base alone.
        made: One's own.

    Raises:
        OSError: It cannot be written.
    """
    use: Literal["personal", "shared"] = "shared" if made.is_better is False else "personal"
    choice = Choice(
        run, use, shared, made.method, made.accuracy, made.accuracy_shared, made.test_examples
    )
    if made.measure != "accuracy":
        choice = replace(choice, measure=made.measure, score=made.score)
        choice = replace(choice, score_shared=made.score_shared)
    return _written(folder, choice)


def fall_back(folder: Path, run: str, shared: str, failure: Failure) -> Choice:
    """Write down that the shared one answers, for none of one's own could be made.

    Args:
        folder: A client's state folder.
        run: Name of the run.
        shared: Folder of the shared adapter.
        failure: Why, without a word of texts.

    Raises:
        OSError: It cannot be written.
    """
    return _written(folder, Choice(run, "shared", shared, "", None, None, 0, failure))


def _written(folder: Path, choice: Choice) -> Choice:
    if choice.shared and Path(choice.shared).is_relative_to(folder):  # which may be moved
        choice = replace(choice, shared=str(Path(choice.shared).relative_to(folder)))
    path = folder / FOLDER / CHOICE
    write_atomically(path, msgspec.json.encode(asdict(choice)), 0o600)
    return choice


def chosen_in(folder: Path) -> tuple[Path | None, Choice]:
    """The adapter that answers, and why; no folder for the base alone.

    Args:
        folder: A client's state folder.

    Raises:
        AdapterError: There is none of its own.
    """
    path = folder / FOLDER / CHOICE
    try:
        choice = from_json(path.read_bytes(), Choice)
    except (OSError, msgspec.MsgspecError) as error:
        raise AdapterError(
            f"{folder} has no adapter of its own: the state folder of a client is expected that "
            f"ran with --personal until a run was finished ({path.name} is not there or damaged)"
        ) from error
    if choice.use == "personal":
        return folder / FOLDER / ADAPTER, choice
    return folder / choice.shared if choice.shared else None, choice
