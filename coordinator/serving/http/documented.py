"""OpenAPI schemas for what the web framework cannot see: `wire` messages, refusals, device keys."""

from dataclasses import asdict
from typing import Any, Literal

import msgspec
from fastapi import Request
from fastapi.openapi.models import HTTPBearer
from fastapi.security.base import SecurityBase
from pydantic import BaseModel, ConfigDict

from coordinator.storage.keys import bearer
from edge_client.wire.fleet import DeviceFacts, Enrol, Enrolled, Membership
from edge_client.wire.messages import PROTOCOL, Report, Waiting
from edge_client.wire.reports import Cost

BYTES = {"type": "string", "format": "binary"}
FILE = {"application/octet-stream": {"schema": BYTES}}
UPDATE = {**BYTES, "description": "An update (a safetensors file), or what is missing of it."}
TENSORS = {"content": {"application/octet-stream": {"schema": UPDATE}}, "required": True}


FACTS = DeviceFacts(
    "aarch64", 4, 4_000_000_000, "3.11.2", "0.1.0", "onnx", "9f" * 32, 512_000_000, "Raspberry Pi 4"
)
ENROL = Enrol(PROTOCOL, "pi-kitchen", FACTS, "sEcReT", {"site": "kitchen"})
ENROLLED = Enrolled(PROTOCOL, "d0123456789abcdef0123", "pi-kitchen-2")
WAITING = Waiting("train", "mail", 3, 20, missing=1, asked=3, closes_in_s=412.0)
MEMBERSHIP = Membership("joined", peak_bytes=180_000_000)
COST = Cost(phases_s={"download": 0.4, "train": 31.5, "upload": 1.2})
REPORT = Report("w0a1b2c3d4e", "done", 24, loss=0.48, cost=COST)
SAID = {
    400: "The request cannot be read.",
    401: "The key or the token that is needed did not come, or counts no longer.",
    403: "Whoever asks may not do that.",
    404: "There is no such thing.",
    408: "The body stopped coming, or comes too slowly.",
    409: "It cannot be done as things stand.",
    413: "The body is longer than it may be.",
    422: "A value that is not expected.",
    429: "Too often; `Retry-After` says when to try again.",
    503: "Not now; try again.",
    507: "The disk is full; `Retry-After` says when to try again.",
}


class Detail(BaseModel):
    """A refusal, in one line."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"detail": "no run 'r0a1b2c3d4e'"}]}
    )

    detail: str


class Health(BaseModel):
    """A process that answers."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"status": "ok"}]})

    status: Literal["ok"]


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """How a route's refusals are documented; by name, for each `model` would be built anew.

    The schema of that name is there: the route of packs gives `Detail` itself.
    """
    return {
        status: {
            "description": SAID[status],
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Detail"}}},
        }
        for status in statuses
    }


class DeviceKey(SecurityBase):
    """A dependency that gives the bearer token of a request, None where none came."""

    def __init__(self) -> None:
        self.model = HTTPBearer(description="A device's key, which it drew itself.")
        self.scheme_name = "DeviceKey"

    async def __call__(self, request: Request) -> str | None:
        return bearer(request.headers.get("authorization"))


def gives(example: Any) -> dict[int | str, dict[str, Any]]:
    """How an answer that `wire` encodes is documented: by an example."""
    return {200: {"content": {"application/json": {"example": asdict(example)}}}}


def takes(example: Any) -> dict[str, Any]:
    """How a body that `wire` decodes is documented: by its own schema and an example."""
    (schema,), parts = msgspec.json.schema_components([type(example)], ref_template="{name}")
    body = {"schema": _whole(schema, parts), "example": asdict(example)}
    return {"requestBody": {"content": {"application/json": body}, "required": True}}


def _whole(schema: Any, parts: dict[str, Any]) -> Any:
    """A schema with its parts in their places; no message holds itself."""
    if isinstance(schema, list):
        return [_whole(one, parts) for one in schema]
    if not isinstance(schema, dict):
        return schema
    named = schema.get("$ref")
    if isinstance(named, str):
        return _whole(parts[named], parts)
    return {key: _whole(one, parts) for key, one in schema.items()}
