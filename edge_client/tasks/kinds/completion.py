"""Plain texts that a causal language model goes on with: each token from those before it.

Every token of a text is asked for but the first, which nothing stands before; where the base's
tokenizer puts a token before each text, that one.
"""

from collections.abc import Sequence
from typing import Any

from smidgen.edge_client.errors import demand
from smidgen.edge_client.formats.source import DataError
from smidgen.edge_client.tasks.kind import Inputs, Opened, Sentences
from smidgen.edge_client.tasks.kinds.asked_words import AskedWords
from smidgen.edge_client.tasks.kinds.masked_words import KIND as MASKED
from smidgen.edge_client.tasks.scores import Formatter, Measure
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.accounting import Fault
from smidgen.edge_client.texts.examples import Example, joined
from smidgen.edge_client.texts.parts import Files
from smidgen.edge_client.texts.prompts.patterns import TaskError
from smidgen.edge_client.texts.tokens import Prompt, Tokens


def prompt_of(ids: Sequence[int], asked: Sequence[int]) -> Prompt:
    """Ids in which some are asked for: of each the answer is read at the token before it.

    What lies behind the last of them is left out, for no answer depends on it.

    Args:
        ids: A text's.
        asked: Places of those that are asked for, ascending, from 1.
    """
    return Prompt(
        list(ids[: asked[-1] + 1]), [place - 1 for place in asked], [ids[place] for place in asked]
    )


class Completion(AskedWords):
    """See `TaskKind`."""

    name = "completion"
    measure = Measure(
        key="accuracy",
        word="accuracy",
        said="{} of the tokens of the devices' texts were guessed right",
        asked="tokens",
        note="accuracy, perplexity: of tokens, over the devices' test texts that were asked",
        own="perplexity",
        name="perplexity",
        beside="accuracy at tokens",
        cells="tokens that were guessed, in %; not perplexity",
    )
    files = Files(
        kind="completion",
        wants="text",
        lacks=MASKED.files.lacks,
        what=MASKED.files.what,
        tests=MASKED.files.tests,
    )
    card = Sentences(
        answers="It goes on with texts like those that it was trained on.",
        limits="What it writes may be wrong, and is not looked over by anybody.",
        auto="ForCausalLM",
        pipeline="text-generation",
        example="",
    )
    function = "smidgen.generate"
    asked = "tokens"
    is_causal = True
    may_refuse = True

    def places(self, task: Task, tokens: int) -> int:
        return max(1, tokens - 1)

    def asked_in_words(self, task: Task) -> str:
        return "It was asked for every token of each training text, from those before it."

    def read(self, inputs: Inputs, example: Example) -> "tuple[list[int], list[int]] | Fault":
        """All ids of a text as far as it is read, and the places of those that are asked for."""
        tokens = inputs.tokens
        ids, _ = tokens.pieces(joined(example), tokens.plain_room(inputs.limit))
        whole = tokens.framed(ids, (), ()).ids
        asked = list(range(1, len(whole)))
        said = "one token, before which nothing stands; a longer text is expected"
        return (whole, asked) if asked else Fault("too short", said)

    def begun(self, tokens: Tokens, text: str) -> list[int]:
        return [*tokens.frame[0], *tokens.encode(text)]

    def ends(self, tokens: Tokens) -> frozenset[int]:
        return frozenset() if tokens.end_id is None else frozenset({tokens.end_id})

    def fault(self, inputs: Inputs, example: Example) -> Fault | None:
        found = self.read(inputs, example)
        return found if isinstance(found, Fault) else None

    def prompts(
        self, inputs: Inputs, examples: Sequence[Example], draw: int, first: int
    ) -> list[Prompt]:
        """Encode texts one by one.

        Raises:
            DataError: One has nothing to ask for, see `fault`.
        """
        found = []
        for one in examples:
            read = self.read(inputs, one)
            if isinstance(read, Fault):
                raise DataError(f"{one.file}, line {one.line}: {read.said}")
            found.append(prompt_of(*read))
        return found

    def show(self, opened: Opened, top: int | None = None) -> Formatter[Any]:
        demand(
            False,
            f"task {opened.task.name!r} is of kind {self.name}: `smidgen client generate` writes "
            "texts, `smidgen client evaluate` tells loss and perplexity",
            TaskError,
        )
        raise AssertionError


KIND = Completion()
