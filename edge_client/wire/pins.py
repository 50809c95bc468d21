"""CA pins: `sha256:HEX` of the DER certificate of the one authority a device trusts.

The certificate itself may come over an unauthenticated connection, since its hash is checked.
"""

import base64
import binascii
import hashlib
import re
import ssl

CA_PATH = "/v1/ca"
MAX_CA_BYTES = 64 << 10
PREFIX = "sha256:"
_BLOCK = re.compile(rb"-----BEGIN CERTIFICATE-----(.+?)-----END CERTIFICATE-----", re.DOTALL)


def certificates(pem: bytes) -> list[bytes]:
    """The certificates of a PEM file as DER, in its order; whatever else it holds is left out.

    Raises:
        ValueError: What stands between the marks of one is not base64.
    """
    try:
        return [
            base64.b64decode(b"".join(body.split()), validate=True) for body in _BLOCK.findall(pem)
        ]
    except binascii.Error as error:
        raise ValueError(f"not a certificate: {error}") from error


def certificates_alone(pem: bytes) -> bytes:
    """The certificates of a PEM file as PEM, without keys and whatever else it holds.

    Raises:
        ValueError: What stands between the marks of one is not base64.
    """
    return "".join(map(ssl.DER_cert_to_PEM_cert, certificates(pem))).encode()


def pin_of(pem: bytes) -> str:
    """The name of a CA by its certificate, such as `sha256:6ac1...`.

    Raises:
        ValueError: There is not exactly one certificate.
    """
    found = certificates(pem)
    if len(found) != 1:
        raise ValueError(f"one certificate is expected, {len(found)} came")
    return PREFIX + hashlib.sha256(found[0]).hexdigest()


def read_pin(text: str) -> str | None:
    """A pin as people paste it, colons and capitals included; None if it is not one."""
    digits = text.removeprefix(PREFIX).replace(":", "").lower()
    is_pin = text.startswith(PREFIX) and re.fullmatch("[0-9a-f]{64}", digits)
    return PREFIX + digits if is_pin else None
