"""Adapter specs: what names such as `lora:8/top2`, `prompt:8` and `head` mean for a base.

Tensor names are PEFT's own (`base_model.model....lora_A.weight`), so exporting an adapter is a
copy. The first state is drawn with numpy from the base's files, so the coordinator can start a run
without torch. LoRA: Hu et al. 2021 (arXiv:2106.09685); soft prompts: Lester et al. 2021
(arXiv:2104.08691).

Per-module LoRA ranks in an adapter's name, `lora:8/0-3=0/11.v=16:32`, as PEFT's patterns.

Each part names layers, optionally one of their linears, the rank (0: no LoRA there) and, after a
colon, alpha where it is not 16.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Literal, NamedTuple

from smidgen.edge_client.bases.architectures import Family, Shape
from smidgen.edge_client.bases.families import family_of
from smidgen.edge_client.bases.layout import module_size
from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.tasks.kind import kind_of
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.updates.forms import FORMS, RIDGE
from smidgen.edge_client.wire.tensors import AdapterState

LORA_ALPHA = 16
PART = r"/\d{1,3}(?:-\d{1,3})?(?:\.[a-z]+)?=\d{1,4}(?::\d{1,6}(?:\.\d{1,6})?)?"


class ModuleRank(NamedTuple):
    """One module's rank.

    Attributes:
        layer: Number of the stored layer.
        target: Short name of the linear, such as `q`.
        rank: LoRA's r; 0: the module carries no LoRA.
        alpha: LoRA's alpha.
    """

    layer: int
    target: str
    rank: int
    alpha: float = float(LORA_ALPHA)

    @property
    def scaling(self) -> float:
        """alpha / r; 0 without LoRA."""
        return self.alpha / self.rank if self.rank else 0.0


def parse_ranks(text: str, targets: Sequence[str]) -> tuple[ModuleRank, ...]:
    """The modules that parts such as `/0-3=0/11.v=16:32` name, by layer and name.

    Args:
        text: Parts, each as `PART` has it.
        targets: What a part without a linear means.

    Raises:
        ValueError: Layers that run backwards, or a module that is named twice.
    """
    found: dict[tuple[int, str], ModuleRank] = {}
    for part in re.findall(PART, text):
        match = re.fullmatch(r"/(\d+)(?:-(\d+))?(?:\.([a-z]+))?=(\d+)(?::([\d.]+))?", part)
        assert match is not None
        first, last, target, rank, alpha = match.groups()
        layers = range(int(first), int(last or first) + 1)
        if not layers:
            raise ValueError(f"{part[1:]} names no layer; the lower one comes first")
        for layer in layers:
            for one in (target,) if target else targets:
                if (layer, one) in found:
                    raise ValueError(f"{layer}.{one} is named twice")
                known = float(alpha) if alpha and int(rank) else float(LORA_ALPHA)
                found[layer, one] = ModuleRank(layer, one, int(rank), known)
    return tuple(found[key] for key in sorted(found))


def rank_parts(ranks: Iterable[ModuleRank], targets: Sequence[str]) -> str:
    """The parts that `parse_ranks` reads back, short: layers in a row that are alike are one."""
    by_layer: dict[int, dict[str, str]] = {}
    for one in ranks:
        by_layer.setdefault(one.layer, {})[one.target] = _said(one)
    runs: dict[str, list[tuple[int, int, str]]] = {}
    for layer in sorted(by_layer):
        named = by_layer[layer]
        alike = set(named) == set(targets) and len(set(named.values())) == 1
        chosen = {"": next(iter(named.values()))} if alike else named
        for target, said in chosen.items():
            known = runs.setdefault(target, [])
            if known and known[-1][1:] == (layer - 1, said):
                known[-1] = known[-1][0], layer, said
            else:
                known.append((layer, layer, said))
    parts = sorted((run, target) for target, found in runs.items() for run in found)
    return "".join(
        f"/{first}{f'-{last}' if last > first else ''}{f'.{target}' if target else ''}={said}"
        for (first, last, said), target in parts
    )


def _said(one: ModuleRank) -> str:
    if one.alpha == LORA_ALPHA:
        return str(one.rank)
    alpha = int(one.alpha) if one.alpha.is_integer() else one.alpha
    return f"{one.rank}:{alpha}"


PREFIX = "base_model.model."
Net = Literal["", "generator", "rates"]
NETS: tuple[Net, ...] = ("generator", "rates")
IN_EVERY_BASE = ("q", "k", "v", "o", "up", "down")
TARGETS = (*IN_EVERY_BASE, "gate")
ANY_LAYER = r"\d+"
WORD_HEAD = {"classifier": ("labels", "hidden")}  # of every family alike


class AdapterError(WrongInput):
    """An adapter that cannot be named or built for this base."""


@dataclass(frozen=True)
class AdapterSpec:
    """A parsed adapter name.

    Attributes:
        rank: LoRA's r, or 0 without LoRA.
        targets: Short names of the linears that carry LoRA.
        prompt_tokens: Virtual tokens of a soft prompt, or 0.
        bias: Whether every bias inside the layers is trained (BitFit).
        top: How many top layers carry LoRA or trained biases; 0: all.
        head: Whether a classification head is trained instead of asking by cloze. It reads the
            text's first token, also behind a soft prompt; of tagging each word's first.
        ranks: Modules whose rank or alpha is another than `rank` and 16, by layer and name.
        net: What is trained in that LoRA's place, a net that tells each device how to train one of
            its own: `generator`, which ranks of a bank; `rates`, how fast each tensor; or nothing.
        form: How LoRA is written by the numbers that are trained, of `linear.FORMS`; empty: by A
            and B.
        ridge: Whether ridge regression on the base's states reads each text too
            (`smidgen.edge_client.updates.ridge`).
    """

    rank: int = 0
    targets: tuple[str, ...] = ()
    prompt_tokens: int = 0
    head: bool = False
    bias: bool = False
    top: int = 0
    ranks: tuple[ModuleRank, ...] = ()
    net: Net = ""
    form: str = ""
    ridge: bool = False

    @property
    def scaling(self) -> float:
        """LoRA's alpha / r, where no module says otherwise; alpha is 16 (Multilingual Federated
        Prompt Tuning, section 4).
        """
        return LORA_ALPHA / self.rank if self.rank else 0.0

    @property
    def largest_rank(self) -> int:
        return max((self.rank, *(one.rank for one in self.ranks)))

    @property
    def adapted(self) -> tuple[str, ...]:
        """Short names of the linears that carry LoRA in some layer, in our order."""
        found = {*self.targets, *(one.target for one in self.ranks if one.rank)}
        return tuple(target for target in TARGETS if target in found)

    def module_rank(self, layer: int, target: str, layers: int) -> ModuleRank:
        """A module's rank and alpha.

        Args:
            layer: Number of the stored layer.
            target: Short name of the linear.
            layers: Computed layers of the base.
        """
        for one in self.ranks:
            if (one.layer, one.target) == (layer, target):
                return one
        is_above = not self.top or layer >= layers - self.top
        rank = self.rank if target in self.targets and is_above else 0
        return ModuleRank(layer, target, rank)

    @property
    def is_in_layers(self) -> bool:
        """Whether training it leads back through the layers; a head alone does not."""
        return bool(self.rank or self.prompt_tokens or self.bias)

    def __str__(self) -> str:
        parts = []
        if self.rank:
            parts.append(f"lora:{self.rank}@{','.join(self.targets)}")
        if self.prompt_tokens:
            parts.append(f"prompt:{self.prompt_tokens}")
        if self.bias:
            parts.append("bias")
        if self.top:
            parts[-1] += f"/top{self.top}"
        if self.ranks:
            parts[-1] += rank_parts(self.ranks, self.targets)
        if self.head:
            parts.append("head")
        parts += [name for name in (self.net, self.form, RIDGE * self.ridge) if name]
        return "+".join(parts)


def has_peft_form(spec: AdapterSpec, task: Task) -> bool:
    """Whether PEFT knows such an adapter: no net, and no head for texts behind a soft prompt.

    Args:
        spec: The adapter.
        task: What it is for; a head that reads words finds them behind a prompt too.
    """
    reads_text = not kind_of(task).head(task).is_of_words
    return not spec.net and not (spec.prompt_tokens and spec.head and reads_text)


def net_in(name: str) -> Net:
    """The net that an adapter's name names, if any; of names that are outside the grammar too."""
    return next((net for net in NETS if name.endswith(f"+{net}")), "")


