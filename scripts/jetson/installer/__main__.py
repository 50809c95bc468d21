"""What install.sh and bake.sh run: put a release of smidgen into a root file system.

    python3 installer WHEELHOUSE [--root DIR] [--env FILE] [--token-file FILE]
    python3 installer --rollback | --uninstall [--purge]

Python 3.6 with nothing installed runs it: that is what a TX2 has. Says in one line what changed, or
why nothing did; exit code 2 for a wrong input, 1 where something else failed.
"""

import argparse
import json
import os
import stat
import sys
from pathlib import Path
from typing import Optional

from release import (
    CURRENT,
    FORMER,
    HOME,
    RELEASES,
    alone,
    linked,
    make,
    roll_back,
    sweep,
    switch,
    take_back,
)
from root import COMMAND, ENV, IDENTITY, RULES, STATE, TOKEN, UNIT, WANTED, WIDE, Root
from service import forget, restart, stop
from wheelhouse import Refusal, Wheelhouse, demand, tell

SOURCES = Path(__file__).resolve().parents[1]


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="install.sh", description=__doc__.splitlines()[0])
    parser.add_argument("wheelhouse", nargs="?", type=Path, help="folder made by build_wheelhouse")
    parser.add_argument("--root", type=Path, default=Path("/"), help="another root than /")
    parser.add_argument("--env", type=Path, help="becomes /etc/smidgen.env")
    parser.add_argument("--token-file", type=Path, help="enrolment token, mode 0600; used once")
    parser.add_argument("--image", action="store_true", help="for many boards: no secrets in it")
    parser.add_argument("--rollback", action="store_true", help="the former release again")
    parser.add_argument("--uninstall", action="store_true", help="all but settings and state")
    parser.add_argument("--purge", action="store_true", help="with --uninstall: these too")
    asked = parser.parse_args()
    os.umask(0o022)  # the service's user reads what root puts there
    try:
        print(act(asked))
    except Refusal as error:
        print("install.sh: {}".format(error), file=sys.stderr)
        return 2
    except OSError as error:
        print("install.sh: {}; nothing was switched".format(error), file=sys.stderr)
        return 1
    return 0


def act(asked: argparse.Namespace) -> str:
    root = Root(asked.root)
    if asked.uninstall:
        return uninstall(root, is_purged=asked.purge)
    if asked.rollback:
        with alone(root):
            return "{} is current again{}".format(roll_back(root), restart(root))
    demand(asked.wheelhouse is not None, "name the wheelhouse's folder")
    return install(root, asked.wheelhouse, asked.env, asked.token_file, is_image=asked.image)


def install(
    root: Root, folder: Path, env: Optional[Path], token_file: Optional[Path], is_image: bool
) -> str:
    """Install or upgrade; everything is checked before anything is written."""
    tell("checking every file of {}", folder)
    house = Wheelhouse(folder.resolve())
    fits = house.machine in (None, root.machine)
    told = "the wheels in {} are for {}, {} is {}; {}"
    todo = "take a wheelhouse for that" if root.machine in WIDE else "flash a 64-bit system"
    demand(fits, told.format(folder, house.machine, root.folder, root.machine, todo))
    settings = None if env is None else read_env(env)
    token = None if token_file is None else read_token(root, token_file)
    if is_image:
        demand(
            token is None, "an image holds no token; bring it to each board after its first boot"
        )
        for path in (TOKEN, IDENTITY):
            told = "{} is one board's; delete it: each board draws its own".format(root.at(path))
            demand(not root.at(path).exists(), told)
        known = root.at(ENV).read_bytes() if settings is None and root.at(ENV).is_file() else b""
        told = "{} holds a token; take it out: an image holds none".format(root.at(ENV))
        demand(not holds_token(known), told)
    is_new = not (root.at(RELEASES) / house.release).is_dir()
    if is_new:
        root.check_room(house.unpacked_bytes())
    with alone(root):
        before, former = linked(root, CURRENT), linked(root, FORMER)
        make(root, house, SOURCES)
        owner = root.user()
        root.folder_of(STATE, 0o750, owner)
        root.folder_of(STATE + "/data", 0o770, owner)
        if settings is not None:
            root.put(ENV, settings, 0o600)
        elif not root.at(ENV).exists():
            root.put(ENV, (SOURCES / "smidgen.env").read_bytes(), 0o600)
        if token is not None:
            root.put(TOKEN, token, 0o600, owner)
        switch(root, house.release)
        is_upgrade = before not in (None, house.release)
        try:
            told = restart(root) if root.is_changed else ""
        except Refusal as error:
            if before is None or not is_upgrade:
                raise Refusal("{} is installed, but {}".format(house.release, error)) from error
            take_back(root, before, former)
            restart(root)
            told = "{} is current again, not {}: {}".format(before, house.release, error)
            raise Refusal(told) from error
        finally:
            sweep(root)
    if not root.is_changed:
        return "{} is installed already".format(house.release)
    after = ", after {}".format(before) if is_upgrade else ""
    return "{} is installed{}{}".format(house.release, after, told)


def read_env(path: Path) -> bytes:
    """Settings for the unit.

    Raises:
        Refusal: They hold a token, or no coordinator.
    """
    demand(path.is_file(), "--env {} is not a file".format(path))
    body = path.read_bytes()
    names = [line.split(b"=")[0].strip() for line in body.splitlines()]
    told = "--env {} holds a token; put it into a file of its own, for --token-file"
    demand(b"SMIDGEN_TOKEN" not in names and not holds_token(body), told.format(path))
    told = "--env {} does not say SMIDGEN_COORDINATOR=https://SERVER:8700"
    demand(b"SMIDGEN_COORDINATOR" in names, told.format(path))
    return body


def holds_token(body: bytes) -> bool:
    for line in body.splitlines():
        name, _, value = line.partition(b"=")
        words = value.replace(b'"', b" ").replace(b"'", b" ").replace(b"=", b" ").split()
        if name.strip() == b"SMIDGEN_TOKEN" and words:
            return True
        if name.strip() == b"SMIDGEN_OPTIONS" and b"--token" in words:
            return True
    return False


def read_token(root: Root, path: Path) -> bytes:
    """An enrolment token for a board that needs one.

    Raises:
        Refusal: The board is enrolled, or the file is not one that holds a token.
    """
    told = "this board is enrolled already, its token was used; leave --token-file out"
    demand(not is_enrolled(root.at(IDENTITY)), told)
    demand(path.is_file(), "--token-file {} is not a file".format(path))
    mode = stat.S_IMODE(path.stat().st_mode)
    told = "--token-file {} is open to others (mode {:o}); chmod 600 it, off the stick if need be"
    demand(not mode & 0o077, told.format(path, mode))
    words = path.read_bytes()[:4096].split()
    demand(len(words) == 1, "--token-file {}: one line with the token is expected".format(path))
    return words[0] + b"\n"


def is_enrolled(identity: Path) -> bool:
    try:
        return bool(json.loads(identity.read_text()).get("device_id"))
    except (OSError, ValueError, AttributeError):
        return False


def uninstall(root: Root, is_purged: bool) -> str:
    """Take it away; without `--purge` settings, identity and texts stay for the next install."""
    stop(root)
    for path in (WANTED, UNIT, RULES, HOME):
        root.remove(path)
    if root.at(COMMAND).is_symlink():
        root.remove(COMMAND)
    forget(root)
    if is_purged:
        root.remove(ENV)
        root.remove(STATE)
        return "smidgen is gone, settings and state too"
    return "smidgen is gone; {} and {} are kept".format(root.at(ENV), root.at(STATE))


if __name__ == "__main__":
    sys.exit(main())
