"""A root file system that smidgen is installed into: the board's own, an image's, or a made-up one.

Files are written beside their name and renamed, and only where they differ: a second run with the
same input touches nothing.
"""

import os
import platform
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Optional, Tuple

from wheelhouse import Refusal, demand

USER, STATE = "smidgen", "var/lib/smidgen"
ENV, TOKEN, IDENTITY = "etc/smidgen.env", STATE + "/token", STATE + "/device/device.json"
UNIT = "etc/systemd/system/smidgen-client.service"
WANTED = "etc/systemd/system/multi-user.target.wants/smidgen-client.service"
RULES, COMMAND = "etc/udev/rules.d/70-smidgen-power.rules", "usr/local/bin/smidgen"
MACHINES = {183: "aarch64", 62: "x86_64", 40: "armv7l"}  # e_machine of ELF
WIDE = ("aarch64", "x86_64")  # there are wheels for
SPARE_BYTES = 64 << 20


class Root:
    """Where `/` of the board is.

    Args:
        folder: `/`, or a folder that becomes one.

    Attributes:
        is_changed: Whether anything was written since.

    Raises:
        Refusal: It is not there, or may not be changed.
    """

    def __init__(self, folder: Path) -> None:
        demand(folder.is_dir(), "{} is not a folder; name a root file system".format(folder))
        self.folder, self.is_changed = folder.resolve(), False
        demand(os.geteuid() == 0, "installing needs root's rights; run it with sudo")
        told = "{} may not be written; is it mounted read-only? Use bake.sh on its image"
        demand(os.access(str(self.folder), os.W_OK), told.format(self.folder))
        told = "{} has no etc/passwd: it is not a root file system".format(self.folder)
        demand(self.at("etc/passwd").is_file(), told)

    @property
    def is_live(self) -> bool:
        return self.folder == Path("/")

    def at(self, inside: str) -> Path:
        return self.folder / inside

    @property
    def machine(self) -> str:
        """Its architecture, read off one of its programs; of an empty folder, this machine's.

        The kernel does not know: a 64-bit one runs the 32-bit systems of Raspberry Pis.
        """
        names = ("usr/bin/dash", "bin/dash", "usr/bin/env", "bin/bash")
        for path in [Path(sys.executable)] if self.is_live else map(self.at, names):
            if path.is_file() and (self.is_live or not path.is_symlink()):
                with path.open("rb") as file:
                    head = file.read(20)
                if head[:4] == b"\x7fELF":
                    number = int.from_bytes(head[18:20], "little")
                    return MACHINES.get(number, "ELF machine {}".format(number))
        return platform.machine()

    def check_room(self, needed_bytes: int) -> None:
        place = self.at("opt") if self.at("opt").is_dir() else self.folder
        free = os.statvfs(str(place))
        have, want = free.f_bavail * free.f_frsize, needed_bytes + SPARE_BYTES
        told = "{} has {} MB free, {} MB are needed; free some, or put /opt on a larger disk"
        demand(have >= want, told.format(place, have >> 20, (want >> 20) + 1))

    def user(self) -> Tuple[int, int]:
        """Number of the service's user and group, which are made if they are not there.

        Raises:
            Refusal: They cannot be made.
        """
        if self._ids() is None:
            line = ["useradd", "--system", "--user-group", "--no-create-home", "--shell"]
            line += ["/usr/sbin/nologin", "--home-dir", "/" + STATE, USER]
            if not self.is_live:
                line[1:1] = ["--prefix", str(self.folder)]
            done = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            said = done.stdout.decode("utf-8", "replace").strip().splitlines()
            told = "user {} cannot be made: {}".format(USER, said[-1] if said else done.returncode)
            demand(done.returncode == 0, told)
        ids = self._ids()
        if ids is None:
            raise Refusal("user {} was not made in {}/etc/passwd".format(USER, self.folder))
        return ids

    def _ids(self) -> Optional[Tuple[int, int]]:
        users = self.at("etc/passwd").read_text("utf-8", "replace")
        found = re.search(r"^{}:[^:]*:(\d+):(\d+):".format(USER), users, re.MULTILINE)
        return None if found is None else (int(found.group(1)), int(found.group(2)))

    def put(self, inside: str, body: bytes, mode: int, owner: Tuple[int, int] = (0, 0)) -> None:
        """Let a file be this."""
        path = self.at(inside)
        if path.is_file() and not path.is_symlink() and path.read_bytes() == body:
            now = path.stat()
            if (stat.S_IMODE(now.st_mode), now.st_uid, now.st_gid) == (mode, owner[0], owner[1]):
                return
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.parent / ".{}.part".format(path.name)
        if part.exists():
            part.unlink()
        with os.fdopen(
            os.open(str(part), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb"
        ) as file:
            file.write(body)
            os.fchown(file.fileno(), *owner)
            os.fchmod(file.fileno(), mode)
            file.flush()
            os.fsync(file.fileno())
        os.replace(str(part), str(path))
        self.is_changed = True

    def link(self, inside: str, target: str) -> None:
        """Let a symbolic link lead there, changed in one step."""
        path = self.at(inside)
        if path.is_symlink() and os.readlink(str(path)) == target:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.parent / ".{}.part".format(path.name)
        if part.is_symlink():
            part.unlink()
        os.symlink(target, str(part))
        os.replace(str(part), str(path))
        self.is_changed = True

    def folder_of(self, inside: str, mode: int, owner: Tuple[int, int]) -> None:
        path = self.at(inside)
        if not path.is_dir() or path.stat().st_uid == 0:
            path.mkdir(parents=True, exist_ok=True)
            os.chown(str(path), *owner)
            path.chmod(mode)
            self.is_changed = True

    def remove(self, inside: str) -> None:
        path = self.at(inside)
        if path.is_symlink() or path.is_file():
            path.unlink()
        elif path.is_dir():
            shutil.rmtree(str(path))