def parse_adapter(text: str) -> AdapterSpec:
    """Parse an adapter's name; `str` of the result parses to the same spec.

    Raises:
        AdapterError: Outside the grammar; the message names what is near, and where it stands.
    """
    first, *more = text.strip().split("+")
    match = re.fullmatch(
        r"(lora:(?P<rank>[1-9]\d{0,3})(@(?P<targets>[a-z,]+))?|prompt:(?P<prompt>[1-9]\d{0,3})"
        rf"|(?P<bias>bias))(/top(?P<top>[1-9]\d{{0,3}}))?(?P<ranks>({PART})*)|(?P<head>head)",
        first,
    )
    targets = tuple(dict.fromkeys((match["targets"] or "q,v").split(","))) if match else ()
    net: Net = next((one for one in NETS if one in more), "")
    form = next((one for one in FORMS if one in more), "")
    known = {one for one in ("head", net, form, RIDGE) if one}
    is_known = sorted(known & {*more}) == sorted(more) and not (match and match["head"] and more)
    if not match or not is_known or not set(targets) <= set(TARGETS):
        raise _unknown(text)
    if match["prompt"] and match["top"]:
        raise AdapterError(
            f"adapter {text!r}: a soft prompt lies below all layers; leave /top{match['top']} out"
        )
    top, rank = int(match["top"] or 0), int(match["rank"] or 0)
    has_head = bool(match["head"]) or "head" in more
    if net and (not rank or top or match["ranks"] or has_head):
        raise AdapterError(
            f"adapter {text!r}: +{net} is for the same rank in all layers, asked by cloze, "
            f"such as lora:16@q,k,v,o,up,down+{net}"
        )
    if form and (not rank or net):
        raise AdapterError(f"adapter {text!r}: +{form} is for LoRA, such as lora:8+{form}")
    if RIDGE in more and (net or form or not rank):
        raise AdapterError(
            f"adapter {text!r}: +{RIDGE} goes with LoRA and a head alone: lora:8+{RIDGE}, "
            f"lora:8+head+{RIDGE}"
        )
    return AdapterSpec(
        rank=rank,
        targets=targets if match["rank"] else (),
        prompt_tokens=int(match["prompt"] or 0),
        head=has_head,
        bias=bool(match["bias"]),
        top=top,
        ranks=_ranks(text, match["ranks"] or "", targets, rank, top),
        net=net,
        form=form,
        ridge=RIDGE in more,
    )


