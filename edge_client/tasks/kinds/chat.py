"""Conversations of which a causal language model learns the assistant's answers.

A row of a file is one conversation, in one of two forms:

    {"messages": [{"role": "user", "content": "dim it"}, {"role": "assistant", "content": "..."}]}
    {"prompt": "dim it", "completion": "..."}

The second is a user's message and the assistant's. The base's own chat template makes a text of
each; tokens of the answers alone are asked for, with what the template puts behind an answer, so
that the model learns to end one. A conversation that is too long is cut at its end.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from smidgen.edge_client.formats.json_rows import MESSAGES, strings_in, type_name
from smidgen.edge_client.formats.source import NO_TEXT, NUL_FOUND, Columns, Reason, named
from smidgen.edge_client.tables import Table, share
from smidgen.edge_client.tasks.kind import Inputs, Sentences
from smidgen.edge_client.tasks.kinds.completion import Completion
from smidgen.edge_client.tasks.scores import Measure, Scores
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.accounting import Fault, value_of
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.texts.parts import Files
from smidgen.edge_client.texts.tokens import Tokens

ASSISTANT, USER = "assistant", "user"
ROLES = ("system", "developer", USER, ASSISTANT, "tool")


def turns(row: Mapping[str, Any], columns: Columns) -> str | Fault | None:
    """A row's conversation as JSON, in which tasks hold it; why it is none; None: there is none."""
    pair = [value_of(row, name) for name in (columns.text, columns.text_b)]
    messages: Any = row.get(MESSAGES)
    if messages is None:
        if not any(one.strip() for one in pair):
            return None
        said = [{"role": USER, "content": pair[0]}, {"role": ASSISTANT, "content": pair[1]}]
        return _checked(said, f"`{named([columns.text or ''])}`")
    if any(pair):
        return Fault(
            "ambiguous",
            f"`{MESSAGES}` and `{named([columns.text or columns.text_b or ''])}`"
            f" in one row; one of them is expected",
        )
    if not isinstance(messages, list):
        came = type_name(messages)
        return Fault("not text", f"`{MESSAGES}` is {came}; a list of messages is expected")
    if not messages:
        return Fault("unanswered", f"`{MESSAGES}` is empty; one at least is the assistant's")
    if row.get("tools"):
        return Fault("not text", "`tools` are not read here; leave them out")
    return _checked(messages, f"`{MESSAGES}`")


def _checked(messages: list[Any], where: str) -> str | Fault:
    found = []
    for number, one in enumerate(messages, start=1):
        said = f"{where}, message {number}"
        if not isinstance(one, Mapping):
            expected = "an object with role and content is expected"
            return Fault("not text", f"{said}: {type_name(one)}; {expected}")
        # A template would write these into the text
        for name in ("tools", "tool_calls", "documents"):
            if one.get(name):
                return Fault("not text", f"{said}: `{name}` are not read here; leave them out")
        role, content = one.get("role"), one.get("content")
        if role not in ROLES:
            return Fault("not text", f"{said}: its role is none of {', '.join(ROLES)}")
        if not isinstance(content, str):
            return Fault(
                "not text", f"{said}: `content` is {type_name(content)}; a string expected"
            )
        if not content.strip() and role not in ("system", "developer", "tool"):
            reason: Reason = "unanswered" if role == ASSISTANT else "not text"
            return Fault(reason, f"{said}: its content is empty; words are expected")
        found.append({"role": role, "content": content})
    text = "".join(strings_in(found))
    if NO_TEXT.search(text) or "\0" in text:
        return Fault("unreadable", NUL_FOUND if "\0" in text else "half of a surrogate pair")
    if not any(one["role"] == ASSISTANT for one in found):
        return Fault("unanswered", f"{where}: no message of the assistant, from which to learn")
    return json.dumps(found, ensure_ascii=False, separators=(",", ":"))


