from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sql

from smidgen.coordinator.config import ConfigError, read_run_config
from smidgen.coordinator.fleet.devices import enrol
from smidgen.coordinator.storage.credentials import insert_token
from smidgen.coordinator.storage.database import StoreError
from smidgen.coordinator.storage.devices import devices, revoke
from smidgen.coordinator.storage.runs import config_of, create_run, find_run
from smidgen.coordinator.storage.store import Store
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.tasks.ready_tasks import READY
from smidgen.edge_client.tasks.task import Task, task_toml
from smidgen.edge_client.texts.prompts.patterns import TaskError
from smidgen.edge_client.wire.fleet import DeviceFacts, Enrol
from smidgen.edge_client.wire.messages import PROTOCOL


def create(folder: Path, base: Base, **flags: object) -> None:
    config = read_run_config(None, {"base": str(base.folder), "task": "agnews", **flags})
    create_run(Store(folder / "store"), config, 0.0)


def test_a_name_is_given_once(tmp_path: Path, tiny_base: Base) -> None:
    create(tmp_path, tiny_base, name="news")
    with pytest.raises(StoreError, match=r"a run called news is there \(r\w+\); choose another"):
        create(tmp_path, tiny_base, name="news")
    create(tmp_path, tiny_base, name="news-2")


def test_a_run_that_would_never_label_is_refused_and_read_where_it_is_stored(
    tmp_path: Path, tiny_base: Base
) -> None:
    asked = {"adapter": "lora:2+ridge", "labelling": True}
    with pytest.raises(ConfigError, match="rounds: 3 or more: devices label once"):
        create(tmp_path, tiny_base, rounds=2, **asked)
    create(tmp_path, tiny_base, rounds=3, **asked)
    with closing(Store(tmp_path / "store")) as store:
        (run,) = store.runs()
        once = replace(run, config=run.config.replace('"rounds":3', '"rounds":1'))
        assert config_of(once).rounds == 1


def test_a_name_that_another_process_takes_meanwhile_is_refused(
    tmp_path: Path, tiny_base: Base
) -> None:
    store = Store(tmp_path / "store")
    told: list[str] = []

    def be_quicker(*said: Any) -> None:
        if said[2].startswith("INSERT INTO runs") and not told:
            told.append("once")
            create(tmp_path, tiny_base, name="news")

    sql.event.listen(store.database.engine, "before_cursor_execute", be_quicker)
    config = read_run_config(
        None, {"base": str(tiny_base.folder), "task": "agnews", "name": "news"}
    )
    with pytest.raises(StoreError, match=r"a run called news is there"):
        create_run(store, config, 0.0)
    assert told and len(store.runs()) == 1


def test_a_name_that_fits_two_runs_of_an_old_store_is_refused(
    tmp_path: Path, tiny_base: Base
) -> None:
    create(tmp_path, tiny_base, name="news")
    store = Store(tmp_path / "store")
    (first,) = store.runs()
    store.add_run(replace(first, run_id="rfeedbeef00"))
    with pytest.raises(StoreError, match=rf"fits 2 runs; give the id, one of .*{first.run_id}"):
        find_run(store, "news")
    assert find_run(store, first.run_id) == first


def test_a_ready_made_task_goes_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('task = "yelp-f"\n')
    assert read_run_config(tmp_path / "run.toml", {}).task == READY["yelp-f"]
    assert read_run_config(tmp_path / "run.toml", {"task": "xnli"}).task == READY["xnli"]


def test_an_ensemble_survives_a_run_file(tmp_path: Path) -> None:
    asked = replace(READY["agnews"], ensemble=True)
    (tmp_path / "task.toml").write_text(task_toml(asked))
    (tmp_path / "run.toml").write_text('task = "task.toml"\n')
    assert read_run_config(tmp_path / "run.toml", {}).task == asked


