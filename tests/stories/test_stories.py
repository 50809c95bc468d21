"""Stories of trouble in one process; `python -m tests.stories` tells as many as one likes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stories.faults import Fault
from tests.stories.shrink import shrunk

ROOT = Path(__file__).parents[2]
SLOW = 30  # stories of each of two processes


def told(*arguments: str, fails: bool = False) -> str:
    """What the command prints; it runs apart, for it replaces clocks, sockets and files."""
    line = [sys.executable, "-m", "tests.stories", *arguments]
    known = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(line, cwd=ROOT, env=known, capture_output=True, text=True, timeout=1800)
    assert done.returncode == int(fails), done.stdout + done.stderr
    return done.stdout


@pytest.mark.fault
def test_a_few_stories_end_in_the_bytes_of_the_undisturbed_run() -> None:
    assert "failed: none" in told("--seed", "2", "--stories", "4")


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.parametrize("seed", [777042, 777048, 777075, 900290, 910131, 5375])
def test_stories_that_once_failed_end_well(seed: int) -> None:
    """What was met.

    777042: a coordinator's disk is read-only for minutes, and its devices wait. 777048: a device
    whose disk is full dies, and its round is tried again. 777075: the terms that a device keeps are
    damaged, and its run ends meanwhile. 900290: a device whose disk is full is asked again whether
    it takes part. 910131: one that gives up waits for less time than a clock tells apart. 5375: a
    power cut leaves a half of what an update step keeps, and the run comes to no other round.
    """
    assert "failed: none" in told("--seed", str(seed))


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("steps", "stories"),
    [("secure", 40), ("secure noise", 20), ("ridge", 40), ("secure ridge", 20)],
)
def test_stories_of_other_steps_end_well(steps: str, stories: int) -> None:
    said = told("--seed", "1", "--stories", str(stories), "--steps", steps)
    assert "failed: none" in said
    print(said)


@pytest.mark.fault
def test_a_device_that_has_parted_from_its_run_may_lose_its_power() -> None:
    """Its terms are the last that it forgets: without them it would wait for another run."""
    assert "failed: none" in told("--seed", "3", "--each", "power", "--ops", "442", "446")


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [1093, 3, 0], ids=["plain", "scaffold", "coded"])
def test_a_device_may_lose_its_power_at_any_operation(seed: int) -> None:
    said = told("--seed", str(seed), "--each", "power")
    assert "failed: none" in said
    print(said)


def test_the_fewest_faults_that_fail_together_are_found() -> None:
    faults = [Fault("kill", "d0", at) for at in range(1, 12)]
    bad = {faults[2], faults[7], faults[8]}
    assert set(shrunk(faults, lambda some: bad <= set(some))) == bad


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("bug", ["executor", "homecoming", "journal", "outbox", "uploads"])
def test_a_bug_that_is_planted_is_found_within_a_thousand_stories(bug: str) -> None:
    said = told("--seed", "7000", "--stories", "1000", "--bug", bug, fails=True)
    assert "  wrong: " in said
    print(said)


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", [1000, 1000 + SLOW, 1090])
def test_many_stories_end_in_the_bytes_of_the_undisturbed_run(first: int) -> None:
    said = told("--seed", str(first), "--stories", str(SLOW))
    assert "failed: none" in said
    print(said)
