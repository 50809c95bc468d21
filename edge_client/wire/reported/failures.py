"""Why a device could not do its work, as codes: what a coordinator hears of a failure.

An exception's own words may quote a line of the device's files or one of its paths, so they stay in
the device's log. A code says whose turn it is. `revoked` is the coordinator's own, for its journal:
from a device it is refused.
"""

from typing import Literal

Failure = Literal[
    "texts",
    "task",
    "base",
    "fetching",
    "adapter",
    "budget",
    "memory",
    "training",
    "engine",
    "disk",
    "transfer",
    "refused",
    "too_large",
    "limits",
    "revoked",
    "internal",
]
# What a run's owner reads.
SAID: dict[Failure, str] = {
    "texts": "the device's texts cannot be used for this task",
    "task": "the task does not fit the base",
    "base": "the device holds another base",
    "fetching": "the device is fetching the run's base, and joins when it has it",
    "adapter": "the adapter does not fit the base",
    "budget": "no plan fits the device's memory budget",
    "memory": "the device ran out of memory",
    "training": "training gave no usable update: no texts, or a loss that is not finite",
    "engine": "the device's engine or one of its libraries is missing",
    "disk": "a file could not be read or written",
    "transfer": "what the coordinator sent could not be used, or the update did not get through",
    "refused": "the coordinator refused the device's answer",
    "too_large": "something between device and coordinator refused the update as too large: raise "
    "the proxy's limit on bodies (nginx: client_max_body_size; Caddy: request_body max_size)",
    "limits": "the work is more than the device's owner lets it do",
    "revoked": "the coordinator's operator revoked the device",
    "internal": "an error that smidgen does not know; please report it",
}