def _unknown(text: str) -> AdapterError:
    number = found[0] if (found := re.search("[1-9][0-9]{0,3}", text)) else "8"
    lora, prompt = f"lora:{number}", f"prompt:{number}"
    names = [
        lora,
        f"{lora}@q,v",
        prompt,
        "bias",
        "head",
        *(f"{lora}+{one}" for one in (*NETS, *FORMS, RIDGE)),
    ]
    names += [f"{one}+head" for one in (lora, prompt, "bias")]
    near = get_close_matches(text.strip().lower()[:40], names, 1)
    hint = f"did you mean {near[0]}? " if near else ""
    return AdapterError(
        f"adapter {text[:40]!r} is unknown; {hint}lora:R, prompt:N, bias, head, and more in the "
        "run file's reference, under Adapters"
    )


def _ranks(
    text: str, parts: str, targets: tuple[str, ...], rank: int, top: int
) -> tuple[ModuleRank, ...]:
    """The modules of other ranks; those that say what holds anyway are left out."""
    if parts and not rank:
        raise AdapterError(f"adapter {text!r}: ranks by module are LoRA's; leave {parts} out")
    try:
        found = parse_ranks(parts, targets)
    except ValueError as error:
        raise AdapterError(f"adapter {text!r}: {error}") from error
    unknown = [one.target for one in found if one.target not in TARGETS]
    if unknown:
        expected = ", ".join(TARGETS)
        raise AdapterError(f"adapter {text!r}: no linear {unknown[0]}; one of {expected}")
    plain = {target: ModuleRank(0, target, rank if target in targets else 0) for target in TARGETS}
    return tuple(one for one in found if top or one[2:] != plain[one.target][2:])


