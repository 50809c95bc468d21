"""Entries on disk: what comes back, what leaves first, what a kill or a full disk may do."""

import logging
import os
import signal
import subprocess
import sys
import time
from collections import OrderedDict
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smidgen.edge_client.engine.activation_cache import BLOCK_BYTES, HEADER, ActivationCache

IDS = np.arange(5)
NAMES = [f"{number:064x}" for number in range(6)]
ENTRY = HEADER.size + 2 * 3 * 4  # bytes of an entry of 3 rows and 4 columns


def some(number: int) -> np.ndarray:
    return np.full((3, 4), number, np.float16)


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


@given(
    st.lists(st.tuples(st.sampled_from(NAMES), st.booleans()), max_size=20),
    st.integers(0, 5),
)
@settings(max_examples=25)
def test_the_least_recently_used_leave_first_and_the_limit_holds(
    steps: list[tuple[str, bool]], room: int
) -> None:
    with TemporaryDirectory() as name:
        folder, expected = Path(name), OrderedDict[str, int]()
        cache = ActivationCache(folder, room * BLOCK_BYTES, "base")
        for number, (key, is_put) in enumerate(steps):
            if is_put and room:
                cache.put(key, some(number))
                expected[key] = number
                expected.move_to_end(key)
                if len(expected) > room:
                    expected.popitem(last=False)
            found = cache.get(key)
            if key in expected:
                expected.move_to_end(key)
                assert found is not None and (found == some(expected[key])).all()
            else:
                assert found is None
        assert cache.held_bytes == BLOCK_BYTES * len(files(folder))
        assert {path.name for path in files(folder)} == set(expected)


