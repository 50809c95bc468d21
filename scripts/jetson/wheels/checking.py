"""Say what is wrong with a wheelhouse, a line per fault; exit code 1 if anything is."""

import argparse
import sys
from pathlib import Path

from checks import Checked
from refusal import Refusal, demand
from targets import TARGETS, Target

MARK = "target"  # the file in a wheelhouse that says what it is for


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="check_wheelhouse", description=__doc__)
    parser.add_argument("folder", type=Path, help="made by build_wheelhouse")
    parser.add_argument("--target", help="what it is for, if its file `target` does not say it")
    asked = parser.parse_args()
    try:
        checked = Checked(asked.folder, target_of(asked.folder, asked.target))
    except Refusal as error:
        print("check_wheelhouse: {}".format(error), file=sys.stderr)
        return 2
    for fault in checked.faults:
        print("check_wheelhouse: {}".format(fault), file=sys.stderr)
    if checked.faults:
        return 1
    told = "{} is good for {}: {} wheels; {}"
    print(told.format(asked.folder, checked.target.name, checked.count, checked.needs))
    return 0


def target_of(folder: Path, named: "str | None") -> Target:
    """What a wheelhouse is for.

    Raises:
        Refusal: Nobody says it, or it is nothing we know.
    """
    demand(folder.is_dir(), "{} is not a folder; name the wheelhouse's".format(folder))
    path = folder / MARK
    if named is None:
        told = "{} has no file `{}`; name one of {} with --target"
        demand(path.is_file(), told.format(folder, MARK, ", ".join(TARGETS)))
        named = path.read_text(encoding="utf-8", errors="replace").strip()
    return known(named)


def known(name: str) -> Target:
    """A target by its name.

    Raises:
        Refusal: There is none.
    """
    demand(name in TARGETS, "{!r} is not a target; there are {}".format(name, ", ".join(TARGETS)))
    return TARGETS[name]
