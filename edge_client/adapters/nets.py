"""Nets that runs train in an adapter's place: each tells a device how to train one of its own."""

from edge_client.adapters.banks import bank_spec
from edge_client.adapters.generators import Generator, generator_of
from edge_client.adapters.rates import Rates
from edge_client.adapters.spec import PREFIX, AdapterSpec, lora_modules
from edge_client.bases.architectures import Shape


def net_of(spec: AdapterSpec, shape: Shape) -> Generator | Rates:
    """The net that an adapter's name names.

    Args:
        spec: With a net.
        shape: The base's.
    """
    if spec.net == "generator":
        return generator_of(spec, shape)
    names = [
        f"{PREFIX}{module}.lora_{side}.weight"
        for module in lora_modules(bank_spec(spec, shape), shape)
        for side in "AB"
    ]
    return Rates(tuple(sorted(names)), 2 * shape.layers)
