"""A guest over a made-up board and clock; what the service manager hears over a real socket."""

import logging
import os
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.engine.limits import OutOfTime, Watched
from smidgen.edge_client.guest import guest as guests
from smidgen.edge_client.guest.ceilings import CALM_S, Readings, Rules, parse_window
from smidgen.edge_client.guest.guest import LONGEST_REST_S, LOOK_S, Guest, Sensors, local_time
from smidgen.edge_client.guest.process import WatchdogNotifier, status, tell
from smidgen.edge_client.guest.steps import Paused


class Board:
    """A folder with the kernel's files, and a clock that goes on when somebody sleeps."""

    def __init__(self, root: Path) -> None:
        self.root, self.now_s, self.own_s, self.slept = root, 1000.0, 0.0, list[float]()
        self.ticks, self.at = 0.0, "12:00"
        self.then: dict[int, Callable[[], None]] = {}  # after so many sleeps

    def write(self, name: str, text: str) -> None:
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def celsius(self, celsius: float) -> None:
        self.write("sys/class/thermal/thermal_zone0/type", "CPU")
        self.write("sys/class/thermal/thermal_zone0/temp", str(round(1000 * celsius)))

    def memory(self, available_mib: int) -> None:
        kib = f"{available_mib << 10} kB"
        self.write("proc/meminfo", f"MemTotal: {4 << 20} kB\nMemAvailable: {kib}\n")

    def watts(self, watts: float) -> None:
        self.write("sys/bus/i2c/devices/1-0040/name", "ina3221x")
        folder = "sys/bus/i2c/devices/1-0040/iio:device0"
        self.write(f"{folder}/rail_name_0", "VDD_IN")
        self.write(f"{folder}/in_power0_input", str(round(1000 * watts)))

    def busy(self, seconds: float) -> None:
        """All processes together use so much more."""
        self.ticks += seconds * os.sysconf("SC_CLK_TCK")
        self.write("proc/stat", f"cpu  {int(self.ticks)} 0 0 12345 99 0 0 0 0 0\ncpu0 1 2\n")

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds
        self.then.pop(len(self.slept), lambda: None)()

    def clock(self) -> float:
        return self.now_s

    def sensors(self, rules: Rules) -> Sensors:
        return Sensors(rules, self.root, self.clock, lambda: self.own_s)

    def guest(self, rules: Rules) -> Guest:
        def local() -> time.struct_time:
            return time.strptime(self.at, "%H:%M")

        return Guest(rules, self.sensors(rules), local, self.clock, self.sleep)


@pytest.fixture
def board(tmp_path: Path) -> Board:
    return Board(tmp_path)


def test_without_rules_nothing_is_read_and_nothing_waits(board: Board) -> None:
    guest = board.guest(Rules())
    guest.begin()
    guest.wait()
    guest.between()
    guest.stay()
    assert not board.slept


def test_a_hot_board_pauses_and_goes_on_once_it_is_cool_for_a_while(
    board: Board, caplog: pytest.LogCaptureFixture
) -> None:
    guest = board.guest(Rules(most_celsius=70.0))
    board.celsius(71.0)
    with pytest.raises(Paused):
        guest.between()
    board.then = {3: lambda: board.celsius(66.0), 6: lambda: board.celsius(64.0)}
    with caplog.at_level(logging.INFO):
        guest.wait()
    assert sum(board.slept) >= 6 * LOOK_S + CALM_S - LOOK_S
    assert caplog.messages[0] == "paused: 71.0 C, 70 at most"
    assert caplog.messages[1].startswith("going on after a pause of ")
    assert len(caplog.messages) == 2
    guest.between()


def test_near_its_ceiling_it_rests_between_steps(board: Board) -> None:
    guest = board.guest(Rules(most_celsius=70.0))
    board.celsius(67.5)
    board.now_s += 8.0  # a step
    guest.between()
    assert board.slept == [pytest.approx(8.0)]
    board.celsius(69.9)
    board.now_s += 1000.0
    guest.between()
    assert board.slept[1] == LONGEST_REST_S


def test_its_hours_go_by_the_wall_clock_wherever_that_jumps(board: Board) -> None:
    guest = board.guest(Rules((parse_window("01:00-05:00"),)))
    board.at = "04:59"
    assert guest.may_work()
    board.at, board.now_s = "05:00", board.now_s + LOOK_S
    assert not guest.may_work()
    board.at, board.now_s = "02:00", board.now_s + LOOK_S  # somebody sets the clock
    assert guest.may_work()


def test_an_evaluation_waits_where_it_is(board: Board) -> None:
    guest = board.guest(Rules((parse_window("01:00-05:00"),)))
    board.then = {4: lambda: setattr(board, "at", "01:00")}
    guest.stay()
    assert board.slept == [LOOK_S] * 4


