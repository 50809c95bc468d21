from dataclasses import MISSING, fields

import pytest

from coordinator.commands import create
from coordinator.config import RunConfig
from edge_client.wire.labelling import Labelling
from edge_client.wire.messages import Training
from tests.command_line import smidgen

DEFAULTS = {
    field.name: field.default
    for kind in (RunConfig, Training, Labelling)
    for field in fields(kind)
    if field.default is not MISSING
}
NAMES = ("adapter", "rounds", "fraction", "min_clients", "epochs", "batch", "lr", "tokens")
MORE = ("seed", "infer_every", "infer_clients", "keep_first", "keep_last", "confidence")


@pytest.mark.parametrize("name", [*NAMES, *MORE])
def test_help_names_the_default_that_holds(name: str) -> None:
    said = getattr(create, name.upper())
    assert f"default {DEFAULTS[name]:g}" in said if name != "adapter" else DEFAULTS[name] in said


def test_help_says_what_to_give_and_what_it_does() -> None:
    words = " ".join(smidgen("coordinator", "create", "--help").stdout.replace("│", " ").split())
    assert "Share of its texts a device may label before round 1, above 0 to 1" in words
    assert f"default {DEFAULTS['deadline_s']:g}" in create.DEADLINE
    assert f"default {DEFAULTS['keep_last']:g}" in create.KEEP_LAST
