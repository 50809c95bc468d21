"""Runs that tag words and runs that guess masked ones: real processes, killed on their way."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from smidgen.edge_client.bases.base import open_base
from smidgen.simulation.demo.home_commands import write_homes
from tests.edge_client.tasks.tiny_decoder import write_tiny_decoder
from tests.end_to_end.conftest import (
    CLIENTS,
    EPOCHS,
    TASK,
    TEXTS,
    Scene,
    wait_for,
    write_labelled,
)

TAGGING = 'name = "rooms"\nkind = "tagging"\nlabels = ["Place", "Time"]\n'
MASKED = 'name = "notes"\nkind = "mlm"\n[masking]\nshare = 0.25\n'
CHAT = 'name = "home"\nkind = "chat"\n'
COMPLETION = 'name = "notes"\nkind = "completion"\n'
WORDS = TASK.replace("{text} . this is about [MASK] .", "{text}:[MASK]")  # the first byte answers
REFUSED = "grandma's diagnosis is nobody's business"
TEMPLATE = (
    "{% for m in messages %}{{ raise_exception('no: ' + m.content) if 'diagnosis' in m.content }}"
    "{{ m.role[0] }} {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}a {% endif %}"
)
TAGS = {"door": "B-Place", "gate": "B-Place", "nine": "B-Time", "today": "B-Time"}


def texts_of(name: str) -> list[str]:
    """A device's texts; each device holds them in another order."""
    texts = [text for some in TEXTS.values() for text in some]
    turn = sum(map(ord, name)) % len(texts)
    return texts[turn:] + texts[:turn]


def write_tagged(folder: Path, name: str) -> None:
    """Tagged words; `b` keeps none to test on."""
    rows = []
    for text in texts_of(name):
        words = text.split()
        rows.append({"tokens": words, "tags": [TAGS.get(word, "O") for word in words]})
    body = "".join(json.dumps(row) + "\n" for row in rows)
    for part in ("labelled", "test") if name != "b" else ("labelled",):
        (folder / f"{part}.jsonl").write_text(body)


def write_plain(folder: Path, name: str) -> None:
    """Texts without labels, a line each; `b` keeps none to test on."""
    body = "".join(text + "\n" for text in texts_of(name))
    for part in ("unlabelled", "test") if name != "b" else ("unlabelled",):
        (folder / f"{part}.txt").write_text(body)


def write_conversations(folder: Path, name: str) -> None:
    """Conversations; `b` keeps none to test on, and the template refuses one of each device."""
    rows = [
        {"prompt": text, "completion": json.dumps({"said": text.split()[0]})}
        for text in texts_of(name)
    ]
    body = "".join(
        json.dumps(row) + "\n" for row in (*rows, {"prompt": REFUSED, "completion": "x"})
    )
    for part in ("labelled", "test") if name != "b" else ("labelled",):
        (folder / f"{part}.jsonl").write_text(body)


def write_homes_of(folder: Path, name: str) -> None:
    """A home of the chat demo, each device another."""
    homes = write_homes(folder / "homes")
    for part in (homes[CLIENTS.index(name)]).glob("*.jsonl"):
        part.rename(folder / part.name)
    shutil.rmtree(folder / "homes")


def set_chat(scene: Scene, task: str = CHAT, write: "Write | None" = None) -> None:
    """Give a scene a decoder, and what its devices say."""
    pytest.importorskip("jinja2")
    scene.task, scene.write = task, write or write_conversations
    scene.base = open_base(str(write_tiny_decoder(scene.folder / "base", TEMPLATE)))


Write = Callable[[Path, str], None]
KINDS = [
    pytest.param(TAGGING, "lora:2+head", write_tagged, id="tagging"),
    pytest.param(MASKED, "lora:2", write_plain, id="mlm"),
    pytest.param(CHAT, "lora:2", write_conversations, id="chat"),
    pytest.param(CHAT, "lora:8", write_homes_of, id="homes of the chat demo"),
    pytest.param(COMPLETION, "lora:2", write_plain, id="completion"),
    pytest.param(WORDS, "lora:2", write_labelled, id="label words of a decoder"),
]