def test_an_evaluation_s_pause_is_no_work_of_it(board: Board) -> None:
    guest = board.guest(Rules((parse_window("01:00-05:00"),)))
    board.at = "02:00"
    assert guest.stay() == 0.0
    board.at, board.now_s = "12:00", board.now_s + LOOK_S
    board.then = {4: lambda: setattr(board, "at", "01:00")}
    watched = Watched(10.0, lambda _: None, board.clock)
    watched.leave_out(guest.stay())
    watched(1)
    board.now_s += 11.0
    with pytest.raises(OutOfTime):
        watched(1)


@pytest.mark.parametrize("window", ["11:00-13:00", "01:00-05:00"])
def test_an_evaluation_lets_go_of_memory_that_others_want(board: Board, window: str) -> None:
    board.memory(3000)
    guest = board.guest(Rules((parse_window(window),)))
    board.then = {3: lambda: board.memory(150)}
    if window == "11:00-13:00":
        guest.stay()
        board.now_s += LOOK_S
        board.memory(150)
    with pytest.raises(Paused):
        guest.stay()
    assert guest.is_short and len(board.slept) <= 4


def test_the_zone_that_is_set_while_it_runs_is_the_one_it_goes_by(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TZ", "UTC")
    utc = local_time().tm_hour
    monkeypatch.setenv("TZ", "JST-9")
    assert (local_time().tm_hour - utc) % 24 in (9, 10)  # the hour may turn in between
    monkeypatch.undo()
    time.tzset()


def test_the_first_readings_decide_as_later_ones_do(board: Board) -> None:
    guest = board.guest(Rules(most_load=1.0))
    board.busy(100)
    board.then = {1: lambda: board.busy(20)}
    guest.begin()
    assert not guest.may_work()


def test_what_nothing_tells_is_said_once_and_forbids_nothing(
    board: Board, caplog: pytest.LogCaptureFixture
) -> None:
    guest = board.guest(Rules(on_mains=True, most_watts=5.0, most_celsius=60.0, most_load=1.0))
    guest.begin()
    for _ in range(3):
        guest.between()
    assert [line.split()[0] for line in caplog.messages] == [
        "--on-mains",
        "--max-watts",
        "--max-celsius",
        "--max-load",
    ]


def test_watts_are_those_since_the_last_reading(board: Board) -> None:
    board.watts(8.0)
    sensors = board.sensors(Rules(most_watts=10.0))
    assert sensors.read().watts is None
    board.now_s += 4.0
    board.watts(12.0)
    assert sensors.read().watts == pytest.approx(10.0)


def test_a_reading_of_power_that_fails_is_left_out_and_the_ceiling_counts_again(
    board: Board, caplog: pytest.LogCaptureFixture
) -> None:
    board.watts(8.0)
    sensors = board.sensors(Rules(most_watts=10.0))
    sensors.read()
    for _ in range(2):
        board.now_s += 4.0
        board.write("sys/bus/i2c/devices/1-0040/iio:device0/in_power0_input", "")  # busy
        assert sensors.read().watts is None
        board.now_s += 4.0
        board.watts(12.0)
        assert sensors.read().watts is not None
    told = "power cannot be read now (not a number); --max-watts counts again once it can"
    assert caplog.messages == [told]


def test_an_instrument_that_was_gone_is_found_again(board: Board) -> None:
    board.watts(8.0)
    sensors = board.sensors(Rules(most_watts=10.0))
    sensors.read()
    monitor = board.root / "sys/bus/i2c/devices/1-0040"
    monitor.rename(monitor.with_name("1-0041"))  # its driver was loaded anew
    for watts in (None, None, 8.0):
        board.now_s += 4.0
        assert sensors.read().watts == watts


def rail(board: Board, number: int, name: str, watts: float) -> Path:
    monitor = f"sys/bus/i2c/devices/{number}-0040"
    board.write(f"{monitor}/name", "ina3221x")
    board.write(f"{monitor}/iio:device0/rail_name_0", name)
    board.write(f"{monitor}/iio:device0/in_power0_input", str(round(1000 * watts)))
    return board.root / monitor


def watts_later(board: Board, sensors: Sensors) -> float | None:
    board.now_s += 4.0
    return sensors.read().watts


def test_rails_that_are_left_do_not_stand_for_the_board(board: Board) -> None:
    rail(board, 1, "VDD_CPU", 8.0)
    gone = rail(board, 2, "VDD_GPU", 9.0)
    sensors = board.sensors(Rules(most_watts=10.0))
    assert [watts_later(board, sensors) for _ in range(2)] == [None, 17.0]
    shutil.rmtree(gone)
    assert [watts_later(board, sensors) for _ in range(3)] == [None] * 3
    rail(board, 3, "VDD_GPU", 9.0)
    assert [watts_later(board, sensors) for _ in range(2)] == [None, 17.0]


def test_nor_does_another_instrument_until_the_first_is_back(board: Board) -> None:
    board.write("sys/class/power_supply/BAT0/type", "Battery")
    board.write("sys/class/power_supply/BAT0/status", "Discharging")
    board.write("sys/class/power_supply/BAT0/power_now", "3000000")
    gone = rail(board, 1, "VDD_CPU", 8.0)
    sensors = board.sensors(Rules(most_watts=10.0))
    assert [watts_later(board, sensors) for _ in range(2)] == [None, 8.0]
    shutil.rmtree(gone)
    assert [watts_later(board, sensors) for _ in range(3)] == [None] * 3
    rail(board, 1, "VDD_IN", 11.0)  # which feeds the other one
    assert [watts_later(board, sensors) for _ in range(2)] == [None, 11.0]


def test_load_is_what_others_use(board: Board) -> None:
    sensors = board.sensors(Rules(most_load=1.0))
    board.busy(100)
    assert sensors.read() == Readings()
    board.now_s, board.own_s = board.now_s + 10.0, 15.0
    board.busy(20)
    assert sensors.read().load == pytest.approx(0.5)
    board.now_s, board.own_s = board.now_s + 10.0, 35.0
    board.busy(20)
    assert sensors.read().load == 0


def test_this_machine_can_be_read() -> None:
    rules = Rules((), True, 1e3, 150.0, 1e3)
    guest = Guest(rules)
    guest.begin()
    guest.between() if guest.may_work() else None


# Memory


def test_where_memory_runs_short_it_lets_go_and_takes_less_for_a_while(
    board: Board, caplog: pytest.LogCaptureFixture
) -> None:
    board.memory(3000)
    guest = board.guest(Rules())
    guest.between()
    board.now_s += LOOK_S
    board.memory(150)
    with pytest.raises(Paused):
        guest.between()
    board.then = {2: lambda: board.memory(300), 4: lambda: board.memory(2000)}
    with caplog.at_level(logging.INFO):
        guest.wait()
    assert sum(board.slept) >= 4 * LOOK_S + guests.CALM_S - LOOK_S
    assert caplog.messages[0] == ("paused: memory is short, 205M of the machine's are left alone")
    assert guest.is_squeezed
    board.now_s += guests.UP_AGAIN_S
    assert guest.may_work() and not guest.is_squeezed


@given(st.lists(st.tuples(st.none() | st.integers(0, 1 << 32), st.floats(0.1, 500)), max_size=30))
def test_memory_is_short_below_the_mark_and_never_flaps(
    looks: list[tuple[int | None, float]],
) -> None:
    mark, now_s, scarce_s = guests.Watermark(4 << 30), 0.0, 0.0
    for available, step_s in looks:
        was, now_s = mark.is_short, now_s + step_s
        mark.look(available, now_s)
        if available is not None and available < guests.PLENTY * mark.least_bytes:
            scarce_s = now_s
        assert mark.is_short or available is None or available >= mark.least_bytes
        assert mark.is_squeezed or not mark.is_short
        if was and not mark.is_short:
            assert now_s - scarce_s >= guests.CALM_S


def test_memory_that_nobody_tells_is_never_short() -> None:
    mark = guests.Watermark(None)
    assert not mark.look(None, 0.0) and not mark.look(0, 1.0)


# The service manager


def listening(address: str) -> socket.socket:
    heard = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    heard.bind(address)
    heard.settimeout(5)
    return heard


@pytest.mark.parametrize("is_abstract", [False, True])
def test_the_service_manager_hears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_abstract: bool
) -> None:
    name = f"smidgen-{os.getpid()}-{tmp_path.name}"
    address = f"\0{name}" if is_abstract else str(tmp_path / "socket")
    monkeypatch.setenv("NOTIFY_SOCKET", address.replace("\0", "@"))
    with listening(address) as heard:
        tell("READY=1", "STATUS=enrolled")
        assert heard.recv(4096) == b"READY=1\nSTATUS=enrolled"
        status("two\nlines, " + "long" * 100)
        assert heard.recv(4096).startswith(b"STATUS=two lines, long")
        alive = WatchdogNotifier()
        for _ in range(100):
            alive()
        tell("STOPPING=1")
        assert [heard.recv(4096), heard.recv(4096)] == [b"WATCHDOG=1", b"STOPPING=1"]


@pytest.mark.parametrize("value", ["", "/no/such/socket", "@nobody-there", "vsock:2:1", "x"])
def test_where_nobody_listens_nothing_happens(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", value)
    tell("READY=1")


def test_a_manager_that_does_not_read_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "socket"))
    with listening(str(tmp_path / "socket")):
        began_s = time.monotonic()
        for _ in range(16):  # more than the kernel keeps for it
            tell("WATCHDOG=1")
        assert time.monotonic() - began_s < 5
