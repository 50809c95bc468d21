"""Per-module LoRA ranks in an adapter's name, `lora:8/0-3=0/11.v=16:32`, as PEFT's patterns.

Each part names layers, optionally one of their linears, the rank (0: no LoRA there) and, after a
colon, alpha where it is not 16.
"""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

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
