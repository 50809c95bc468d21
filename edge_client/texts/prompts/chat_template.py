"""A base's chat template: how a conversation becomes one text, and where in it the answers are.

Rendered in jinja2's sandbox as transformers 5 does (`utils/chat_template_utils.py`): white space
around blocks removed, loop controls, `raise_exception`, `strftime_now`, a `tojson` that keeps keys
and signs as they are, the tag `generation`. A template is somebody else's program: what it raises
is told without its words, which may quote a message.
"""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from smidgen.edge_client.errors import demand
from smidgen.edge_client.texts.prompts.control_words import unheard_of
from smidgen.edge_client.texts.prompts.patterns import TaskError

ASSISTANT = "assistant"
Spans: TypeAlias = list[tuple[int, int]]
UNCLEAR = (
    "the base's chat template writes this conversation otherwise when more follows, so where its "
    "answers lie is not known; give a template with {% generation %}, or one answer per record"
)


class Refused(ValueError):
    """A conversation that a template does not take; says why in words that quote nothing."""


class ChatTemplate:
    """A template and the special tokens that it may write.

    Args:
        source: The template.
        words: `bos_token`, `eos_token` and the like.
        base: Whose it is, for messages.

    Raises:
        TaskError: It is not a template.
    """

    def __init__(self, source: str, words: Mapping[str, Any], base: Path) -> None:
        self._words, self._base = dict(words), base
        self._is_marked = re.search(r"\{%-?\s*generation\s*-?%\}", source) is not None
        environment = _environment()
        try:
            self._template = environment.from_string(source)
        except TemplateSyntaxError as error:
            raise TaskError(
                f"base {base}: its chat template cannot be read, line {error.lineno}"
                f"; copy the base again, or correct it"
            ) from error
        except (TemplateError, RecursionError, MemoryError) as error:
            raise TaskError(
                f"base {base}: its chat template cannot be read ({type(error).__name__})"
                f"; copy the base again, or correct it"
            ) from error

    def render(
        self, messages: Sequence[Mapping[str, str]], *, asks: bool = False, mark: str = ""
    ) -> str:
        """A conversation as one text.

        Law: what transformers' `apply_chat_template(tokenize=False)` gives.

        Args:
            messages: Each with `role` and `content`.
            asks: Whether the beginning of the next answer stands at the end.
            mark: Put before and behind what the template calls generated; empty: nothing.

        Raises:
            Refused: The template does not take it.
            TaskError: The template calls what its sandbox does not allow.
        """
        known = {"tools": None, "documents": None, "add_generation_prompt": asks}
        given = [dict(one) for one in messages]  # what a template does to one is not kept
        try:
            return self._template.render({**self._words, **known, "messages": given, MARK: mark})
        except SecurityError as error:
            raise TaskError(
                f"base {self._base}: its chat template calls what is not safe, and is not run"
                f"; take another base, or correct the template"
            ) from error
        except Exception as error:  # somebody else's program may raise anything
            raise Refused(
                f"the base's chat template refuses it ({type(error).__name__})"
                f"; look at its roles and their order"
            ) from error

    def question(self, messages: Sequence[Mapping[str, str]]) -> str:
        """A conversation as one text, up to where the next answer begins.

        Raises:
            TaskError: The template does not take it.
        """
        try:
            return self.render(messages, asks=True)
        except Refused as error:
            raise TaskError(str(error)) from error

    def conversation(self, messages: Sequence[Mapping[str, str]]) -> tuple[str, Spans] | str:
        """A conversation as one text, and where its answers are.

        Those that the template calls generated, where it calls anything so; else what each turn of
        the assistant adds to the text that asks for it. Law: then both are beginnings of the whole.

        Returns:
            The text, and of each answer the first character and the one behind its last; or why
            the template does not take it, or shows no answer, in words that quote nothing.

        Raises:
            TaskError: See `render`.
        """
        find = self._marked if self._is_marked else self._added
        try:
            whole = self.render(messages)
            answers = [(first, end) for first, end in find(messages, whole) if first < end]
        except Refused as error:
            return str(error)
        return (whole, answers) if answers else "the base's chat template writes no answer"

    def _marked(self, messages: Sequence[Mapping[str, str]], whole: str) -> Spans:
        mark = unheard_of()
        pieces = self.render(messages, mark=mark).split(mark)
        if "".join(pieces) != whole or not len(pieces) % 2:
            raise Refused(UNCLEAR)
        ends = [0]
        for piece in pieces:
            ends.append(ends[-1] + len(piece))
        return [(ends[place], ends[place + 1]) for place in range(1, len(pieces), 2)]

    def _added(self, messages: Sequence[Mapping[str, str]], whole: str) -> Spans:
        found = []
        for place, message in enumerate(messages):
            if message["role"] == ASSISTANT:
                asked = self.render(messages[:place], asks=True)
                said = self.render(messages[: place + 1])
                if not (whole.startswith(said) and said.startswith(asked)):
                    raise Refused(UNCLEAR)
                found.append((len(asked), len(said)))
        return found


MARK = "smidgen_mark"  # among a template's names


class _Generation(Extension):
    """`{% generation %} ... {% endgeneration %}`: what is in it as it is, between marks."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        mark = nodes.Name(MARK, "load")
        return nodes.CallBlock(self.call_method("_said", [mark]), [], [], body).set_lineno(line)

    def _said(self, mark: Any, caller: Macro) -> str:
        return f"{mark}{caller()}{mark}"


class _Names(Namespace):
    """A namespace without names that lead into Python."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, values = args[0], dict(*args[1:], **kwargs)
        for name in values:
            _refuse_private(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


def _refuse_private(name: object) -> None:
    demand(not str(name).startswith("_"), "a name of a namespace", SecurityError)


class _Dict:
    """`dict` without what hangs on a class."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


def _environment() -> ImmutableSandboxedEnvironment:
    extensions = [_Generation, loopcontrols]
    found = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=extensions
    )
    found.filters["tojson"] = _json
    found.globals |= {
        "raise_exception": _raise,
        "strftime_now": lambda wanted: datetime.now().strftime(wanted),
        "dict": _Dict(),
        "namespace": _Names,
    }
    return found


def _json(
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise(message: object) -> None:
    raise TemplateError(str(message))
