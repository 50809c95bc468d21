import io
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.formats.lines import Lines
from smidgen.edge_client.formats.paragraphs import blocks
from smidgen.edge_client.formats.source import Source


@given(st.lists(st.sampled_from(["", " ", "a", "b\x85c", "d "]), max_size=8), st.booleans())
def test_a_files_lines_are_those_of_its_blocks_and_those_between(
    lines: list[str], ends: bool
) -> None:
    body = "\n".join(lines) + "\n" * ends
    found = list(
        blocks(Lines(io.StringIO(body, newline="")), Source(Path()), lambda line: not line.strip())
    )
    numbered = dict(enumerate(body.split("\n"), start=1))
    told = {
        block.line - len(block.lines) + 1 + place: line.rstrip("\n")
        for block in found
        for place, line in enumerate(block.lines)
    }
    assert told == {number: line for number, line in numbered.items() if line.strip()}
    assert all(block.lines and not block.fault for block in found)
