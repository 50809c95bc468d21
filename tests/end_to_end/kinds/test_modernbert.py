"""A small ModernBERT whose classifier reads the mean, packed in 4 bits, by the real commands."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import smidgen
from smidgen.edge_client.adapters.peft_folder import CONFIG
from smidgen.edge_client.bases.base import Base, open_base
from smidgen.edge_client.personal.choice import chosen_in
from tests.command_line import smidgen as command
from tests.edge_client.commands.alone import client, train, write_data
from tests.edge_client.commands.kinds.texts import last_object, masked_data, tagging_data
from tests.end_to_end.conftest import TEXTS, Scene, write_labelled
from tests.families import write_family

peft = pytest.importorskip("peft")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

LABELLING = "[labelling]\nconfidence = 0.5\nis_gated = false\n"
WALKS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "cloze": (write_data, "lora:2"),
    "tagging": (tagging_data, "lora:2+head"),
    "mlm": (masked_data, "lora:2"),
    "text": (write_data, "lora:2+head"),
}


@pytest.fixture
def plain(tiny_base: Base, tmp_path: Path) -> Base:
    write_family("modernbert", tiny_base, tmp_path / "plain")
    config = tmp_path / "plain" / "config.json"
    keys = json.loads(config.read_text()) | {"classifier_pooling": "mean"}
    config.write_text(json.dumps(keys))
    return open_base(str(tmp_path / "plain"))


def write_texts(folder: Path, name: str) -> None:
    write_labelled(folder, name)
    texts = [f"today {text}" for texts in TEXTS.values() for text in texts]
    (folder / "unlabelled.csv").write_text("\n".join(["text", *texts]) + "\n")


@pytest.mark.slow
def test_modernbert_is_packed_trained_labelled_personalized_and_exported(
    scene: Scene, plain: Base, tmp_path: Path
) -> None:
    done = command("pack", str(plain.folder), "--bits", "4", "--out", str(tmp_path / "pack"))
    assert done.exit_code == 0, done
    scene.base = pack = open_base(str(tmp_path / "pack"))
    for name, (write, adapter) in WALKS.items():
        data, out = write(tmp_path / f"{name}-data"), tmp_path / name
        assert train(pack, data, out, "--adapter", adapter).exit_code == 0
        score = last_object(client("evaluate", pack, "--data", data, "--adapter", out, "--json"))
        assert score["texts"] > 0, name
    scene.write = write_texts
    (tmp_path / "run.toml").write_text(LABELLING)
    scene.create(2, 2, 10, "--adapter", "lora:2+head", str(tmp_path / "run.toml"))
    url = scene.serve()
    for name, engine in (("a", "onnx"), ("b", "torch")):
        scene.client(name, url, "--engine", engine, "--personal", "--rank-budget", "1")
    scene.finish()
    status = scene.coordinator_json("status")
    assert sum(status["pseudo_labels_by_round"].values()) > 0
    _, choice = chosen_in(tmp_path / "state" / "a")
    assert not choice.failure and choice.accuracy is not None
    scene.adapter()
    assert json.loads((tmp_path / "adapter" / CONFIG).read_text())["task_type"] == "SEQ_CLS"


def test_peft_gives_the_answers_of_a_head_that_reads_the_mean(plain: Base, tmp_path: Path) -> None:
    data, out = write_data(tmp_path / "data"), tmp_path / "adapter"
    assert train(plain, data, out, "--adapter", "lora:2+head").exit_code == 0
    labels = ["security", "weather"]
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        plain.folder, num_labels=len(labels)
    )
    model = peft.PeftModel.from_pretrained(model, out).eval()
    file = str(plain.folder / "tokenizer.json")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=file)
    texts = [text for texts in TEXTS.values() for text in texts]
    for text, answer in zip(
        texts, smidgen.predict(texts, out, base=plain.folder, engine="onnx"), strict=True
    ):
        theirs = model(input_ids=torch.tensor([tokenizer.encode(text)])).logits.softmax(-1)[0]
        ours = [answer.probabilities[label] for label in labels]
        assert theirs.tolist() == pytest.approx(ours, abs=1e-4)
