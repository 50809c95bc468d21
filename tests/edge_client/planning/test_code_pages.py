"""The code of libraries is let go of, and is there again when it is used."""

import numpy as np

from smidgen.edge_client.metering.memory import read_memory
from smidgen.edge_client.planning.allocator import let_go_of_code


def resident_file_bytes() -> int:
    memory = read_memory()
    assert memory is not None and memory.file_bytes is not None
    return memory.file_bytes


def test_code_is_let_go_of_and_comes_back_when_it_is_used() -> None:
    table = np.arange(900, dtype=np.float32).reshape(30, 30)
    expected, before = (table @ table).tobytes(), resident_file_bytes()
    assert let_go_of_code() > 0
    assert resident_file_bytes() < before
    assert (table @ table).tobytes() == expected
