"""Messages beside work: enrolment, facts, invitations, memberships, packs, oldest client.

A device belongs to the coordinator, not to a run. It draws its key before sending it, so an
enrolment whose answer is lost repeats into the same device; its id follows from the key, and seeds
from the id. Names and tags are for people.

A run names its base by a hash and never sends it. If the base is a pack, an invitation describes
it, so that a device whose owner allows it can fetch the pack before joining. Nothing here is
trusted: every file is checked by its SHA-256, and all of them together by the run's base id.
"""

import hashlib
import re
import secrets
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from smidgen.edge_client.errors import demand
from smidgen.edge_client.tasks.kind import kind_of
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.reports import Failure
from smidgen.edge_client.wire.training import Labelling, Training

MANIFEST = "manifest.json"
MOST_MANIFEST_BYTES = 4 << 20
MOST_FILES, MOST_MIRRORS, LONGEST_MIRROR = 16, 8, 500
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
        _check_shown("pack: name", self.name, 200)
        _check_shown("pack: licence", self.licence, 200)
        demand(len(self.files) <= MOST_FILES, f"pack: at most {MOST_FILES} files")
        for name in self.files:
            fits = FILE_NAME.fullmatch(name) is not None
            demand(fits, "pack: a file's name: letters, digits, `_`, `-` and `.`, up to 64")
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
        _check_shown("minimum", self.minimum, 64)


def _check_shown(what: str, text: str, most: int) -> None:
    """Refuse what would not be safe to show in a terminal, as `wire.fleet` does."""
    is_fine = len(text) <= most and text.isprintable()
    demand(is_fine, f"{what}: at most {most} printable characters are expected")


REVOKED = (
    "the coordinator's operator has revoked this device; only they can let it in, as a new device "
    "(another --state folder and a new token)"
)
CLONED = (
    "another client with this device's key has started since, so its state folder was copied: keep "
    "one of the two, and start the other with another --state folder and a token of its own"
)
LONGEST_NAME = 64  # characters of a device's name
MOST_TAGS = 32
LONGEST_TAG = 64  # characters of a tag's key, and of its value
LONGEST_LIFE = 32
MOST_RETURNS = 2  # of a life that is refused: words of an ended one may come late
LONGEST_FACT = 200  # characters
LONGEST_GIVEN = 2 * LONGEST_NAME  # of a name that the coordinator gives: it numbers equal ones
PLAIN_ID = re.compile(r"[A-Za-z0-9_.-]{1,128}")  # it becomes part of paths and file names


def draw_key() -> str:
    """A new device's key: 256 random bits, safe in a header and in a shell."""
    return "k" + secrets.token_urlsafe(32)


def draw_life() -> str:
    """What tells one life of a client from another that holds the same key."""
    return secrets.token_hex(8)


def device_id_of(key: str) -> str:
    """The id of the device that holds a key; it does not tell the key."""
    return "d" + hashlib.sha256(key.encode()).hexdigest()[:20]


def check_by_labels(task: Task, labelling: Labelling | None, training: Training) -> None:
    """Refuse what goes by labels of texts where the task has none.

    Raises:
        WrongInput: Says which.
    """
    kind = kind_of(task)
    can_label, has_one = kind.is_labelled, kind.is_one_label
    demand(can_label or labelling is None, f"labelling: null with a task of kind {kind.name}")
    demand(has_one or not training.adjusted, f"adjusted: false with a task of kind {kind.name}")


def check_id(what: str, text: str) -> None:
    """Refuse an id that could lead out of the folder or the path that it becomes part of.

    Raises:
        WrongInput: Says which; what came is not repeated.
    """
    is_plain = PLAIN_ID.fullmatch(text) is not None and ".." not in text and text != "."
    demand(is_plain, f"{what}: 1 to 128 letters, digits, `_`, `-` and `.` are expected")


def check_shown(what: str, text: str, most: int = LONGEST_NAME) -> None:
    """Refuse what would not be safe to show in a terminal.

    Raises:
        WrongInput: Says which; what came is not repeated.
    """
    is_fine = len(text) <= most and text.isprintable()
    demand(is_fine, f"{what}: at most {most} printable characters are expected")


NAME = f"1 to {LONGEST_NAME} printable characters of one script, a letter or digit first, no `..`"
LIKE = ("LATIN", "GREEK", "CYRILLIC")  # scripts whose letters are mistaken for another's


def is_name(text: str) -> bool:
    """Whether people can tell a device or a run by a name (`NAME`), wherever it is shown.

    It is no option of a command, no formula of a spreadsheet, leads out of no folder, and its
    letters are of one of the scripts that look alike.
    """
    is_short = 0 < len(text) <= LONGEST_NAME and text.isprintable() and ".." not in text
    words = {unicodedata.name(letter, "").partition(" ")[0] for letter in text if letter.isalpha()}
    return is_short and text[0].isalnum() and len(words.intersection(LIKE)) <= 1


def check_tags(tags: Mapping[str, str]) -> None:
    """Refuse tags that are not short printable words.

    Raises:
        WrongInput: Names the tag.
    """
    demand(len(tags) <= MOST_TAGS, f"tags: at most {MOST_TAGS}")
    for key, value in tags.items():
        is_key = 0 < len(key) <= LONGEST_TAG and key.isprintable() and "=" not in key
        demand(is_key, f"tag {key[:LONGEST_TAG]!r}: 1 to {LONGEST_TAG} characters without `=`")
        is_value = len(value) <= LONGEST_TAG and value.isprintable()
        demand(is_value, f"tag {key}: its value has at most {LONGEST_TAG} printable characters")


