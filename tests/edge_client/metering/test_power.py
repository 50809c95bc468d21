"""Energy from made-up trees of every board's files."""

import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from smidgen.edge_client.metering.power import Counter, EnergyMeter, Power, energy_counter
from tests.edge_client.metering.boards import (
    AGX_ORIN,
    I2C,
    NANO,
    ORIN_NANO,
    TX2,
    as_nobody,
    forbid,
    monitors,
    put,
    rapl,
)

BATTERY = "sys/class/power_supply/BAT0"
DISCHARGING: dict[str, object] = {f"{BATTERY}/type": "Battery", f"{BATTERY}/status": "Discharging"}


def metered(root: Path, seconds: float = 0.05) -> EnergyMeter:
    meter = energy_counter(root)
    assert meter is not None
    with meter:
        time.sleep(seconds)
    return meter


def mean_w(root: Path) -> float:
    energy = metered(root).energy()
    assert energy is not None and energy.seconds >= 0.05
    return energy.mean_w


@pytest.mark.parametrize(
    ("board", "kind", "watts"),
    [
        (TX2, "iio", 5.0),
        (NANO, "iio", 4.2),
        (ORIN_NANO, "iio", 6.0),  # Xavier NX on JetPack 4 has the same rails
        (ORIN_NANO, "hwmon", 6.0),
        (AGX_ORIN, "hwmon", 9.5),  # no rail feeds all; NC and the seventh are none
    ],
)
def test_a_board_tells_the_power_of_the_whole_module(
    tmp_path: Path, board: Mapping[str, Mapping[str, int]], kind: str, watts: float
) -> None:
    monitors(tmp_path, board, kind)
    assert mean_w(tmp_path) == pytest.approx(watts)


def test_a_channel_that_is_switched_off_is_left_out(tmp_path: Path) -> None:
    monitors(tmp_path, AGX_ORIN, "hwmon")
    file = next(tmp_path.glob(f"{I2C}/1-0040/hwmon/*/in3_input"))
    file.unlink()
    assert mean_w(tmp_path) == pytest.approx(5.5)


def test_rails_that_may_not_be_read_give_no_figure(tmp_path: Path) -> None:
    monitors(tmp_path, AGX_ORIN, "hwmon")
    with as_nobody(tmp_path) as root:
        assert energy_counter(root)
    forbid(next(tmp_path.glob(f"{I2C}/1-0041/hwmon/*/curr2_input")))
    with as_nobody(tmp_path) as root:
        assert energy_counter(root) is None


def test_a_machine_without_an_instrument_has_no_figure(tmp_path: Path) -> None:
    assert energy_counter(tmp_path) is None


def test_power_is_integrated_by_trapezoids() -> None:
    watts = iter([0.0, 10.0, 10.0, 4.0])
    source = Power("ina3221", lambda: next(watts))
    source.start(100.0)
    assert [source.advance(at) for at in (101.0, 103.0, 104.0)] == [5.0, 20.0, 7.0]


def test_a_sample_that_fails_is_a_longer_gap() -> None:
    is_busy = iter([False, True])

    def watts() -> float:
        if next(is_busy, False):
            raise OSError("busy")
        return 2.0

    with EnergyMeter(Power("ina3221", watts)) as meter:
        time.sleep(0.45)
    energy = meter.energy()
    assert energy is not None and energy.joules == pytest.approx(2.0 * energy.seconds)
    assert energy.longest_gap_s > 0.35


@pytest.mark.parametrize("failed", ["first", "last"])
def test_a_block_whose_edge_was_not_read_has_no_figure(failed: str) -> None:
    is_busy = threading.Event()

    def watts() -> float:
        if is_busy.is_set():
            raise OSError("busy")
        return 2.0

    meter = EnergyMeter(Power("ina3221", watts))
    if failed == "first":
        is_busy.set()
    with meter:
        is_busy.clear()
        time.sleep(0.45)
        if failed == "last":
            is_busy.set()
            assert meter.joules_since_start is None
    assert meter.energy() is None and meter.joules_since_start is None


def test_power_that_flows_back_is_unknown() -> None:
    watts = iter([1.0, -2.0, 4.0, 4.0])
    source = Power("ina3221", lambda: next(watts))
    source.start(0.0)
    assert [source.advance(at) for at in (1.0, 2.0, 3.0)] == [None, None, 4.0]


