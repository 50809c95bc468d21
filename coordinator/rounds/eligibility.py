"""Eligibility: tags set by people and facts reported by devices that a run requires."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from edge_client.errors import demand
from edge_client.wire.fleet import DeviceFacts, check_tags
from edge_client.wire.seeds import derive_seed


@dataclass(frozen=True)
class DeviceFilter:
    """What a device must be like to be asked into a run; by default every one is.

    Attributes:
        tags: Tags that it must have, with these values.
        least_memory_bytes: Memory that it must have at least: its budget, or where it names none,
            all of its machine's.
        engine: What it must compute with; empty for either.
        is_on_mains: Whether it must be known to run from the mains.
        share: Share of the devices that fit otherwise, above 0 and at most 1; drawn by hashing
            the run's secret with the device's id, so a device stays in or out.
    """

    tags: dict[str, str] = field(default_factory=dict)
    least_memory_bytes: int = 0
    engine: Literal["", "onnx", "torch"] = ""
    is_on_mains: bool = False
    share: float = 1.0

    def __post_init__(self) -> None:
        check_tags(self.tags)
        demand(0 <= self.least_memory_bytes < 2**53, "least_memory: 0 to 8P")
        demand(0.0 < self.share <= 1.0, "share: above 0 and at most 1")


def is_chosen(
    choice: DeviceFilter, secret: str, device_id: str, tags: Mapping[str, str], facts: DeviceFacts
) -> bool:
    """Whether a run wants a device.

    Args:
        choice: The run's.
        secret: The run's, that no device knows.
        device_id: The device.
        tags: Its tags, those of its owner and of the operator.
        facts: What it said of itself.
    """
    # What a run does not ask for is not looked at: a step of a large fleet asks of every device.
    return (
        (not choice.tags or all(tags.get(key) == value for key, value in choice.tags.items()))
        and (not choice.least_memory_bytes or facts.usable_bytes >= choice.least_memory_bytes)
        and choice.engine in ("", facts.engine)
        and (not choice.is_on_mains or facts.is_on_mains is True)
        and (
            choice.share == 1.0 or derive_seed(secret, "devices", device_id) < choice.share * 2**63
        )
    )


def lack_of_tags(
    choice: DeviceFilter,
    fleet: Iterable[Mapping[str, str]],
    promised: Iterable[Mapping[str, str]] = (),
) -> str:
    """What is wrong with a choice whose tags no device of a fleet has; empty where some has them.

    A fleet without devices lacks nothing: they are yet to come.

    Args:
        choice: What a run asks for.
        fleet: The tags of each device.
        promised: The tags that devices yet to come are given, by each token that lets some in.
    """
    known = list(fleet)
    wanted = choice.tags.items()
    if not known or any(wanted <= tags.items() for tags in (*known, *promised)):
        return ""
    there = sorted({f"{key}={value}" for tags in known for key, value in tags.items()})
    said = " ".join(f"{key}={value}" for key, value in sorted(wanted))
    more = f" and {len(there) - 20} more" if len(there) > 20 else ""
    names = f"the tags there are: {', '.join(there[:20])}{more}" if there else "none has a tag"
    return f"no device has the tags {said}; {names}"
