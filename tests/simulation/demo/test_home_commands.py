"""The example of four homes: what is said, what it means, and that no phrasing is in both parts."""

import json
import re
from pathlib import Path

from smidgen.edge_client.tasks.task import read_task
from smidgen.edge_client.texts.examples import read_folder
from smidgen.simulation.demo.home_commands import HOMES, WAYS, write_homes


def phrasings(folder: Path, part: str) -> set[str]:
    """What is said, with rooms, things and numbers taken out."""
    rooms = "|".join(room for rooms in HOMES.values() for room in rooms)
    things = "|".join({thing for ways in WAYS.values() for thing in ways[0]} - {"heating"})
    rows = [json.loads(line) for line in (folder / f"{part}.jsonl").read_text().splitlines()]
    said = [row["messages"][0]["content"] for row in rows]
    return {re.sub(rf"\b({rooms}|{things}|\d\d)\b", "_", one) for one in said}


def test_equal_arguments_write_equal_bytes_and_other_seeds_others(tmp_path: Path) -> None:
    one, two, three = (
        [
            path.read_bytes()
            for home in write_homes(tmp_path / name, seed=seed)
            for path in sorted(home.iterdir())
        ]
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    )
    assert one == two != three


def test_no_way_to_say_a_thing_is_in_both_parts_and_homes_have_their_own(tmp_path: Path) -> None:
    homes = write_homes(tmp_path, train=1000, test=1000)
    trained = [phrasings(home, "labelled") for home in homes]
    tested = set[str]().union(*(phrasings(home, "test") for home in homes))
    assert not tested & set[str]().union(*trained)
    assert sum(map(len, trained)) == len(set[str]().union(*trained)) > 30


def test_a_home_is_a_data_folder_of_conversations_with_commands(tmp_path: Path) -> None:
    for home in write_homes(tmp_path):
        data = read_folder(home, read_task(home / "task.toml"))
        assert (len(data.labelled), len(data.test)) == (36, 16)
        for one in (*data.labelled, *data.test):
            user, assistant = json.loads(one.text)
            command = json.loads(assistant["content"])
            assert command["where"] in HOMES[home.name] and command["where"] in user["content"]
            assert str(command.get("to", "")) in user["content"]