def test_power_is_sampled_five_times_a_second(tmp_path: Path) -> None:
    """Never oftener; a busy machine may keep it from some."""
    monitors(tmp_path, TX2, "iio")

    def is_regular() -> bool:
        energy = metered(tmp_path, 0.9).energy()
        assert energy is not None and energy.source == "ina3221"
        assert energy.samples <= 5 * energy.seconds + 2
        return energy.samples >= 4 and energy.longest_gap_s < 0.5

    assert any(is_regular() for _ in range(10))


def test_no_thread_lives_between_two_pieces_of_work(tmp_path: Path) -> None:
    monitors(tmp_path, TX2, "iio")
    meter = metered(tmp_path)
    assert "energy" not in [thread.name for thread in threading.enumerate()]
    first = meter.joules_since_start
    assert first is not None and meter.joules_since_start == first
    with meter:
        begun = meter.joules_since_start
        assert begun is not None and begun < first
        assert "energy" in [thread.name for thread in threading.enumerate()]


def test_packages_are_summed_and_their_parts_are_not(tmp_path: Path) -> None:
    zones = {
        "intel-rapl:0": ("package-0", 1_000_000),
        "intel-rapl:0:0": ("core", 500_000),
        "intel-rapl:1": ("package-1", 2_000_000),
        "intel-rapl:2": ("psys", 3_000_000),
        "intel-rapl-mmio:0": ("package-0", 1_000_000),
    }
    rapl(tmp_path, zones)
    meter = energy_counter(tmp_path)
    assert meter is not None and meter.source == "rapl"
    with meter:
        rapl(tmp_path, {zone: (name, uj + 4_000_000) for zone, (name, uj) in zones.items()})
        assert meter.joules_since_start == pytest.approx(8.0)


def test_a_counter_that_begins_again_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "energy_uj"
    file.write_text("900")
    counter = Counter([(file, 1000)])
    counter.start(0.0)
    file.write_text("100")
    assert counter.advance(1.0) == pytest.approx(200e-6)


def test_a_counter_that_begins_again_without_a_range_is_unknown(tmp_path: Path) -> None:
    file = tmp_path / "energy_uj"
    file.write_text("900")
    counter = Counter([(file, 0)])
    counter.start(0.0)
    file.write_text("100")
    assert counter.advance(1.0) is None
    file.write_text("400")
    assert counter.advance(2.0) == pytest.approx(300e-6)


def test_counters_that_stand_still_tell_nothing(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("moves", "stands")]
    for file in files:
        file.write_text("900")
    counter = Counter([(file, 1000) for file in files])
    counter.start(0.0)
    assert counter.advance(0.06) == 0.0
    assert counter.advance(0.12) is None  # however often it was read meanwhile
    files[0].write_text("950")
    assert counter.advance(9.0) == pytest.approx(50e-6)


def test_a_counter_for_root_alone_gives_no_figure(tmp_path: Path) -> None:
    rapl(tmp_path, {"intel-rapl:0": ("package-0", 1)})
    with as_nobody(tmp_path) as root:
        assert energy_counter(root)
    forbid(tmp_path / "sys/class/powercap/intel-rapl:0/energy_uj")
    with as_nobody(tmp_path) as root:
        assert energy_counter(root) is None


@pytest.mark.parametrize(
    "files",
    [
        {f"{BATTERY}/power_now": 7_000_000},
        {f"{BATTERY}/voltage_now": 14_000_000, f"{BATTERY}/current_now": -500_000},
    ],
    ids=["power", "voltage and current"],
)
def test_a_battery_that_is_used_up_tells_power(tmp_path: Path, files: dict[str, int]) -> None:
    mouse = "sys/class/power_supply/hidpp_battery_0"
    put(tmp_path, DISCHARGING | files)
    put(tmp_path, {f"{mouse}/type": "Battery", f"{mouse}/scope": "Device"})
    assert mean_w(tmp_path) == pytest.approx(7.0)


def test_a_battery_that_is_charged_meanwhile_tells_nothing(tmp_path: Path) -> None:
    put(tmp_path, DISCHARGING | {f"{BATTERY}/power_now": 7_000_000})
    meter = energy_counter(tmp_path)
    assert meter is not None
    with meter:
        put(tmp_path, {f"{BATTERY}/status": "Charging"})
        assert meter.joules_since_start is None
    assert meter.energy() is None
