"""Banks of ranks: LoRA of the same rank in each of its modules, all scaled alike.

What is chosen from a bank has other ranks by module, and the same scaling: a rank does the same
wherever it stands.
"""

from collections.abc import Mapping
from dataclasses import replace

from edge_client.adapters.ranks import ModuleRank
from edge_client.adapters.spec import AdapterSpec, lead, lora_modules, parse_adapter
from edge_client.bases.architectures import Shape
from edge_client.bases.families import family_of

SCALING = 2.0  # alpha / r of the bank, and of every module that is cut from it


def bank_spec(spec: AdapterSpec, shape: Shape) -> AdapterSpec:
    """An adapter with the same rank in each of its modules, all with the bank's scaling.

    Args:
        spec: LoRA, or a net for one; its rank is the bank's.
        shape: The base's.
    """
    named = {one[:2]: one for one in lora_modules(spec, shape).values()}
    return with_ranks(spec, shape, dict.fromkeys(named, spec.rank))


def computed(spec: AdapterSpec, shape: Shape) -> AdapterSpec:
    """The adapter that an engine computes with: of a net, the LoRA that it is for; of a form, LoRA.

    Args:
        spec: What is trained.
        shape: The base's.
    """
    return bank_spec(spec, shape) if spec.net else replace(spec, form="")


def with_ranks(
    spec: AdapterSpec, shape: Shape, ranks: Mapping[tuple[int, str], int]
) -> AdapterSpec:
    """An adapter of these ranks by (layer, linear), and of no other module, scaled by `SCALING`.

    Args:
        spec: LoRA; tells the linears, and whether a head is trained beside it.
        shape: The base's.
        ranks: 0: the module carries none, as one that is not named.
    """
    family = family_of(shape.architecture)
    known = [lead(family, target) for target in spec.adapted if target in family.linears]
    linears = list(dict.fromkeys(known))
    parts = tuple(
        ModuleRank(layer, target, rank, SCALING * rank if rank else 16.0)
        for layer in range(shape.stored_layers)
        for target in linears
        for rank in (ranks.get((layer, target), 0),)
    )
    named = replace(spec, targets=tuple(linears), top=0, ranks=parts, net="")
    return parse_adapter(str(named))