@given(st.integers(1, 9), st.integers(1, 9), st.binary(min_size=4))
@settings(max_examples=25)
def test_what_comes_back_is_what_was_put_bit_by_bit(rows: int, columns: int, body: bytes) -> None:
    array = np.resize(np.frombuffer(body[: len(body) // 2 * 2], np.float16), (rows, columns))
    with TemporaryDirectory() as folder:
        ActivationCache(Path(folder), 1 << 20, "base").put(NAMES[0], array)
        found = ActivationCache(Path(folder), 1 << 20, "base").get(NAMES[0])
    assert found is not None and found.shape == array.shape
    assert found.tobytes() == array.tobytes()


def test_a_key_tells_base_layers_part_and_text_apart(tmp_path: Path) -> None:
    cache, other = (ActivationCache(tmp_path / name, 0, name) for name in ("one", "two"))
    keys = [
        cache.key(2, IDS, "states"),
        cache.key(1, IDS, "states"),
        cache.key(2, IDS, "mean"),
        cache.key(2, IDS[:4], "states"),
        other.key(2, IDS, "states"),
    ]
    assert len(set(keys)) == 5 and keys[0] == cache.key(2, IDS.astype(np.int32), "states")


def test_a_key_tells_segments_apart(tmp_path: Path) -> None:
    cache = ActivationCache(tmp_path, 1 << 20, "base")
    others = (None, np.array([0, 0, 0, 1, 1]), np.array([0, 0, 1, 1, 1]))
    assert len({cache.key(1, IDS, "", segments) for segments in others}) == 3
    assert cache.key(1, np.arange(10), "") != cache.key(1, IDS, "", np.arange(5, 10))


def test_a_smaller_limit_at_the_next_start_lets_the_oldest_go(tmp_path: Path) -> None:
    cache = ActivationCache(tmp_path, 1 << 20, "base")
    for number, key in enumerate(NAMES):
        cache.put(key, some(number))
    for age, key in enumerate([*NAMES[1:], NAMES[0]]):
        [path] = tmp_path.rglob(key)
        os.utime(path, (age, age))
    again = ActivationCache(tmp_path, 2 * BLOCK_BYTES, "base")
    assert [key for key in NAMES if again.get(key) is not None] == [NAMES[0], NAMES[5]]


def test_entries_of_another_base_are_swept_and_nothing_else(tmp_path: Path) -> None:
    ActivationCache(tmp_path, 1 << 20, "old").put(NAMES[0], some(1))
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "kept.txt").write_text("not ours")
    ActivationCache(tmp_path, 1 << 20, "new").put(NAMES[1], some(2))
    assert {path.name for path in files(tmp_path)} == {"kept.txt", NAMES[1]}


def test_a_limit_of_nothing_keeps_nothing_and_empties_what_was_there(tmp_path: Path) -> None:
    ActivationCache(tmp_path, 1 << 20, "base").put(NAMES[0], some(1))
    cache = ActivationCache(tmp_path, 0, "base")
    cache.put(NAMES[1], some(2))
    assert cache.get(NAMES[0]) is None and cache.get(NAMES[1]) is None and not files(tmp_path)


def test_what_is_larger_than_the_limit_is_not_kept_and_drives_nothing_out(tmp_path: Path) -> None:
    cache = ActivationCache(tmp_path, BLOCK_BYTES, "base")
    cache.put(NAMES[0], some(1))
    cache.put(NAMES[1], np.zeros((BLOCK_BYTES // 2, 1), np.float16))
    assert cache.get(NAMES[0]) is not None and cache.get(NAMES[1]) is None


@pytest.mark.parametrize(("columns", "blocks"), [(1, 1), (2036, 1), (2037, 2)])
def test_small_entries_count_as_the_blocks_that_they_take(
    tmp_path: Path, columns: int, blocks: int
) -> None:
    limit = 64 * BLOCK_BYTES
    cache = ActivationCache(tmp_path, limit, "base")
    for number in range(200):
        cache.put(f"{number:064x}", np.zeros((1, columns), np.float16))
    again = ActivationCache(tmp_path, limit, "base")
    assert len(files(tmp_path)) == 64 // blocks
    assert cache.held_bytes == again.held_bytes == limit


# Damage


@given(st.integers(0, ENTRY - 1), st.integers(1, 255), st.booleans())
@settings(max_examples=40)
def test_a_torn_or_altered_file_is_a_miss_and_goes(place: int, flip: int, is_torn: bool) -> None:
    with TemporaryDirectory() as folder:
        cache = ActivationCache(Path(folder), 1 << 20, "base")
        cache.put(NAMES[0], some(7))
        [path] = files(Path(folder))
        content = bytearray(path.read_bytes())
        content[place] ^= flip
        path.write_bytes(content[:place] if is_torn else content)
        for reader in (ActivationCache(Path(folder), 1 << 20, "base"), cache):
            assert reader.get(NAMES[0]) is None and not path.exists()
            assert reader.held_bytes == 0


def test_an_entry_under_another_name_is_a_miss(tmp_path: Path) -> None:
    ActivationCache(tmp_path, 1 << 20, "base").put(NAMES[0], some(7))
    [path] = files(tmp_path)
    path.rename(path.with_name(NAMES[1]))
    assert ActivationCache(tmp_path, 1 << 20, "base").get(NAMES[1]) is None


def test_a_file_that_has_gone_is_a_miss(tmp_path: Path) -> None:
    cache = ActivationCache(tmp_path, 1 << 20, "base")
    cache.put(NAMES[0], some(7))
    files(tmp_path)[0].unlink()
    assert cache.get(NAMES[0]) is None
    cache.put(NAMES[0], some(8))
    assert cache.get(NAMES[0]) is not None


WRITER = """
import sys
from pathlib import Path
import numpy as np
from smidgen.edge_client.engine.activation_cache import ActivationCache
cache = ActivationCache(Path(sys.argv[1]), 4 << 20, "base")
number = 0
while True:
    number += 1
    cache.put(f"{number % 200:064x}", np.full((64, 256), number % 200, np.float16))
    if number == 50:
        print("writing", flush=True)
"""


def test_a_kill_leaves_whole_entries_or_none(tmp_path: Path) -> None:
    for spare_s in (0.0, 0.003, 0.01):
        command = [sys.executable, "-c", WRITER, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None and writer.stdout.readline() == "writing\n"
            time.sleep(spare_s)
            writer.send_signal(signal.SIGKILL)
        cache = ActivationCache(tmp_path, 4 << 20, "base")
        found = {number: cache.get(f"{number:064x}") for number in range(200)}
        kept = {number: array for number, array in found.items() if array is not None}
        assert len(kept) >= 50 and all((array == n).all() for n, array in kept.items())
        assert len(files(tmp_path)) == len(kept)  # nor a part of one


def test_a_disk_that_takes_no_more_is_told_once_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = ActivationCache(tmp_path, 1 << 20, "base")
    cache.put(NAMES[0], some(1))
    [path] = files(tmp_path)
    for name in NAMES[1:3]:
        path.with_name(f"{name}.part").mkdir()  # a file cannot be written where a folder is
    with caplog.at_level(logging.WARNING):
        for number, name in enumerate(NAMES[1:], start=1):
            cache.put(name, some(number))
    assert len(caplog.records) == 1 and "no more activations are kept" in caplog.text
    assert cache.get(NAMES[0]) is not None and cache.get(NAMES[5]) is None


def test_a_folder_that_cannot_be_made_is_told_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    with caplog.at_level(logging.WARNING):
        cache = ActivationCache(tmp_path / "file", 1 << 20, "base")
        cache.put(NAMES[0], some(1))
    assert cache.get(NAMES[0]) is None and len(caplog.records) == 1
