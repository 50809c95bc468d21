"""Devices, as the operator's API says them."""

from typing import Any, Literal

from pydantic import Field

from coordinator.operator.schemas import ANSWER, Answer, Asked, Model, example
from edge_client.wire.fleet import LONGEST_TAG, MOST_TAGS, DeviceFacts
from edge_client.wire.reported.failures import Failure

MEMBERSHIP = {
    "run_id": "r0a1b2c3d4e",
    "run_name": "mail",
    "state": "joined",
    "failure": None,
    "peak_bytes": 180000000,
    "most_rank": 0,
    "at_s": 1789990100.0,
    "misses": 0,
}


class Membership(Model):
    """How a device stands to a run, by its own word.

    Attributes:
        run_id: The run.
        run_name: Its name.
        state: `joined`, `declined`, or `home`: the run is over and it has the adapter.
        failure: Why it declined.
        peak_bytes: Memory that its plan predicts.
        most_rank: The largest rank of LoRA that it takes; 0: the run's.
        at_s: When it said so.
        misses: Steps of the run in a row that closed without it; it is asked less often for that.
    """

    model_config = example(MEMBERSHIP)

    run_id: str
    run_name: str
    state: Literal["joined", "declined", "home"]
    failure: Failure | None
    peak_bytes: int | None
    most_rank: int
    at_s: float
    misses: int


FACTS: dict[str, Any] = {
    "machine": "aarch64",
    "cores": 4,
    "memory_bytes": 4_000_000_000,
    "python": "3.11.2",
    "smidgen": "0.1.0",
    "engine": "onnx",
    "base_id": "9f" * 32,
    "budget_bytes": 512_000_000,
    "board": "Raspberry Pi 4 Model B",
    "is_on_mains": None,
}
DEVICE = {
    "device_id": "d0123456789abcdef0123",
    "name": "pi-kitchen",
    "tags": {"site": "kitchen"},
    "own_tags": {"site": "hall"},
    "operator_tags": {"site": "kitchen"},
    "facts": FACTS,
    "token_id": "t0a1b2c3d4e",
    "enrolled_at_s": 1789990000.0,
    "last_seen_s": 1790000012.0,
    "is_here": True,
    "revoked_at_s": None,
    "cloned_at_s": None,
    "runs": [MEMBERSHIP],
}


class Device(Model):
    """A device that enrolled with this coordinator.

    Attributes:
        device_id: Its identity, which follows from its key.
        name: Its name, one of its kind at this coordinator.
        tags: What runs choose by: its own, overruled by the operator's.
        own_tags: What its owner said of it when it started.
        operator_tags: What operators said of it.
        facts: What it says of itself.
        token_id: The token it enrolled with; null where it came with an old store.
        enrolled_at_s: When it first came.
        last_seen_s: When it was last heard of, to within half a minute; null if never.
        is_here: Whether that was within two minutes.
        revoked_at_s: Since when its key no longer counts; null while it does.
        cloned_at_s: When two clients were last found to run with its key, which a copied state
            folder holds; null if not in the last day.
        runs: How it stands to the runs that it was invited to.
    """

    model_config = example(DEVICE)

    device_id: str
    name: str
    tags: dict[str, str]
    own_tags: dict[str, str]
    operator_tags: dict[str, str]
    facts: DeviceFacts
    token_id: str | None
    enrolled_at_s: float
    last_seen_s: float | None
    is_here: bool
    revoked_at_s: float | None
    cloned_at_s: float | None
    runs: list[Membership]


class Devices(Model):
    """Devices, by name."""

    model_config = example({"devices": [DEVICE], "next": None})

    devices: list[Device]
    next: str | None


class DeviceDetail(Device):
    """A device with its last answers, the newest first."""

    model_config = example({**DEVICE, "answers": [ANSWER]})

    answers: list[Answer]


class Tags(Asked):
    """The operator's tags of a device, all of them; they go before its own."""

    model_config = example({"tags": {"site": "kitchen", "language": "de"}})

    tags: dict[str, str] = Field(
        max_length=MOST_TAGS,
        description=f"Keys and values of at most {LONGEST_TAG} printable characters.",
    )
