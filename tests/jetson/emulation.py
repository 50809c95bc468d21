"""Run a command in an arm64 root as on a Cortex-A57, under qemu-user.

    python emulation.py ROOT COMMAND ...

It happens in namespaces of its own. The kernel is told there how arm64 programs are started (from
Linux 6.7 on, binfmt_misc belongs to a user namespace): nothing of this machine is changed, and the
network is this machine's. The processor's caches are hidden: libraries would read an x86's.
"""

import ctypes
import os
import shutil
import sys
import warnings  # noqa: F401 imported late by os, from a root that holds another Python
from pathlib import Path

QEMU = "/usr/bin/qemu-aarch64-static"
MAGIC = rb"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
MASK = rb"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
NEW_MOUNTS, NEW_USERS = 0x20000, 0x10000000
BIND, ALL_BELOW, PRIVATE = 0x1000, 0x4000, 0x40000
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "HOME": "/root",
    "LC_ALL": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "PYTHONUNBUFFERED": "1",
    "QEMU_CPU": "cortex-a57",
}


def main(root: str, words: list[str]) -> int:
    """Run it; its exit code."""
    ready, go = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _call("unshare", NEW_MOUNTS | NEW_USERS)
            os.write(ready[1], b"1")
            os.read(go[0], 1)
            _enter(root)
            os.execve(shutil.which(words[0], path=ENVIRONMENT["PATH"]) or "", words, ENVIRONMENT)
        except OSError as error:
            print(f"emulation: {error}", file=sys.stderr)
        finally:
            os._exit(99)
    os.close(ready[1])
    if os.read(ready[0], 1):
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{child}/{name}").write_text("0 0 65536")
        os.write(go[1], b"1")
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _enter(root: str) -> None:
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    _call("mount", b"none", b"/", None, ALL_BELOW | PRIVATE, None)
    formats = Path("/proc/sys/fs/binfmt_misc")
    _call("mount", b"none", str(formats).encode(), b"binfmt_misc", 0, None)
    line = b":a57:M::" + MAGIC + b":" + MASK + b":" + QEMU.encode() + b":F"
    (formats / "register").write_bytes(line)
    for name in ("proc", "dev", "sys"):
        there = f"{root}/{name}".encode()
        _call("mount", f"/{name}".encode(), there, None, BIND | ALL_BELOW, None)
    cores = Path(root) / "sys/devices/system/cpu"
    _call("mount", b"none", str(cores).encode(), b"tmpfs", 0, None)
    for name in ("possible", "present", "online"):
        (cores / name).write_text("0-1\n")
    os.chroot(root)
    os.chdir("/root")


def _call(name: str, *arguments: object) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