def at_most(spec: AdapterSpec, rank: int) -> AdapterSpec:
    """The adapter with no module above a rank; 0 changes nothing, nor does one without LoRA."""
    if not 0 < rank < spec.largest_rank:
        return spec
    ranks = tuple(one._replace(rank=min(rank, one.rank)) for one in spec.ranks)
    return parse_adapter(str(replace(spec, rank=min(rank, spec.rank), ranks=ranks)))


def usual_adapter(task: Task, lora: str) -> str:
    """What is trained where nobody says: LoRA, with a head where the kind of task needs one.

    Args:
        task: What is asked.
        lora: Its name without a head.
    """
    return f"{lora}+head" if kind_of(task).head(task).answers is None else lora


def frozen_layers(spec: AdapterSpec, layers: int) -> int:
    """How many of the lowest layers nothing is trained in, nor below: their results never change.

    Args:
        spec: The adapter.
        layers: Computed layers of the base.
    """
    if spec.prompt_tokens:
        return 0
    if not spec.is_in_layers:
        return layers
    if spec.ranks:
        for layer in range(layers):
            if any(spec.module_rank(layer, target, layers).rank for target in spec.adapted):
                return layer
        return layers
    return layers - spec.top if spec.top else 0


def lora_modules(spec: AdapterSpec, shape: Shape) -> dict[str, ModuleRank]:
    """The full names of the modules that carry LoRA, with their ranks.

    Args:
        spec: The adapter.
        shape: The base's.
    """
    layers = range(shape.stored_layers)
    return {name: one for i in layers for name, one in layer_modules(spec, shape, i).items()}


def layer_modules(spec: AdapterSpec, shape: Shape, layer: int) -> dict[str, ModuleRank]:
    """As `lora_modules`, of one stored layer. A fused module goes by the first of its linears."""
    family, found = family_of(shape.architecture), dict[str, ModuleRank]()
    for target in spec.adapted:
        one = spec.module_rank(layer, target, shape.layers)
        if one.rank and target in family.linears:
            found.setdefault(
                family.linear(layer, target), one._replace(target=lead(family, target))
            )
    return found


def lead(family: Family, target: str) -> str:
    """The short name by which an adapter knows the module of a linear: the first of a fused one."""
    return next(name for name in TARGETS if name in family.fused(target))


def largest_rank(spec: AdapterSpec, shape: Shape) -> int:
    """The largest rank that a module of the base has; 0 without LoRA.

    No more than `AdapterSpec.largest_rank`, which does not know which modules are there.

    Args:
        spec: The adapter.
        shape: The base's.
    """
    return max((one.rank for one in lora_modules(spec, shape).values()), default=0)


def check_top(spec: AdapterSpec, shape: Shape) -> None:
    """Refuse an adapter of top layers that a base does not have.

    Raises:
        AdapterError: More of them than there are, or one layer that is computed repeatedly.
    """
    if spec.top > shape.layers:
        raise AdapterError(
            f"adapter {spec}: the base has {shape.layers} layers; leave /top{spec.top} out"
        )
    if spec.top and shape.stored_layers < shape.layers:
        raise AdapterError(
            f"adapter {spec}: the layers of a {shape.architecture} are one layer, repeated, and "
            f"what is trained in it is repeated too; leave /top{spec.top} out"
        )
    check_ranks(spec, shape)


