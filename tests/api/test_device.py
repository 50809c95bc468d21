"""The device's functions, with a tiny base and real engines; nothing is printed."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

pytest.importorskip("onnxruntime")

import smidgen
from smidgen.edge_client.bases.base import Base
from tests.edge_client.commands.alone import PAIRS, write_data


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_data(tmp_path / "data")


@pytest.fixture(autouse=True)
def silent(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[None]:
    """No function prints, nor touches the home of who runs it."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    yield
    told = capfd.readouterr()
    assert (told.out, told.err) == ("", "")


def test_a_model_is_packed_and_the_pack_tells_itself(tiny_base: Base, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    packed = smidgen.pack(
        tiny_base.folder,
        8,
        tmp_path / "pack",
        progress=lambda done, total: told.append((done, total)),
    )
    assert packed.folder == tmp_path / "pack" and packed.bits == 8 and packed.is_new
    assert told[-1][0] == told[-1][1]
    assert not smidgen.pack(str(tiny_base.folder), 8, str(tmp_path / "pack")).is_new
    assert f"pack_id='{packed.pack_id}'" in repr(packed)


def test_plans_are_made_within_a_budget(tiny_base: Base) -> None:
    # What this process holds already counts: after other tests that may be a gigabyte.
    plans = smidgen.plan(tiny_base.folder, engine="onnx", memory_budget="4G", tokens=32)
    assert plans.budget_bytes == 4 << 30 and plans.chosen.fits
    assert plans.chosen in plans.options and len(repr(plans)) < 500
    with pytest.raises(smidgen.WrongInput, match="--bits 5 is not one of 4, 8 and 16"):
        smidgen.plan(tiny_base.folder, engine="onnx", bits=5)


def test_an_adapter_is_trained_and_labels_and_is_scored(
    tiny_base: Base, data: Path, tmp_path: Path
) -> None:
    lines: list[str] = []
    own: dict[str, Any] = {"base": tiny_base.folder, "engine": "onnx"}
    trained = smidgen.train(
        data, tmp_path / "out", tokens=32, epochs=1, rounds=2, tell=lines.append, **own
    )
    assert trained.folder == tmp_path / "out" and trained.num_examples == 3
    assert lines[0].startswith("plan: ") and lines[2].startswith("round 2 of 2: loss ")
    texts = ["rain at nine", "a door"]
    found = smidgen.predict(texts, trained.folder, **own)
    assert [one.text for one in found] == texts
    assert found[0].confidence == pytest.approx(found[0].probabilities[found[0].label], abs=1e-4)
    assert sum(found[1].probabilities.values()) == pytest.approx(1, abs=1e-4)
    scores = smidgen.evaluate(data, str(trained.folder), **own)
    assert scores.texts == 3 and scores.accuracy == trained.accuracy_after
    assert [score.count for score in scores.labels] == [1, 2]


def test_a_device_alone_trains_a_and_b_in_turn_where_its_adapter_asks_for_it(
    tiny_base: Base, data: Path, tmp_path: Path
) -> None:
    def tensors(rounds: int, lr: float) -> dict[str, Any]:
        out = tmp_path / f"{rounds}-{lr}"
        own: dict[str, Any] = {"base": tiny_base.folder, "engine": "onnx", "tokens": 32}
        smidgen.train(data, out, adapter="lora:4+rolora", rounds=rounds, epochs=1, lr=lr, **own)
        found: dict[str, Any] = load_file(out / "adapter_model.safetensors")
        return found

    once, twice, thrice = tensors(1, 1e-2), tensors(2, 1e-2), tensors(3, 1e-2)
    for name, tensor in twice.items():
        is_a = ".lora_A." in name  # rests in round 2 as B does in round 3
        assert (tensor == once[name]).all() == is_a and (tensor == thrice[name]).all() != is_a


def test_paragraphs_train_an_adapter_and_long_ones_are_told(
    tiny_base: Base, tmp_path: Path
) -> None:
    (tmp_path / "mine" / "unlabelled").mkdir(parents=True)
    (tmp_path / "mine" / "unlabelled" / "a.txt").write_text(f"rain today\n\n{'storm ' * 40}")
    lines: list[str] = []
    own: dict[str, Any] = {"base": tiny_base.folder, "engine": "onnx", "tell": lines.append}
    task = smidgen.Task("notes", kind="mlm")
    trained = smidgen.train(tmp_path / "mine", tmp_path / "out", task=task, tokens=32, **own)
    assert trained.num_examples == 2 and trained.test_examples == 0
    assert lines[1].startswith(
        "1 of 2 texts to train on are longer than what is read: the first, u"
    )
    with pytest.raises(smidgen.WrongInput, match=r"holds no labelled\..*put a labelled\.csv with"):
        smidgen.train(tmp_path / "mine", tmp_path / "out", task="agnews", **own)


@pytest.mark.parametrize(
    ("task", "part", "said"),
    [
        (smidgen.Task("notes", kind="mlm"), "test.txt", "no texts to train on; put an unlabelled"),
        (
            smidgen.Task("drugs", ("Drug",), kind="tagging"),
            "unlabelled.csv",
            "no labelled texts to train on; put a labelled.conll",
        ),
    ],
)
def test_texts_of_which_none_can_be_trained_on_say_what_is_missing(
    tiny_base: Base, tmp_path: Path, task: smidgen.Task, part: str, said: str
) -> None:
    (tmp_path / part).write_text("text\nrain\n")
    with pytest.raises(smidgen.WrongInput, match=said):
        smidgen.train(tmp_path, tmp_path / "out", task=task, base=tiny_base.folder, engine="onnx")


def test_a_task_of_ones_own_is_an_object_or_a_file(tiny_base: Base, data: Path) -> None:
    words = {"security": "door", "weather": "rain"}
    task = smidgen.Task("hub", ("security", "weather"), ("{text} [MASK]",), words)
    own: dict[str, Any] = {"base": tiny_base.folder, "engine": "onnx"}
    assert smidgen.predict(["rain"], task=task, **own) == smidgen.predict(
        ["rain"], task=task, **own
    )
    assert smidgen.predict(["rain"], task=data / "task.toml", **own)[0].label in task.labels


def test_pairs_are_tuples(tiny_base: Base, tmp_path: Path) -> None:
    (tmp_path / "pairs.toml").write_text(PAIRS)
    own: dict[str, Any] = {
        "base": tiny_base.folder,
        "engine": "onnx",
        "task": tmp_path / "pairs.toml",
    }
    assert smidgen.predict([("rain", "storm")], **own)[0].text_b == "storm"
    with pytest.raises(smidgen.WrongInput, match=r"text 2: .* two texts; give a tuple"):
        smidgen.predict([("rain", "storm"), "rain"], **own)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"texts": "rain"}, "a list of texts is expected"),
        ({"texts": ["rain", " "]}, "text 2 is empty"),
        ({"texts": [1]}, "text 1: a text or a tuple of two is expected, came int"),
        ({"texts": ["rain", ("a", "b", "c")]}, "text 2: a text or a tuple of two is expected"),
        ({"texts": [("a", None)]}, "text 1: a text or a tuple of two is expected, came tuple"),
        ({"texts": ["rain", "a \ud800"]}, "text 2 holds half of a surrogate pair"),
        ({"texts": [("rain", "\udcff")]}, "text 1 holds half of a surrogate pair"),
        ({"texts": ["rain"]}, "--task"),
        ({"texts": ["rain"], "adapter": "nowhere"}, "no such folder"),
    ],
)
def test_what_cannot_be_labelled_is_raised(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(smidgen.WrongInput, match=said):
        smidgen.predict(**wrong)


@pytest.mark.parametrize("ask", [smidgen.fill, smidgen.tag])
def test_half_a_surrogate_pair_is_no_text_to_fill_or_tag(ask: Callable[..., Any]) -> None:
    with pytest.raises(smidgen.WrongInput, match="text 1 holds half of a surrogate pair"):
        ask(["rain [MASK] \ud800"], "nowhere")


@pytest.mark.parametrize("wrong", [{"rounds": 0}, {"seed": -1}, {"batch": 0}])
def test_a_number_outside_its_range_is_raised(
    data: Path, tmp_path: Path, wrong: dict[str, Any]
) -> None:
    with pytest.raises(smidgen.WrongInput, match=f"--{next(iter(wrong))}"):
        smidgen.train(data, tmp_path / "out", **wrong)
