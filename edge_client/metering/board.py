"""What this machine is called by its firmware, and whether it runs from the mains."""

from pathlib import Path

from edge_client.metering.sysfs import folders, number, text

LONGEST_BOARD = 100  # characters
MAINS = ("Mains", "UPS")  # what a supply is that feeds the machine alone


def board(root: Path = Path("/")) -> str:
    """The board's model, such as `Raspberry Pi 5 Model B Rev 1.0`; empty where nothing tells.

    Args:
        root: Where `proc` and `sys` lie; another folder in tests.
    """
    said = text(root / "proc/device-tree/model")
    return "".join(letter for letter in said if letter.isprintable())[:LONGEST_BOARD]


def is_on_mains(root: Path = Path("/")) -> bool | None:
    """Whether the machine's power comes from outside; None where the kernel names no supply.

    A supply that is plugged in decides, then a battery that is not being used up, then the mains'
    own plug: a USB port without anything in it says nothing. Nor does a battery of something else,
    such as a mouse.
    """
    supplies = [
        folder
        for folder in folders(root / "sys/class/power_supply")
        if text(folder / "scope") != "Device"
    ]
    batteries = [folder for folder in supplies if text(folder / "type") == "Battery"]
    plugs = {folder: number(folder / "online") for folder in supplies if folder not in batteries}
    if any(plugs.values()):
        return True
    states = {text(folder / "status") for folder in batteries} - {"", "Unknown"}
    if states:
        return "Discharging" not in states
    outs = [folder for folder, online in plugs.items() if online == 0]
    return False if any(text(folder / "type") in MAINS for folder in outs) else None
