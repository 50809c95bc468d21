"""The client's unit: systemd takes it, old ones too, and it starts what there is."""

import re
import shlex
from configparser import ConfigParser
from importlib import import_module
from pathlib import Path

import pytest
import typer.main

from tests.jetson.wheelhouses import JETSON
from tests.processes import run

UNIT = JETSON / "smidgen-client.service"
PROGRAM = "/opt/smidgen/current/bin/smidgen"
STATE = "/var/lib/smidgen"
MOST_EXPOSURE = 2.5  # of 10; systemd 237 knows no more of what would lower it
# Of the man pages of systemd 237: what of them the unit uses.
KNOWN_TO_237 = """
After CapabilityBoundingSet CPUWeight Description Environment EnvironmentFile ExecStart
ExecStartPost IOSchedulingClass LimitCORE LockPersonality MemoryAccounting MemoryMax Nice
NoNewPrivileges
OOMScoreAdjust PrivateDevices PrivateTmp ProtectControlGroups ProtectHome ProtectKernelModules
ProtectKernelTunables ProtectSystem RequiresMountsFor Restart RestartPreventExitStatus RestartSec
RestrictAddressFamilies RestrictNamespaces RestrictRealtime StartLimitIntervalSec StateDirectory
StateDirectoryMode SystemCallArchitectures SystemCallErrorNumber SystemCallFilter TasksMax
TimeoutStartSec TimeoutStopSec Type UMask User WantedBy Wants WatchdogSec
"""
GROUPS_OF_237 = "@clock @cpu-emulation @debug @module @mount @obsolete @raw-io @reboot @swap"


@pytest.fixture
def copy(tmp_path: Path) -> str:
    """The unit where its program is installed, as far as systemd can see."""
    path = tmp_path / UNIT.name
    path.write_text(UNIT.read_text().replace(PROGRAM, "/bin/true"))
    return str(path)


def settings() -> list[tuple[str, str]]:
    lines = [line for line in UNIT.read_text().splitlines() if "=" in line and line[0] != "#"]
    return [(line.partition("=")[0], line.partition("=")[2]) for line in lines]


def of(name: str) -> str:
    (value,) = [value for key, value in settings() if key == name]
    return value


def defaults() -> dict[str, str]:
    words = " ".join(value for key, value in settings() if key == "Environment").split()
    return dict(word.split("=") for word in words)


def template() -> dict[str, str]:
    text = (JETSON / "smidgen.env").read_text()
    return dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))


def started(environment: dict[str, str]) -> list[str]:
    """The words that systemd starts: `$NAME` alone becomes words, `${NAME}` stays one."""
    words: list[str] = []
    for word in of("ExecStart").split():
        if word.startswith("$") and not word.startswith("${"):
            words += environment.get(word[1:], "").split()
        else:
            words.append(re.sub(r"\$\{(\w+)\}", lambda m: environment.get(m[1], ""), word))
    return words


def test_systemd_has_nothing_to_say_of_the_unit(copy: str) -> None:
    done = run("systemd-analyze", "verify", copy)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_unit_exposes_little(copy: str) -> None:
    done = run("systemd-analyze", "security", "--offline=yes", "--no-pager", copy)
    rated = re.search(r"exposure level for \S+: ([\d.]+)", done.stdout)
    assert rated is not None, done.stdout + done.stderr
    assert float(rated[1]) <= MOST_EXPOSURE


def test_the_unit_says_nothing_that_systemd_237_does_not_know() -> None:
    assert {key for key, _ in settings()} <= set(KNOWN_TO_237.split())
    assert of("SystemCallFilter") == f"~{GROUPS_OF_237}"


@pytest.mark.parametrize("more", ["", "--plain-http --tag site=kitchen --limits seconds=3600"])
def test_the_unit_starts_a_command_that_there_is(more: str) -> None:
    url = {"SMIDGEN_COORDINATOR": "https://fleet.example.org:8700", "SMIDGEN_OPTIONS": more}
    program, group, name, *words = started(defaults() | template() | url)
    assert (program, group, name) == (PROGRAM, "client", "run")
    command = typer.main.get_command(import_module("smidgen.edge_client.cli").app)
    context = getattr(command, "commands", {})["run"].make_context("run", words)
    given = context.params
    assert given["base"] == "embedded" and given["engine"] == given["memory_budget"] == "auto"
    assert given["plain_http"] == bool(more) and given["coordinator"] == url["SMIDGEN_COORDINATOR"]


def test_all_that_the_unit_reads_is_in_the_settings_and_has_a_default() -> None:
    read = set(re.findall(r"\$\{?(\w+)", of("ExecStart")))
    assert read <= set(template()) and set(template()) - read == {"SMIDGEN_CA"}
    unset = {name for name in read if name not in defaults()}
    assert unset == {"SMIDGEN_COORDINATOR", "SMIDGEN_OPTIONS"}
    assert all(defaults().get(name, value) == value for name, value in template().items())
    assert of("EnvironmentFile") == "/etc/smidgen.env"


def test_the_token_can_be_read_and_deleted_by_whom_the_unit_runs_as() -> None:
    installer = (JETSON / "installer" / "root.py").read_text()
    assert f'USER, STATE = "{of("User")}", "{STATE[1:]}"' in installer
    token = shlex.split(of("ExecStart"))[shlex.split(of("ExecStart")).index("--token-file") + 1]
    assert of("ExecStartPost") == f"/bin/rm -f {token}" and token == f"{STATE}/token"
    assert (of("Type"), of("StateDirectory")) == ("notify", Path(STATE).name)  # Post: after READY=1
    assert "DynamicUser" not in dict(settings())  # its files would be another user's


def test_a_client_that_nobody_answers_is_started_again_and_a_wrong_one_is_not() -> None:
    unit = ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(UNIT.read_text())
    assert unit["Unit"]["StartLimitIntervalSec"] == "0"
    service = unit["Service"]
    assert (service["Restart"], service["RestartPreventExitStatus"]) == ("on-failure", "2")
    assert service["TimeoutStartSec"] == "infinity"  # a network may be away for days
    assert int(service["TimeoutStopSec"]) > 10


def test_the_board_comes_first() -> None:
    expected = {"IOSchedulingClass": "idle", "OOMScoreAdjust": "500", "Nice": "10"}
    assert expected.items() <= dict(settings()).items()
    assert of("MemoryMax").endswith("%") and of("MemoryAccounting") == "yes"
    # Not read by newer ones any more, and told so in the log by those between
    assert "MemoryLimit" not in dict(settings())


def test_shellcheck_has_nothing_to_say_of_the_scripts() -> None:
    done = run("shellcheck", *map(str, sorted(JETSON.glob("*.sh"))))
    assert (done.returncode, done.stdout) == (0, "")


def test_shell_scripts_are_short_and_strict() -> None:
    for path in sorted(JETSON.glob("*.sh")):
        lines = path.read_text().splitlines()
        assert len(lines) < 50 and "set -euo pipefail" in lines, path.name


def test_what_runs_before_anything_is_installed_is_python_3_6(tmp_path: Path) -> None:
    import ast

    for path in sorted((JETSON / "installer").glob("*.py")):
        ast.parse(path.read_text(), feature_version=(3, 6))
