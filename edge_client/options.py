"""A command's options, made from a function of the Python API, and the screen of its `--help`.

The options are the function's signature and its `Args:`.

    @options_of(train, without=("tell",))
    def train_alone(call: Callable[..., TrainedAdapter], json_output: JsonOption = False) -> None:
        print(call(tell=print))

Each parameter of `train` is an option of the same name, type, default and help text; parameters of
the command itself, such as `json_output`, follow. `call` is `train` with what was typed. Bounds are
msgspec's `Meta` in `Annotated`; `str` there keeps what may be a path as it was typed.

`PANELS` groups the options of a command that has many, and says which of them are rare.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial, wraps
from inspect import Parameter, Signature, cleandoc, signature
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_origin

import typer
from msgspec import Meta
from typer.core import TyperCommand, TyperOption
from typer.models import OptionInfo

_SECTION = re.compile(r"^(?:Args|Returns|Yields|Raises):$", re.MULTILINE)
_ARGUMENT = re.compile(r"^    (\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)
Command = Callable[..., None]

FEW = 10  # options of a command whose help needs no panels
# Panel: the options that --help shows in it, and those that --help-all adds. A name can be that of
# one command's option alone, such as `create.name`.
PANELS = {
    "Required": ("", ""),
    "Run": (
        "create.task create.name run run_id min_clients fraction deadline exit_when_finished",
        "preset evaluate_cohort create.tag least_memory share",
    ),
    "Network": (
        "host port token ca cert key renew",
        "token_file plain_http patience days trusted_proxy",
    ),
    "Task and texts": (
        "task data file test clients labels test_texts data.train data.text text_b data.label",
        "text_column label_column delimiter encoding",
    ),
    "Data set": ("folder config languages", ""),
    "Partition": ("labelled_clients gamma alpha beta by mixture", ""),
    "Adapter": (
        "base chat adapter start shared generator method above personal",
        "prompt_init rank_budget bits private_texts",
    ),
    "Training": (
        "rounds epochs batch lr tokens",
        "optimizer momentum proximal scaffold adjusted seed",
    ),
    "Pseudo-labels": (
        "labelling create.confidence",
        "infer_every infer_clients keep_first keep_last",
    ),
    "Answers": ("prior top new_tokens temperature stop confidence revoke", "top_p"),
    "Device": ("run.name engine device memory_budget", "state run.tag limits cache_size"),
    "When to work": ("until window on_mains", "max_celsius max_watts max_load"),
    "Packs": ("", "packs packs_size pack_mirror serve_packs"),
    "Service": ("workers keep_rounds least_free", "minimum_client drain plugins plugin_limit"),
    "Store": ("", "database blobs"),
    "Measuring": (
        "steps masked is_tagging is_random peers only budget train.texts",
        "warmup threads isa cgroup peer sample again page_only",
    ),
    "Other": ("", ""),
    "Output": ("out write picture log_format json_output as_json", ""),
}
_PLACES = {
    name: (panel, is_rare)
    for panel, both in PANELS.items()
    for is_rare, names in enumerate(both)
    for name in names.split()
}


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


class Commands(typer.Typer):
    """The commands of one part of smidgen; the help of each is a `Screen`.

    Args:
        text: What the part is for; None for a part that is one command.
        more: What `typer.Typer` takes.
    """

    def __init__(self, text: str | None = None, **more: Any) -> None:
        super().__init__(
            help=text,
            no_args_is_help=text is not None,
            add_completion=False,
            pretty_exceptions_enable=False,
            context_settings={"help_option_names": ["-h", "--help"]},
            **more,
        )

    def command(self, name: str | None = None, **more: Any) -> Callable[[Any], Any]:
        return super().command(name, cls=Screen, **more)


class Screen(TyperCommand):
    """A command whose `--help` fits a terminal: in panels, rare options only with `--help-all`.

    Args:
        given: What Typer gives.
        more: The same.
    """

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        is_wide = sum(isinstance(one, TyperOption) for one in self.params) > FEW
        self.places = {one: self._place(one) for one in self.params} if is_wide else {}
        self.rare = [one for one, (_, is_rare) in self.places.items() if is_rare]
        if self.rare:
            every = TyperOption(
                param_decls=["--help-all"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=self._show_all,
                help="Show this message with every option and exit.",
            )
            self.params.append(every)

    def _place(self, one: Any) -> tuple[str, int]:
        """An option's panel, and whether it is rare."""
        if one.required:
            return "Required", False
        return _PLACES.get(f"{self.name}.{one.name}") or _PLACES.get(one.name, ("Other", False))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self._show(ctx, self.rare)

    def _show_all(self, ctx: Any, _: Any, is_asked: bool) -> None:
        if is_asked:
            self._show(ctx, [])
            ctx.exit()

    def _show(self, ctx: Any, left_out: Sequence[Any]) -> None:
        """Let Typer draw a copy, whose options are rows."""
        shown = copy(self)
        if self.places:
            order, rows = list(PANELS), [one for one in self.places if one not in left_out]
            shown.params = sorted(rows, key=lambda one: order.index(self.places[one][0]))
            shown.add_help_option = False  # who reads it has found it
        if left_out:
            shown.epilog = f"More options ({len(left_out)}): {ctx.command_path} --help-all"
        shown.params = [self._row(one, ctx) for one in shown.params]
        shown.help = re.sub(r"(?<!\n)\n(?!\n)", " ", self.help or "")  # Typer keeps line breaks
        TyperCommand.format_help(shown, ctx, ctx.make_formatter())

    def _row(self, one: Any, ctx: Any) -> Any:
        """An option as Typer is to draw it: what it would say on further lines is in the text."""
        if not isinstance(one, TyperOption):
            return one
        from rich.markup import escape

        row = copy(one)
        row.rich_help_panel, _ = self.places.get(one, (None, False))
        row.required = one.required and not self.places  # else its panel says so
        _, text = row.get_help_record(ctx) or ("", "")
        vars(row).update(
            help=escape(text),
            required=False,
            show_default=False,
            show_envvar=False,
            metavar=one.make_metavar(ctx).replace(" range", ""),
            type=typer.main.get_click_type(annotation=str, parameter_info=OptionInfo()),
        )
        if one.secondary_opts:
            row.opts, row.secondary_opts = [f"--[no-]{one.opts[0][2:]}"], []
        return row
