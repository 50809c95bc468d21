import subprocess
import sys

from smidgen.edge_client.metering.memory import PROC, read_memory, reset_peak_rss
from smidgen.profiling.instruments.sampler import Peaks, Sampler

MIB = 1 << 20
HUMP = """
import sys, time
print("low", flush=True)
sys.stdin.readline()
held = b"x" * (100 << 20)
time.sleep(0.2)
del held
print("low again", flush=True)
sys.stdin.readline()
"""


def test_a_hump_of_100_mb_is_seen_from_outside_and_in_its_own_phase() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HUMP], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin and process.stdout
        with Sampler(process.pid) as sampler:
            process.stdout.readline()
            before = sampler.take()
            for _ in range(2):
                process.stdin.write("\n")
                process.stdin.flush()
                process.stdout.readline()
            process.wait()
            after = sampler.take()
    assert before.peak_anon_bytes < 60 * MIB
    assert 100 * MIB <= after.peak_anon_bytes - before.peak_anon_bytes < 110 * MIB
    assert after.peak_rss_bytes >= after.peak_anon_bytes
    assert after.samples >= 10


def test_a_process_that_is_gone_has_no_memory() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert read_memory(PROC / str(process.pid)) is None
    with Sampler(process.pid) as sampler:
        assert sampler.take() == Peaks()


def test_a_zombie_has_no_memory() -> None:
    command = [sys.executable, "-c", ""]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.read() == b""  # it has ended, nobody has waited
        while read_memory(PROC / str(process.pid)) is not None:
            pass


def test_the_peak_of_this_process_can_start_again() -> None:
    held = b"x" * (50 * MIB)
    high = read_memory()
    del held
    assert reset_peak_rss()
    low = read_memory()
    assert high and low and high.peak_rss_bytes - low.peak_rss_bytes > 40 * MIB
