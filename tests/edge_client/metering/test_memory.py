from pathlib import Path

import pytest

from smidgen.edge_client.metering.memory import (
    PeakSpan,
    peak_rss_bytes,
    pss_bytes,
    reset_peak_rss,
    sizes,
)

MIB = 1 << 20


def touch(mebibytes: int) -> None:
    bytearray(b"x" * (mebibytes * MIB))


@pytest.mark.skipif(not reset_peak_rss(), reason="the kernel does not let the peak be reset")
def test_a_span_keeps_its_peak_when_somebody_else_resets_the_kernels() -> None:
    span = PeakSpan()
    touch(64)
    high = peak_rss_bytes()
    assert reset_peak_rss()
    assert peak_rss_bytes() < high - 32 * MIB
    assert span.is_own and span.peak_bytes() == high


@pytest.mark.skipif(not reset_peak_rss(), reason="the kernel does not let the peak be reset")
def test_a_new_span_begins_with_what_is_resident() -> None:
    touch(64)
    high = peak_rss_bytes()
    assert PeakSpan().peak_bytes() < high - 32 * MIB


def test_a_kernel_that_refuses_is_told(tmp_path: Path) -> None:
    assert not reset_peak_rss(tmp_path / "gone")


def test_shared_pages_count_in_part() -> None:
    found = pss_bytes()
    assert found is None or 0 < found <= peak_rss_bytes()
    assert pss_bytes(Path("/proc/none")) is None


def test_sizes_are_read_by_their_names() -> None:
    report = "Name:\tx\nVmRSS:\t  12 kB\nKernelPageSize:\nSpeed: fast\n"
    assert sizes(report) == {"VmRSS": 12 * 1024}
