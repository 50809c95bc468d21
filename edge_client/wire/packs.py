"""What a coordinator announces beside work: its runs' base packs, and the oldest client it accepts.

A run names its base by a hash and never sends it. If the base is a pack, an invitation describes
it, so that a device whose owner allows it can fetch the pack before joining. Nothing here is
trusted: every file is checked by its SHA-256, and all of them together by the run's base id.
"""

import re
from dataclasses import dataclass

from edge_client.errors import demand

MANIFEST = "manifest.json"
MOST_MANIFEST_BYTES = 4 << 20
MOST_FILES, MOST_MIRRORS, LONGEST_MIRROR = 16, 8, 500
LONGEST_VERSION, LONGEST_LICENCE, LONGEST_PACK = 64, 200, 200
SHA_256 = re.compile("[0-9a-f]{64}")
FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")  # it leads nowhere, and is not hidden


def check_mirror(address: str) -> None:
    """Refuse an announced mirror that is not an https address.

    Raises:
        WrongInput: Says what is expected.
    """
    is_fine = len(address) <= LONGEST_MIRROR and address.isascii() and address.isprintable()
    is_plain = address.startswith("https://") and not set(" ?#@") & set(address)
    demand(
        is_fine and is_plain and len(address) > len("https://"),
        f"pack_mirrors: https://HOST/PATH of at most {LONGEST_MIRROR} characters, without a user, "
        "`?` or `#`, is expected",
    )


@dataclass(frozen=True)
class PackFile:
    """One file of a pack.

    Attributes:
        bytes: Its size.
        sha256: SHA-256 of its bytes.
    """

    bytes: int
    sha256: str

    def __post_init__(self) -> None:
        demand(0 <= self.bytes < 2**53, "pack: a file's size: 0 to 2^53")
        is_hash = SHA_256.fullmatch(self.sha256) is not None
        demand(is_hash, "pack: a file's SHA-256: 64 hexadecimal digits")


@dataclass(frozen=True)
class Pack:
    """The pack that a run's base is.

    Attributes:
        name: The model's name, as its manifest says it.
        licence: The weights' licence, as the packer was told; empty where nobody said.
        files: Every file by its name, the manifest among them.
        mirrors: Addresses under which the files lie as `BASE_ID/FILE`.
        is_served: Whether the coordinator itself gives them.
    """

    name: str
    licence: str
    files: dict[str, PackFile]
    mirrors: tuple[str, ...] = ()
    is_served: bool = False

    def __post_init__(self) -> None:
        _check_shown("pack: name", self.name, LONGEST_PACK)
        _check_shown("pack: licence", self.licence, LONGEST_LICENCE)
        demand(len(self.files) <= MOST_FILES, f"pack: at most {MOST_FILES} files")
        for name in self.files:
            is_name = FILE_NAME.fullmatch(name) is not None
            demand(is_name, "pack: a file's name: letters, digits, `_`, `-` and `.`, up to 64")
        manifest = self.files.get(MANIFEST)
        is_small = manifest is not None and manifest.bytes <= MOST_MANIFEST_BYTES
        demand(is_small, f"pack: {MANIFEST} of at most {MOST_MANIFEST_BYTES} bytes is expected")
        demand(self.total_bytes < 2**53, "pack: its size: 0 to 2^53")
        demand(len(self.mirrors) <= MOST_MIRRORS, f"pack: at most {MOST_MIRRORS} mirrors")
        for address in self.mirrors:
            check_mirror(address)

    @property
    def total_bytes(self) -> int:
        return sum(file.bytes for file in self.files.values())


@dataclass(frozen=True)
class Outdated:
    """This client is too old for the coordinator.

    Attributes:
        minimum: The oldest version that gets work.
    """

    minimum: str

    def __post_init__(self) -> None:
        _check_shown("minimum", self.minimum, LONGEST_VERSION)


def _check_shown(what: str, text: str, most: int) -> None:
    """Refuse what would not be safe to show in a terminal, as `wire.fleet` does."""
    is_fine = len(text) <= most and text.isprintable()
    demand(is_fine, f"{what}: at most {most} printable characters are expected")