class Chat(Completion):
    """See `TaskKind`."""

    name = "chat"
    measure = Measure(
        key="accuracy",
        word="accuracy",
        said="{} of the answers' tokens in the devices' texts were guessed right",
        asked="answer tokens",
        note="accuracy, perplexity: of answers' tokens, over the devices' test texts that were "
        "asked",
        own="perplexity",
        name="perplexity",
        beside="accuracy at answers' tokens",
        cells="answers' tokens that were guessed, in %; not perplexity",
    )
    files = Files(
        kind="chat",
        wants="text",
        lacks="put a labelled.jsonl there with `messages` (role and content), or with `prompt` and "
        "`completion`, in each line",
        what="a folder with labelled.jsonl (messages, or prompt and completion)",
        tests="put a test.jsonl with `messages`, or `prompt` and `completion`, in each line",
        columns="prompt,completion",
        turns=turns,
    )
    card = Sentences(
        answers="It answers in conversations like those that it was trained on, written by the "
        "base's own chat template.",
        limits="What it answers may be wrong, and is not looked over by anybody.",
        auto="ForCausalLM",
        pipeline="text-generation",
        example="",
    )
    asked = "answer tokens"

    def asked_in_words(self, task: Task) -> str:
        return "It was asked for the tokens of the answers in each conversation, and no others."

    def scores_json(self, scores: Scores) -> dict[str, Any]:
        """With the share of conversations whose answers are exact.

        Law: an answer is exact if and only if greedy decoding writes it, with what ends it: each
        token is the likeliest one behind those before it. One that is cut is not exact.
        """
        return super().scores_json(scores) | {"exact_match": scores.exact}

    def report(self, scores: Scores) -> list[Table]:
        (table,) = super().report(scores)
        return [replace(table, title=f"{table.title}, exact match {share(scores.exact)}")]

    def unwritten(self, text: str) -> Example:
        """As an answer to a question mark."""
        return Example(
            json.dumps([{"role": USER, "content": "?"}, {"role": ASSISTANT, "content": text}])
        )

    def length(self, inputs: Inputs, example: Example) -> tuple[int, int]:
        found = self._spelled(inputs, example)
        return 0 if isinstance(found, Fault) else len(found[0]), inputs.limit

    def read(self, inputs: Inputs, example: Example) -> tuple[list[int], list[int]] | Fault:
        """All ids of a conversation up to the limit, and the places of its answers' tokens.

        Law: one answer token is read at least, or the conversation is left out.
        """
        found = self._spelled(inputs, example)
        if isinstance(found, Fault):
            return found
        ids, answers = found
        asked = [place for place in answers if 0 < place < inputs.limit]
        if not asked:
            return Fault(
                "too long",
                f"its first answer begins behind {inputs.limit} tokens, which are read"
                f"; shorten what stands before it, or raise --tokens",
            )
        return ids[: inputs.limit], asked

    def begun(self, tokens: Tokens, text: str) -> list[int]:
        """Ids of a user's message, as the template has one, up to where the answer begins.

        Raises:
            TaskError: The template does not take it.
        """
        hidden = dict[str, str]()
        said = [{"role": USER, "content": tokens.hide(text, hidden)}]
        return tokens.asked_in(tokens.template.question(said), hidden, ())[0]

    def ends(self, tokens: Tokens) -> frozenset[int]:
        """What ends a text, and the control word that the template ends an answer with."""
        said = [{"role": role, "content": role} for role in (USER, ASSISTANT)]
        found = tokens.template.conversation(said)
        if isinstance(found, str):
            return super().ends(tokens)
        ids, places = tokens.asked_in(found[0], {}, found[1])
        controls = [ids[place] for place in places if ids[place] in tokens.control_ids]
        return super().ends(tokens) | frozenset(controls[-1:])

    def _spelled(self, inputs: Inputs, example: Example) -> tuple[list[int], list[int]] | Fault:
        """All ids of a conversation, and the places of the answers' tokens."""
        hidden = dict[str, str]()
        messages = [
            one | {"content": inputs.tokens.hide(one["content"], hidden)}
            for one in json.loads(example.text)
        ]
        found = inputs.tokens.template.conversation(messages)
        if isinstance(found, str):
            return Fault("template", found)
        return inputs.tokens.asked_in(found[0], hidden, found[1])


KIND = Chat()
