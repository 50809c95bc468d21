"""`make fuzz`: bodies for every decoder, for as long as one likes.

python -m tests.fuzz run --seconds 600               all decoders by turns, seed printed
python -m tests.fuzz run report csv --seed 7          two of them, by that seed
python -m tests.fuzz keep report FILE                 a body that was found, into the corpus
"""

import argparse
import hashlib
import logging
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.fuzz.ground import Ground
from tests.fuzz.search import Found, search
from tests.fuzz.targets import TARGETS

EXAMPLES = 100  # a turn


def run(names: list[str], seconds: float, number: int) -> int:
    """Search until the time is over; 1 where something was found."""
    found, turns, end = Counter[str](), 0, time.monotonic() + seconds
    kept = Path(tempfile.mkdtemp(prefix="smidgen-fuzz-"))
    logging.disable()  # of lines that are left out
    print(f"{len(names)} decoders, {seconds:g} s, seed {number}", flush=True)
    with tempfile.TemporaryDirectory() as folder, Ground(Path(folder)) as ground:
        while time.monotonic() < end:
            for name in names:
                if found[name] or time.monotonic() >= end:
                    continue
                try:
                    search(name, ground, number + turns // len(names), EXAMPLES, kept)
                except Found as error:
                    found[name] += 1
                    print(error, flush=True)
                turns += 1
            if len(found) == len(names) and all(found.values()):
                break
    print(f"{turns * EXAMPLES} bodies, {sum(found.values())} found, seed {number}")
    return 1 if sum(found.values()) else 0


def keep(name: str, file: Path) -> int:
    """Put a body into a target's corpus; its name there is its hash."""
    body = file.read_bytes()
    kept = Path(__file__).with_name("corpus") / name / hashlib.sha256(body).hexdigest()[:12]
    kept.write_bytes(body)
    print(kept)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    searching = commands.add_parser("run")
    searching.add_argument("names", nargs="*", metavar="TARGET", choices=[[], *TARGETS])
    searching.add_argument("--seconds", type=float, default=60.0)
    searching.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    keeping = commands.add_parser("keep")
    keeping.add_argument("name", choices=TARGETS)
    keeping.add_argument("file", type=Path)
    given = parser.parse_args()
    if given.command == "keep":
        return keep(given.name, given.file)
    return run(given.names or [*TARGETS], given.seconds, given.seed)


if __name__ == "__main__":
    sys.exit(main())
