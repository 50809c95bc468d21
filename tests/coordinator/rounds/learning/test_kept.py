from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import save

from smidgen.coordinator.rounds.admission import Refusal, check_update
from smidgen.coordinator.rounds.events import Answered, RolledBack, StepClosed, StepOpened
from smidgen.coordinator.rounds.machine import decide
from smidgen.coordinator.rounds.state import State, evolve
from smidgen.edge_client.codecs import encode
from smidgen.edge_client.updates.settings import Updates
from smidgen.edge_client.wire.messages import PROTOCOL
from smidgen.edge_client.wire.tensors import (
    Update,
    encode_adapter,
)
from tests.coordinator.rounds.test_machine import CONFIG
from tests.edge_client.updates.coded import encode_coded

ADAPTER = {"x": np.zeros((9, 30), np.float32)}
DELTA = {"x": np.linspace(-1, 1, 270, dtype=np.float32).reshape(9, 30)}


def opened(index: int, codec: str = "int4") -> StepOpened:
    members = tuple((f"w{name}", name) for name in "abc")
    steps = (f"codec:{codec}",) if codec else ()
    return StepOpened("train", index, 1, f"adapter-{index - 1}", members, 0.0, updates=steps)


def closed(state: State, names: str, codec: str = "int4", refused: str = "") -> State:
    """A round that is closed, in which these answered."""
    index = state.round_index + 1
    state = evolve(state, opened(index, codec))
    for name in names:
        counted = ("codec",) if codec else ()
        state = evolve(state, Answered(f"w{name}", "done", "u", 8, norm=1.0, counted=counted))
    return evolve(state, StepClosed(f"adapter-{index}", 0.0, refused))


def test_the_journal_knows_whose_coded_update_counted_last() -> None:
    state = closed(closed(State("first"), "ab"), "b")
    assert state.kept.rounds == {"codec": {"a": 1, "b": 2}}
    assert closed(state, "abc", refused="too long").kept == state.kept
    back = evolve(state, RolledBack(0, "first", "it fell", 0.0))
    assert back.kept.rounds == {}


def test_a_run_without_codecs_keeps_nothing() -> None:
    assert closed(State("first"), "abc", codec="").kept.rounds == {}
    state = replace(State("first"), evaluated=0)
    for updates, steps in ((Updates(), ()), (Updates("topk:0.01"), ("codec:topk:0.01",))):
        event = decide(replace(CONFIG, updates=updates), state, "abcde", "secret", 0.0)
        assert isinstance(event, StepOpened) and event.updates == steps


@pytest.mark.parametrize("codec", ["int8", "int4", "topk:0.1"])
def test_a_coded_update_is_let_in_as_what_it_stands_for(codec: str) -> None:
    body, sent, _ = encode_coded(Update("w", 9, DELTA), codec, {})
    update = check_update(body, "w", ADAPTER)
    assert update.num_examples == 9 and (update.delta["x"] == sent["x"]).all()
    assert len(body) < len(encode_adapter(DELTA)) / 2


@pytest.mark.parametrize("codec", ["int8", "int4", "topk:0.1"])
def test_a_coded_update_of_another_adapter_is_refused_in_one_line(codec: str) -> None:
    body, _, _ = encode_coded(Update("w", 9, DELTA), codec, {})
    for other in ({"x": np.zeros((9, 40), np.float32)}, {"x": np.zeros(5, np.float32)}):
        if codec.startswith("topk") and other["x"].size > DELTA["x"].size:
            continue  # its places are there: the work that it names says what it is of
        with pytest.raises(Refusal, match=f"{codec[:4]}: .*(expected|beyond)") as caught:
            check_update(body, "w", other)
        assert caught.value.status == 422 and "\n" not in caught.value.detail


def test_an_unknown_codec_is_refused_by_its_name() -> None:
    body, _, _ = encode_coded(Update("w", 9, DELTA), "int8", {})
    with pytest.raises(Refusal, match="of protocol 14: Invalid enum value 'zip8'"):
        check_update(body.replace(b'\\"int8\\"', b'\\"zip8\\"'), "w", ADAPTER)


def test_coded_tensors_under_a_plain_header_are_refused() -> None:
    coded, _ = encode(DELTA, "int8", {})
    header = f'{{"num_examples":9,"protocol":{PROTOCOL},"work_id":"w"}}'
    with pytest.raises(Refusal, match=r"tensor '.' is int8, float32 expected"):
        check_update(save({"q": coded["q"]}, metadata={"smidgen": header}), "w", ADAPTER)


def test_bytes_that_a_disk_has_changed_end_in_a_refusal_or_a_finite_update() -> None:
    body = bytearray(encode_coded(Update("w", 9, DELTA), "int4", {})[0])
    for place in range(len(body)):
        flipped = bytes(body[:place] + bytes([body[place] ^ 0xFF]) + body[place + 1 :])
        try:
            update = check_update(flipped, "w", ADAPTER)
        except Refusal:
            continue
        assert np.isfinite(update.delta["x"]).all() and update.delta["x"].shape == (9, 30)