@dataclass(frozen=True)
class DeviceFacts:
    """What a device says of itself each time it starts; nothing here is checked or trusted.

    Attributes:
        machine: Processor architecture, such as `aarch64`.
        cores: Logical processors the client may use.
        memory_bytes: Physical memory.
        python: Version of the interpreter.
        smidgen: Version of the client.
        engine: What it computes with, `onnx` or `torch`.
        base_id: SHA-256 of the frozen base that it holds.
        budget_bytes: Memory that training may take; null where the client decides by itself.
        board: What the firmware calls the board, empty where it has no name.
        is_on_mains: Whether it runs from the mains; null where nothing tells.
    """

    machine: str
    cores: int
    memory_bytes: int
    python: str
    smidgen: str
    engine: str = ""
    base_id: str = ""
    budget_bytes: int | None = None
    board: str = ""
    is_on_mains: bool | None = None

    @property
    def usable_bytes(self) -> int:
        """Its budget, or where it names none all of its machine's memory."""
        return self.memory_bytes if self.budget_bytes is None else self.budget_bytes

    def __post_init__(self) -> None:
        for name in ("machine", "python", "smidgen", "engine", "base_id", "board"):
            is_short = len(getattr(self, name)) <= LONGEST_FACT
            demand(is_short, f"facts: {name}: at most {LONGEST_FACT} characters")
        for name in ("cores", "memory_bytes", "budget_bytes"):
            value = getattr(self, name)
            demand(value is None or 0 <= value < 2**53, f"facts: {name}: 0 to 2^53")


@dataclass(frozen=True)
class Enrol:
    """A device says who it is: once with a token, then at each of its starts.

    Its key comes as `Authorization: Bearer KEY`; a key that is known needs no token, and counts
    none of a token's uses.

    Attributes:
        protocol: Version of this contract the client speaks.
        name: What it calls itself, see `is_name`; the coordinator numbers equal names.
        facts: What the coordinator's list of devices shows, and runs choose by.
        token: Enrolment token, given to the device by the coordinator's operator; may be empty.
        tags: What its owner says of it, such as `site=kitchen`; the operator's own win.
        life: Drawn anew at each start; two that live at once are copies of one state folder.
    """

    protocol: int
    name: str
    facts: DeviceFacts
    token: str = ""
    tags: dict[str, str] = field(default_factory=dict)
    life: str = ""

    def __post_init__(self) -> None:
        demand(is_name(self.name), f"name: {NAME} are expected")
        demand(len(self.token) <= 200, "token: at most 200 characters")
        check_shown("life", self.life, LONGEST_LIFE)
        check_tags(self.tags)


@dataclass(frozen=True)
class Enrolled:
    """The coordinator's answer to `Enrol`.

    Attributes:
        protocol: Version of this contract the coordinator speaks.
        device_id: The device's identity, which seeds hang on.
        name: The name under which people find it at the coordinator.
    """

    protocol: int
    device_id: str
    name: str

    def __post_init__(self) -> None:
        check_shown("device_id", self.device_id, 2 * LONGEST_GIVEN)
        check_shown("name", self.name, LONGEST_GIVEN)


@dataclass(frozen=True)
class Terms:
    """What a run asks of its devices: an invitation, answered by a `Membership`.

    Attributes:
        run_id: The run.
        run_name: What its owner calls it.
        base_id: SHA-256 of the frozen base the run trains on; the device must hold the same.
        base_name: What the run's owner calls that base, for messages to people.
        adapter_spec: The adapter's name, such as `lora:8@q,v`.
        task: Labels, patterns and verbalizer.
        training: How to train.
        rounds: Server steps until the run is finished.
        min_clients: Devices that the first round waits for.
        labelling: How devices find and weigh pseudo-labels; null in a run without.
        pack: The pack that the base is; null where it is none, or not known to the coordinator.
        steps: The run's update steps in order, which the device has to have.
    """

    run_id: str
    run_name: str
    base_id: str
    base_name: str
    adapter_spec: str
    task: Task
    training: Training
    rounds: int
    min_clients: int
    labelling: Labelling | None = None
    pack: Pack | None = None
    steps: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_id("run_id", self.run_id)
        check_shown("run_name", self.run_name)
        check_by_labels(self.task, self.labelling, self.training)


@dataclass(frozen=True)
class Membership:
    """How a device stands to a run.

    Attributes:
        state: `joined`: it can and will take part; `declined`: it cannot, for the reason told;
            `home`: the run is over and the device has its adapter.
        failure: Code of why it cannot; of `declined` alone.
        peak_bytes: Memory that its plan for this run predicts; null where it does not say.
        most_rank: The largest rank of LoRA that it takes; 0: the run's, whatever that is.
        mask_key: Its X25519 public key in this run, 64 hexadecimal digits, where the run has secure
            aggregation; else empty.
    """

    state: Literal["joined", "declined", "home"]
    failure: Failure | None = None
    peak_bytes: int | None = None
    most_rank: int = 0
    mask_key: str = ""

    def __post_init__(self) -> None:
        is_key = re.fullmatch("([0-9a-f]{64})?", self.mask_key) is not None
        demand(is_key, "mask_key: 64 hexadecimal digits, or empty")
        is_told = (self.state == "declined") == (self.failure is not None)
        demand(is_told, "failure: a code where the device declines, and only there")
        is_sane = self.peak_bytes is None or 0 <= self.peak_bytes < 2**53
        demand(is_sane, "peak_bytes: 0 to 2^53, or null")
        demand(0 <= self.most_rank < 10_000, "most_rank: 1 to 9999, or 0 for any")