def test_a_run_whose_pattern_leaves_no_room_is_refused(tmp_path: Path, tiny_base: Base) -> None:
    task, pattern = tmp_path / "task.toml", "this is about the [MASK] : {text}"
    task.write_text(task_toml(replace(READY["agnews"], patterns=(pattern,))))
    create(tmp_path, tiny_base, task=str(task), tokens=9)
    with pytest.raises(TaskError, match=r"'this is about .* no room for a text in 8 tokens"):
        create(tmp_path, tiny_base, task=str(task), tokens=8)
    create(
        tmp_path, tiny_base, task=str(task), tokens=8, adapter="head", name="head"
    )  # asks no pattern


def test_a_run_that_no_device_could_read_is_refused(tmp_path: Path) -> None:
    for letter, is_refused in (("x", False), ("标", True)):
        words = {f"{letter * 30}{index:04}": f"w{index}" for index in range(1000)}
        task = Task(f"{letter}-many", tuple(words), ("{text} [MASK]",), words)
        (tmp_path / "task.toml").write_text(task_toml(task), "utf-8")
        config = read_run_config(None, {"task": str(tmp_path / "task.toml")})
        with closing(Store(tmp_path / "store")) as store:
            if not is_refused:
                create_run(store, config, 0.0)
                continue
            with pytest.raises(TaskError, match="bytes of a message to a device") as refused:
                create_run(store, config, 0.0)
            assert "\n" not in str(refused.value) and len(store.runs()) == 1


def test_a_run_whose_label_word_is_unknown_is_refused(tmp_path: Path, tiny_base: Base) -> None:
    words = READY["agnews"].verbalizer | {"world": "ሰላም"}
    task = tmp_path / "task.toml"
    task.write_text(task_toml(replace(READY["agnews"], verbalizer=words)), encoding="utf-8")
    with pytest.raises(TaskError, match="label word 'ሰላም' of 'world' is unknown"):
        create(tmp_path, tiny_base, task=str(task))


def enrolled(store: Store, name: str, **tags: str) -> None:
    token = f"s{name:_>30}"
    store.database.write(insert_token(token, 0.0, uses=1, tags=tags)[1])
    facts = DeviceFacts("test", 1, 1 << 30, "3.11", "0")
    enrol(
        store, Enrol(PROTOCOL, name, facts, token, {"site": "its own word"}), f"k{name:_>30}", 0.0
    )


def test_a_tag_that_no_device_has_is_refused_with_the_tags_there_are(
    tmp_path: Path, tiny_base: Base
) -> None:
    create(tmp_path, tiny_base, name="first")
    store = Store(tmp_path / "store")
    enrolled(store, "pi", site="hall")
    enrolled(store, "hub", site="attic", language="en")
    said = r"no device was given the tags site=kitchen; the tags given are: language=en, site=att"
    with pytest.raises(StoreError, match=said):
        create(tmp_path, tiny_base, name="second", tags={"site": "kitchen"})
    with pytest.raises(StoreError, match=r"no device was given the tags language=en site=hall"):
        create(tmp_path, tiny_base, name="second", tags={"site": "hall", "language": "en"})
    create(tmp_path, tiny_base, name="second", tags={"site": "hall"})
    assert {config_of(run).name for run in store.runs()} == {"first", "second"}
    _, cellar = insert_token("a secret", 0.0, tags={"site": "cellar"})
    store.database.write(cellar)
    create(tmp_path, tiny_base, name="third", tags={"site": "cellar"})  # of devices to come


def test_the_tags_of_revoked_devices_do_not_count(tmp_path: Path, tiny_base: Base) -> None:
    create(tmp_path, tiny_base, name="first")
    store = Store(tmp_path / "store")
    enrolled(store, "pi", site="hall")
    revoke(store.database, devices(store.database)[0].device_id, 1.0)
    enrolled(store, "hub")
    with pytest.raises(
        StoreError, match="no device was given the tags site=hall; none was given a tag"
    ):
        create(tmp_path, tiny_base, name="second", tags={"site": "hall"})
