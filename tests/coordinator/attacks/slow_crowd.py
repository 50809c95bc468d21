"""A crowd of slow connections from one process: headers and bodies that trickle, handshakes that
stop, and connections that say nothing. One that is cut comes again.

    python -m tests.coordinator.attacks.slow_crowd PORT CONNECTIONS
"""

import asyncio
import itertools
import ssl
import sys

from smidgen.profiling.fleet.generator import OWN_FILES, raise_file_limit

HEAD = b"GET /v1/work HTTP/1.1\r\nhost: x\r\nx-y: "
BODY = b"POST /v1/enrol HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n{"
HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"  # a handshake that goes no further
BETWEEN_S = 0.01  # of two that are opened
TRICKLE_S = 3.0


async def slow(port: int, kind: str, gate: asyncio.Lock, context: ssl.SSLContext) -> None:
    while True:
        try:
            async with gate:
                await asyncio.sleep(BETWEEN_S)
            trust = context if kind in ("head", "body") else None
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust)
            writer.write({"head": HEAD, "body": BODY, "hello": HELLO, "idle": b""}[kind])
            while not reader.at_eof():
                if kind in ("head", "body"):
                    writer.write(b"a")
                try:
                    await asyncio.wait_for(reader.read(1000), TRICKLE_S)
                except asyncio.TimeoutError:
                    continue
            writer.transport.abort()
        except OSError:
            await asyncio.sleep(1.0)


async def main(port: int, count: int) -> None:
    raise_file_limit(count + OWN_FILES)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # one: it takes long to make
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    gate, kinds = asyncio.Lock(), itertools.cycle(("head", "body", "hello", "idle"))
    await asyncio.gather(*(slow(port, next(kinds), gate, context) for _ in range(count)))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
