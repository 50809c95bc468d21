"""A file that is asked for by its hash, whole or from some byte on."""

import re
from collections.abc import Mapping

from fastapi import Response
from fastapi.responses import JSONResponse

from coordinator.rounds.admission import Refusal
from edge_client.wire.tensors import digest_header


def headers_of(name: str) -> dict[str, str]:
    """What is said of a file by its SHA-256."""
    told = {"ETag": f'"{name}"', "Repr-Digest": digest_header(name)}
    return {**told, "Cache-Control": "immutable"}


def past_the_end(wanted: str | None, size: int, headers: Mapping[str, str]) -> Response | None:
    """The answer to a `Range` that begins behind a file's last byte; None: it does not.

    Raises:
        Refusal: 400, it is not one part of a file.
    """
    if wanted is None or first_of(wanted) < size:
        return None
    detail = {"detail": f"the file has {size} bytes"}
    return JSONResponse(detail, 416, {**headers, "Content-Range": f"bytes */{size}"})


def first_of(header: str) -> int:
    """Where the part begins that a `Range` asks for."""
    found = re.fullmatch(r"bytes=(\d{1,15})-(\d{0,15})", header)
    if found is None or (found[2] and int(found[2]) < int(found[1])):
        raise Refusal(400, "Range: `bytes=FIRST-` or `bytes=FIRST-LAST` is expected")
    return int(found[1])
