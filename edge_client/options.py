"""A command's options, made from a function of the Python API: its signature and its `Args:`.

    @options_of(train, without=("tell",))
    def train_alone(call: Callable[..., TrainedAdapter], json_output: JsonOption = False) -> None:
        print(call(tell=print))

Each parameter of `train` is an option of the same name, type, default and help text; parameters of
the command itself, such as `json_output`, follow. `call` is `train` with what was typed. Bounds are
msgspec's `Meta` in `Annotated`; `str` there keeps what may be a path as it was typed.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from inspect import Parameter, Signature, cleandoc, signature
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_origin

import typer
from msgspec import Meta

_SECTION = re.compile(r"^(?:Args|Returns|Yields|Raises):$", re.MULTILINE)
_ARGUMENT = re.compile(r"^    (\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)
Command = Callable[..., None]


def options_of(
    function: Callable[..., Any], *, without: Sequence[str] = (), **more: Mapping[str, Any]
) -> Callable[[Command], Command]:
    """Give a command the options that a function's parameters are.

    A parameter of the command that is named as an option gets what was typed there.

    Args:
        function: Of the Python API; its docstring has the help texts, and the command's own if
            that has none.
        without: Parameters that are no options.
        more: By parameter: what `typer.Option` takes beside; the option's `name` (in the command)
            or `flag` (on the command line), or its `default`; or `is_argument`.
    """
    texts = arguments_of(function)
    wanted = [one for one in signature(function).parameters.values() if one.name not in without]
    typed = {one.name: str(more.get(one.name, {}).get("name", one.name)) for one in wanted}
    options = [_option(one, texts.get(one.name), more.get(one.name, {})) for one in wanted]

    def decorate(body: Command) -> Command:
        every = list(signature(body).parameters.values())[1:]
        own = [one for one in every if one.name not in typed.values()]

        @wraps(body)
        def command(**given: Any) -> None:
            asked = [(one, given[typed[one.name]]) for one in wanted]
            values = {
                one.name: value
                for one, value in asked
                if value not in (None, []) or one.default is None  # else the function's own default
            }
            body(partial(function, **values), **{one.name: given[one.name] for one in every})

        each = [one.replace(kind=Parameter.KEYWORD_ONLY) for one in (*options, *own)]
        command.__signature__ = Signature(each)  # type: ignore[attr-defined]  # Typer reads it
        command.__annotations__ = {one.name: one.annotation for one in each}
        command.__doc__ = body.__doc__ or description_of(function)
        return command

    return decorate


def arguments_of(function: Callable[..., Any]) -> dict[str, str]:
    """What Google-style docstrings say of each parameter, in one line; a record's bases too."""
    bases = reversed(getattr(function, "__mro__", (function,)))
    found = [one for base in bases for one in _ARGUMENT.findall(cleandoc(base.__doc__ or ""))]
    return {name: " ".join(text.split()) for name, text in found}


def description_of(function: Callable[..., Any]) -> str:
    """A docstring's text before its sections, without examples."""
    text = _SECTION.split(cleandoc(function.__doc__ or ""))[0]
    return "\n\n".join(part for part in text.split("\n\n") if not part.startswith("    ")).strip()


def _option(one: Parameter, text: str | None, more: Mapping[str, Any]) -> Parameter:
    kind, bounds = _typed(one.annotation)
    told = {"name": one.name, "default": one.default, "is_argument": False, "help": text}
    told |= bounds | dict(more)
    name, default, is_argument = (told.pop(key) for key in ("name", "default", "is_argument"))
    flag = told.pop("flag", f"--{name.replace('_', '-')}")
    info = typer.Argument(**told) if is_argument else typer.Option(flag, **told)
    return Parameter(
        name,
        Parameter.KEYWORD_ONLY,
        default=None if isinstance(default, tuple) else default,  # Typer's for a list
        annotation=Annotated[(kind, info)],
    )


def _typed(annotation: Any) -> tuple[Any, dict[str, Any]]:
    """A type as Typer takes one, and its bounds."""
    members, beside = get_args(annotation), list[Any]()
    if get_origin(annotation) is Annotated:
        annotation, *beside = members
        members = get_args(annotation)
    if any(get_origin(one) is Sequence for one in (annotation, *members)):
        return list[str] | None, {}
    rest = [one for one in members if one is not NoneType]
    is_optional = len(rest) < len(members)
    if is_optional and len(rest) == 1:
        kind, bounds = _typed(rest[0])
        return kind | None, bounds
    if Path in members:
        kind = str if str in beside else Path
        return (kind | None if is_optional else kind), {}
    metas = [one for one in beside if isinstance(one, Meta)]
    assert metas == [Meta(ge=one.ge, le=one.le) for one in metas[:1]], "bounds are one ge and le"
    return annotation, {"min": metas[0].ge, "max": metas[0].le} if metas else {}
