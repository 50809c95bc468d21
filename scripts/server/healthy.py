"""Whether the coordinator in this container answers; for its health check.

Asked over loopback, by TLS first and without it where it is not spoken. Who answers is not checked:
nothing is sent that anybody could use.
"""

import http.client
import os
import ssl
import sys

TIMEOUT_S = 4.0


def is_healthy(port: int) -> bool:
    """Whether `/healthz` on a port of this machine answers with 200."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    for connection in (
        http.client.HTTPSConnection("127.0.0.1", port, timeout=TIMEOUT_S, context=context),
        http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S),
    ):
        try:
            connection.request("GET", "/healthz")
            if connection.getresponse().status == 200:
                return True
        except (OSError, http.client.HTTPException):
            continue
        finally:
            connection.close()
    return False


if __name__ == "__main__":
    sys.exit(0 if is_healthy(int(os.environ.get("PORT", "8700"))) else 1)
