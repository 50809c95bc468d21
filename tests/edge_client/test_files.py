"""Files in the order in which they were written, whatever the clock said."""

import os
import tempfile
from functools import partial
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.files import make_latest, oldest_first, write_atomically

NANOSECONDS = st.integers(0, 4 * 10**18)


@given(turns=st.lists(st.tuples(st.sampled_from("abcde"), NANOSECONDS), max_size=12))
def test_whatever_the_clock_says_files_lie_in_the_order_in_which_they_were_made_the_latest(
    turns: list[tuple[str, int]],
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, order = Path(name), dict[str, None]()
        for file, clock_ns in turns:
            (folder / file).touch()
            make_latest(folder / file, partial(int, clock_ns))
            order.pop(file, None)
            order[file] = None
        assert [path.name for path in oldest_first(folder.iterdir())] == list(order)


def test_what_is_written_as_the_latest_is_so_at_once(tmp_path: Path) -> None:
    (tmp_path / "old").touch()
    os.utime(tmp_path / "old", (4e9, 4e9))
    write_atomically(tmp_path / "new", b"", is_latest=True)
    assert [path.name for path in oldest_first(tmp_path.iterdir())] == ["old", "new"]


def test_a_link_is_made_the_latest_itself(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    os.utime(tmp_path / "file", (1.0, 1.0))
    (tmp_path / "link").symlink_to(tmp_path / "file")
    make_latest(tmp_path / "link")
    assert (tmp_path / "file").stat().st_mtime == 1.0