def check_ranks(spec: AdapterSpec, shape: Shape) -> None:
    """Refuse ranks that a base's matrices do not have, and modules that are not there or not left.

    Raises:
        AdapterError: Names the module, and what to write.
    """
    family, modules = family_of(shape.architecture), lora_modules(spec, shape)
    linears = family.linears
    if absent := [target for target in spec.targets if target not in linears]:
        raise AdapterError(
            f"adapter {spec}: the base has no linear {absent[0]}; it has {', '.join(linears)}"
        )
    for one in spec.ranks:
        name = f"adapter {spec}: {one.layer}.{one.target}"
        if one.layer >= shape.stored_layers:
            raise AdapterError(f"{name}: the base has layers 0 to {shape.stored_layers - 1}")
        if one.rank and one.target not in linears:
            raise AdapterError(f"{name}: the base has the linears {', '.join(linears)}")
        for other in family.fused(one.target) if one.target in linears else ():
            same = spec.module_rank(one.layer, other, shape.layers)
            if other in spec.adapted and same[2:] != one[2:]:
                raise AdapterError(
                    f"{name} lies in {linears[other]} with {other}; give both the same rank"
                )
    for one in modules.values():
        rows, columns = module_size(shape, one.target)
        if one.rank > (most := min(rows, columns)):
            raise AdapterError(
                f"adapter {spec}: {one.layer}.{one.target}: rank {one.rank}; its matrix has {most} "
                f"at most ({rows} x {columns}); take lora:{most}, or "
                f"/{one.layer}.{one.target}={most} for it alone"
            )
    if spec.ranks and not modules:
        raise AdapterError(f"adapter {spec}: no module is left that carries LoRA")


def adapted_layers(spec: AdapterSpec, layers: int) -> Collection[int] | None:
    """The layers that carry the adapter, as `target_pattern` takes them; None: all."""
    return range(layers - spec.top, layers) if spec.top else None


def target_pattern(
    spec: AdapterSpec, architecture: str, layers: Collection[int] | None = None
) -> str:
    """Regular expression over full module names that carry LoRA, as PEFT's `target_modules`.

    Args:
        spec: LoRA.
        architecture: The base's `model_type`.
        layers: Which of the layers; None: all.
    """
    linears = family_of(architecture).linears
    names = dict.fromkeys(re.escape(linears[target]) for target in spec.targets)
    return f"{layer_pattern(architecture, layers)}({'|'.join(names)})"


def layer_pattern(architecture: str, layers: Collection[int] | None = None) -> str:
    """Regular expression over the prefix of a layer, one of some or (None) whichever."""
    index = ANY_LAYER if layers is None else f"(?:{'|'.join(map(str, layers))})"
    return re.escape(family_of(architecture).layer.format(layer=0)).replace("0", index, 1)


def layers_of(state: AdapterState, architecture: str) -> list[int]:
    """The layers in which an adapter has tensors, ascending."""
    layer = layer_pattern(architecture).replace(ANY_LAYER, f"({ANY_LAYER})", 1)
    found = (re.match(re.escape(PREFIX) + layer, name) for name in state)
    return sorted({int(match[1]) for match in found if match})


def head_linears(architecture: str, state: Collection[str]) -> list[str]:
    """Full names of the linears of an adapter's head, from below; empty if it has none.

    A head that reads a text has two of them, one that reads each word has one.

    Args:
        architecture: The base's `model_type`.
        state: Names of the adapter's tensors.
    """
    of_texts = [PREFIX + name for name in family_of(architecture).classifier]
    if all(f"{name}.weight" in state for name in of_texts):
        return of_texts
    of_words = [PREFIX + name for name in WORD_HEAD]
    return [name for name in of_words if f"{name}.weight" in state]


def head_sizes(architecture: str, *, is_of_words: bool) -> Mapping[str, tuple[str, str]]:
    """Linears of a head, name -> (rows, columns), each `hidden` or `labels`.

    Args:
        architecture: The base's `model_type`.
        is_of_words: Whether it reads each word, as transformers' token classifiers do.
    """
    return WORD_HEAD if is_of_words else family_of(architecture).classifier


def head_modules(architecture: str, *, is_of_words: bool = False) -> list[str]:
    """Names of the modules a classifier adds, as PEFT's `modules_to_save`."""
    names = head_sizes(architecture, is_of_words=is_of_words)
    tops = (name.removeprefix(f"{architecture}.").split(".")[0] for name in names)
    return list(dict.fromkeys(tops))
