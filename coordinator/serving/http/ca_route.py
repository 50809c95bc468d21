"""`GET /v1/ca`: the authority that devices of this coordinator believe, for anybody.

It is no secret, and who shows it proves nothing: a device compares its hash with what its owner
pasted, and from then on believes this authority alone.
"""

from collections.abc import Callable

from fastapi import FastAPI, Response

from coordinator.rounds.admission import Refusal
from coordinator.serving.http.documented import refusals
from edge_client.wire.pins import CA_PATH

MEDIA_TYPE = "application/pem-certificate-chain"


def add_ca_route(app: FastAPI, authority: Callable[[], bytes | None]) -> None:
    """Let an application show its authority.

    Args:
        app: The coordinator's.
        authority: Gives its certificate of now, PEM; None: devices trust those of their system,
            or plain HTTP.
    """

    @app.get(
        CA_PATH,
        tags=["watching"],
        response_class=Response,
        responses={200: {"content": {MEDIA_TYPE: {"schema": {"type": "string"}}}}, **refusals(404)},
    )
    async def authority_certificate() -> Response:
        """The certificate (PEM) of the authority that devices believe."""
        shown = authority()
        if shown is None:
            raise Refusal(404, "this coordinator has no authority of its own")
        return Response(shown, media_type=MEDIA_TYPE)
