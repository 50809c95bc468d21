"""What a coordinator says of a run's pack, byte for byte, and what is refused of it."""

from dataclasses import replace

import pytest

from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.wire import messages
from smidgen.edge_client.wire.fleet import MANIFEST, Outdated, Pack, PackFile
from tests.edge_client.wire.test_messages import TERMS

HASH = "9f" * 32
FILES = {MANIFEST: PackFile(900, HASH), "weights.safetensors": PackFile(1 << 20, HASH)}
PACK = Pack("acme/model", "mit", FILES, ("https://mirror.example/packs",), True)
GOLDEN_PACK = (
    b'"pack":{"files":{"manifest.json":{"bytes":900,"sha256":"' + HASH.encode() + b'"},'
    b'"weights.safetensors":{"bytes":1048576,"sha256":"' + HASH.encode() + b'"}},'
    b'"is_served":true,"licence":"mit","mirrors":["https://mirror.example/packs"],'
    b'"name":"acme/model"}'
)


def test_an_announced_pack_is_these_bytes_in_protocol_12() -> None:
    given = messages.Next(terms=replace(TERMS, pack=PACK))
    body = messages.encode_brief(given)
    assert GOLDEN_PACK in body
    assert messages.decode(body, messages.Next) == given


def test_being_too_old_is_these_bytes_in_protocol_12() -> None:
    given, body = messages.Next(outdated=Outdated("0.2")), b'{"outdated":{"minimum":"0.2"}}'
    assert messages.encode_brief(given) == body
    assert messages.decode(body, messages.Next) == given


@pytest.mark.parametrize(
    "name", ["../weights", "/etc/passwd", "a/b", ".hidden", "", "-x", "a\nb", "x" * 65, "..", "é"]
)
def test_a_file_of_a_pack_cannot_lead_out(name: str) -> None:
    with pytest.raises(WrongInput, match="a file's name"):
        replace(PACK, files=FILES | {name: PackFile(1, HASH)})


@pytest.mark.parametrize("size", [-1, 2**53, 10**30])
def test_absurd_sizes_are_refused(size: int) -> None:
    with pytest.raises(WrongInput, match="size"):
        PackFile(size, HASH)


def test_sizes_that_are_absurd_together_are_refused() -> None:
    half = PackFile(2**52, HASH)
    with pytest.raises(WrongInput, match="its size"):
        replace(PACK, files={MANIFEST: FILES[MANIFEST], "a": half, "b": half})


@pytest.mark.parametrize("files", [{}, {MANIFEST: PackFile(5 << 20, HASH)}])
def test_a_pack_without_a_small_manifest_is_refused(files: dict[str, PackFile]) -> None:
    with pytest.raises(WrongInput, match=r"manifest\.json of at most"):
        replace(PACK, files=files)


@pytest.mark.parametrize(
    "address",
    [
        *("http://mirror.example", "file:///etc", "https://", "https://a b", "ftp://x"),
        *("https://key:word@mirror.example", "https://x?y", "https://x#y", "https://x\ny"),
        "https://" + "x" * 500,
    ],
)
def test_a_mirror_that_is_not_plain_https_is_refused(address: str) -> None:
    with pytest.raises(WrongInput, match="https://HOST/PATH"):
        replace(PACK, mirrors=(address,))


def test_a_hash_that_is_none_is_refused() -> None:
    with pytest.raises(WrongInput, match="64 hexadecimal digits"):
        PackFile(1, "../" + "0" * 61)
