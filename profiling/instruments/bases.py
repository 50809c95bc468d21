"""Benchmark bases, made once in the user's cache folder, and the peers' own environments.

    ~/.cache/smidgen/packs/random-roberta-large-4-0     SHAPE-BITS-SEED
    ~/.cache/smidgen/packs/0c9f6a41d2b37e58-8           identity of the source, BITS
    ~/.cache/smidgen/peers/0c9f6a41d2b37e58-nf4         a peer's checkpoint of the same weights

Each is made by a process of its own, so that its cost is in no measured process, and may be deleted
at any time. Peers that cannot be installed beside us have environments made by a script in
`scripts/`, which writes `MARK` last, so that an incomplete one does not count.
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from smidgen.edge_client.bases.base import EMBEDDED, Base, BaseError, open_base
from smidgen.edge_client.bases.gguf.header import is_gguf
from smidgen.edge_client.bases.tokenizer import open_tokens
from smidgen.edge_client.errors import WrongInput, demand
from smidgen.edge_client.outputs import home_folder
from smidgen.edge_client.texts.prompts.patterns import TaskError

BITS = (4, 8, 16)
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
# Label words; the first four that are single tokens of a base's vocabulary are taken.
WORDS = (
    *("world", "sports", "business", "science", "technology", "news"),
    *("good", "bad", "great", "terrible", "yes", "no", "a", "b", "c", "d"),
)
LABELS = 4


class BenchmarkError(WrongInput):
    """A benchmark that cannot be run as it was asked for."""


def demand_between(values: Mapping[str, tuple[int, int, int]]) -> None:
    """Refuse an option's value that is out of its range.

    Args:
        values: Option -> the least value, the one given, the greatest.

    Raises:
        BenchmarkError: Names the first one.
    """
    for name, (least, value, most) in values.items():
        demand(value >= least, f"--{name} {value} is less than {least}", BenchmarkError)
        demand(value <= most, f"--{name} {value} is more than {most}", BenchmarkError)


def cache_folder() -> Path:
    """Where packs and checkpoints are kept: `$XDG_CACHE_HOME/smidgen`.

    Raises:
        OutputError: It is not set, and the user has no home.
    """
    if chosen := os.environ.get("XDG_CACHE_HOME", ""):
        return Path(chosen) / "smidgen"
    return home_folder("set XDG_CACHE_HOME or HOME") / ".cache" / "smidgen"


def find_base(name: str, is_random: bool, bits: int | None, seed: int) -> Base:
    """A base in the bits asked for; packed first where the cache has no such pack.

    Args:
        name: A shape that `smidgen pack --random` knows; or a pack, a Hugging Face folder,
            `embedded`, a hub name.
        is_random: Whether `name` is such a shape.
        bits: 4, 8 or 16; None for the base's own, of a random one 4.
        seed: Root seed of the random weights.

    Raises:
        BenchmarkError: No such base, or it cannot be packed.
    """
    if bits not in (None, *BITS):
        raise BenchmarkError(f"--bits {bits} is not one of 4, 8 and 16")
    if is_random:
        folder = cache_folder() / "packs" / f"random-{name}-{bits or 4}-{seed}"
        return _packed(name, bits or 4, folder, ["--random", "--seed", str(seed)])
    base = _opened(name)
    if bits in (None, base.bits):
        return base
    if base.manifest is not None:
        raise BenchmarkError(
            f"base {name} is packed with {base.bits} bits already; give the model it was made "
            f"from, or leave --bits {bits} out"
        )
    return _packed(name, int(bits), cache_folder() / "packs" / f"{base.base_id[:16]}-{bits}", [])


def _packed(name: str, bits: int, folder: Path, more: Sequence[str]) -> Base:
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        pack = ["smidgen", "pack", name, "--bits", str(bits), "--out", str(folder), *more]
        make([sys.executable, "-m", *pack], {})
    return _opened(str(folder))


def _opened(name: str) -> Base:
    try:
        return open_base(name)
    except BaseError as error:
        raise BenchmarkError(str(error)) from error


def is_shape(name: str) -> bool:
    return name != EMBEDDED and not is_gguf(name) and not Path(name).is_dir()


def find_checkpoint(base: Base, kind: str) -> Path:
    """A peer's checkpoint of a base's weights; made first where the cache has none.

    Args:
        base: The base.
        kind: `float32` or `nf4`.

    Raises:
        BenchmarkError: It cannot be made.
    """
    demand(
        not base.is_gguf,
        f"base {base.name} is a GGUF file, which no peer reads; leave peers out",
        BenchmarkError,
    )
    folder = cache_folder() / "peers" / f"{base.base_id[:16]}-{kind}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        command = ["smidgen.profiling.peers.torch_checkpoint", str(base.folder), str(folder), kind]
        make([sys.executable, "-m", *command], OFFLINE)
    return folder


def make(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run a process that makes something; its last words become the error.

    Raises:
        BenchmarkError: It failed.
    """
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | environment, check=False
    )
    if done.returncode:
        rows = done.stderr.strip().splitlines() or ["it said nothing"]
        raise BenchmarkError(rows[-1].removeprefix("smidgen pack: "))


def label_words(base: Base) -> dict[str, int]:
    """Four words that are one token each in this base's vocabulary, with their token ids.

    Raises:
        BenchmarkError: The vocabulary has no four of them.
    """
    try:
        tokens = open_tokens(base)
    except TaskError as error:
        raise BenchmarkError(f"base {base.name}: {error}") from error
    found, before = dict[str, int](), len(tokens.encode("a"))
    unknown = tokens.encode("a \N{SNOWMAN}")[before:]
    for word in WORDS:
        ids = tokens.encode(f"a {word}")[before:]
        if len(ids) == 1 and ids != unknown and ids[0] not in found.values():
            found[word] = ids[0]
    if len(found) < LABELS:
        raise BenchmarkError(
            f"base {base.name} has only {len(found)} of the label words {', '.join(WORDS)} as "
            "single tokens; four are needed"
        )
    return dict(list(found.items())[:LABELS])


MARK = ".installed"
ROOT = Path(__file__).parents[3]  # that `smidgen` lies in
# Our packages come last on the path: beside them may lie libraries of another environment.
LAUNCH = (
    "import runpy, sys; sys.path.append(sys.argv.pop(1)); "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def folder_of(name: str, variable: str) -> Path:
    """Where an environment is looked for: as the variable says, else in the cache folder."""
    chosen = os.environ.get(variable, "")
    return Path(chosen) if chosen else cache_folder() / name


def why_missing(folder: Path, script: str) -> str | None:
    if (folder / MARK).is_file():
        return None
    return f"there is no environment for it at {folder}; {script} makes one"


def command_in(folder: Path, module: str, *arguments: str) -> list[str]:
    return [str(folder / "bin" / "python"), "-c", LAUNCH, str(ROOT), module, *arguments]