def begun(scene: Scene, task: str, adapter: str, write: Write) -> str:
    """Two rounds on their way; the coordinator's address."""
    scene.task, scene.write = task, write
    more = ["--adapter", adapter, scene.fixed_deadlines()]
    if task in (CHAT, COMPLETION, WORDS):
        set_chat(scene, task, write)
    if write is write_homes_of:
        more += ["--tokens", "192"]
    scene.create(2, len(CLIENTS), EPOCHS // 2, *more)
    url = scene.serve()
    for name in CLIENTS:
        scene.client(name, url, "--engine", "onnx")
    return url


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.parametrize(("task", "adapter", "write"), KINDS)
def test_kill_9_of_a_client_and_of_the_coordinator_changes_no_byte(
    scene: Scene, other_scene: Scene, task: str, adapter: str, write: Write
) -> None:
    begun(other_scene, task, adapter, write)
    other_scene.finish()
    url = begun(scene, task, adapter, write)
    wait_for(lambda: "round 1 of 2: train" in scene.log("a"), scene.fleet.check)
    scene.kill("a")
    scene.client("a", url, "--engine", "onnx")
    wait_for(lambda: "round 2 of 2: train" in scene.log("b"), scene.fleet.check)
    scene.kill("coordinator")
    scene.serve(int(url.rsplit(":", 1)[1]))
    scene.finish()
    assert scene.adapter() == other_scene.adapter()
    status, undisturbed = (one.coordinator_json("status") for one in (scene, other_scene))
    assert status["phase"] == "finished"
    for key in ("f1_by_round", "entities_by_round", "accuracy_by_round", "perplexity_by_round"):
        assert status[key] == undisturbed[key]


@pytest.mark.slow
def test_tagging_learns_and_tells_its_f1_and_no_word_of_a_text(scene: Scene) -> None:
    begun(scene, TAGGING, "lora:2+head", write_tagged)
    scene.finish()
    status = scene.coordinator_json("status")
    f1 = list(status["f1_by_round"].values())
    assert len(f1) == 3 and f1[-1] > f1[0] and status["accuracy_by_round"] == {}
    assert set(status["entities_by_round"]["2"]["by_type"]) == {"Place", "Time"}
    assert "evaluation closed" in scene.log("coordinator") and ", F1 " in scene.log("coordinator")
    assert not any(word in scene.log("coordinator") for word in ("grandma", "storm", "B-Place"))


@pytest.mark.slow
def test_masked_words_are_learned_and_tell_their_perplexity(scene: Scene) -> None:
    begun(scene, MASKED, "lora:2", write_plain)
    scene.finish()
    status = scene.coordinator_json("status")
    found = list(status["perplexity_by_round"].values())
    assert len(found) == 3 and found[-1] < found[0] and len(status["accuracy_by_round"]) == 3
    assert status["f1_by_round"] == {} and ", perplexity " in scene.log("coordinator")
    assert not any(word in scene.log("coordinator") for word in ("grandma", "storm"))


@pytest.mark.slow
def test_answers_are_learned_and_no_word_of_a_conversation_is_told(scene: Scene) -> None:
    begun(scene, CHAT, "lora:2", write_conversations)
    scene.finish()
    status = scene.coordinator_json("status")
    found = list(status["perplexity_by_round"].values())
    assert len(found) == 3 and found[-1] < found[0] and len(status["accuracy_by_round"]) == 3
    told = scene.log("a")
    assert "texts to train on: " in told and "1 template" in told and "too long" in told
    store = [path.read_bytes() for path in (scene.folder / "store").rglob("*") if path.is_file()]
    for seen in (told.encode(), scene.log("coordinator").encode(), *store):
        assert not any(word in seen for word in (b"grandma", b"storm", b"diagnosis"))
