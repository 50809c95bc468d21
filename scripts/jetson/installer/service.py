"""The client as systemd runs it, where a root is the running system's own.

In an image, or where systemd does not run, there is nothing to do here.
"""

import re
import subprocess
import time

from root import ENV, TOKEN, Root
from wheelhouse import Refusal

NAME = "smidgen-client.service"
SETTLE_S = 10.0  # a client that will not do ends sooner, with exit code 2


def is_running_here(root: Root) -> bool:
    return root.is_live and root.at("run/systemd/system").is_dir()


def restart(root: Root) -> str:
    """Let systemd and udev read what is new, and start the client; what is left to do, in words.

    Raises:
        Refusal: The client ended at once.
    """
    if not is_running_here(root):
        return "; systemd does not run here, so nothing starts the client" if root.is_live else ""
    _ask("systemctl", "daemon-reload")
    _ask("udevadm", "control", "--reload")
    _ask("udevadm", "trigger", "--subsystem-match=hwmon", "--subsystem-match=iio")
    if not re.search(
        r"^SMIDGEN_COORDINATOR=\S", root.at(ENV).read_text("utf-8", "replace"), re.MULTILINE
    ):
        told = "; write SMIDGEN_COORDINATOR into {} and its token into {}, then "
        told += "`systemctl start smidgen-client`"
        return told.format(root.at(ENV), root.at(TOKEN))
    if not _ask("systemctl", "is-enabled", "--quiet", NAME):
        return "; its service is disabled, and was not started"
    _ask("systemctl", "reset-failed", NAME)
    _ask("systemctl", "restart", "--no-block", NAME)
    end = time.monotonic() + SETTLE_S
    while time.monotonic() < end and not _ask("systemctl", "is-active", "--quiet", NAME):
        if _ask("systemctl", "is-failed", "--quiet", NAME):
            raise Refusal("the client ended at once; `journalctl --unit smidgen-client` says why")
        time.sleep(0.5)
    return ", and its service started"


def stop(root: Root) -> None:
    if is_running_here(root):
        _ask("systemctl", "disable", "--now", NAME)


def forget(root: Root) -> None:
    if is_running_here(root):
        _ask("systemctl", "daemon-reload")


def _ask(*line: str) -> bool:
    try:
        quiet = subprocess.DEVNULL
        return subprocess.run(line, stdout=quiet, stderr=quiet).returncode == 0
    except OSError:
        return False
